//! `mpirun … pgassay bench`: several processes, on one machine or many, run one benchmark.
//!
//! Rank 0 reads the arguments and the scripts and tells the others. The ranks together are the one
//! process that the arguments describe, cut between its threads: `-c`, `-j` and `-R` are those of
//! the whole, client numbers and random numbers the same. All ranks begin at an agreed time. From then
//! to the agreed end, no call of MPI is made; afterwards rank 0 merges all results and prints them.
//!
//! Whatever keeps one rank from going on ends all: before the run by agreement (`talk`), during and
//! after it by `MPI_Abort`.

mod merged;
pub mod remote;
mod talk;

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use pgassay_lab::system_env::monotonic_ns;
use pgassay_load::{ClientPool, Measurement, PoolPart, raise_open_files};
use pgassay_ranks::{ClockOffset, RankShare, World, shares};

use super::cancellation;
use super::client_limit::ClientLimit;
use super::connection;
use super::cpus;
use super::message::{self, Exit, fatal};
use super::observer::Common;
use super::report::Report;
use super::run::{self, ParsedScripts, Tables};
use super::settings::Settings;
use crate::exit::PARTIAL;
use crate::interrupt;
use merged::{MergedRanks, RankReport};
use talk::{agree, decode, encode, lead, note_waiting, or_abort};

/// How long before the start the ranks learn of it.
const NOTICE_NS: u64 = 200_000_000;

/// Runs this rank's part; `read` reads the arguments, on rank 0. On the other ranks, the result is
/// always success: one exit code is enough for the launcher.
pub fn run(application: &str, read: impl FnOnce() -> Result<Settings, Exit>) -> Result<(), Exit> {
    let world = World::join().map_err(|error| fatal(&error.to_string()))?;
    // Rank 0 has a connection to each of the others. If there cannot be as many, MPI reports it.
    if world.rank() == 0 {
        _ = raise_open_files(world.size() as u64, 0);
    }
    let ran = run_together(&world, application, read);
    if world.rank() == 0 { ran } else { Ok(()) }
}

/// A run of several ranks, as each of them knows it.
struct RankedRun<'a> {
    world: &'a World,
    /// Of the run.
    whole: Settings,
    /// Of all ranks.
    shares: Vec<RankShare>,
    /// Of this rank.
    settings: Settings,
    scripts: ParsedScripts,
}

fn run_together(
    world: &World,
    application: &str,
    read: impl FnOnce() -> Result<Settings, Exit>,
) -> Result<(), Exit> {
    let whole = lead(world, || {
        let settings = read()?;
        check(&settings, world.size())?;
        run::parse(&settings, message::warning)?;
        Ok(settings)
    })?;
    let run = RankedRun::new(world, whole)?;
    let mut target = None;
    let own = connection::target(&run.settings, application).and_then(|mut found| {
        let tables = run.set_up(&mut found);
        target = Some(found);
        tables
    });
    let tables = agree(world, own, one_scale)?;
    // All ranks have a target, or they would not agree.
    let target = target.ok_or(Exit(1))?;

    let interrupt = interrupt::watch().map_err(|error| fatal(&error.to_string()));
    let mut connected = None;
    let own = interrupt.and_then(|interrupt| {
        let common = run::common(&run.settings, &run.scripts, Some(run.part()))?;
        let config = run::configure(&run.settings, &run.scripts, target, tables.scale, &common)?;
        let (pool, connecting_us) = run::connect(&config, interrupt.flag())?;
        connected = Some((pool, common, connecting_us, interrupt));
        Ok(())
    });
    agree(world, own, |_| Ok(()))?;
    let (mut pool, common, connecting_us, interrupt) = connected.ok_or(Exit(1))?;

    let (due_ns, clocks) = run.agree_on_start();
    let reports = run.measure(&mut pool, &common, due_ns, connecting_us);
    cancellation::close(pool, &interrupt);
    if world.rank() > 0 {
        return Ok(());
    }
    run.conclude(&reports, &clocks, &tables)
}

/// Refuses what several ranks cannot do.
fn check(settings: &Settings, ranks: usize) -> Result<(), Exit> {
    if settings.is_initialization {
        return Err(fatal(
            "tables are initialized once: run \"pgassay bench -i\" without mpirun",
        ));
    }
    if !settings.rank_dsns.is_empty() && settings.connection.database.is_some() {
        return Err(fatal(
            "specify either a database or --rank-dsn, not both: a connection string can name a database",
        ));
    }
    let servers = settings.rank_dsns.len();
    if servers > ranks {
        return Err(fatal(&format!(
            "--rank-dsn is given {servers} times, but there are only {ranks} ranks: start more ranks, or leave out \
             the rest"
        )));
    }
    if (settings.clients.unsigned_abs() as usize) < ranks {
        let clients = settings.clients;
        return Err(fatal(&format!(
            "{ranks} ranks need at least {ranks} clients, but -c is {clients}"
        )));
    }
    Ok(())
}

/// The tables of the databases, which must agree.
fn one_scale(found: Vec<Option<Tables>>) -> Result<Tables, Exit> {
    let mut found = found.into_iter().flatten();
    let first = found.next().ok_or(Exit(1))?;
    if let Some(other) = found.find(|other| other.scale != first.scale) {
        return Err(fatal(&format!(
            "the databases of --rank-dsn differ in scale: {} and {}",
            first.scale, other.scale
        )));
    }
    Ok(first)
}

impl<'a> RankedRun<'a> {
    fn new(world: &'a World, mut whole: Settings) -> Result<Self, Exit> {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let (ranks, clients) = (number(world.size()), whole.clients.unsigned_abs());
        // Rank 0 has checked that there are enough clients.
        let shares = shares(ranks, clients, whole.threads.unsigned_abs()).ok_or(Exit(1))?;
        let threads: u32 = shares.iter().map(|share| share.threads).sum();
        whole.threads = threads.cast_signed();
        let settings = own_settings(&whole, &shares, world.rank());
        // Rank 0 has warned.
        let scripts = run::parse(&settings, |_| ())?;
        Ok(Self {
            world,
            whole,
            shares,
            settings,
            scripts,
        })
    }

    fn share(&self) -> RankShare {
        self.shares[self.world.rank()]
    }

    fn part(&self) -> PoolPart {
        let share = self.share();
        PoolPart {
            all_clients: self.whole.clients.unsigned_abs(),
            all_threads: self.whole.threads.unsigned_abs(),
            first_client: share.first_client,
            first_thread: share.first_thread,
        }
    }

    /// Inspects and vacuums the tables of each database once.
    fn set_up(&self, target: &mut pgassay_wire::conninfo::Target) -> Result<Option<Tables>, Exit> {
        run::check_files(&self.settings)?;
        cpus::check(&self.settings.cpus)?;
        let rank = self.world.rank();
        if rank >= self.whole.rank_dsns.len().max(1) {
            return Ok(None);
        }
        let has_banner = rank == 0 && !self.whole.json;
        run::prepare(&self.settings, target, has_banner).map(Some)
    }

    /// The time of this rank's clock at which all ranks begin; on rank 0, also how far the clocks of
    /// all ranks are apart.
    fn agree_on_start(&self) -> (u64, Vec<ClockOffset>) {
        let world = self.world;
        if world.rank() > 0 {
            or_abort(world, world.show_clock(monotonic_ns));
            return (decode(world, &world.listen()), Vec::new());
        }
        let clocks = or_abort(world, world.measure_clocks(monotonic_ns));
        let due_ns = monotonic_ns() + NOTICE_NS;
        let sent = world.tell(|rank| encode(&clocks[rank].there_ns(due_ns)));
        or_abort(world, sent);
        (due_ns, clocks)
    }

    /// Runs the clients; on rank 0, returns the reports of all ranks, encoded.
    fn measure(
        &self,
        pool: &mut ClientPool,
        common: &Arc<Common>,
        due_ns: u64,
        connecting_us: u64,
    ) -> Vec<Vec<u8>> {
        pool.begin_at(due_ns);
        let duration = self.whole.duration_s.map(u64::from);
        let end_ns = duration.map(|seconds| due_ns + seconds * 1_000_000_000);
        std::thread::scope(|scope| {
            let (running, ended) = mpsc::channel::<()>();
            let scripts = &self.scripts;
            let measured = move || {
                let ran = run::measure(pool, common, due_ns);
                // Here, so that this rank says meanwhile that it is alive: the log of a long run takes its time.
                if let Ok((measurement, _)) = &ran {
                    run::write_hdr_log(common, scripts, measurement);
                }
                drop(running);
                ran
            };
            let run = std::thread::Builder::new().spawn_scoped(scope, measured);
            let run = run.unwrap_or_else(|error| {
                message::error(&format!("cannot start a thread: {error}"));
                self.world.abort(PARTIAL)
            });
            let mut run = Some(run);
            // Nothing is ever sent; the channel closes when the clients have ended. In a timed run,
            // ranks are silent until the agreed end. A run by count has none, so they say once per
            // second that they are alive.
            let left_ns = end_ns.map_or(0, |end_ns| end_ns.saturating_sub(monotonic_ns()));
            let left = Duration::from_nanos(left_ns);
            let end = Instant::now() + left;
            if end_ns.is_some() {
                let _ = ended.recv_timeout(left);
            }
            let report = |patience: Duration| {
                if ended.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                    return None;
                }
                let ran = run.take()?.join().unwrap_or(Err(Exit(PARTIAL)));
                Some(self.report(ran, common, due_ns, connecting_us))
            };
            // Before the scope ends: it waits for the clients.
            or_abort(self.world, self.world.report(end, report, note_waiting))
        })
    }

    /// This rank's report; the end of all ranks if there is none.
    fn report(
        &self,
        ran: Result<(Measurement, ClientLimit), Exit>,
        common: &Common,
        due_ns: u64,
        connecting_us: u64,
    ) -> Vec<u8> {
        let (measurement, client_limit) = ran.unwrap_or_else(|Exit(code)| {
            message::error("the run ends on all ranks");
            self.world.abort(code)
        });
        if measurement.aborted == self.share().clients {
            message::error("all clients of this rank were aborted; the run ends on all ranks");
            self.world.abort(PARTIAL);
        }
        encode(&RankReport {
            host: host(),
            due_ns,
            connecting_us,
            figures: common.board.by_script(),
            measurement,
            client_limit,
            memory: common.memory_before.with_clients(),
            has_incomplete_log: common.has_incomplete_log(),
        })
    }

    /// Prints the results; on rank 0.
    fn conclude(
        &self,
        reports: &[Vec<u8>],
        clocks: &[ClockOffset],
        tables: &Tables,
    ) -> Result<(), Exit> {
        let reports = reports.iter().map(|bytes| decode(self.world, bytes));
        let merged = MergedRanks::of(reports, &self.shares, clocks).ok_or(Exit(PARTIAL))?;
        let report = Report {
            settings: &self.whole,
            scripts: &self.scripts.weighted,
            figures: &merged.figures,
            measurement: &merged.measurement,
            scale: tables.scale,
            partitioning: tables.partitioning,
            connecting_us: merged.connecting_us,
            client_limit: merged.client_limit,
            memory: merged.memory,
        };
        let printed = if self.whole.json {
            let mut json = report.json();
            json["ranks"] = merged.json();
            run::print_json(&json)
        } else {
            run::print(&report.text());
            run::print(&report.additions());
            run::print(&merged.table());
            Ok(())
        };
        run::conclude(&merged.measurement, merged.has_incomplete_log)?;
        printed
    }
}

/// The settings of one rank's part.
fn own_settings(whole: &Settings, shares: &[RankShare], rank: usize) -> Settings {
    let mut own = whole.clone();
    own.clients = shares[rank].clients.cast_signed();
    own.threads = shares[rank].threads.cast_signed();
    if !whole.rank_dsns.is_empty() {
        own.connection.database = Some(whole.rank_dsns[rank % whole.rank_dsns.len()].clone());
    }
    // Files of several ranks may be in one directory.
    let of_rank = |name: &str| format!("{name}.rank{rank}");
    own.log_prefix = Some(of_rank(
        whole.log_prefix.as_deref().unwrap_or(run::LOG_PREFIX),
    ));
    own.hdr_log = whole.hdr_log.as_deref().map(of_rank);
    if rank > 0 {
        own.progress_s = None;
    }
    own
}

/// This machine's name.
fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    name.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}
