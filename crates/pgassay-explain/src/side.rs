//! A plan that is compared with another one.

use crate::change::PlanPlace;
use crate::figures::StepFigures;
use crate::partitions::KnownPartitions;
use crate::plan::QueryPlan;
use crate::share::node_shares;
use crate::step::{PlanStep, steps};

/// A plan with its steps and figures.
pub(crate) struct PlanSide<'a> {
    pub(crate) plan: &'a QueryPlan,
    pub(crate) steps: Vec<PlanStep>,
    pub(crate) figures: Vec<StepFigures>,
}

impl<'a> PlanSide<'a> {
    pub(crate) fn new(plan: &'a QueryPlan, known: &KnownPartitions) -> Self {
        let steps = steps(plan, known);
        let shares = node_shares(plan);
        let figures = steps
            .iter()
            .map(|step| StepFigures::of(plan, &shares, step));
        Self {
            plan,
            figures: figures.collect(),
            steps,
        }
    }

    pub(crate) fn place(&self, step: usize) -> PlanPlace {
        let step = &self.steps[step];
        PlanPlace {
            node: step.node,
            label: step.label.clone(),
            tables: step.aliases.iter().cloned().collect(),
        }
    }
}
