//! Compares the sampler with perf on the same load at the same time.
//!
//! `perf record --call-graph dwarf` also copies stacks and unwinds them with the same tables, so
//! inclusive shares of functions must agree within sampling error.

use crate::load::{fill, select_by_id, under_load};
use pgassay_profile::{ProcessTotals, SamplerConfig, Samples};
use pgassay_server::{Finder, Installation, Server, VersionRequest};
use pgassay_test_support::{os::kill, servers, skip_comparison, timing_tests, wait_until};
use std::collections::{BTreeSet, HashMap};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

timing_tests! {
    shares_agree_with_perf_on_18,
    shares_agree_with_perf_on_a_stripped_10,
    shares_agree_with_perf_on_debians_15,
}

const CLIENTS: usize = 4;
const HZ: u32 = 997;
/// The backends' CPU time to sample; the duration depends on the machine's other load.
const CPU_NS: u64 = 1_500_000_000;
const TIME_MAX: Duration = Duration::from_secs(8);
const FUNCTIONS: [&str; 4] = [
    "PortalRun",
    "ExecInitNode",
    "secure_read",
    "CommitTransaction",
];
/// Allowed difference of shares beyond sampling error.
const POINTS: f64 = 0.02;

/// Inclusive shares of functions, and the number of samples.
struct Shares {
    of: HashMap<&'static str, f64>,
    total: f64,
}

/// A running `perf record`.
struct Perf {
    child: Child,
    data: tempfile::TempDir,
}

impl Perf {
    fn start() -> Self {
        let data = tempfile::tempdir().unwrap();
        let child = Command::new("perf")
            .args(["record", "-q", "-a", "-F", &HZ.to_string()])
            .args(["--call-graph", "dwarf,24576", "-m", "16M", "-o"])
            .arg(data.path().join("perf.data"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, data }
    }

    /// Stops recording, and reads the samples of these processes.
    fn finish(mut self, pids: &[u32]) -> Shares {
        kill(self.child.id().cast_signed(), libc::SIGINT);
        wait_until("perf ends", || self.child.try_wait().unwrap().is_some());
        let pids: Vec<_> = pids.iter().map(u32::to_string).collect();
        let script = Command::new("timeout")
            .args([
                "120",
                "perf",
                "script",
                "-F",
                "pid,ip,sym",
                "--no-inline",
                "--pid",
                &pids.join(","),
            ])
            .arg("-i")
            .arg(self.data.path().join("perf.data"))
            .output()
            .unwrap();
        assert!(
            script.status.success(),
            "{}",
            String::from_utf8_lossy(&script.stderr)
        );
        shares_of_script(&String::from_utf8_lossy(&script.stdout))
    }
}

impl Drop for Perf {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
    }
}

/// Samples are paragraphs: a line with the process, then a line with address and symbol for each
/// frame.
fn shares_of_script(text: &str) -> Shares {
    let mut counts: HashMap<&'static str, f64> = HashMap::new();
    let mut total = 0.0;
    for sample in text.split("\n\n").filter(|it| !it.trim().is_empty()) {
        let symbols = sample
            .lines()
            .skip(1)
            .filter_map(|line| line.split_whitespace().nth(1));
        let symbols: BTreeSet<&str> = symbols.map(pgassay_profile::source_name).collect();
        total += 1.0;
        for function in FUNCTIONS {
            if symbols.contains(function) {
                *counts.entry(function).or_default() += 1.0;
            }
        }
    }
    let of = counts
        .into_iter()
        .map(|(function, count)| (function, count / total));
    Shares {
        of: of.collect(),
        total,
    }
}

fn our_shares(samples: &Samples, pids: &[u32]) -> Shares {
    let backends = samples.backends(pids);
    let total = backends.quality.total as f64;
    let share = |function: &str| {
        let with: u64 = backends
            .stacks()
            .filter_map(|(mut frames, count)| {
                frames
                    .any(|it| it.name() == Some(function))
                    .then_some(count)
            })
            .sum();
        with as f64 / total
    };
    Shares {
        of: FUNCTIONS.into_iter().map(|it| (it, share(it))).collect(),
        total,
    }
}

fn the_same_as_perf(what: &str, installation: &Installation) {
    if Command::new("perf").arg("--version").output().is_err() {
        skip_comparison("comparison with perf", "perf is not installed");
        return;
    }
    let server = Server::start(installation, &servers::config_on_disk()).unwrap();
    let config = SamplerConfig {
        frequency_hz: HZ,
        ring_bytes: 16 * 1024 * 1024,
        ..SamplerConfig::default()
    };
    let Some(sampler) = crate::load::sampler(&server, &config) else {
        return;
    };
    fill(&server);
    let (ours, theirs, quality) = under_load(&server, CLIENTS, &select_by_id, |pids| {
        let perf = Perf::start();
        thread::sleep(Duration::from_millis(500));
        sampler.start().unwrap();
        let before = ProcessTotals::read(pids);
        let until = Instant::now() + TIME_MAX;
        while ProcessTotals::read(pids).since(&before).total().on_cpu_ns < CPU_NS
            && Instant::now() < until
        {
            thread::sleep(Duration::from_millis(100));
        }
        let samples = sampler.stop().unwrap();
        let theirs = perf.finish(pids);
        (
            our_shares(&samples, pids),
            theirs,
            samples.backends(pids).quality,
        )
    });
    server.stop().unwrap();
    assert!(
        ours.total > 200.0 && theirs.total > 200.0,
        "{} {}",
        ours.total,
        theirs.total
    );
    assert!(
        quality.reached_entry_share() >= Some(0.97),
        "{what}: {quality:?}"
    );
    for function in FUNCTIONS {
        let (ours_share, theirs_share) = (
            ours.of[function],
            theirs.of.get(function).copied().unwrap_or(0.0),
        );
        // Three standard deviations of the difference between two shares.
        let p = ours_share.midpoint(theirs_share);
        let chance = 3.0 * (p * (1.0 - p) * (1.0 / ours.total + 1.0 / theirs.total)).sqrt();
        assert!(
            (ours_share - theirs_share).abs() < POINTS + chance,
            "{what}: {function} is in {ours_share:.3} of our {} stacks, {theirs_share:.3} of perf's {}",
            ours.total,
            theirs.total
        );
    }
}

fn shares_agree_with_perf_on_18() {
    if let Some(installation) = servers::installation("18") {
        the_same_as_perf("18", &installation);
    }
}

fn shares_agree_with_perf_on_a_stripped_10() {
    if let Some(installation) = servers::installation("10") {
        the_same_as_perf("10", &installation);
    }
}

fn shares_agree_with_perf_on_debians_15() {
    let found = Finder::from_environment().and_then(|mut finder| {
        finder.named_dir = Some("/usr/lib/postgresql/15/bin".into());
        finder.find(&VersionRequest::parse("15").unwrap(), &mut |_| ())
    });
    match found {
        Ok(installation) => the_same_as_perf("Debian's 15", &installation),
        Err(_) => skip_comparison("comparison with perf on Debian's 15", "it is not installed"),
    }
}
