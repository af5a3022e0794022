//! The times of a client's commands, where they are wanted.
//!
//! A command is timed from its begin until the next may begin. In a pipeline that would be the
//! time it takes to put it into the output, which is what pgbench reports (0.000); a statement's
//! time there is from its request to its completion instead. Since the server sends replies only
//! at a Sync, or when its buffer is full, that is true only if a Flush follows each statement,
//! which costs a third of the throughput: so it is done for a sample of the transactions.

use crate::measurement::CommandMeasurement;

/// One transaction in so many has its pipelines flushed after each statement, a client's first
/// among them.
const SAMPLED_ONE_IN: u64 = 100;

/// What the commands of one client took.
pub(crate) struct CommandTimes {
    clock: fn() -> u64,
    /// By script and command.
    pub records: Vec<Vec<CommandMeasurement>>,
    /// When the current command began.
    begin_ns: u64,
    /// By command of the current script: when a statement in a sampled pipeline was asked, or 0.
    asked_ns: Vec<u64>,
    is_sampled: bool,
}

impl CommandTimes {
    /// For scripts with so many commands each.
    pub fn new(clock: fn() -> u64, commands: impl Iterator<Item = usize>) -> Self {
        let records: Vec<Vec<_>> = commands
            .map(|count| vec![CommandMeasurement::default(); count])
            .collect();
        let longest = records.iter().map(Vec::len).max().unwrap_or(0);
        Self {
            clock,
            records,
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
        self.records[script][command].add(elapsed_ns);
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
            let elapsed_ns = (self.clock)().saturating_sub(asked_ns);
            self.records[script][command].add(elapsed_ns);
        }
    }
}
