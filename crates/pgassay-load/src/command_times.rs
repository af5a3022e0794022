//! The times of a client's commands, where they are wanted.
//!
//! A command is timed from its begin until the next may begin. In a pipeline that would be the
//! time it takes to put it into the output, which is what pgbench reports (0.000); a statement's
//! time there is from its sending, which is that of the whole pipeline, to its completion instead.
//! Since the server sends replies only at a Sync, or when its buffer is full, that is true only if
//! a Flush follows each statement, which costs a third of the throughput: so it is done for a
//! sample of the transactions.

use std::sync::{Arc, Mutex, PoisonError};

use crate::measurement::CommandMeasurement;

/// One transaction in so many has its pipelines flushed after each statement, a client's first
/// among them.
const SAMPLED_ONE_IN: u64 = 100;

/// What the commands of a thread's clients took, by script and command.
pub(crate) type CommandRecords = Vec<Vec<CommandMeasurement>>;

/// What the commands of one client take.
pub(crate) struct CommandTimes {
    clock: fn() -> u64,
    /// Those of its thread, of which no two clients use them at a time.
    records: Arc<Mutex<CommandRecords>>,
    /// When the current command began.
    begin_ns: u64,
    /// By command of the current script: when a statement in a sampled pipeline was asked, or 0.
    asked_ns: Vec<u64>,
    is_sampled: bool,
}

impl CommandTimes {
    /// For scripts whose longest has so many commands.
    pub fn new(clock: fn() -> u64, records: &Arc<Mutex<CommandRecords>>, longest: usize) -> Self {
        Self {
            clock,
            records: Arc::clone(records),
            begin_ns: 0,
            asked_ns: vec![0; longest],
            is_sampled: false,
        }
    }

    /// A transaction begins; so many ended before.
    pub fn begin_transaction(&mut self, ended: u64) {
        self.is_sampled = ended.is_multiple_of(SAMPLED_ONE_IN);
        self.asked_ns.fill(0);
    }

    /// A command begins.
    pub fn begin(&mut self) {
        self.begin_ns = (self.clock)();
    }

    /// The current command is done.
    pub fn end(&mut self, script: usize, command: usize) {
        let elapsed_ns = (self.clock)().saturating_sub(self.begin_ns);
        self.change(script, command, |record| record.add(elapsed_ns));
    }

    /// A statement was put into a pipeline; `true` if a Flush is to follow it.
    pub fn ask_in_pipeline(&mut self, command: usize) -> bool {
        if self.is_sampled {
            self.asked_ns[command] = self.begin_ns.max(1);
        }
        self.is_sampled
    }

    /// A statement is complete; counts if it was in a sampled pipeline.
    pub fn complete(&mut self, script: usize, command: usize) {
        let Some(asked_ns) = self.asked_ns.get_mut(command) else {
            return;
        };
        let asked_ns = std::mem::take(asked_ns);
        if asked_ns > 0 {
            // All of a pipeline is sent at its end, which is the current command by now.
            let sent_ns = self.begin_ns.max(asked_ns);
            let elapsed_ns = (self.clock)().saturating_sub(sent_ns);
            self.change(script, command, |record| record.add(elapsed_ns));
        }
    }

    /// An error ended a try of the transaction.
    pub fn failed(&self, script: usize, command: usize, is_retried: bool) {
        self.change(script, command, |record| {
            record.retries += u64::from(is_retried);
            record.failures += u64::from(!is_retried);
        });
    }

    fn change(&self, script: usize, command: usize, how: impl FnOnce(&mut CommandMeasurement)) {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        how(&mut records[script][command]);
    }
}
