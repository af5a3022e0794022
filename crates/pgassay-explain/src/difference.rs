//! What differs between two plans, most important first.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::change::{PlanChange, PlanChangeKind};
use crate::changes;
use crate::lines::{DifferenceLine, lines};
use crate::matching::match_steps;
use crate::partitions::KnownPartitions;
use crate::plan::{BufferUsage, QueryPlan};
use crate::renaming::renamed;
use crate::side::PlanSide;
use crate::step::{CHILDREN_MAX, rename};

/// A setting that affects planning and is not equal in both plans.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlanSetting {
    /// The setting's name.
    pub name: String,
    /// Its value for the first plan; the default if absent.
    pub before: Option<String>,
    /// Its value for the second plan; the default if absent.
    pub after: Option<String>,
}

/// The figures of a whole plan.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanFigures {
    /// Rows returned, with ANALYZE.
    pub rows: Option<f64>,
    /// Blocks accessed, with ANALYZE.
    pub buffers: Option<BufferUsage>,
    /// Write-ahead log in bytes, with ANALYZE since 13.
    pub wal_bytes: Option<f64>,
    /// Functions compiled by JIT, since 11.
    pub jit_functions: Option<f64>,
    /// Planning time in ms.
    pub planning_ms: Option<f64>,
    /// Execution time in ms, slowed down by EXPLAIN: not for comparison.
    pub execution_ms: Option<f64>,
}

/// The difference between two plans.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanDifference {
    /// What differs, most important first. Costs alone are no difference.
    pub changes: Vec<PlanChange>,
    /// Both plans as one tree.
    pub lines: Vec<DifferenceLine>,
    /// Settings that are not equal.
    pub settings: Vec<PlanSetting>,
    /// The first plan as a whole.
    pub a: PlanFigures,
    /// The second plan as a whole.
    pub b: PlanFigures,
}

impl PlanDifference {
    /// Compares two plans of the same question: of another server, setting, schema or text.
    pub fn between(a: &QueryPlan, b: &QueryPlan) -> Self {
        let known = KnownPartitions::of([a, b], CHILDREN_MAX);
        let (side_a, mut side_b) = (PlanSide::new(a, &known), PlanSide::new(b, &known));
        let matching = match_steps((a, &side_a.steps), (b, &side_b.steps));
        let renamed = renamed(&side_a.steps, &side_b.steps, &matching);
        if !renamed.is_empty() {
            rename(b, &known, &renamed, &mut side_b.steps);
        }
        let changes = changes::changes(&side_a, &side_b, &matching);
        Self {
            lines: lines(&side_a, &side_b, &matching, &changes),
            changes,
            settings: settings(a, b),
            a: PlanFigures::of(a),
            b: PlanFigures::of(b),
        }
    }

    /// Whether both plans do the same, whatever their costs.
    pub fn is_none(&self) -> bool {
        self.changes.is_empty() && !self.is_of_jit()
    }

    /// Whether JIT compiles functions for one of the plans only.
    pub fn is_of_jit(&self) -> bool {
        let [a, b] = [&self.a, &self.b].map(|it| it.jit_functions.is_some_and(|count| count > 0.0));
        a != b
    }

    /// Whether the plans differ in more than what was measured: a method, an order, a node or a
    /// condition.
    pub fn is_of_shape(&self) -> bool {
        let mut kinds = self.changes.iter().map(|it| it.kind);
        kinds.any(|it| it <= PlanChangeKind::Condition)
    }
}

impl PlanFigures {
    fn of(plan: &QueryPlan) -> Self {
        let root = plan.nodes.first();
        Self {
            rows: root.and_then(|it| it.actual).map(|it| it.rows * it.loops),
            buffers: root.and_then(|it| it.buffers.filter(|_| it.actual.is_some())),
            wal_bytes: root.and_then(|it| it.wal).map(|it| it.bytes),
            jit_functions: plan.jit_functions,
            planning_ms: plan.planning_ms,
            execution_ms: plan.execution_ms,
        }
    }
}

/// The settings that differ; none if a plan does not say, since then it may have any.
fn settings(a: &QueryPlan, b: &QueryPlan) -> Vec<PlanSetting> {
    let (Some(a), Some(b)) = (&a.settings, &b.settings) else {
        return Vec::new();
    };
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let settings = names.into_iter().map(|name| PlanSetting {
        name: name.clone(),
        before: a.get(name).cloned(),
        after: b.get(name).cloned(),
    });
    settings.filter(|it| it.before != it.after).collect()
}

#[cfg(test)]
mod tests;
