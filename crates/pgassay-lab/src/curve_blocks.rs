//! The blocks of a scalability curve: each names the numbers of clients, or the rates, to measure next.

use std::collections::{BTreeMap, BTreeSet};

use pgassay_account::comparison::PooledRate;
use pgassay_model::plan::{Plan, PointId};
use pgassay_model::trial::{Trial, TrialKind};
use pgassay_stats::scalability::{KneeSearch, MeasuredThroughput, coarse_grid};

use crate::rate_search::{PacedRound, RateSearch};
use crate::scheduler::{Block, Scheduler};

/// Timed trials of a round.
const TIMED: u64 = 2;
/// Blocks of the coarse grid, with which a search for the knee begins; it always completes them.
const COARSE_BLOCKS: u32 = 3;
/// Blocks of an exhaustive sweep for which the length of its trials is planned.
const SWEEP_BLOCKS: u64 = 8;
/// Rounds of a later block of a search for the knee, to estimate the number of blocks.
const ROUNDS_PER_BLOCK: u64 = 3;
/// Rates that a search measures, to plan the length of its trials.
const RATES: u64 = 10;
/// In shorter windows, connecting and warming up takes most of the time.
const TRIAL_US_MIN: u64 = 50_000;

/// How numbers of clients, or rates, are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Clients: a coarse grid, then where knee and peak are most uncertain, until the knee is known precisely.
    Adaptive,
    /// All numbers of clients, or all rates, in every block.
    Exhaustive,
    /// Rates: doubled until the server does not keep up, then closer to the highest sustained one.
    Rates,
}

impl Placement {
    /// The length of a trial if all trials together may take this long, µs: half of the time of a search is
    /// for its first phase. `profiled` is the number of profiled trials for each number of clients or rate.
    pub fn trial_us(self, levels: &[u32], length_us: u64, profiled: u32) -> u64 {
        let profiled = u64::from(profiled);
        let trials = match self {
            Self::Adaptive => {
                let each = TIMED * u64::from(COARSE_BLOCKS) + profiled;
                2 * coarse_grid(levels).len() as u64 * each
            }
            Self::Exhaustive => levels.len() as u64 * (TIMED * SWEEP_BLOCKS + profiled),
            Self::Rates => 2 * RATES * (TIMED + profiled),
        };
        (length_us / trials.max(1) / 1000 * 1000).max(TRIAL_US_MIN)
    }
}

#[derive(Debug)]
enum LevelSearch {
    Knee(KneeSearch),
    Sweep(Vec<u32>),
    Rates(RateSearch),
}

/// Measures the first variant of a plan whose conditions differ in their number of clients, or in their rate,
/// until the knee is known or the measuring time is used up. Each condition is profiled in its first round
/// only.
#[derive(Debug)]
pub struct CurveBlocks<'a> {
    plan: &'a Plan,
    search: LevelSearch,
    /// The condition of each number of clients, or of each rate.
    conditions: BTreeMap<u32, usize>,
    profiled: BTreeSet<usize>,
    length_us: u64,
    measured_us: f64,
    blocks: u32,
}

impl<'a> CurveBlocks<'a> {
    /// The blocks of this plan, with at most `length_us` inside trials.
    pub fn new(plan: &'a Plan, placement: Placement, length_us: u64) -> Self {
        let conditions = (0..plan.conditions.len()).map(|it| (level(plan, it), it));
        let conditions: BTreeMap<u32, usize> = conditions.collect();
        let levels: Vec<u32> = conditions.keys().copied().collect();
        Self {
            plan,
            search: match placement {
                Placement::Adaptive => LevelSearch::Knee(KneeSearch::new(&levels)),
                Placement::Exhaustive => LevelSearch::Sweep(levels),
                Placement::Rates => LevelSearch::Rates(RateSearch::new(&levels)),
            },
            conditions,
            profiled: BTreeSet::new(),
            length_us,
            measured_us: 0.0,
            blocks: 0,
        }
    }

    /// Blocks that were run.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Trials if all of the measuring time is used.
    pub fn trials_max(&self) -> u64 {
        self.length_us / self.plan.schedule.trial_us.max(1)
    }

    /// The numbers of clients, or rates, of the next block, if there is time for them.
    fn next_levels(&self) -> Vec<u32> {
        // Without its first blocks, a curve has no intervals.
        let (next, needed) = match &self.search {
            LevelSearch::Knee(search) => (search.next_block(), COARSE_BLOCKS),
            LevelSearch::Sweep(all) => (all.clone(), 2),
            LevelSearch::Rates(search) => (search.next_block(), 2),
        };
        let is_new = |it: &&u32| !self.profiled.contains(&self.conditions[*it]);
        let profiled = next.iter().filter(is_new).count() as u64;
        let profiled = profiled * u64::from(self.plan.schedule.profiled);
        let trials = TIMED * next.len() as u64 + profiled;
        let after_us = self.measured_us + (trials * self.plan.schedule.trial_us) as f64;
        if self.blocks < needed || after_us <= self.length_us as f64 {
            next
        } else {
            Vec::new()
        }
    }
}

impl Scheduler for CurveBlocks<'_> {
    fn next_block(&mut self) -> Option<Block> {
        let levels = self.next_levels();
        let chosen: BTreeSet<usize> = levels.iter().map(|it| self.conditions[it]).collect();
        let number = self.blocks;
        let mut rounds = self.plan.block(number);
        rounds.retain(|round| chosen.contains(&round.condition));
        for round in &mut rounds {
            round.hardware_counters.clear();
            if !self.profiled.insert(round.condition) {
                round.profiled.clear();
            }
        }
        (!rounds.is_empty()).then_some(Block { number, rounds })
    }

    fn block_ended(&mut self, trials: &[Trial]) {
        self.blocks += 1;
        self.measured_us += trials.iter().map(|it| it.window_us).sum::<f64>();
        match &mut self.search {
            LevelSearch::Knee(search) => search.block_ended(&rounds_of(self.plan, trials)),
            LevelSearch::Sweep(_) => {}
            LevelSearch::Rates(search) => {
                for (rate, round) in rates_of(self.plan, trials) {
                    search.round_ended(rate, round);
                }
            }
        }
    }

    fn blocks_max(&self) -> u32 {
        let trial_us = self.plan.schedule.trial_us.max(1);
        let levels: Vec<u32> = self.conditions.keys().copied().collect();
        let (first, first_rounds, rounds) = match self.search {
            LevelSearch::Knee(_) => {
                let coarse = coarse_grid(&levels).len() as u64;
                (u64::from(COARSE_BLOCKS), coarse, ROUNDS_PER_BLOCK)
            }
            LevelSearch::Sweep(_) => (0, 0, levels.len() as u64),
            LevelSearch::Rates(_) => (RATES, 1, RATES),
        };
        let first_us = first * TIMED * first_rounds * trial_us;
        let later_us = self.length_us.saturating_sub(first_us);
        let later = later_us / (TIMED * rounds * trial_us).max(1);
        u32::try_from(first + later).unwrap_or(u32::MAX).max(2)
    }
}

/// The rate of a condition, or else its number of clients.
fn level(plan: &Plan, condition: usize) -> u32 {
    let rate = plan.point(PointId::new(condition, 0)).rate_per_s;
    rate.map_or(plan.conditions[condition].clients, |it| it.round() as u32)
}

/// The round of each rate in a block: transactions over time, which may be none.
fn rates_of(plan: &Plan, trials: &[Trial]) -> Vec<(u32, PacedRound)> {
    let mut sums: BTreeMap<usize, (f64, f64)> = BTreeMap::new();
    for trial in trials.iter().filter(|it| it.kind == TrialKind::Timed) {
        let (transactions, seconds) = sums.entry(trial.condition).or_default();
        *seconds += trial.window_us / 1e6;
        *transactions += trial.tps() * trial.window_us / 1e6;
    }
    let sums = sums.into_iter();
    sums.map(|(condition, (transactions, seconds))| {
        let tps = transactions / seconds;
        (level(plan, condition), PacedRound { tps, seconds })
    })
    .collect()
}

/// The throughput of the timed trials of each round in which transactions ended.
fn rounds_of(plan: &Plan, trials: &[Trial]) -> Vec<MeasuredThroughput> {
    let mut rates: BTreeMap<(u32, usize), PooledRate> = BTreeMap::new();
    for trial in trials.iter().filter(|it| it.kind == TrialKind::Timed) {
        let round = (trial.block, trial.condition);
        rates.entry(round).or_default().add(trial);
    }
    let round = |((_, condition), rate): ((u32, usize), PooledRate)| MeasuredThroughput {
        clients: level(plan, condition),
        throughput: rate.per_second(),
    };
    let rounds = rates.into_iter().map(round);
    rounds.filter(|it| it.throughput > 0.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgassay_model::plan::{Overrides, Round, plan};
    use pgassay_model::study::StudySource;

    const TRIAL_US: u64 = 100_000;

    /// A study of one variant with these numbers of clients.
    fn planned(clients: &[u32]) -> Plan {
        let text = format!(
            "question = \"?\"\n[conditions]\nclients = {clients:?}\n[[script]]\nname = \"s\"\n\
             text = \"select 1;\"\n[[variant]]\nname = \"A\"\n[length]\npairs = 6\n"
        );
        let source = StudySource {
            file: "curve.toml".to_owned(),
            text,
        };
        let study = source.parse().expect("the study is valid");
        let mut plan = plan(&study, &source, &Overrides::default()).expect("it can be planned");
        plan.schedule.trial_us = TRIAL_US;
        plan
    }

    /// Trials of a block on a server with a peak at 22 clients and much noise.
    fn measured(plan: &Plan, block: &Block) -> Vec<Trial> {
        let trial = |round: &Round, kind: TrialKind, position: usize| {
            let clients = f64::from(plan.conditions[round.condition].clients);
            let slowdown = 1.0 + 0.03 * (clients - 1.0) + 0.002 * clients * (clients - 1.0);
            // Irregular, so that the knee is not known after the coarse grid.
            let irregular =
                (block.number * 7 + position as u32 * 3 + round.condition as u32 * 5) % 11;
            let noise = 1.0 + 0.3 * f64::from(irregular) / 11.0;
            Trial {
                block: block.number,
                condition: round.condition,
                window_us: TRIAL_US as f64,
                credited_transactions: Some(500.0 * clients / slowdown * noise),
                ..Trial::empty(kind)
            }
        };
        let mut trials = Vec::new();
        for round in &block.rounds {
            let timed = round.timed.iter().enumerate();
            trials.extend(timed.map(|(at, _)| trial(round, TrialKind::Timed, at)));
            let profiled = round.profiled.iter().enumerate();
            trials.extend(profiled.map(|(at, _)| trial(round, TrialKind::Profiled, at)));
        }
        trials
    }

    /// All blocks, and the trials inside them.
    fn all_blocks(plan: &Plan, placement: Placement, length_us: u64) -> (Vec<Block>, usize) {
        let mut scheduler = CurveBlocks::new(plan, placement, length_us);
        let (mut blocks, mut trials) = (Vec::new(), 0);
        while let Some(block) = scheduler.next_block() {
            let of_block = measured(plan, &block);
            trials += of_block.len();
            scheduler.block_ended(&of_block);
            blocks.push(block);
        }
        assert_eq!(scheduler.blocks(), blocks.len() as u32);
        (blocks, trials)
    }

    fn clients_of(plan: &Plan, block: &Block) -> Vec<u32> {
        let rounds = block.rounds.iter();
        let mut clients: Vec<u32> = rounds
            .map(|it| plan.conditions[it.condition].clients)
            .collect();
        clients.sort_unstable();
        clients
    }

    #[test]
    fn a_search_begins_with_a_coarse_grid_and_keeps_to_its_time() {
        let plan = planned(&[1, 2, 3, 4, 6, 8, 12, 16, 24, 32]);
        let (blocks, trials) = all_blocks(&plan, Placement::Adaptive, 8_000_000);
        for block in &blocks[..3] {
            assert_eq!(clients_of(&plan, block), [1, 2, 4, 8, 16, 32]);
        }
        assert!(blocks.len() > 3 && trials <= 80, "{trials}");
        for (number, block) in blocks.iter().enumerate() {
            assert_eq!(block.number, number as u32);
            assert!(
                block
                    .rounds
                    .iter()
                    .all(|it| it.hardware_counters.is_empty())
            );
        }
        let mut profiled: Vec<usize> = blocks
            .iter()
            .flat_map(|it| &it.rounds)
            .filter(|it| !it.profiled.is_empty())
            .map(|it| it.condition)
            .collect();
        profiled.sort_unstable();
        assert!(profiled.windows(2).all(|it| it[0] < it[1]), "{profiled:?}");
    }

    #[test]
    fn a_search_without_time_still_completes_its_grid() {
        let plan = planned(&[1, 2, 4, 8]);
        let (blocks, _) = all_blocks(&plan, Placement::Adaptive, 1);
        assert_eq!(blocks.len(), 3);
    }

    #[test]
    fn a_sweep_measures_everything_in_every_block() {
        let clients = [1, 2, 3, 4, 6, 8];
        let plan = planned(&clients);
        let (blocks, trials) = all_blocks(&plan, Placement::Exhaustive, 6_000_000);
        assert!(blocks.iter().all(|it| clients_of(&plan, it) == clients));
        // One profiled trial each, and two timed ones in each of four blocks.
        assert_eq!((blocks.len(), trials), (4, 54));
    }

    #[test]
    fn trials_share_the_measuring_time() {
        let clients = [1, 2, 3, 4, 6, 8];
        let trial_us = |placement: Placement| placement.trial_us(&clients, 56_000_000, 1);
        // Half of the time is for four numbers of clients with seven trials each.
        assert_eq!(trial_us(Placement::Adaptive), 1_000_000);
        assert_eq!(trial_us(Placement::Exhaustive), 549_000);
        assert_eq!(Placement::Adaptive.trial_us(&clients, 1, 0), TRIAL_US_MIN);
    }
}
