//! The blocks of a plan whose conditions end one by one.

use std::collections::BTreeSet;

use pgassay_model::elapsed_time::ElapsedTime;
use pgassay_model::plan::Plan;
use pgassay_model::trial::Trial;

use crate::scheduler::Block;

/// Hands out the plan's blocks in order, with the conditions that are still open, until the time is up. What ends
/// a condition is for a scheduler to decide.
#[derive(Debug)]
pub struct OpenBlocks<'a> {
    plan: &'a Plan,
    next: u32,
    open: BTreeSet<usize>,
    elapsed: ElapsedTime,
}

impl<'a> OpenBlocks<'a> {
    /// All conditions are open.
    pub fn new(plan: &'a Plan) -> Self {
        Self {
            plan,
            next: 0,
            open: (0..plan.conditions.len()).collect(),
            elapsed: ElapsedTime::default(),
        }
    }

    /// The next block; `None` if no condition is open, or the time is up. It is up as well if less than half of a
    /// block like the last would fit.
    pub fn take_next(&mut self) -> Option<Block> {
        let max_us = self.plan.schedule.max_time_us;
        if max_us.is_some_and(|max_us| self.elapsed.is_up(max_us)) {
            return None;
        }
        let number = self.next;
        let mut rounds = self.plan.block(number);
        rounds.retain(|round| self.open.contains(&round.condition));
        if rounds.is_empty() {
            return None;
        }
        self.next += 1;
        Some(Block { number, rounds })
    }

    /// Takes note of a block that has ended, also one of an earlier process; returns its number.
    pub fn note_ended(&mut self, trials: &[Trial]) -> Option<u32> {
        let number = trials.first()?.block;
        self.next = self.next.max(number + 1);
        for trial in trials {
            self.elapsed.add(trial);
        }
        Some(number)
    }

    /// From now on, only these conditions are open.
    pub fn keep_open(&mut self, conditions: BTreeSet<usize>) {
        self.open = conditions;
    }

    /// Number of the next block.
    pub fn next(&self) -> u32 {
        self.next
    }

    /// From the begin of the first trial to the end of the last, µs.
    pub fn elapsed_us(&self) -> u64 {
        self.elapsed.us()
    }

    /// When the last block began, after the begin of the first, µs.
    pub fn began_us(&self) -> u64 {
        self.elapsed.block_began_us()
    }
}
