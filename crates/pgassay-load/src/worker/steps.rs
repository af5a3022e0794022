//! A client's steps between two waits: beginning, retrying and ending transactions.

use std::cmp::Reverse;
use std::sync::atomic::Ordering;

use pgassay_wire::Session;
use pgassay_wire::conninfo::AttemptFailure;

use super::failing::FailureStep;
use super::pacing::Pace;
use super::{Worker, WorkerShared, aborted};
use crate::client::{ClientRun, ClientStage, ClientStep, RunProgress};
use crate::client_options::{FailureKind, OnAbort, Transaction, TransactionOutcome};
use crate::driver::Driver;
use crate::error::LoadError;
use crate::measurement::record;
use crate::reconnecting::Connector;
use crate::recorder::{Doing, Ended};

impl<D: Driver> Worker<D> {
    /// Begins a client's next transaction, or finishes the client.
    #[inline]
    pub(super) fn begin(
        &mut self,
        index: usize,
        now_ns: u64,
        shared: &WorkerShared<'_>,
    ) -> Result<(), LoadError> {
        match self.begin_one(index, now_ns, shared)? {
            Some(step) => self.perform_steps(index, step, shared),
            None => Ok(()),
        }
    }

    /// Like [`Self::begin`], but returns the first step and leaves it to the caller.
    #[inline]
    fn begin_one(
        &mut self,
        index: usize,
        now_ns: u64,
        shared: &WorkerShared<'_>,
    ) -> Result<Option<ClientStep>, LoadError> {
        let run = &mut self.clients[index].run;
        let is_over = (now_ns >= shared.end_ns.load(Ordering::Relaxed)
            && finish_last_transaction(run, shared))
            || shared
                .transactions_per_client
                .is_some_and(|limit| run.ended >= limit);
        self.recorder.book(Doing::Between, run.since_ns, now_ns);
        run.since_ns = now_ns;
        if is_over {
            self.finish(index, shared);
            return Ok(None);
        }
        run.script = shared.program.choose(&mut self.choose);
        run.scheduled_ns = now_ns;
        if self.pace.is_some() {
            match self.pace(index, now_ns, shared) {
                Pace::Now => {}
                Pace::At(due_ns) => {
                    self.clients[index].run.stage = ClientStage::Throttled { due_ns };
                    self.sleepers.push(Reverse((due_ns, index)));
                    return Ok(None);
                }
                Pace::Over => {
                    self.finish(index, shared);
                    return Ok(None);
                }
            }
        }
        self.start(index, now_ns, shared)
    }

    /// Starts the chosen transaction, on a new connection if it needs one.
    #[inline]
    fn start(
        &mut self,
        index: usize,
        now_ns: u64,
        shared: &WorkerShared<'_>,
    ) -> Result<Option<ClientStep>, LoadError> {
        self.clients[index].run.claimed_ns = now_ns;
        if shared.connector.is_some() {
            return self.connect(index, shared).map(|()| None);
        }
        let client = &mut self.clients[index];
        client
            .begin(now_ns, shared.program)
            .map(Some)
            .map_err(aborted)
    }

    pub(super) fn finish(&mut self, index: usize, shared: &WorkerShared<'_>) {
        let run = &mut self.clients[index].run;
        run.stage = ClientStage::Idle;
        run.progress = RunProgress::Finished;
        self.active -= 1;
        self.recorder.last_end_ns = self.recorder.last_end_ns.max(self.driver.now_ns());
        if shared.options.closes_finished {
            self.close(index);
        }
    }

    /// Performs a client's steps until it has to wait.
    #[inline]
    pub(super) fn perform_steps(
        &mut self,
        index: usize,
        step: ClientStep,
        shared: &WorkerShared<'_>,
    ) -> Result<(), LoadError> {
        let mut step = step;
        let mut has_ended = false;
        loop {
            let run = &mut self.clients[index].run;
            let failed = match step {
                // A request was queued: send it, and wait for the reply. A client that rolls back
                // stays in that state.
                ClientStep::Send => {
                    if run.stage != ClientStage::RollingBack {
                        run.stage = ClientStage::Reply;
                    }
                    run.requested_ns = self.now_ns;
                    if let Some(account) = &mut self.account {
                        account.request_sent(index);
                    }
                    if let Some(hook) = &shared.program.before_request {
                        let backend = self.clients[index].session.backend();
                        hook(backend.map_or(0, |key| key.pid));
                    }
                    return self.flush(index);
                }
                // \sleep: wait until its end, and let the thread's other clients continue.
                ClientStep::Sleep { duration_us } => {
                    self.put_to_sleep(index, duration_us);
                    return Ok(());
                }
                // The transaction failed and is rolled back: retry it, or count it as failed.
                ClientStep::Failed => match self.fail(index, shared)? {
                    FailureStep::Retry(again) => {
                        step = again;
                        continue;
                    }
                    FailureStep::Count(kind) => Some(kind),
                    FailureStep::Finished => return Ok(()),
                },
                // The transaction succeeded.
                ClientStep::End => None,
            };
            // End of the transaction: count it, close its connection if it has its own, and choose
            // the next one.
            let now_ns = self.driver.now_ns();
            self.end(index, now_ns, failed);
            if self.clients[index].is_in_block() {
                return Err(aborted(self.clients[index].run.open_at_end(shared.program)));
            }
            if shared.connector.is_some() {
                self.disconnect(index, now_ns);
            }
            if has_ended {
                // Two transactions in a row without waiting: let the other clients run.
                self.runnable.push_back(index);
                return Ok(());
            }
            has_ended = true;
            match self.begin_one(index, now_ns, shared)? {
                Some(next) => step = next,
                None => return Ok(()),
            }
        }
    }

    fn put_to_sleep(&mut self, index: usize, duration_us: u64) {
        let run = &mut self.clients[index].run;
        let now_ns = self.driver.now_ns();
        self.recorder.book(Doing::Transaction, run.since_ns, now_ns);
        run.since_ns = now_ns;
        let due_ns = now_ns.saturating_add(duration_us.saturating_mul(1000));
        run.stage = ClientStage::Asleep { due_ns };
        self.sleepers.push(Reverse((due_ns, index)));
    }

    /// Counts a transaction that ended.
    #[inline]
    fn end(&mut self, index: usize, now_ns: u64, failed: Option<FailureKind>) {
        let run = &mut self.clients[index].run;
        self.recorder.book(Doing::Transaction, run.since_ns, now_ns);
        run.since_ns = now_ns;
        run.stage = ClientStage::Idle;
        self.recorder.end(Ended {
            client: index,
            script: run.script,
            begin_ns: run.scheduled_ns,
            started_ns: run.begin_ns,
            claimed_ns: run.claimed_ns,
            end_ns: now_ns,
            failed: failed.is_some(),
        });
        if let Some(observer) = &mut self.observer {
            observer.transaction(&Transaction {
                client: run.id,
                ended_before: run.ended,
                script: run.script,
                outcome: failed.map_or(TransactionOutcome::Done, TransactionOutcome::Failed),
                scheduled_ns: run.scheduled_ns,
                begin_ns: run.begin_ns,
                end_ns: now_ns,
                tries: run.tries,
            });
        }
        run.ended += 1;
    }

    /// Wakes clients whose `\sleep` or pacing delay is over.
    pub(super) fn wake_sleepers(&mut self, shared: &WorkerShared<'_>) -> Result<(), LoadError> {
        while let Some(&Reverse((due_ns, index))) = self.sleepers.peek() {
            if due_ns > self.now_ns {
                break;
            }
            self.sleepers.pop();
            let woken = self.wake(index, due_ns, shared);
            self.handle_result(index, woken, shared)?;
        }
        Ok(())
    }

    fn wake(
        &mut self,
        index: usize,
        due_ns: u64,
        shared: &WorkerShared<'_>,
    ) -> Result<(), LoadError> {
        let now_ns = self.driver.now_ns();
        let client = &mut self.clients[index];
        match client.run.stage {
            ClientStage::Asleep { .. } => {
                self.recorder.woken(due_ns, now_ns);
                let awake_ns = self.account.as_mut().map_or(now_ns, |account| {
                    account.sleep_ended(due_ns, now_ns, &self.recorder)
                });
                self.recorder
                    .book(Doing::Sleep, client.run.since_ns, awake_ns);
                client.run.since_ns = awake_ns;
                let step = client
                    .advance_to_next_command(shared.program)
                    .map_err(aborted)?;
                self.perform_steps(index, step, shared)
            }
            ClientStage::Throttled { .. } => {
                self.recorder.woken(due_ns, now_ns);
                self.recorder
                    .book(Doing::Between, client.run.since_ns, now_ns);
                client.run.since_ns = now_ns;
                if now_ns >= shared.end_ns.load(Ordering::Relaxed) {
                    self.finish(index, shared);
                    return Ok(());
                }
                match self.start(index, now_ns, shared)? {
                    Some(step) => self.perform_steps(index, step, shared),
                    None => Ok(()),
                }
            }
            ClientStage::Connecting => self.connect(index, shared),
            ClientStage::Postponed => self.begin(index, now_ns, shared),
            // The client was aborted or stopped while it slept.
            _ => Ok(()),
        }
    }

    /// Finishes clients that wait for their first or next transaction to be due.
    pub(super) fn release_throttled(&mut self, shared: &WorkerShared<'_>) {
        for index in 0..self.clients.len() {
            let run = &mut self.clients[index].run;
            if matches!(
                run.stage,
                ClientStage::Throttled { .. } | ClientStage::Postponed
            ) {
                self.recorder
                    .book(Doing::Between, run.since_ns, self.now_ns);
                run.since_ns = self.now_ns;
                self.finish(index, shared);
            }
        }
    }

    /// Opens the connection for a client's next transaction.
    fn connect(&mut self, index: usize, shared: &WorkerShared<'_>) -> Result<(), LoadError> {
        let connector = reconnecting(shared);
        let run = &mut self.clients[index].run;
        let begin_ns = self.driver.now_ns();
        run.requested_ns = begin_ns;
        match connector.connect(&mut self.driver, index, run)? {
            Ok(session) => {
                run.connected_ns = self.driver.now_ns();
                if let Some(openings) = &mut self.recorder.openings {
                    let connect_ns = run.connected_ns - begin_ns;
                    record(&mut openings.connect_ns, connect_ns);
                }
                self.clients[index].session = session;
                self.flush(index)
            }
            Err(due_ns) => {
                run.stage = ClientStage::Connecting;
                self.sleepers.push(Reverse((due_ns, index)));
                Ok(())
            }
        }
    }

    /// Gives up connection attempts that take too long.
    pub(super) fn expire_attempts(&mut self, shared: &WorkerShared<'_>) -> Result<(), LoadError> {
        let Some(connector) = shared.connector else {
            return Ok(());
        };
        let limit_ns = connector.limit.as_nanos() as u64;
        for index in 0..self.clients.len() {
            let run = &mut self.clients[index].run;
            let is_late = self.now_ns.saturating_sub(run.requested_ns) > limit_ns;
            if run.stage != ClientStage::Connecting || !is_late {
                continue;
            }
            let error = LoadError::Unanswered {
                client: run.id,
                what: "while signing in".into(),
                waited: connector.limit,
            };
            let done = self.try_next(index, AttemptFailure::Unreachable, error, shared);
            self.handle_result(index, done, shared)?;
        }
        Ok(())
    }

    /// Continues with the next connection attempt after a failure, if there is one.
    #[cold]
    fn try_next(
        &mut self,
        index: usize,
        failure: AttemptFailure,
        error: LoadError,
        shared: &WorkerShared<'_>,
    ) -> Result<(), LoadError> {
        let attempts = self.clients[index].run.attempts.as_mut();
        if attempts.is_some_and(|attempts| attempts.advance_after(failure)) {
            return self.connect(index, shared);
        }
        self.clients[index].run.attempts = None;
        Err(error)
    }

    /// Processes bytes received while signing in; starts the transaction when the server is ready.
    pub(super) fn receive_sign_in(
        &mut self,
        index: usize,
        count: usize,
        shared: &WorkerShared<'_>,
    ) -> Result<(), LoadError> {
        let client = &mut self.clients[index];
        let address = reconnecting(shared).address(client.run.endpoint);
        match client.receive_sign_in(self.driver.received(index, count), address) {
            Ok(true) => client.run.attempts = None,
            Ok(false) => return self.flush(index),
            Err((failure, error)) => return self.try_next(index, failure, error, shared),
        }
        let now_ns = self.driver.now_ns();
        let since_ns = client.run.since_ns;
        if let Some(openings) = &mut self.recorder.openings {
            let authenticate_ns = now_ns - client.run.connected_ns;
            record(&mut openings.authenticate_ns, authenticate_ns);
        }
        client.run.first_query_since_ns = Some(now_ns);
        self.recorder.opened += 1;
        self.recorder.connecting_ns += now_ns - since_ns;
        self.recorder.book(Doing::Between, since_ns, now_ns);
        if self.pace.is_none() {
            client.run.scheduled_ns = now_ns;
        }
        let step = client.begin(now_ns, shared.program).map_err(aborted)?;
        self.perform_steps(index, step, shared)
    }

    /// Closes a connection after its transaction.
    fn disconnect(&mut self, index: usize, begin_ns: u64) {
        self.close(index);
        self.recorder.connecting_ns += self.driver.now_ns() - begin_ns;
    }

    pub(super) fn close(&mut self, index: usize) {
        let session: &mut Session = &mut self.clients[index].session;
        session.terminate();
        // A failure is irrelevant: the connection is closed anyway.
        self.driver.send(index, session.output()).ok();
        self.driver.close(index);
    }

    /// Aborts the client on an error; returns the error if it ends the run.
    #[inline]
    pub(super) fn handle_result(
        &mut self,
        index: usize,
        done: Result<(), LoadError>,
        shared: &WorkerShared<'_>,
    ) -> Result<(), LoadError> {
        match done {
            Ok(()) => Ok(()),
            Err(error) => self.abort_client(index, error, shared),
        }
    }

    #[cold]
    fn abort_client(
        &mut self,
        index: usize,
        error: LoadError,
        shared: &WorkerShared<'_>,
    ) -> Result<(), LoadError> {
        let run = &self.clients[index].run;
        if run.progress == RunProgress::Finished && shared.options.on_abort == OnAbort::EndClient {
            // The lost connection is no longer needed.
            self.driver.close(index);
            return Ok(());
        }
        let client = run.id;
        if let Some(observer) = &mut self.observer {
            observer.aborted(client, &error);
        }
        if shared.options.on_abort == OnAbort::EndRun || matches!(error, LoadError::System { .. }) {
            return Err(error);
        }
        self.close(index);
        let now_ns = self.driver.now_ns();
        let run = &mut self.clients[index].run;
        finish_last_transaction(run, shared);
        self.recorder.book(Doing::Transaction, run.since_ns, now_ns);
        run.since_ns = now_ns;
        run.stage = ClientStage::Aborted;
        self.recorder.last_end_ns = self.recorder.last_end_ns.max(now_ns);
        // Its connection may end after two transactions without waiting, before its next turn.
        self.runnable.retain(|&queued| queued != index);
        self.active -= 1;
        Ok(())
    }
}

/// Records that a client's last transaction of the run has ended; returns whether the client may
/// stop, because no other client's last transaction still needs the load.
#[cold]
pub(super) fn finish_last_transaction(run: &mut ClientRun, shared: &WorkerShared<'_>) -> bool {
    if run.progress == RunProgress::Running {
        run.progress = RunProgress::PastEnd;
        let left = shared.straddling.load(Ordering::Relaxed).min(1);
        shared.straddling.fetch_sub(left, Ordering::Relaxed);
    }
    shared.straddling.load(Ordering::Relaxed) == 0 || shared.stopped_ns.load(Ordering::Relaxed) > 0
}

/// What opens the connections of clients that have one for each transaction.
fn reconnecting<'a>(shared: &WorkerShared<'a>) -> &'a Connector {
    shared
        .connector
        .expect("only reconnecting clients get here")
}
