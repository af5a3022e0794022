//! The figures of a step: estimate, rows, blocks, time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::plan::{BufferUsage, PlanNode, QueryPlan};
use crate::share::NodeShare;
use crate::spill::{SpillState, spill_state};
use crate::step::PlanStep;

/// The figures of a step in one plan. With ANALYZE, except for the first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepFigures {
    /// The planner's estimate of the rows per loop.
    pub estimated_rows: Option<f64>,
    /// Rows per loop. Processes of a parallel plan are loops too.
    pub rows_per_loop: Option<f64>,
    /// Loops; 0 if the step never ran.
    pub loops: Option<f64>,
    /// Rows per execution of the statement: of all loops and processes.
    pub rows: Option<f64>,
    /// The largest rounding error of `rows`.
    pub rows_error: f64,
    /// Blocks accessed by the step without its children.
    pub own_buffers: Option<BufferUsage>,
    /// Blocks accessed by the step and its children.
    pub buffers: Option<BufferUsage>,
    /// The step's share of the elapsed time without its children, if the time of nodes was measured.
    pub time_share: Option<f64>,
    /// Memory and disk of a sort, a hash or a bitmap.
    pub memory: Option<String>,
    /// Whether its rows did not fit into memory.
    pub is_spilled: bool,
}

impl StepFigures {
    pub(crate) fn of(plan: &QueryPlan, shares: &[NodeShare], step: &PlanStep) -> Self {
        let members = || {
            step.members
                .iter()
                .map(|&at| (&plan.nodes[at], &shares[at]))
        };
        // Partitions that were pruned while the statement ran have no rows that an estimate could be compared with.
        let has_run = |node: &PlanNode| node.actual.is_none_or(|it| it.loops > 0.0);
        let any_ran = members().any(|(node, _)| has_run(node));
        let estimated = || members().filter(move |(node, _)| !any_ran || has_run(node));
        let parts = || step.parts.iter().map(|&at| &shares[at]);
        let total_ms = shares.first().and_then(|it| it.elapsed_ms);
        let own_ms = sum(parts().map(|it| it.own_ms));
        let spill = spill_state(plan, &step.members);
        let loops = members().map(|(node, _)| node.actual.map(|it| it.loops));
        let loops = loops.reduce(|a, b| Some(a?.max(b?))).flatten();
        let rows = sum(members().map(|(_, share)| share.rows));
        Self {
            estimated_rows: sum(estimated().map(|(node, _)| node.plan_rows)),
            rows_per_loop: sum(members().map(|(node, _)| Some(node.actual?.rows))),
            loops,
            rows,
            rows_error: members().map(|(_, share)| share.rows_error).sum(),
            own_buffers: buffer_sum(parts().map(|it| it.own_buffers)),
            buffers: buffer_sum(members().map(|(_, share)| share.buffers)),
            time_share: own_ms
                .zip(total_ms)
                .filter(|(_, total)| *total > 0.0)
                .map(|(own, total)| own / total),
            is_spilled: spill.as_ref().is_some_and(SpillState::is_spilled),
            memory: spill.map(|it| it.to_string()),
        }
    }

    /// Estimated over actual rows: 100 if the planner expected a hundred times too many. Less than one
    /// row counts as one. `None` if the step never ran.
    pub fn estimate_factor(&self) -> Option<f64> {
        self.loops.filter(|it| *it > 0.0)?;
        Some(self.estimated_rows?.max(1.0) / self.rows_per_loop?.max(1.0))
    }
}

/// `None` if a figure is missing.
fn sum(figures: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let mut sum = 0.0;
    for figure in figures {
        sum += figure?;
    }
    Some(sum)
}

pub(crate) fn buffer_sum(all: impl Iterator<Item = Option<BufferUsage>>) -> Option<BufferUsage> {
    let mut sum = [0.0; 10];
    for usage in all {
        for (sum, figure) in sum.iter_mut().zip(usage?.figures()) {
            *sum += figure;
        }
    }
    Some(BufferUsage::of_figures(sum))
}
