//! Decides which block comes next, and when a run ends.

use pgassay_model::plan::{Plan, Round};
use pgassay_model::trial::Trial;

/// The rounds to run next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Its number, from 0; never lower than that of the block before.
    pub number: u32,
    /// One round per condition that is measured in this block, in order.
    pub rounds: Vec<Round>,
}

/// Decides which block comes next. Pure: it sees trials and nothing else, so that the same trials, read
/// from disk, bring it to the same state.
pub trait Scheduler {
    /// The next block; `None` ends the run.
    fn next_block(&mut self) -> Option<Block>;

    /// Takes note of the trials of the block that ended.
    fn block_ended(&mut self, trials: &[Trial]);

    /// The number of blocks that it will run at most, as far as is known.
    fn blocks_max(&self) -> u32;

    /// What is known after the block that ended, in a sentence for the user; `None` if there is nothing new.
    fn progress(&self) -> Option<String> {
        None
    }
}

/// Runs every round of every block of a plan.
#[derive(Debug)]
pub struct FixedBlocks<'a> {
    plan: &'a Plan,
    next: u32,
}

impl<'a> FixedBlocks<'a> {
    /// All blocks of a plan.
    pub fn of(plan: &'a Plan) -> Self {
        Self { plan, next: 0 }
    }
}

impl Scheduler for FixedBlocks<'_> {
    fn next_block(&mut self) -> Option<Block> {
        let number = self.next;
        if number >= self.plan.schedule.blocks {
            return None;
        }
        self.next += 1;
        Some(Block {
            number,
            rounds: self.plan.block(number),
        })
    }

    fn block_ended(&mut self, _: &[Trial]) {}

    fn blocks_max(&self) -> u32 {
        self.plan.schedule.blocks
    }
}
