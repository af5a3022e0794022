//! Runs one segment: a number of transactions on a new connection under valgrind.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pgassay_count::OutFile;
use pgassay_load::{ClientPool, Limits, RunLength};
use pgassay_model::plan::Point;
use pgassay_server::Server;

use super::names::ObjectSymbols;
use super::{lengths, sleep_barrier, valgrind};
use crate::host::{DataLocation, reset};
use crate::interrupt::Interrupted;
use crate::load::{ClientsOrder, connect_pool, describe_load_error};
use crate::run_context::RunContext;

/// How long a backend may take to write its file and exit after its client has disconnected.
const END_TIMEOUT: Duration = Duration::from_mins(1);
/// Transactions in the first of two segments whose difference gives an estimate of the cost.
const TRIED: u64 = 20;
/// Settings that log slow statements. The second does not exist before version 13; the error is
/// harmless.
const BY_DURATION: [&str; 2] = ["log_min_duration_statement", "log_min_duration_sample"];
/// If a transaction took less, it is not worth counting whether its cost is high: no machine executes
/// [`lengths::HEAVY`] instructions so fast under valgrind.
const QUICK: Duration = Duration::from_millis(75);

/// A point on a server that runs under valgrind.
#[derive(Clone, Copy)]
pub struct ValgrindSession<'a> {
    pub point: &'a Point,
    pub server: &'a Server,
    pub place: DataLocation<'a>,
    pub seed: u64,
    pub context: &'a RunContext<'a>,
    pub names: &'a RefCell<ObjectSymbols>,
}

impl ValgrindSession<'_> {
    /// Connects for the first time after server start. The first backend creates the cache file of
    /// catalog entries (`pg_internal.init`); all others read it, and execute other code.
    pub fn warm_relcache(&self) -> Result<()> {
        let pool = self.connect()?;
        let pid = backend(&pool)?;
        disconnect(pool, pid)
    }

    /// Runs as many transactions as a segment, after `first` others, so that everything a segment touches has been
    /// touched before.
    pub fn warm_up(&self, transactions: u64, first: u64) -> Result<()> {
        reset(&self.place, &self.point.resets, self.context)?;
        let mut pool = self.connect()?;
        let pid = backend(&pool)?;
        self.run(&mut pool, first)?;
        self.run(&mut pool, transactions)?;
        disconnect(pool, pid)
    }

    /// Chooses the number of transactions in the shortest segment by their cost. By elapsed time, the
    /// number would depend on how busy the machine is, and a different number gives different counts.
    pub fn unit(&self) -> Result<u64> {
        if let Some(each) = self.warm_up_unless_heavy()? {
            return Ok(lengths::unit(each));
        }
        let first = lengths::first(TRIED);
        let [few, many] = [self.segment(TRIED, first)?, self.segment(2 * TRIED, first)?];
        let more = many
            .totals
            .instructions
            .saturating_sub(few.totals.instructions);
        Ok(lengths::unit(more / TRIED))
    }

    /// Warms up for [`Self::unit`], or returns the cost of the first transaction, if it is so high that trying more
    /// would take long.
    fn warm_up_unless_heavy(&self) -> Result<Option<u64>> {
        reset(&self.place, &self.point.resets, self.context)?;
        let mut pool = self.connect()?;
        let pid = backend(&pool)?;
        let start = Instant::now();
        self.run(&mut pool, 1)?;
        if start.elapsed() < QUICK {
            self.run(&mut pool, lengths::first(TRIED) - 1)?;
            self.run(&mut pool, 2 * TRIED)?;
            return disconnect(pool, pid).map(|()| None);
        }
        disconnect(pool, pid)?;
        let cost = self.read(pid)?.totals.instructions;
        if cost >= lengths::HEAVY {
            return Ok(Some(cost));
        }
        self.warm_up(2 * TRIED, lengths::first(TRIED))
            .map(|()| None)
    }

    /// Runs a segment and reads the file that its backend wrote on exit. `first` other transactions precede it, the
    /// same number in all segments whose counts are subtracted.
    pub fn segment(&self, transactions: u64, first: u64) -> Result<OutFile> {
        reset(&self.place, &self.point.resets, self.context)?;
        let mut pool = self.connect()?;
        let pid = backend(&pool)?;
        self.warm_connection(&mut pool, pid, first)?;
        self.run(&mut pool, transactions)?;
        sleep_barrier::until_asleep(pid);
        disconnect(pool, pid)?;
        let file = self.read(pid)?;
        if i32::try_from(file.pid) != Ok(pid) {
            bail!(
                "the callgrind file of backend {pid} is from process {}",
                file.pid
            );
        }
        if file.totals.instructions == 0 {
            bail!("callgrind counted nothing: it found no function PostgresMain in the server");
        }
        Ok(file)
    }

    /// Runs a connection's first transactions. They are slow, because valgrind translates the code
    /// they execute: tenths of a second on a busy machine. Logging a slow statement would cost 18
    /// thousand instructions in some segments only, so it is turned off meanwhile. All segments
    /// begin alike, so their differences do not contain this.
    fn warm_connection(&self, pool: &mut ClientPool, pid: i32, first: u64) -> Result<()> {
        for setting in BY_DURATION {
            execute(pool, pid, &format!("set {setting} = -1"))?;
        }
        self.run(pool, first)?;
        for setting in BY_DURATION {
            execute(pool, pid, &format!("reset {setting}"))?;
        }
        Ok(())
    }

    fn connect(&self) -> Result<ClientPool> {
        let order = ClientsOrder {
            limits: Limits::default(),
            point: self.point,
            clients: 1,
            threads: 1,
            seed: self.seed,
            location: self.place,
        };
        let mut pool = connect_pool(&order, self.context)?;
        pool.before_requests(sleep_barrier::hook());
        Ok(pool)
    }

    fn run(&self, pool: &mut ClientPool, transactions: u64) -> Result<()> {
        let window = RunLength::Counted {
            transactions_per_client: transactions,
        };
        let measured = pool
            .run(&window)
            .map_err(|error| describe_load_error(error, self.context.source(), self.point))?;
        if measured.interrupted {
            return Err(Interrupted.into());
        }
        if measured.failed_total > 0 {
            bail!(
                "{} of {transactions} transactions failed; only successful transactions can be counted",
                measured.failed_total
            );
        }
        Ok(())
    }

    /// Reads the callgrind file of a backend that has exited.
    fn read(&self, pid: i32) -> Result<OutFile> {
        self.context.check()?;
        let name = valgrind::file_of(pid);
        let text = self.server.read_own_file(&name);
        let text = text.with_context(|| format!("cannot read {name}"))?;
        if !OutFile::is_complete(&text) {
            bail!("backend {pid} exited, but its callgrind file is incomplete");
        }
        let mut names = self.names.borrow_mut();
        let parsed = OutFile::parse_with(&text, &mut |object, address| names.at(object, address));
        parsed.with_context(|| format!("cannot parse {name}"))
    }
}

/// Executes a statement on a backend that is waiting for one, and waits until it waits again.
fn execute(pool: &mut ClientPool, pid: i32, sql: &str) -> Result<()> {
    sleep_barrier::until_asleep(pid);
    pool.broadcast(sql)?;
    sleep_barrier::until_asleep(pid);
    Ok(())
}

/// The backend of a client pool with one client.
fn backend(pool: &ClientPool) -> Result<i32> {
    let pid = pool.backend_pids().first().copied();
    pid.context("the server did not report its backend's PID")
}

/// Disconnects and waits until the server has reaped the backend. Otherwise the next backend has its
/// data at other addresses, where libc's functions execute slightly different instructions.
fn disconnect(pool: ClientPool, pid: i32) -> Result<()> {
    pool.close();
    if !pgassay_server::wait_until_gone(pid, END_TIMEOUT) {
        let seconds = END_TIMEOUT.as_secs();
        bail!("backend {pid} still runs {seconds} s after its client disconnected");
    }
    Ok(())
}
