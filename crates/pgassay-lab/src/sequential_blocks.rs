//! Blocks until every comparison has a verdict.

use std::collections::BTreeSet;

use pgassay_account::comparison::{RunningComparisons, blocks_per_unit, ends_unit};
use pgassay_model::plan::Plan;
use pgassay_model::trial::Trial;
use pgassay_model::wording;

use crate::open_blocks::OpenBlocks;
use crate::scheduler::{Block, Scheduler};

/// Units before the first analysis.
const FIRST_ANALYSIS: f64 = 4.0;

/// Runs a condition as long as one of its comparisons is open. All open conditions take part in every block, because
/// a server start costs more than their trials; but if the time limit leaves too little for all of them, the rest of
/// the time goes to those that are nearest to a verdict.
#[derive(Debug)]
pub struct SequentialBlocks<'a> {
    plan: &'a Plan,
    running: RunningComparisons<'a>,
    blocks: OpenBlocks<'a>,
    /// Whether a unit ended with the last block.
    ends_unit: bool,
    /// Whether there was an analysis after the last block.
    has_news: bool,
    /// How often a condition took part in a block.
    rounds: usize,
}

impl<'a> SequentialBlocks<'a> {
    /// The blocks of a sequential plan with these comparisons.
    pub fn new(plan: &'a Plan, running: RunningComparisons<'a>) -> Self {
        Self {
            plan,
            running,
            blocks: OpenBlocks::new(plan),
            ends_unit: false,
            has_news: false,
            rounds: 0,
        }
    }

    /// After the first unit, a warning if the time limit will end the run before the first analysis: transactions that
    /// take long make trials longer than planned.
    fn too_slow(&self) -> Option<String> {
        let max_us = self.plan.schedule.max_time_us?;
        if !self.ends_unit || self.blocks.next() != blocks_per_unit(self.plan) {
            return None;
        }
        let unit_us = self.blocks.elapsed_us().max(1);
        let units = max_us as f64 / unit_us as f64;
        (units < FIRST_ANALYSIS).then(|| {
            format!(
                "a block of trials takes about {:.0} s: the time limit will end the run before the first analysis, \
                 which follows {FIRST_ANALYSIS} of them; use a longer --max-time",
                unit_us as f64 / 1e6
            )
        })
    }

    /// Those of the open conditions that take part in the next unit: all, or as many of the nearest as the time
    /// limit leaves time for, and at least one. The others may follow; they take part at once if the time is longer
    /// than those take in all blocks that are left.
    fn taking_part(&self, open: BTreeSet<usize>) -> BTreeSet<usize> {
        let Some(max_us) = self.plan.schedule.max_time_us else {
            return open;
        };
        let Some(nearest) = self.running.units_to_verdict() else {
            return open;
        };
        let left_us = max_us.saturating_sub(self.blocks.elapsed_us()) as f64;
        let unit_us = self.blocks.elapsed_us() as f64 / self.rounds.max(1) as f64
            * f64::from(blocks_per_unit(self.plan));
        let blocks_left = self.plan.schedule.blocks.saturating_sub(self.blocks.next());
        let each = (blocks_left / blocks_per_unit(self.plan)) as usize;
        nearest_in(nearest, (left_us / unit_us).floor() as usize, each)
    }
}

/// The nearest of the conditions, each with the units to its verdict, for which there is time for `all_left` units, at
/// most `each_left` of one condition.
fn nearest_in(
    nearest: impl IntoIterator<Item = (usize, usize)>,
    all_left: usize,
    each_left: usize,
) -> BTreeSet<usize> {
    let mut left = all_left;
    let mut taking_part = BTreeSet::new();
    for (condition, units) in nearest {
        let is_too_long = units > left && all_left <= each_left * taking_part.len();
        if is_too_long && !taking_part.is_empty() {
            break;
        }
        left = left.saturating_sub(units);
        taking_part.insert(condition);
    }
    taking_part
}

impl Scheduler for SequentialBlocks<'_> {
    fn next_block(&mut self) -> Option<Block> {
        if self.blocks.next() >= self.plan.schedule.blocks {
            return None;
        }
        self.blocks.take_next()
    }

    fn block_ended(&mut self, trials: &[Trial]) {
        let Some(block) = self.blocks.note_ended(trials) else {
            return;
        };
        let analyses = self.running.analyses();
        self.running.add_block(block, trials);
        self.has_news = self.running.analyses() > analyses;
        let conditions: BTreeSet<usize> = trials.iter().map(|it| it.condition).collect();
        self.rounds += conditions.len();
        self.ends_unit = ends_unit(self.plan, block);
        // Within a unit, conditions stay together.
        if self.ends_unit {
            let open = self.running.open_conditions();
            self.blocks.keep_open(self.taking_part(open));
        }
    }

    fn blocks_max(&self) -> u32 {
        self.plan.schedule.blocks
    }

    fn progress(&self) -> Option<String> {
        if let Some(warning) = self.too_slow() {
            return Some(warning);
        }
        if !self.ends_unit || !self.has_news {
            return None;
        }
        let unit = if self.plan.restarts_servers() {
            format!(
                "{} server starts",
                self.plan.server_start(self.blocks.next() - 1) + 1
            )
        } else {
            format!("{} pairs", self.blocks.next())
        };
        let (decided, all) = self.running.decided();
        if all > 1 {
            return Some(format!(
                "after {unit}: {decided} of {all} comparisons decided"
            ));
        }
        let interval = self.running.cell(0, 1)?.interval?;
        let ratio = self.running.ratio(0, 1)?;
        Some(format!(
            "after {unit}: throughput {} {}",
            wording::ratio(ratio),
            wording::interval(interval.low, interval.high)
        ))
    }
}

#[cfg(test)]
mod tests {
    use hdrhistogram::Histogram;
    use pgassay_model::plan::{Overrides, plan};
    use pgassay_model::study::StudySource;
    use pgassay_model::trial::{Latency, TrialKind};

    use super::*;
    use crate::planned_scheduler::scheduler_of;

    fn planned(max_time: Option<&str>) -> Plan {
        planned_for("[1, 2]", max_time)
    }

    fn planned_for(clients: &str, max_time: Option<&str>) -> Plan {
        let source = StudySource {
            file: "s.toml".to_owned(),
            text: format!(
                "question = \"?\"\n[[script]]\nname = \"a\"\ntext = \"select 1\"\n\
                 [[variant]]\nname = \"a\"\n[[variant]]\nname = \"b\"\nprotocol = \"prepared\"\n\
                 [conditions]\nclients = {clients}\n"
            ),
        };
        let overrides = Overrides {
            max_time: max_time.map(|it| it.parse().expect("a duration")),
            ..Overrides::default()
        };
        plan(
            &source.parse().expect("the study is valid"),
            &source,
            &overrides,
        )
        .expect("the study can be planned")
    }

    /// The trials of a block; every trial takes a second. With one client the variant is a third faster, with two
    /// the difference is unclear, and with a third number of clients it becomes clear after some blocks.
    fn trials(plan: &Plan, block: &Block, begin: i64) -> Vec<Trial> {
        let mut all: Vec<Trial> = Vec::new();
        for round in &block.rounds {
            for &variant in &round.timed {
                let uneven = [0.8, 1.2, 1.0][(block.number % 3) as usize];
                let factor = match (variant, round.condition) {
                    (0, _) => 1.0,
                    (_, 0) => 1.3 + 0.01 * uneven,
                    (_, 2) => 0.95 + 0.1 * uneven,
                    _ => uneven,
                };
                let transactions = 1000.0 * factor;
                let empty = Histogram::<u64>::new(3).expect("three digits are supported");
                all.push(Trial {
                    block: block.number,
                    server_start: plan.server_start(block.number),
                    condition: round.condition,
                    variant,
                    started_us: begin + 1_000_000 * all.len().cast_signed() as i64,
                    window_us: 1e6,
                    transactions: transactions as u64,
                    credited_transactions: Some(transactions),
                    transactions_total: transactions as u64,
                    latency: Latency::from_histogram(&empty),
                    ..Trial::empty(TrialKind::Timed)
                });
            }
        }
        all
    }

    /// The conditions of each block until the scheduler ends.
    fn conditions(plan: &Plan) -> Vec<Vec<usize>> {
        let mut scheduler = scheduler_of(plan);
        let (mut found, mut now) = (Vec::new(), 0);
        while let Some(block) = scheduler.next_block() {
            let mut conditions: Vec<usize> = block.rounds.iter().map(|it| it.condition).collect();
            conditions.sort_unstable();
            found.push(conditions);
            let trials = trials(plan, &block, now);
            now += 1_000_000 * trials.len().cast_signed() as i64;
            scheduler.block_ended(&trials);
        }
        found
    }

    #[test]
    fn a_decided_condition_gets_no_further_block_and_a_hopeless_one_is_given_up() {
        let found = conditions(&planned(None));
        assert!(found[..4].iter().all(|it| *it == [0, 1]), "{found:?}");
        assert!(found[4..].iter().all(|it| *it == [1]), "{found:?}");
        assert!((6..=12).contains(&found.len()), "{found:?}");
    }

    #[test]
    fn the_time_limit_counts_from_the_first_trial() {
        // A block has 32 trials of a second.
        assert_eq!(conditions(&planned(Some("1min"))).len(), 2);
    }

    #[test]
    fn time_that_is_short_goes_to_the_condition_that_is_nearest_to_its_verdict() {
        // A block takes 8 s for each condition: after 4 blocks, there is time for 6 of a single condition.
        let found = conditions(&planned_for("[1, 2, 4]", Some("150s")));
        assert!(found[..4].iter().all(|it| *it == [0, 1, 2]), "{found:?}");
        let near = found[4..].iter().take_while(|it| **it == [2]).count();
        assert!(near > 0, "{found:?}");
        let rest = &found[4 + near..];
        assert!(
            !rest.is_empty() && rest.iter().all(|it| *it == [1]),
            "{found:?}"
        );
        let without_limit = conditions(&planned_for("[1, 2, 4]", None));
        assert_eq!(without_limit[4], [1, 2]);
    }

    /// Regression: a condition waited until the nearer one had a verdict, and then there was time but no block for it.
    #[test]
    fn time_that_the_nearest_condition_cannot_use_goes_to_the_next() {
        let nearest = || [(0, 9), (1, 12)];
        let both = BTreeSet::from([0, 1]);
        // After 4 of 12 server starts, with time for 12 units: 8 of them are the most that the first can take.
        assert_eq!(nearest_in(nearest(), 12, 8), both);
        assert_eq!(nearest_in(nearest(), 8, 8), BTreeSet::from([0]));
        assert_eq!(nearest_in(nearest(), 21, 20), both);
        assert_eq!(nearest_in(nearest(), 20, 20), BTreeSet::from([0]));
        assert_eq!(nearest_in(nearest(), 0, 1), BTreeSet::from([0]));
    }

    /// Regression: after five pairs, the figures of four were repeated.
    #[test]
    fn progress_is_reported_after_an_analysis_only() {
        let mut plan = planned(None);
        // Without restarts, the units are pairs, which are analyzed two at a time.
        plan.schedule.blocks_per_server_start = 0;
        let mut scheduler = scheduler_of(&plan);
        let mut reported = Vec::new();
        for _ in 0..5 {
            let block = scheduler.next_block().expect("there are blocks");
            let trials = trials(&plan, &block, 0);
            scheduler.block_ended(&trials);
            reported.push(scheduler.progress().is_some());
        }
        assert_eq!(reported, [false, false, false, true, false]);
    }

    #[test]
    fn earlier_blocks_bring_a_new_scheduler_to_the_same_state() {
        let plan = planned(None);
        let mut first = scheduler_of(&plan);
        let mut blocks = Vec::new();
        for _ in 0..5 {
            let block = first.next_block().expect("there are blocks");
            let trials = trials(&plan, &block, 0);
            first.block_ended(&trials);
            blocks.push(trials);
        }
        let mut second = scheduler_of(&plan);
        for trials in &blocks {
            second.block_ended(trials);
        }
        assert_eq!(first.next_block(), second.next_block());
        assert_eq!(first.progress(), second.progress());
    }
}
