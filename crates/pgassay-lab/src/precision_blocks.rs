//! Blocks in two stages: until the intervals have the wanted half-width.

use std::fmt::Write;
use std::time::Duration;

use pgassay_account::comparison::{RunningPrecision, ends_unit};
use pgassay_model::plan::Plan;
use pgassay_model::study::HumanDuration;
use pgassay_model::trial::Trial;

use crate::open_blocks::OpenBlocks;
use crate::scheduler::{Block, Scheduler};

/// Runs the plan's blocks, the first stage, and then each condition for as many units as the standard deviations
/// of the first stage require. No verdict ends anything. Stacks are sampled in the first stage only: they do not
/// make an interval narrower.
#[derive(Debug)]
pub struct PrecisionBlocks<'a> {
    plan: &'a Plan,
    running: RunningPrecision<'a>,
    blocks: OpenBlocks<'a>,
    /// Whether the first stage ended with the last block.
    ends_first_stage: bool,
}

impl<'a> PrecisionBlocks<'a> {
    /// The blocks of a plan with two stages and these comparisons.
    pub fn new(plan: &'a Plan, running: RunningPrecision<'a>) -> Self {
        Self {
            plan,
            running,
            blocks: OpenBlocks::new(plan),
            ends_first_stage: false,
        }
    }

    /// Blocks until the last condition ends, as far as is known.
    fn blocks_planned(&self) -> u32 {
        let first_stage = self.plan.schedule.blocks;
        if !self.running.has_first_stage() {
            return first_stage;
        }
        let conditions = 0..self.plan.conditions.len();
        let units = conditions.map(|it| self.running.units_of(it)).max();
        let per_unit = first_stage as usize / self.running.first_stage().max(1);
        u32::try_from(units.unwrap_or(0) * per_unit).unwrap_or(u32::MAX)
    }

    /// What the first stage found, and what the second will take.
    fn after_first_stage(&self) -> Option<String> {
        let unit = if self.plan.restarts_servers() {
            "server starts"
        } else {
            "pairs"
        };
        let units = self.running.units();
        let wanted = self.plan.schedule.half_width_percent?;
        let deviations = self.running.estimates().map(|it| it.unit_sd_log);
        let sd = deviations.max_by(f64::total_cmp)?;
        let found = format!("after {units} {unit}: SD {:.1}%", 100.0 * sd);
        let (blocks, next) = (self.blocks_planned(), self.blocks.next());
        let coarse =
            "the resolution of the rates is too coarse: longer trials are needed (--length)";
        if blocks <= next {
            return Some(if self.running.is_too_coarse() {
                format!(
                    "{found}; an interval within \u{b1}{wanted}% is out of reach, because {coarse}"
                )
            } else {
                format!("{found}; all intervals are within \u{b1}{wanted}%")
            });
        }
        // From the begin of the first block to that of the last.
        let each_us = self.blocks.began_us() / u64::from(next - 1).max(1);
        let rest_us = u64::from(blocks - next) * each_us;
        let at_most = if self.plan.conditions.len() > 1 {
            "at most "
        } else {
            ""
        };
        let planned = blocks as usize * units / next.max(1) as usize;
        let rest = in_words(rest_us);
        let mut text = format!(
            "{found}; within \u{b1}{wanted}% after {at_most}{planned} {unit}, in {at_most}about {rest} more"
        );
        let max_us = self.plan.schedule.max_time_us;
        if let Some(max_us) = max_us.filter(|max_us| self.blocks.elapsed_us() + rest_us > *max_us) {
            let max = HumanDuration::from(Duration::from_micros(max_us));
            _ = write!(text, "; the run ends before that, after {max} (--max-time)");
        }
        if self.running.is_too_coarse() {
            _ = write!(text, "; some intervals stay wider, because {coarse}");
        }
        Some(text)
    }
}

/// `40 s`, `3 min`, `2.5 h`.
fn in_words(us: u64) -> String {
    let seconds = us as f64 / 1e6;
    match seconds {
        it if it < 100.0 => format!("{it:.0} s"),
        it if it < 6000.0 => format!("{:.0} min", it / 60.0),
        it => format!("{:.1} h", it / 3600.0),
    }
}

impl Scheduler for PrecisionBlocks<'_> {
    fn next_block(&mut self) -> Option<Block> {
        let mut block = self.blocks.take_next()?;
        if block.number >= self.plan.schedule.blocks {
            for round in &mut block.rounds {
                round.profiled.clear();
            }
        }
        Some(block)
    }

    fn block_ended(&mut self, trials: &[Trial]) {
        let Some(block) = self.blocks.note_ended(trials) else {
            return;
        };
        let had_first_stage = self.running.has_first_stage();
        self.running.add_block(block, trials);
        self.ends_first_stage = self.running.has_first_stage() && !had_first_stage;
        // Within a unit, conditions stay together.
        if ends_unit(self.plan, block) {
            self.blocks.keep_open(self.running.open_conditions());
        }
    }

    fn blocks_max(&self) -> u32 {
        self.blocks_planned()
    }

    fn progress(&self) -> Option<String> {
        if self.ends_first_stage {
            self.after_first_stage()
        } else {
            None
        }
    }
}
