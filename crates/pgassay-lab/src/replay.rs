//! The trials of earlier processes of a run that is continued, handed out block by block.
//!
//! A pair is formed from the timed trials of one round: one condition in one block. So the round is what
//! is kept or repeated. A round whose timed trials all ended, on one server start, has all its pairs; of
//! its other trials, only the missing ones are run. Any other round is repeated as a whole on new
//! connections: its trials would span two server starts and a pause of unknown length, which their
//! mirrored order does not cancel.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use pgassay_model::detail::{RunDetail, TrialDetail, TrialKey, UnsteadyWarmUp};
use pgassay_model::plan::Round;
use pgassay_model::trial::{Trial, TrialKind};
use pgassay_model::wording::counted;
use pgassay_record::run::{ServerFacts, Warning, WarningKind};

use crate::event::{EventSink, LabEvent};
use crate::raw_results::RawResults;
use crate::repeats::takes_part;
use crate::scheduler::{Block, Scheduler};
use crate::trial_slot::planned_trials;

/// What earlier processes measured of a run.
#[derive(Debug, Default)]
pub struct EarlierResults {
    /// The trials that ended, in order.
    pub trials: Vec<Trial>,
    /// What was gathered besides their figures.
    pub details: Vec<RunDetail>,
    /// The servers that they ran on, in the plan's order; empty if no server ran yet. The servers of
    /// this process must be of the same builds.
    pub servers: Vec<ServerFacts>,
}

/// A block of which some trials are still to be run.
pub struct PendingBlock {
    /// The block.
    pub block: Block,
    /// The positions of the trials that need not be run, by condition.
    done: BTreeMap<usize, BTreeSet<usize>>,
    /// The index of its first trial in the results.
    first_trial: usize,
}

impl PendingBlock {
    /// Whether the trial at this position of a round need not be run.
    pub fn is_done(&self, round: &Round, position: usize) -> bool {
        let of_round = self.done.get(&round.condition);
        of_round.is_some_and(|done| done.contains(&position))
    }

    fn is_complete(&self) -> bool {
        self.block.rounds.iter().all(|round| {
            let mut positions = 0..planned_trials(round, true).len();
            positions.all(|position| self.is_done(round, position))
        })
    }
}

/// The scheduler's blocks, and the trials of earlier processes that were not handed out yet.
pub struct Replay<'s> {
    scheduler: &'s mut dyn Scheduler,
    /// By block and condition, each in order.
    rounds: BTreeMap<(u32, usize), Vec<Trial>>,
    /// The round in flight when the last process ended.
    last: Option<(u32, usize)>,
    details: BTreeMap<TrialKey, TrialDetail>,
    unsteady: Vec<UnsteadyWarmUp>,
    /// The first number of a server start that no trial has.
    pub next_start: u32,
    /// Profiled trials that were kept, and those of them whose details are missing.
    profiled: usize,
    without_details: usize,
}

impl<'s> Replay<'s> {
    /// The scheduler's blocks, and all trials of earlier processes.
    pub fn new(scheduler: &'s mut dyn Scheduler, earlier: EarlierResults) -> Self {
        let key = |trial: &Trial| (trial.block, trial.condition);
        let mut replay = Self {
            scheduler,
            rounds: BTreeMap::new(),
            last: earlier.trials.last().map(key),
            details: BTreeMap::new(),
            unsteady: Vec::new(),
            next_start: 0,
            profiled: 0,
            without_details: 0,
        };
        for trial in earlier.trials {
            replay.next_start = replay.next_start.max(trial.server_start + 1);
            replay.rounds.entry(key(&trial)).or_default().push(trial);
        }
        for detail in earlier.details {
            match detail {
                RunDetail::Trial(detail) => _ = replay.details.insert(detail.trial, *detail),
                RunDetail::NotSteady(it) => replay.unsteady.push(it),
            }
        }
        replay
    }

    /// The next block with trials to run. Adds the trials that are kept to the results, and gives the
    /// blocks that are complete to the scheduler, as if they had just ended.
    ///
    /// # Errors
    /// If a trial is not one of the plan's.
    pub fn next_block(
        &mut self,
        results: &mut RawResults,
        events: &dyn EventSink,
    ) -> Result<Option<PendingBlock>> {
        while let Some(block) = self.scheduler.next_block() {
            let mut pending = PendingBlock {
                block,
                done: BTreeMap::new(),
                first_trial: results.trials.len(),
            };
            for round in &pending.block.rounds {
                let (kept, done) = self.kept(pending.block.number, round)?;
                self.restore(&kept, results);
                results.add_trials(kept);
                pending.done.insert(round.condition, done);
            }
            let kept = results.trials.len() - pending.first_trial;
            if kept > 0 {
                events.event(&LabEvent::TrialsKept(kept));
            }
            if kept == 0 || !pending.is_complete() {
                return Ok(Some(pending));
            }
            self.block_ended(&pending, results);
        }
        Ok(None)
    }

    /// Gives the trials of a block that ended to the scheduler.
    pub fn block_ended(&mut self, pending: &PendingBlock, results: &RawResults) {
        let trials = &results.trials[pending.first_trial..];
        self.scheduler.block_ended(trials);
    }

    /// The number of blocks that the scheduler will run at most.
    pub fn blocks_max(&self) -> u32 {
        self.scheduler.blocks_max()
    }

    /// What the scheduler knows after the block that ended.
    pub fn progress(&self) -> Option<String> {
        self.scheduler.progress()
    }

    /// The trials of a round that are kept, and the positions of the trials that need not be run.
    fn kept(&mut self, block: u32, round: &Round) -> Result<(Vec<Trial>, BTreeSet<usize>)> {
        let key = (block, round.condition);
        let trials = self.rounds.remove(&key).unwrap_or_default();
        let planned = planned_trials(round, true);
        for trial in &trials {
            let is_planned = planned.get(trial.position as usize);
            if is_planned != Some(&(trial.kind, trial.variant)) {
                bail!(
                    "trial {} of block {}, condition {}, is not in the plan",
                    trial.position + 1,
                    block + 1,
                    round.condition + 1
                );
            }
        }
        let mut done: BTreeSet<usize> = trials.iter().map(|it| it.position as usize).collect();
        let timed = || trials.iter().filter(|it| it.kind == TrialKind::Timed);
        let starts: BTreeSet<u32> = timed().map(|it| it.server_start).collect();
        let repeats = timed().find_map(|it| it.repeats).unwrap_or(u32::MAX);
        let left_out =
            |&position: &usize| !takes_part(round, repeats, (position, planned[position].0));
        done.extend((0..planned.len()).filter(left_out));
        let has_pairs = (0..round.timed.len()).all(|position| done.contains(&position));
        if !has_pairs || starts.len() > 1 {
            return Ok((Vec::new(), BTreeSet::new()));
        }
        if self.last != Some(key) {
            // A missing one was not possible, unless it was in flight.
            done.extend(planned.len() - round.hardware_counters.len()..planned.len());
        }
        Ok((trials, done))
    }

    /// Adds what was gathered besides the figures of these trials.
    fn restore(&mut self, kept: &[Trial], results: &mut RawResults) {
        for trial in kept {
            let detail = self.details.remove(&TrialKey::of(trial));
            let is_restored = detail.is_some_and(|detail| results.add_detail(&detail).is_ok());
            if trial.kind == TrialKind::Profiled {
                self.profiled += 1;
                self.without_details += usize::from(!is_restored);
            }
        }
        if let Some(of_round) = kept.first().map(|it| (it.block, it.condition)) {
            let unsteady = self.unsteady.iter();
            let of_round = unsteady.filter(|it| (it.block, it.condition) == of_round);
            results.unsteady.extend(of_round);
        }
    }

    /// Warnings about what of the earlier processes is not in the results, after the last block.
    pub fn warnings(&self) -> Vec<Warning> {
        let mut found = Vec::new();
        if self.without_details > 0 {
            found.push(Warning {
                kind: WarningKind::ProfileQuality,
                variant: None,
                message: format!(
                    "the profiles of {} of the {} profiled trials from before the run was continued \
                     are missing, because they could not be saved",
                    self.without_details, self.profiled
                ),
            });
        }
        let left: usize = self.rounds.values().map(Vec::len).sum();
        if left > 0 {
            found.push(Warning {
                kind: WarningKind::Resumed,
                variant: None,
                message: format!(
                    "left out of the result: {} from before the run was continued, of which no block that it \
                     ran has any",
                    counted(left, "trial")
                ),
            });
        }
        found
    }
}
