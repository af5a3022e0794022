//! What differs between two plans, most important first.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::changes;
use crate::figures::StepFigures;
use crate::lines::{DifferenceLine, lines};
use crate::matching::match_steps;
use crate::partitions::KnownPartitions;
use crate::plan::{BufferUsage, QueryPlan};
use crate::share::node_shares;
use crate::step::{CHILDREN_MAX, PlanStep, steps};

/// The kinds of differences, in the order in which they are reported.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum PlanChangeKind {
    /// The same step is executed in another way: Seq Scan → Index Only Scan using i.
    Method,
    /// The same tables are joined in another order.
    JoinOrder,
    /// A node is only in the second plan.
    NodeAdded,
    /// A node is only in the first plan.
    NodeRemoved,
    /// A condition or a key is applied elsewhere (Filter → Index Cond), or in one plan only.
    Condition,
    /// In one plan only, the estimate of rows is wrong by a factor of 10 or more.
    Estimate,
    /// Rows fit into memory in one plan only, or are sorted or split up in another way.
    Spill,
    /// Blocks accessed by a step without its children.
    Buffers,
    /// Rows of a step per execution of the statement.
    Rows,
}

/// A step in one of the plans.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct PlanPlace {
    /// Its position in [`QueryPlan::nodes`].
    pub node: usize,
    /// As EXPLAIN prints it.
    pub label: String,
    /// The aliases of the tables below; partitions by the alias of their table.
    pub tables: Vec<String>,
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanChange {
    /// What differs.
    pub kind: PlanChangeKind,
    /// The step in the first plan.
    pub a: Option<PlanPlace>,
    /// The step in the second plan.
    pub b: Option<PlanPlace>,
    /// The method, condition, order or figure in the first plan.
    pub before: Option<String>,
    /// The method, condition, order or figure in the second plan.
    pub after: Option<String>,
    /// The figure in the first plan: estimated over actual rows, blocks or rows.
    pub before_figure: Option<f64>,
    /// The figure in the second plan.
    pub after_figure: Option<f64>,
}

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

/// A plan with its steps and figures.
pub(crate) struct Side<'a> {
    pub(crate) plan: &'a QueryPlan,
    pub(crate) steps: Vec<PlanStep>,
    pub(crate) figures: Vec<StepFigures>,
}

impl<'a> Side<'a> {
    fn new(plan: &'a QueryPlan, known: &KnownPartitions) -> Self {
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

impl PlanDifference {
    /// Compares two plans of the same question: of another server, setting, schema or text.
    pub fn between(a: &QueryPlan, b: &QueryPlan) -> Self {
        let known = KnownPartitions::of([a, b], CHILDREN_MAX);
        let (side_a, side_b) = (Side::new(a, &known), Side::new(b, &known));
        let matching = match_steps((a, &side_a.steps), (b, &side_b.steps));
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
        self.changes.is_empty()
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

fn settings(a: &QueryPlan, b: &QueryPlan) -> Vec<PlanSetting> {
    let names: BTreeSet<&String> = a.settings.keys().chain(b.settings.keys()).collect();
    let settings = names.into_iter().map(|name| PlanSetting {
        name: name.clone(),
        before: a.settings.get(name).cloned(),
        after: b.settings.get(name).cloned(),
    });
    settings.filter(|it| it.before != it.after).collect()
}

#[cfg(test)]
mod tests;
