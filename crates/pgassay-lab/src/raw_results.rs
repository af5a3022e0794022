//! The measurements of a run so far.

use std::collections::BTreeSet;

use pgassay_model::counters::SharedNames;
use pgassay_model::detail::{TrialDetail, TrialKey, UnsteadyWarmUp};
use pgassay_model::plan::{Plan, PointId};
use pgassay_model::trial::{LatencyError, Trial, TrialKind};

use crate::load::Statements;
use crate::observe::Profiles;

/// The measurements of a run so far, or of one trial.
pub struct RawResults {
    /// Every trial, in the order they ran; see [`RawResults::add_trials`].
    pub trials: Vec<Trial>,
    names: SharedNames,
    /// The profile of each point.
    pub profiles: Profiles,
    /// Latencies of statements, for transactions with more than one.
    pub statements: Statements,
    /// Points whose throughput was not stable at the end of warm-up, once per block.
    pub unsteady: BTreeSet<UnsteadyWarmUp>,
}

impl RawResults {
    /// An empty result.
    pub fn new(plan: &Plan) -> Self {
        Self {
            trials: Vec::new(),
            names: SharedNames::default(),
            profiles: Profiles::new(plan),
            statements: Statements::default(),
            unsteady: BTreeSet::new(),
        }
    }

    /// An empty result for what one trial of this block gathers besides its figures.
    pub fn of_trial(block: u32) -> Self {
        Self {
            trials: Vec::new(),
            names: SharedNames::default(),
            profiles: Profiles::of_block(block),
            statements: Statements::default(),
            unsteady: BTreeSet::new(),
        }
    }

    /// Adds trials. They share the names of their counters with those before, which would otherwise take most of
    /// the memory of a long run.
    pub fn add_trials(&mut self, trials: impl IntoIterator<Item = Trial>) {
        for mut trial in trials {
            self.names.share(&mut trial.counters);
            self.trials.push(trial);
        }
    }

    /// What one trial gathered besides its figures; `None` if it gathers nothing.
    pub fn into_detail(mut self, trial: &Trial) -> Option<TrialDetail> {
        let point = PointId::new(trial.condition, trial.variant);
        let detail = TrialDetail {
            trial: TrialKey::of(trial),
            profile: self.profiles.take(point),
            statements: self.statements.take(point),
        };
        let is_empty = detail.profile.is_none() && detail.statements.is_empty();
        // A profiled trial without a detail has lost it.
        (trial.kind == TrialKind::Profiled || !is_empty).then_some(detail)
    }

    /// Adds what a trial gathered besides its figures.
    ///
    /// # Errors
    /// A corrupted latency histogram; then nothing is added.
    pub fn add_detail(&mut self, detail: &TrialDetail) -> Result<(), LatencyError> {
        let point = PointId::new(detail.trial.condition, detail.trial.variant);
        self.statements.add_times(point, &detail.statements)?;
        if let Some(profile) = &detail.profile {
            self.profiles
                .add_profile(point, detail.trial.block, profile);
        }
        Ok(())
    }
}
