//! What `pgassay gate` compares a later run with: a baseline file, or what it takes from an earlier run.

use pgassay_account::comparison::earlier_ratios;
use pgassay_account::instructions::Counts;
use pgassay_model::check::Check;
use pgassay_model::plan::{EarlierRatio, Plan};
use pgassay_model::trial::Trial;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::{Run, ServerFacts};

/// The value of [`GateBaseline::schema`] that this version writes.
pub const BASELINE_SCHEMA: &str = "pgassay.baseline/1";

/// The measurements of a gate, and all that decides whether later ones are comparable with them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GateBaseline {
    /// Name and version of the schema.
    pub schema: String,
    /// The run that was measured, or the question that was counted.
    pub name: String,
    /// Version of pgassay; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pgassay_version: Option<String>,
    /// Identifies the machine, as [`Run::machine_key`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_key: Option<String>,
    /// Checks of the machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
    /// The plan; `None` for counts that were not saved by a gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,
    /// The servers, in the plan's order; empty if instructions were counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<ServerFacts>,
    /// The ratios of all variants to their baselines, as far as they have intervals.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ratios: Vec<EarlierRatio>,
    /// The trials that give these ratios.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trials: Vec<Trial>,
    /// The instructions per transaction of all variants, if they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<Counts>,
}

impl GateBaseline {
    /// What a gate takes from a run.
    pub fn of_run(run: &Run) -> Self {
        Self {
            schema: BASELINE_SCHEMA.to_owned(),
            name: run.id.clone(),
            pgassay_version: Some(run.pgassay_version.clone()),
            machine_key: run.machine_key.clone(),
            checks: run.checks.clone(),
            ratios: earlier_ratios(&run.plan, &run.trials),
            plan: Some(run.plan.clone()),
            servers: run.servers.clone(),
            trials: run.trials.clone(),
            instructions: run.instructions.as_ref().map(|it| it.counts.clone()),
        }
    }

    /// Whether its ratios are those of its trials, as far as it has any: an edited interval would decide a gate.
    pub fn has_ratios_of_its_trials(&self) -> bool {
        let Some(plan) = self.plan.as_ref().filter(|_| !self.ratios.is_empty()) else {
            return self.ratios.is_empty();
        };
        let measured = earlier_ratios(plan, &self.trials);
        let is_measured = |stored: &EarlierRatio| measured.iter().any(|it| is_same(it, stored));
        self.ratios.iter().all(is_measured)
    }

    /// What a gate takes from counts. Without a plan, only the counts themselves say what is comparable.
    pub fn of_counts(counts: Counts, plan: Option<Plan>) -> Self {
        Self {
            schema: BASELINE_SCHEMA.to_owned(),
            name: counts.question.clone(),
            pgassay_version: None,
            machine_key: None,
            checks: Vec::new(),
            plan,
            servers: Vec::new(),
            ratios: Vec::new(),
            trials: Vec::new(),
            instructions: Some(counts),
        }
    }
}

/// Whether two ratios are the same but for rounding.
fn is_same(a: &EarlierRatio, b: &EarlierRatio) -> bool {
    let is_near = |a: f64, b: f64| (a - b).abs() <= a.abs() * 1e-6;
    let names = (&a.variant, &a.condition) == (&b.variant, &b.condition);
    names && is_near(a.ratio, b.ratio) && is_near(a.low, b.low) && is_near(a.high, b.high)
}
