//! A thread of the load: its clients, its event loop and its recorder.
//!
//! The loop waits for arrivals. Whenever a reply is complete, its client continues until it has to
//! wait again. The clock is read once per wait and once per transaction that ends. A client's next
//! transaction begins at the same instant as its last one ended, so no time is lost in between. The
//! loop's own overhead counts as latency, as it would for a real client of this kind.

mod account;
mod failing;
mod pacing;
mod steps;
mod thread_time;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use pgassay_script::Rng;

pub(crate) use account::DelayAccount;

use crate::client::{Abort, Client, ClientStage, RunProgress};
use crate::client_options::{ClientOptions, Observer};
use crate::config::Limits;
use crate::driver::{Arrival, Driver};
use crate::error::LoadError;
use crate::measurement::record;
use crate::prefetch::prefetch;
use crate::program::Program;
use crate::reconnecting::Connector;
use crate::recorder::{Doing, Recorder};

/// The loop's longest wait, and so its reaction time to the stop flag.
const TICK_NS: u64 = 20_000_000;
/// How far after the stop flag a run ends: far enough that all threads know the end before it
/// passes. Otherwise they would count transactions that ended after it.
const STOP_AHEAD_NS: u64 = 10_000_000;
/// How often to check for clients that wait too long.
const TIMEOUT_CHECK_NS: u64 = 1_000_000_000;

/// State shared by the threads of a run.
pub(crate) struct WorkerShared<'a> {
    pub program: &'a Program,
    pub limits: Limits,
    /// No transaction begins after this time; lowered when the run is stopped.
    pub end_ns: AtomicU64,
    /// When the stop flag was seen; 0 before.
    pub stopped_ns: AtomicU64,
    /// Transactions per client, if these bound the run.
    pub transactions_per_client: Option<u64>,
    pub stop: &'a AtomicBool,
    /// Whether a thread failed, so that the others can end.
    pub failed: AtomicBool,
    pub options: &'a ClientOptions,
    /// Opens connections, if each transaction has its own.
    pub connector: Option<&'a Connector>,
    /// Each client's start in ns after the beginning of the run; empty if all begin together.
    pub starts: &'a [u64],
    /// Clients of all threads in a transaction that straddles the end of the run. Until there are
    /// none, the other clients continue: an idle client would make those transactions faster.
    pub straddling: AtomicUsize,
}

/// A thread's clients and their shared state.
pub(crate) struct Worker<D> {
    pub driver: D,
    pub clients: Vec<Client>,
    pub recorder: Recorder,
    /// Random generator for this thread's pacing gaps, and their mean in µs.
    pub pace: Option<(Rng, f64)>,
    pub observer: Option<Box<dyn Observer>>,
    /// The account of delays in this thread, if enabled.
    pub account: Option<Box<DelayAccount>>,
    /// When the last paced transaction was due.
    due_ns: u64,
    /// Random generator for choosing scripts.
    choose: Rng,
    sleepers: BinaryHeap<Reverse<(u64, usize)>>,
    /// Clients whose last transaction ended without waiting: other clients go first.
    runnable: VecDeque<usize>,
    /// Clients that have not finished.
    active: usize,
    /// The time of the last wait.
    now_ns: u64,
    timeouts_checked_ns: u64,
}

impl<D: Driver> Worker<D> {
    pub fn new(driver: D, clients: Vec<Client>, program: &Program, choose: Rng) -> Self {
        Self {
            driver,
            recorder: Recorder::new(program.parts.len(), clients.len()),
            pace: None,
            observer: None,
            account: None,
            due_ns: 0,
            choose,
            sleepers: BinaryHeap::new(),
            runnable: VecDeque::with_capacity(clients.len()),
            active: 0,
            now_ns: 0,
            timeouts_checked_ns: 0,
            clients,
        }
    }

    /// Runs all clients until the end; returns the number that had not finished when a stopped run
    /// gave up.
    pub fn run(&mut self, begin_ns: u64, shared: &WorkerShared<'_>) -> Result<u32, LoadError> {
        self.active = self.clients.len();
        self.due_ns = begin_ns;
        self.now_ns = begin_ns;
        self.timeouts_checked_ns = begin_ns;
        if let Some(observer) = &mut self.observer {
            observer.begun(begin_ns);
        }
        for index in 0..self.clients.len() {
            let run = &mut self.clients[index].run;
            run.ended = 0;
            run.progress = RunProgress::Running;
            run.since_ns = begin_ns;
            if let Some(start_ns) = shared.starts.get(run.id as usize) {
                run.stage = ClientStage::Postponed;
                self.sleepers.push(Reverse((begin_ns + start_ns, index)));
                continue;
            }
            let now_ns = self.driver.now_ns();
            let begun = self.begin(index, now_ns, shared);
            self.handle_result(index, begun, shared)?;
        }
        while self.active > 0 {
            if self.check_flags_and_limits(shared)? {
                break;
            }
            self.wait().map_err(|source| LoadError::System {
                what: "wait for replies",
                source,
            })?;
            self.now_ns = self.driver.now_ns();
            if let Some(account) = &mut self.account {
                account.batch_arrived(self.now_ns, &self.recorder);
            }
            self.arrivals(shared)?;
            self.wake_sleepers(shared)?;
            for _ in 0..self.runnable.len() {
                if let Some(index) = self.runnable.pop_front() {
                    let now_ns = self.driver.now_ns();
                    let begun = self.begin(index, now_ns, shared);
                    self.handle_result(index, begun, shared)?;
                }
            }
        }
        if let Some(account) = &mut self.account {
            account.run_ended(&self.recorder);
        }
        let unfinished = self.settle_accounts(shared);
        // A thread without clients does not know whether others go on until the planned end.
        if !self.all_aborted() {
            self.count_unserved(shared.end_ns.load(Ordering::Relaxed));
        }
        if let Some(observer) = &mut self.observer {
            observer.finished();
        }
        Ok(unfinished)
    }

    /// Whether all of the thread's clients were aborted.
    pub fn all_aborted(&self) -> bool {
        let mut clients = self.clients.iter();
        clients.all(|client| client.run.stage == ClientStage::Aborted)
    }

    /// Checks the flags and the time limits; returns `true` if the loop must end.
    fn check_flags_and_limits(&mut self, shared: &WorkerShared<'_>) -> Result<bool, LoadError> {
        if shared.failed.load(Ordering::Relaxed) {
            return Ok(true);
        }
        if shared.stop.load(Ordering::Relaxed) {
            let seen = shared.stopped_ns.compare_exchange(
                0,
                self.now_ns,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            let stopped_ns = seen.map_or_else(|earlier| earlier, |_| self.now_ns);
            shared
                .end_ns
                .fetch_min(stopped_ns + STOP_AHEAD_NS, Ordering::Relaxed);
            if self.pace.is_some() || !shared.starts.is_empty() {
                self.release_throttled(shared);
            }
            if self.now_ns > stopped_ns + shared.limits.stop.as_nanos() as u64 {
                return Ok(true);
            }
        }
        self.recorder.window_end_ns = shared.end_ns.load(Ordering::Relaxed);
        let reply_ns = shared.limits.reply.as_nanos() as u64;
        if self.now_ns.saturating_sub(self.timeouts_checked_ns)
            >= TIMEOUT_CHECK_NS.min(reply_ns / 2)
        {
            self.timeouts_checked_ns = self.now_ns;
            self.expire_attempts(shared)?;
            let late = self.clients.iter().find(|client| {
                client.run.stage.waits_for_reply()
                    && self.now_ns.saturating_sub(client.run.requested_ns) > reply_ns
            });
            if let Some(late) = late {
                return Err(LoadError::Unanswered {
                    client: late.run.id,
                    what: late.run.describe(shared.program),
                    waited: shared.limits.reply,
                });
            }
        }
        Ok(false)
    }

    /// Returns the time until which to wait; 0 means no wait.
    fn wake_ns(&self) -> u64 {
        if !self.runnable.is_empty() {
            return 0;
        }
        let due_ns = self
            .sleepers
            .peek()
            .map_or(u64::MAX, |Reverse((due_ns, _))| *due_ns);
        due_ns.min(self.now_ns + TICK_NS)
    }

    fn wait(&mut self) -> io::Result<()> {
        if let Some(account) = &mut self.account {
            account.wait_begins(self.driver.now_ns());
            if account.wants_check() {
                let has_arrivals = self.driver.check()?;
                account.checked(self.driver.now_ns(), has_arrivals, &self.recorder);
            }
        }
        self.driver.wait(self.wake_ns())
    }

    fn arrivals(&mut self, shared: &WorkerShared<'_>) -> Result<(), LoadError> {
        loop {
            self.prefetch();
            let arrival = self.driver.next().map_err(|source| LoadError::System {
                what: "read replies",
                source,
            })?;
            match arrival {
                None => return Ok(()),
                Some(Arrival::Bytes { client, count }) => {
                    let received = self.receive(client, count, shared);
                    self.handle_result(client, received, shared)?;
                }
                Some(Arrival::Writable { client }) => {
                    let flushed = self.flush(client);
                    self.handle_result(client, flushed, shared)?;
                }
                Some(Arrival::Closed { client, error }) => {
                    let lost = self.lost(client, error, shared.program);
                    self.handle_result(client, Err(lost), shared)?;
                }
            }
        }
    }

    /// Prefetches the memory of the next client, and the beginning of it for the one after that, whose own memory
    /// has to arrive before what it points to is known.
    #[inline]
    fn prefetch(&self) {
        let upcoming = |after| self.clients.get(self.driver.upcoming(after)?);
        if let Some(later) = upcoming(1) {
            prefetch(later);
        }
        if let Some(next) = upcoming(0) {
            prefetch(next);
            next.prefetch_buffers();
        }
    }

    #[inline]
    fn receive(
        &mut self,
        index: usize,
        count: usize,
        shared: &WorkerShared<'_>,
    ) -> Result<(), LoadError> {
        let client = &mut self.clients[index];
        if client.run.stage == ClientStage::Connecting {
            return self.receive_sign_in(index, count, shared);
        }
        if let Some(account) = &mut self.account
            && client.run.stage.waits_for_reply()
        {
            account.read_begins(index, self.driver.now_ns(), &self.recorder);
        }
        let is_answered = client
            .receive(self.driver.received(index, count), shared.program)
            .map_err(|error| LoadError::Wire {
                client: client.run.id,
                error,
            })?;
        if let Some(abort) = client.abort(shared.program) {
            return Err(aborted(abort));
        }
        if is_answered && client.run.stage.waits_for_reply() {
            if let Some(since_ns) = client.run.first_query_since_ns.take()
                && let Some(openings) = &mut self.recorder.openings
            {
                let elapsed_ns = self.driver.now_ns() - since_ns;
                record(&mut openings.first_query_ns, elapsed_ns);
            }
            let step = client.resume(shared.program).map_err(aborted)?;
            return self.perform_steps(index, step, shared);
        }
        Ok(())
    }

    /// Sends a client's output, as far as the kernel takes it.
    #[inline]
    fn flush(&mut self, index: usize) -> Result<(), LoadError> {
        let session = &mut self.clients[index].session;
        let sent = self.driver.send(index, session.output());
        session.sent(sent.map_err(cannot_send)?);
        Ok(())
    }

    #[cold]
    fn lost(&mut self, index: usize, source: Option<io::Error>, program: &Program) -> LoadError {
        let run = &mut self.clients[index].run;
        LoadError::Lost {
            client: run.id,
            what: run.describe(program),
            place: run.current_location(program),
            last: run.last_words.take(),
            source,
        }
    }

    /// Accounts for the time of clients that are not between transactions; returns their number.
    fn settle_accounts(&mut self, shared: &WorkerShared<'_>) -> u32 {
        let mut unfinished = 0;
        for client in &self.clients {
            let doing = match client.run.stage {
                ClientStage::Idle | ClientStage::Postponed | ClientStage::Aborted => continue,
                ClientStage::Throttled { .. } | ClientStage::Connecting => Doing::Between,
                ClientStage::Asleep { .. } => Doing::Sleep,
                ClientStage::Reply | ClientStage::RollingBack => Doing::Transaction,
            };
            unfinished += 1;
            self.recorder.window_end_ns = shared.end_ns.load(Ordering::Relaxed);
            self.recorder.book(doing, client.run.since_ns, self.now_ns);
        }
        self.sleepers.clear();
        self.runnable.clear();
        unfinished
    }
}

#[cold]
fn cannot_send(source: io::Error) -> LoadError {
    LoadError::System {
        what: "send requests",
        source,
    }
}

fn aborted(abort: Abort) -> LoadError {
    let (place, cause) = *abort;
    LoadError::Aborted {
        place: Box::new(place),
        cause,
    }
}

#[cfg(test)]
mod tests;
