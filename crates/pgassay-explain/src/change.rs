//! One difference between two plans.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// A trigger fires in one plan only, or another number of times.
    Trigger,
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

impl PlanChangeKind {
    /// Whether the plan is the same and executed in the same way: only numbers of rows and blocks differ.
    #[must_use]
    pub fn is_of_figures(self) -> bool {
        matches!(self, Self::Estimate | Self::Buffers | Self::Rows)
    }
}

/// A step in one of the plans.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct PlanPlace {
    /// Its position in [`QueryPlan::nodes`](crate::QueryPlan::nodes).
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

/// The changes of each step, by side and position of its node.
pub(crate) fn changed_nodes(
    changes: &[PlanChange],
) -> BTreeMap<(bool, usize), Vec<PlanChangeKind>> {
    let mut found: BTreeMap<_, Vec<PlanChangeKind>> = BTreeMap::new();
    for change in changes {
        for (is_b, place) in [(false, &change.a), (true, &change.b)] {
            if let Some(place) = place {
                found
                    .entry((is_b, place.node))
                    .or_default()
                    .push(change.kind);
            }
        }
    }
    found
}
