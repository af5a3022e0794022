//! One segment: so many transactions on a connection of its own, and what its backend did.

use std::cell::RefCell;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pgassay_core::plan::Point;
use pgassay_core::study::StudySource;
use pgassay_count::OutFile;
use pgassay_load::{Crew, Window};
use pgassay_server::Server;

use super::names::Names;
use super::{lockstep, valgrind};
use crate::exit::Interrupted;
use crate::interrupt::Interrupt;
use crate::laboratory::crews::{self, Size};
use crate::laboratory::data::reset;
use crate::laboratory::servers::Place;

/// How long a backend may take to write its file and end when its client has gone.
const END_TIMEOUT: Duration = Duration::from_mins(1);
/// Transactions of the first of two segments whose difference tells about what one costs.
const TRIED: u64 = 20;
/// Instructions of the shortest segment at most, some 150 ms on a processor of its own: then the longest
/// ends before a backend hands its statistics over, which it does once a second of real time. That is
/// not counted, but collecting them begins anew after it: some thousand instructions.
const SHORTEST: u64 = 6_000_000;
/// What makes statements be logged for the time that they take; the second is not known before 13, and
/// an error there does no harm.
const BY_DURATION: [&str; 2] = ["log_min_duration_statement", "log_min_duration_sample"];
/// Transactions before those of a segment that are counted.
const FIRST: u64 = 10;
/// Sizes of the shortest segment. Below 20, plans for the values at hand would be in it, as
/// PostgreSQL makes them the first five times.
const UNITS: [u64; 7] = [20, 50, 100, 200, 500, 1000, 2000];
/// As much is chosen by cost; only work that is not linear goes further.
const UNIT_BY_COST_MAX: u64 = 500;

/// The next larger size of the shortest segment.
pub fn larger(unit: u64) -> Option<u64> {
    UNITS.into_iter().find(|larger| *larger > unit)
}

/// A point on a server that runs under valgrind.
#[derive(Clone, Copy)]
pub struct Bench<'a> {
    pub point: &'a Point,
    /// Its server.
    pub server: &'a Server,
    /// The database on it.
    pub place: Place<'a>,
    pub source: &'a StudySource,
    pub seed: u64,
    pub interrupt: &'a Interrupt,
    pub names: &'a RefCell<Names>,
}

impl Bench<'_> {
    /// Connects for the first time since the server was started. Such a client finds no file of
    /// cached catalogue entries (`pg_internal.init`) and makes it; all others read it, and other pages of
    /// the catalogue.
    pub fn arrive(&self) -> Result<()> {
        let crew = self.connect()?;
        let pid = backend(&crew)?;
        leave(crew, pid)
    }

    /// Runs the transactions of a segment of so many, so that all that segments touch has been touched.
    pub fn warm_up(&self, transactions: u64) -> Result<()> {
        reset(&self.place, &self.point.resets, self.source, self.interrupt)?;
        let mut crew = self.connect()?;
        let pid = backend(&crew)?;
        self.run(&mut crew, FIRST)?;
        self.run(&mut crew, transactions)?;
        leave(crew, pid)
    }

    /// Chooses how many transactions the shortest segment has, by what they cost. By the time that
    /// they take it would be another number on a busy machine, and other transactions cost otherwise.
    pub fn unit(&self) -> Result<u64> {
        self.warm_up(2 * TRIED)?;
        let [few, many] = [self.segment(TRIED)?, self.segment(2 * TRIED)?];
        let more = many
            .totals
            .instructions
            .saturating_sub(few.totals.instructions);
        let each = more / TRIED;
        let fits = |unit: &u64| *unit <= UNIT_BY_COST_MAX && each * *unit <= SHORTEST;
        Ok(UNITS.into_iter().rfind(fits).unwrap_or(UNITS[0]))
    }

    /// Runs a segment and reads what its backend wrote when it ended.
    pub fn segment(&self, transactions: u64) -> Result<OutFile> {
        reset(&self.place, &self.point.resets, self.source, self.interrupt)?;
        let mut crew = self.connect()?;
        let pid = backend(&crew)?;
        self.get_going(&mut crew, pid)?;
        self.run(&mut crew, transactions)?;
        lockstep::until_asleep(pid);
        leave(crew, pid)?;
        let file = self.read(pid)?;
        if i32::try_from(file.pid) != Ok(pid) {
            bail!("the file of backend {pid} is of process {}", file.pid);
        }
        if file.totals.instructions == 0 {
            bail!("callgrind found no function PostgresMain in the server, so it counted nothing");
        }
        Ok(file)
    }

    /// Runs a connection's first transactions, which take long: valgrind translates what they execute,
    /// tenths of a second of it on a busy machine. A statement that is logged for taking so long
    /// costs 18 thousand instructions in some segments and not in others, so until then none is.
    /// All segments begin alike, so that their differences have nothing of this.
    fn get_going(&self, crew: &mut Crew, pid: i32) -> Result<()> {
        for setting in BY_DURATION {
            ask(crew, pid, &format!("set {setting} = -1"))?;
        }
        self.run(crew, FIRST)?;
        for setting in BY_DURATION {
            ask(crew, pid, &format!("reset {setting}"))?;
        }
        Ok(())
    }

    fn connect(&self) -> Result<Crew> {
        let size = Size {
            clients: 1,
            threads: 1,
            seed: self.seed,
        };
        let mut crew = crews::connect(self.point, size, &self.place, self.source, self.interrupt)?;
        crew.before_requests(lockstep::hook());
        Ok(crew)
    }

    fn run(&self, crew: &mut Crew, transactions: u64) -> Result<()> {
        let window = Window::Counted {
            transactions_per_client: transactions,
        };
        let measured = crew
            .run(&window)
            .map_err(|error| crews::told(error, self.source, self.point))?;
        if measured.interrupted {
            return Err(Interrupted.into());
        }
        if measured.failed_total > 0 {
            bail!(
                "{} of {transactions} transactions failed; the cost of a failure is not counted",
                measured.failed_total
            );
        }
        Ok(())
    }

    /// What callgrind wrote of a backend that has gone.
    fn read(&self, pid: i32) -> Result<OutFile> {
        self.interrupt.check()?;
        let name = valgrind::file_of(pid);
        let text = self.server.read_own_file(&name);
        let text = text.with_context(|| format!("cannot read {name}"))?;
        if !OutFile::is_complete(&text) {
            bail!("backend {pid} ended, but callgrind wrote no whole file of it");
        }
        let mut names = self.names.borrow_mut();
        let parsed = OutFile::parse_with(&text, &mut |object, address| names.at(object, address));
        parsed.with_context(|| format!("{name} is of no use"))
    }
}

/// Sends a statement of ours, to a backend that waits for it, and waits until it does again.
fn ask(crew: &mut Crew, pid: i32, sql: &str) -> Result<()> {
    lockstep::until_asleep(pid);
    crew.ask(sql)?;
    lockstep::until_asleep(pid);
    Ok(())
}

/// The process that serves a crew of one client.
fn backend(crew: &Crew) -> Result<i32> {
    let pid = crew.backend_pids().first().copied();
    pid.context("the server did not tell its backend's process")
}

/// Disconnects, and waits until the server has seen the end of the backend: one that has not serves
/// the next client from another place in memory, where libc's functions cost some other
/// instructions.
fn leave(crew: Crew, pid: i32) -> Result<()> {
    crew.close();
    if !pgassay_server::wait_until_gone(pid, END_TIMEOUT) {
        let seconds = END_TIMEOUT.as_secs();
        bail!("backend {pid} has not ended {seconds} s after its client left");
    }
    Ok(())
}
