//! The times of a client's commands, where they are wanted.
//!
//! A command is timed from its begin until the next may begin. In a pipeline that would be the
//! time it takes to put it into the output, which is what pgbench reports (0.000); a statement's
//! time there is from its sending, which is that of the whole pipeline, to its completion instead.
//! Since the server sends replies only at a Sync, or when its buffer is full, that is known only of
//! a statement which a Flush follows. A Flush after each would change what is measured: fifty
//! answers are fifty wake-ups of the client, and a pipeline exists to have one. So a single
//! statement is flushed now and then, drawn at random; what comes before it is as without.
//!
//! A run may be too short for that to reach every statement. Where that matters, all statements of
//! a client's first transaction are flushed, and count as long as there is nothing better.

use std::sync::{Arc, Mutex, PoisonError};

use pgassay_script::Rng;

use crate::measurement::CommandMeasurement;

/// One statement of pipelines in so many is flushed, in the mean.
const FLUSHED_ONE_IN: u64 = 50;

/// By script and command.
type Times = Vec<Vec<CommandMeasurement>>;

/// What the commands of a thread's clients took.
#[derive(Clone)]
pub(crate) struct CommandRecords {
    times: Times,
    /// In pipelines of which every statement was flushed.
    all_flushed: Times,
}

impl CommandRecords {
    /// For scripts of these many commands.
    pub fn new(lengths: &[usize]) -> Self {
        let none = |count: &usize| vec![CommandMeasurement::default(); *count];
        let times: Times = lengths.iter().map(none).collect();
        Self {
            all_flushed: times.clone(),
            times,
        }
    }

    /// The records of several threads in one.
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

    /// The best that is known of each command.
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

/// What the commands of one client take.
pub(crate) struct CommandTimes {
    clock: fn() -> u64,
    /// Those of its thread, of which no two clients use them at a time.
    records: Arc<Mutex<CommandRecords>>,
    /// When the current command began.
    begin_ns: u64,
    /// By command of the current script: when a statement that is flushed was asked, or 0.
    asked_ns: Vec<u64>,
    /// Statements in pipelines up to the next that is flushed.
    until_flush: u64,
    /// Draws those, apart from what the client's script draws.
    rng: Rng,
    /// Whether all statements of a first transaction are flushed.
    flushes_first: bool,
    is_first: bool,
}

impl CommandTimes {
    /// For the scripts of these records; `seed` differs between clients.
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
            asked_ns: vec![0; longest],
            until_flush: 0,
            rng: Rng::from_seed(seed),
            flushes_first,
            is_first: false,
        };
        times.draw();
        times
    }

    /// A transaction begins; so many ended before.
    pub fn begin_transaction(&mut self, ended: u64) {
        self.is_first = self.flushes_first && ended == 0;
        self.asked_ns.fill(0);
    }

    /// How many statements from here the next flush is: 1 to twice the mean, all alike probable.
    fn draw(&mut self) {
        self.until_flush = 1 + self.rng.up_to(2 * FLUSHED_ONE_IN - 2);
    }

    /// A command begins.
    pub fn begin(&mut self) {
        self.begin_ns = (self.clock)();
    }

    /// The current command is done.
    pub fn end(&mut self, script: usize, command: usize) {
        let elapsed_ns = (self.clock)().saturating_sub(self.begin_ns);
        self.change(|records| records.times[script][command].add(elapsed_ns));
    }

    /// A statement was put into a pipeline; `true` if a Flush is to follow it.
    pub fn ask_in_pipeline(&mut self, command: usize) -> bool {
        if !self.is_first {
            self.until_flush -= 1;
            if self.until_flush > 0 {
                return false;
            }
            self.draw();
        }
        self.asked_ns[command] = self.begin_ns.max(1);
        true
    }

    /// A statement is complete; counts if it was flushed.
    pub fn complete(&mut self, script: usize, command: usize) {
        let Some(asked_ns) = self.asked_ns.get_mut(command) else {
            return;
        };
        let asked_ns = std::mem::take(asked_ns);
        if asked_ns > 0 {
            // All of a pipeline is sent at its end, which is the current command by now.
            let sent_ns = self.begin_ns.max(asked_ns);
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

    /// An error ended a try of the transaction.
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
