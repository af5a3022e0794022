//! What follows a failed try of a transaction. Source: `CSTATE_ERROR` in pgbench.c.

use std::sync::atomic::Ordering;

use super::steps::finish_last_transaction;
use super::{Worker, WorkerShared, aborted};
use crate::client::ClientStep;
use crate::client_options::{FailedTry, FailedTryFate, FailureKind};
use crate::driver::Driver;
use crate::error::LoadError;
use crate::recorder::Doing;

/// How a client goes on after a failed try.
pub(super) enum FailureStep {
    /// The first step of the retry.
    Retry(ClientStep),
    /// The transaction counts as failed.
    Count(FailureKind),
    /// The client has finished, and the transaction does not count.
    Finished,
}

impl<D: Driver> Worker<D> {
    /// Classifies a failed try and decides whether to retry.
    #[cold]
    pub(super) fn fail(
        &mut self,
        index: usize,
        shared: &WorkerShared<'_>,
    ) -> Result<FailureStep, LoadError> {
        let now_ns = self.driver.now_ns();
        let client = &mut self.clients[index];
        let (command, error) = client
            .run
            .take_failure()
            .expect("a failed transaction keeps the server's error");
        let (kind, options) = (FailureKind::of(&error), shared.options);
        let run = &mut client.run;
        let elapsed_ns = now_ns.saturating_sub(run.scheduled_ns);
        let is_over = now_ns >= shared.end_ns.load(Ordering::Relaxed);
        let is_retried = kind.is_retriable()
            && (options.tries_max == 0 || run.tries < options.tries_max)
            && options
                .latency_limit
                .is_none_or(|limit| u128::from(elapsed_ns) <= limit.as_nanos())
            && !is_over;
        // A window that ends at its time counts what ends in it, so there is no such rule.
        let is_dropped =
            is_over && self.recorder.counts_late_ends && finish_last_transaction(run, shared);
        let fate = match (is_dropped, is_retried) {
            (true, _) => FailedTryFate::Dropped,
            (false, true) => FailedTryFate::Retried,
            (false, false) => FailedTryFate::Failed,
        };
        if let Some(observer) = &mut self.observer {
            observer.failed_try(&FailedTry {
                client: run.id,
                script: run.script,
                command,
                error: &error,
                tries: run.tries,
                fate,
                elapsed_ns,
            });
        }
        if is_dropped {
            self.drop_transaction(index, now_ns, shared);
            return Ok(FailureStep::Finished);
        }
        if let Some(times) = &mut run.times {
            times.failed(run.script, command, is_retried);
        }
        if !is_retried {
            return Ok(FailureStep::Count(kind));
        }
        let step = client.retry(shared.program).map_err(aborted)?;
        Ok(FailureStep::Retry(step))
    }

    /// Finishes a client without counting its transaction.
    fn drop_transaction(&mut self, index: usize, now_ns: u64, shared: &WorkerShared<'_>) {
        let run = &mut self.clients[index].run;
        self.recorder.book(Doing::Transaction, run.since_ns, now_ns);
        run.since_ns = now_ns;
        if shared.connector.is_some() {
            self.close(index);
        }
        self.finish(index, shared);
    }
}
