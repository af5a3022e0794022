//! Profiling overhead: throughput with each probe as a share of throughput without probes.
//!
//!   cargo run --release -p pgassay --example `cost_of_watching` -- [PAIRS [MILLISECONDS [VERSION [PROBE...]]]]
//!
//! Load: select-only, prepared, 16 clients on two threads, against a temporary server. Intervals with
//! and without a probe alternate on the same connections, in an order that changes from pair to pair,
//! and all probes take turns within each round, so that all meet the same conditions. CPU time per
//! transaction, of the backends and of this program (load and probe), is measured as well: on a
//! saturated machine its increase equals the loss of throughput, and other programs disturb it less.
//! Each interval is a line of raw data on stdout (CSV); the medians of the ratios with their range,
//! and the size of the collected data, follow on stderr.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a separate program"
)]

use anyhow::{Context, Result, bail};
use pgassay_load::{ClientPool, ClientPoolConfig, RunLength};
use pgassay_profile::{
    LiveServer, OffCpuConfig, ProcessStates, ProcessTotals, Sampler, SamplerConfig, Samples,
    WaitLog, WaitReader,
};
use pgassay_script::{ParseOptions, ParsedScript, QueryProtocol, VariableNames};
use pgassay_test_support::servers;
use pgassay_wire::conninfo::{EmptyEnvironment, Request};
use std::fmt::Write as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const CLIENTS: u32 = 16;
const ROWS: u32 = 100_000;
const WARM_UP: Duration = Duration::from_millis(400);
/// The rate of wait samples in profiled trials of studies.
const WAITS_HZ: u32 = 49;

/// The probe in one interval of each pair.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Probe {
    /// No probe: the ratio of two equal intervals.
    Nothing,
    /// CPU stacks.
    OnCpu { hz: u32 },
    /// Off-CPU slices only: `slice_ms` of every `every_ms`.
    OffCpu { slice_ms: u64, every_ms: u64 },
    /// Wait events and totals only.
    Waits,
    /// CPU stacks, off-CPU slices, wait events and totals; studies use 499 Hz.
    Ledger { hz: u32 },
    /// `perf record` on all CPUs.
    Perf { hz: u32, graph: &'static str },
}

const PROBES: [(&str, Probe); 11] = [
    ("nothing", Probe::Nothing),
    ("on-cpu-99", Probe::OnCpu { hz: 99 }),
    (
        "off-cpu",
        Probe::OffCpu {
            slice_ms: 10,
            every_ms: 150,
        },
    ),
    (
        "off-cpu-long",
        Probe::OffCpu {
            slice_ms: 50,
            every_ms: 500,
        },
    ),
    (
        "off-cpu-all",
        Probe::OffCpu {
            slice_ms: 1_000_000,
            every_ms: 1_000_000,
        },
    ),
    ("waits", Probe::Waits),
    ("ledger-99", Probe::Ledger { hz: 99 }),
    ("ledger-199", Probe::Ledger { hz: 199 }),
    ("ledger-499", Probe::Ledger { hz: 499 }),
    (
        "perf-fp-99",
        Probe::Perf {
            hz: 99,
            graph: "fp",
        },
    ),
    (
        "perf-dwarf-99",
        Probe::Perf {
            hz: 99,
            graph: "dwarf",
        },
    ),
];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| match arguments.get(at) {
        Some(text) => text
            .parse()
            .with_context(|| format!("{text:?} is not a number")),
        None => Ok(default),
    };
    let (pairs, millis) = (number(0, 12)?, number(1, 1000)?);
    let version = arguments.get(2).map_or("18", String::as_str);
    let chosen = |name: &str| arguments.len() <= 3 || arguments[3..].iter().any(|it| it == name);
    let probes: Vec<_> = PROBES.iter().filter(|it| chosen(it.0)).collect();
    let Some(server) = servers::start(version) else {
        bail!("PostgreSQL {version} is not available");
    };
    fill(&server)?;
    let mut pool = crew(&server.conninfo())?;
    let postmaster_pid = u32::try_from(server.postmaster_pid())?;
    let mut stretch = Stretch {
        crew: &mut pool,
        measure: Duration::from_millis(millis),
    };
    stretch.run(&Watch::Nothing)?;
    let watches: Vec<Watch> = probes
        .iter()
        .map(|(_, probe)| Watch::open(*probe, postmaster_pid))
        .collect::<Result<_>>()?;
    let mut ratios: Vec<[Vec<f64>; 2]> = vec![Default::default(); probes.len()];
    let mut kept: Vec<Kept> = vec![Kept::default(); probes.len()];
    println!(
        "probe,pair,tps_watched,tps_unwatched,cpu_us_watched,cpu_us_unwatched,kept_bytes,lost,\
         sampled_ns,exact_ns"
    );
    for pair in 0..pairs {
        for (at, (name, _)) in probes.iter().enumerate() {
            let mut tps = [0.0; 2];
            let mut cpu_us = [0.0; 2];
            for half in 0..2 {
                let is_watched = (half + pair) % 2 == 0;
                let watch = if is_watched {
                    &watches[at]
                } else {
                    &Watch::Nothing
                };
                let (rate, seen) = stretch.run(watch)?;
                tps[usize::from(!is_watched)] = rate.tps;
                cpu_us[usize::from(!is_watched)] = rate.cpu_us;
                if is_watched {
                    kept[at] = seen;
                }
            }
            let Kept {
                bytes,
                lost,
                sampled_ns,
                exact_ns,
                ..
            } = kept[at];
            println!(
                "{name},{pair},{:.0},{:.0},{:.2},{:.2},{bytes},{lost},{sampled_ns},{exact_ns}",
                tps[0], tps[1], cpu_us[0], cpu_us[1]
            );
            ratios[at][0].push(tps[0] / tps[1]);
            ratios[at][1].push(cpu_us[1] / cpu_us[0]);
        }
    }
    pool.close();
    server.stop()?;
    for ((name, _), (ratios, kept)) in probes.iter().zip(ratios.iter_mut().zip(kept)) {
        for it in ratios.iter_mut() {
            it.sort_by(f64::total_cmp);
        }
        let words = |sorted: &[f64]| {
            let last = sorted[sorted.len() - 1];
            format!("{:.3} [{:.3}-{last:.3}]", median(sorted), sorted[0])
        };
        eprintln!(
            "{name:14} throughput ratio {}, by CPU per transaction {}; last interval: {} kB, {}",
            words(&ratios[0]),
            words(&ratios[1]),
            kept.bytes / 1000,
            kept.words
        );
    }
    Ok(())
}

fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    }
}

/// The data collected in an interval with a probe.
#[derive(Debug, Clone, Default)]
struct Kept {
    bytes: u64,
    lost: u64,
    /// CPU time that the backends' samples stand for.
    sampled_ns: u64,
    /// The same according to kernel statistics.
    exact_ns: u64,
    words: String,
}

/// The throughput of an interval.
#[derive(Debug, Clone, Copy)]
struct Rate {
    tps: f64,
    /// CPU time of backends and this program per transaction.
    cpu_us: f64,
}

/// An opened probe. As in a run, samplers stay open, because they read programs and libraries only
/// once.
enum Watch {
    Nothing,
    Waits(WaitReader),
    Sampler(Sampler, Option<WaitReader>),
    Perf { hz: u32, graph: &'static str },
}

impl Watch {
    fn open(probe: Probe, postmaster_pid: u32) -> Result<Self> {
        let reader = WaitReader::open(&LiveServer::of_process(postmaster_pid)?)?;
        let sampler = |frequency_hz, off_cpu| -> Result<Sampler> {
            let sampler = Sampler::open(&SamplerConfig {
                postmaster_pids: vec![postmaster_pid],
                frequency_hz,
                off_cpu,
                ..SamplerConfig::default()
            })?;
            sampler.watch_waits(postmaster_pid, reader)?;
            Ok(sampler)
        };
        Ok(match probe {
            Probe::Nothing => Self::Nothing,
            Probe::Waits => Self::Waits(reader),
            Probe::OnCpu { hz } => Self::Sampler(sampler(hz, None)?, None),
            Probe::OffCpu { slice_ms, every_ms } => {
                let off_cpu = OffCpuConfig {
                    slice: Duration::from_millis(slice_ms),
                    every: Duration::from_millis(every_ms),
                    ..OffCpuConfig::default()
                };
                Self::Sampler(sampler(1, Some(off_cpu))?, None)
            }
            Probe::Ledger { hz } => {
                Self::Sampler(sampler(hz, Some(OffCpuConfig::default()))?, Some(reader))
            }
            Probe::Perf { hz, graph } => Self::Perf { hz, graph },
        })
    }
}

/// Runs intervals of load.
struct Stretch<'a> {
    crew: &'a mut ClientPool,
    measure: Duration,
}

impl Stretch<'_> {
    fn run(&mut self, watch: &Watch) -> Result<(Rate, Kept)> {
        if !matches!(watch, Watch::Perf { .. }) {
            self.warm_up()?;
        }
        match watch {
            Watch::Nothing => Ok((self.load()?, Kept::default())),
            Watch::Waits(reader) => Ok((self.with_waits(reader)?, Kept::default())),
            Watch::Sampler(sampler, waits) => self.sampled(sampler, waits.as_ref()),
            Watch::Perf { hz, graph } => self.with_perf(*hz, graph),
        }
    }

    /// Load that is not measured, so that all intervals start alike. Throughput is higher after a pause,
    /// such as while samples of the previous interval are processed: two equal intervals of 0.3 s
    /// differed by 4%.
    fn warm_up(&mut self) -> Result<()> {
        self.crew.run(&RunLength::Timed {
            settle: Duration::ZERO,
            measure: WARM_UP,
        })?;
        Ok(())
    }

    fn load(&mut self) -> Result<Rate> {
        let pids: Vec<u32> = self
            .crew
            .backend_pids()
            .iter()
            .map(|it| it.unsigned_abs())
            .chain([std::process::id()])
            .collect();
        let before = ProcessTotals::read(&pids);
        let measured = self.crew.run(&RunLength::Timed {
            settle: Duration::from_millis(100),
            measure: self.measure,
        })?;
        let used = ProcessTotals::read(&pids).since(&before).total();
        let all = measured.transactions + measured.settle_transactions;
        Ok(Rate {
            tps: measured.transactions as f64 * 1e6 / measured.window_us as f64,
            cpu_us: used.on_cpu_ns as f64 / 1e3 / all.max(1) as f64,
        })
    }

    fn sampled(&mut self, sampler: &Sampler, waits: Option<&WaitReader>) -> Result<(Rate, Kept)> {
        let backends = self.backends();
        sampler.start()?;
        let before = ProcessTotals::read(&backends);
        let tps = match waits {
            Some(reader) => self.with_waits(reader)?,
            None => self.load()?,
        };
        let exact = ProcessTotals::read(&backends).since(&before).total();
        let samples = sampler.stop()?;
        let mut kept = kept(&samples, &backends);
        kept.exact_ns = exact.on_cpu_ns;
        Ok((tps, kept))
    }

    fn with_waits(&mut self, reader: &WaitReader) -> Result<Rate> {
        let backends = self.backends();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let (mut log, mut states) = (WaitLog::default(), ProcessStates::default());
                while !stop.load(Ordering::Relaxed) {
                    log.sweep(reader, &mut states, backends.iter().copied());
                    if log.sweeps.is_multiple_of(u64::from(WAITS_HZ)) {
                        std::hint::black_box(ProcessTotals::read(&backends));
                    }
                    thread::sleep(Duration::from_secs(1) / WAITS_HZ);
                }
            });
            let rate = self.load();
            stop.store(true, Ordering::Relaxed);
            rate
        })
    }

    fn backends(&self) -> Vec<u32> {
        let pids = self.crew.backend_pids();
        pids.iter().map(|it| it.unsigned_abs()).collect()
    }

    fn with_perf(&mut self, hz: u32, graph: &str) -> Result<(Rate, Kept)> {
        let data =
            std::env::temp_dir().join(format!("cost_of_watching.{}.data", std::process::id()));
        let mut perf = Perf {
            child: Command::new("perf")
                .args([
                    "record",
                    "-q",
                    "-a",
                    "-F",
                    &hz.to_string(),
                    "--call-graph",
                    graph,
                    "-o",
                ])
                .arg(&data)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .context("cannot start perf")?,
        };
        thread::sleep(Duration::from_millis(500));
        self.warm_up()?;
        let tps = self.load();
        perf.stop()?;
        let bytes = std::fs::metadata(&data).map_or(0, |it| it.len());
        std::fs::remove_file(&data).ok();
        let words = "perf.data".to_owned();
        Ok((
            tps?,
            Kept {
                bytes,
                words,
                ..Kept::default()
            },
        ))
    }
}

/// A `perf record` process that is killed on drop.
struct Perf {
    child: Child,
}

impl Perf {
    fn stop(&mut self) -> Result<()> {
        let pid = i32::try_from(self.child.id())?;
        // SAFETY: the child has not been waited for, so the PID is still its own.
        unsafe { libc::kill(pid, libc::SIGINT) };
        let until = Instant::now() + Duration::from_mins(1);
        while Instant::now() < until {
            if self.child.try_wait()?.is_some() {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(20));
        }
        bail!("perf does not exit")
    }
}

impl Drop for Perf {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}

/// The size of the samples as stored: stacks as text with counts, and rows of numbers.
fn kept(samples: &Samples, backends: &[u32]) -> Kept {
    let mut bytes = samples.backends(backends).folded().len() as u64;
    let mut lost = samples.lost;
    let mut words = format!(
        "{} samples, reader {:.1} ms",
        samples.backends(backends).quality.total,
        samples.reader_cpu_ns as f64 / 1e6
    );
    if let Some(off_cpu) = &samples.off_cpu {
        let rows: Vec<_> = off_cpu
            .processes
            .iter()
            .flat_map(|it| &it.blocked)
            .collect();
        bytes += rows.len() as u64 * 24;
        lost += off_cpu.lost;
        let sum = |of: fn(&pgassay_profile::ProcessOffCpu) -> u64| {
            off_cpu.backends(backends).map(of).sum::<u64>() as f64
        };
        let unknown: u64 = rows
            .iter()
            .filter(|it| it.stack.is_none())
            .map(|it| it.total_ns)
            .sum();
        let present = sum(|it| it.present_ns);
        write!(
            words,
            ", {} slices ({} dropped), {} intervals, present {:.3} s: CPU {:.3}, run queue {:.3}, \
             blocked {:.3} (no stack {:.4}, ambiguous {:.4})",
            off_cpu.slices.len(),
            off_cpu.slices_dropped,
            off_cpu.intervals.len(),
            present / 1e9,
            sum(|it| it.on_cpu_ns) / present,
            sum(|it| it.preempted_ns + it.woken_ns) / present,
            sum(pgassay_profile::ProcessOffCpu::blocked_ns) / present,
            unknown as f64 / present,
            off_cpu.ambiguous_ns as f64 / present,
        )
        .expect("a String takes all text");
    }
    Kept {
        bytes,
        lost,
        sampled_ns: samples.backends(backends).quality.sampled_ns,
        exact_ns: 0,
        words,
    }
}

fn fill(server: &pgassay_server::Server) -> Result<()> {
    let mut connection = server.connect()?;
    connection.execute(&format!(
        "create table pgbench_accounts as select i as aid, 1 as bid, 0 as abalance, \
         repeat(' ', 84)::char(84) as filler from generate_series(1, {ROWS}) i"
    ))?;
    connection.execute("alter table pgbench_accounts add primary key (aid)")?;
    connection.execute("vacuum analyze pgbench_accounts")?;
    Ok(())
}

fn crew(conninfo: &str) -> Result<ClientPool> {
    let target = Request::new()
        .conninfo(conninfo)?
        .fallback_application_name("cost_of_watching")
        .resolve(&EmptyEnvironment)?;
    let mut names = VariableNames::new();
    let options = ParseOptions {
        protocol: QueryProtocol::Prepared,
        ..ParseOptions::default()
    };
    let text = format!(
        "\\set aid random(1, {ROWS})\nSELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n"
    );
    let script = ParsedScript::parse("select-only", &text, &options, &mut names)?;
    let config = ClientPoolConfig {
        clients: CLIENTS,
        threads: 2,
        protocol: QueryProtocol::Prepared,
        ..ClientPoolConfig::new(target, Arc::new(script), Arc::new(names))
    };
    Ok(ClientPool::connect(
        &config,
        &Arc::new(AtomicBool::new(false)),
    )?)
}
