//! Times of individual commands.
//!
//! A command's time runs from its start to the start of the next command. In a pipeline that would
//! be only the time to append the command to the output buffer, which is what pgbench reports
//! (0.000). There, a statement's time runs from the sending of the pipeline to the statement's
//! completion. The server sends replies only at a Sync or when its buffer is full, so completion is
//! observable only for a statement followed by a Flush. A Flush after every statement would distort
//! the measurement: fifty replies would wake the client fifty times, and pipelines exist to avoid
//! that. So only single, randomly chosen statements are flushed. The statements before a flushed
//! one are unaffected.
//!
//! A run may be too short for random flushes to reach every statement. If every statement is
//! needed, all statements of a client's first transaction are flushed, and those times are used for
//! statements that have no other.

use std::sync::{Arc, Mutex, PoisonError};

use pgassay_script::Rng;

use crate::measurement::CommandMeasurement;

/// The mean number of pipelined statements per flushed statement.
const FLUSHED_ONE_IN: u64 = 50;

/// Indexed by script and command.
type Times = Vec<Vec<CommandMeasurement>>;

/// Command times of a thread's clients.
#[derive(Clone)]
pub(crate) struct CommandRecords {
    times: Times,
    /// From pipelines in which every statement was flushed.
    all_flushed: Times,
}

impl CommandRecords {
    /// Creates records for scripts with these numbers of commands.
    pub fn new(lengths: &[usize]) -> Self {
        let none = |count: &usize| vec![CommandMeasurement::default(); *count];
        let times: Times = lengths.iter().map(none).collect();
        Self {
            all_flushed: times.clone(),
            times,
        }
    }

    /// Adds the records of another thread.
    pub fn merge(&mut self, other: &Self) {
        for (sums, others) in [
            (&mut self.times, &other.times),
            (&mut self.all_flushed, &other.all_flushed),
        ] {
            for (sum, one) in sums.iter_mut().flatten().zip(others.iter().flatten()) {
                sum.merge(one);
            }
        }
    }

    /// Returns the best available times of each command.
    pub fn best(mut self) -> Times {
        let all = self.times.iter_mut().flatten();
        for (best, other) in all.zip(self.all_flushed.iter().flatten()) {
            if best.timed == 0 {
                best.merge(other);
            }
        }
        self.times
    }
}

/// Command times of one client.
pub(crate) struct CommandTimes {
    clock: fn() -> u64,
    /// The records of the client's thread. Clients of one thread never use them at the same time.
    records: Arc<Mutex<CommandRecords>>,
    /// When the current command began.
    begin_ns: u64,
    /// By command of the current script: when a flushed statement was sent, or 0.
    requested_ns: Vec<u64>,
    /// Pipelined statements until the next flush.
    until_flush: u64,
    /// A generator of its own, so that flushes do not change the script's random numbers.
    rng: Rng,
    /// Whether to flush every statement of the client's first transaction.
    flushes_first: bool,
    is_first: bool,
}

impl CommandTimes {
    /// `seed` must differ between clients.
    pub fn new(
        clock: fn() -> u64,
        records: &Arc<Mutex<CommandRecords>>,
        longest: usize,
        seed: u64,
        flushes_first: bool,
    ) -> Self {
        let mut times = Self {
            clock,
            records: Arc::clone(records),
            begin_ns: 0,
            requested_ns: vec![0; longest],
            until_flush: 0,
            rng: Rng::from_seed(seed),
            flushes_first,
            is_first: false,
        };
        times.draw();
        times
    }

    /// Begins a transaction; `ended` transactions came before it.
    pub fn begin_transaction(&mut self, ended: u64) {
        self.is_first = self.flushes_first && ended == 0;
        self.requested_ns.fill(0);
    }

    /// Draws the number of statements until the next flush: uniform between 1 and twice the mean.
    fn draw(&mut self) {
        self.until_flush = 1 + self.rng.up_to(2 * FLUSHED_ONE_IN - 2);
    }

    /// Begins a command.
    pub fn begin(&mut self) {
        self.begin_ns = (self.clock)();
    }

    /// Ends the current command.
    pub fn end(&mut self, script: usize, command: usize) {
        let elapsed_ns = (self.clock)().saturating_sub(self.begin_ns);
        self.change(|records| records.times[script][command].add(elapsed_ns));
    }

    /// Records a pipelined statement; returns `true` if a Flush must follow it.
    pub fn record_pipelined_statement(&mut self, command: usize) -> bool {
        if !self.is_first {
            self.until_flush -= 1;
            if self.until_flush > 0 {
                return false;
            }
            self.draw();
        }
        self.requested_ns[command] = self.begin_ns.max(1);
        true
    }

    /// Handles the completion of a statement; its time counts only if it was flushed.
    pub fn complete(&mut self, script: usize, command: usize) {
        let Some(requested_ns) = self.requested_ns.get_mut(command) else {
            return;
        };
        let requested_ns = std::mem::take(requested_ns);
        if requested_ns > 0 {
            // The whole pipeline is sent at its end, which is the current command now.
            let sent_ns = self.begin_ns.max(requested_ns);
            let elapsed_ns = (self.clock)().saturating_sub(sent_ns);
            let is_first = self.is_first;
            self.change(|records| {
                let times = if is_first {
                    &mut records.all_flushed
                } else {
                    &mut records.times
                };
                times[script][command].add(elapsed_ns);
            });
        }
    }

    /// Counts an error that ended a try of the transaction.
    pub fn failed(&self, script: usize, command: usize, is_retried: bool) {
        self.change(|records| {
            let record = &mut records.times[script][command];
            record.retries += u64::from(is_retried);
            record.failures += u64::from(!is_retried);
        });
    }

    fn change(&self, how: impl FnOnce(&mut CommandRecords)) {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        how(&mut records);
    }
}
