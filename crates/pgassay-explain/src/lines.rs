//! Both plans as one tree: the lines of a unified difference.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::change::{PlanChange, PlanPlace, changed_nodes};
use crate::figures::StepFigures;
use crate::matching::PlanMatching;
use crate::side::PlanSide;

/// What a line of the tree says about its step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LineMark {
    /// The same in both plans.
    Same,
    /// In both plans at this place, with a difference.
    Changed,
    /// In the second plan only.
    Added,
    /// In the first plan only.
    Removed,
    /// The place in the first plan of a step that is elsewhere in the second.
    MovedFrom,
    /// The place in the second plan of a step that is elsewhere in the first.
    MovedTo,
}

/// A step of one plan or of both.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DifferenceLine {
    /// Which plans have it.
    pub mark: LineMark,
    /// Steps above it; in the second plan, if it has the step.
    pub depth: usize,
    /// `CTE c`, `InitPlan 1`, `SubPlan 2`: what the step's result is used for.
    pub subplan: Option<String>,
    /// The step in the first plan.
    pub a: Option<PlanPlace>,
    /// The step in the second plan.
    pub b: Option<PlanPlace>,
    /// Its figures in the first plan.
    pub a_figures: Option<StepFigures>,
    /// Its figures in the second plan.
    pub b_figures: Option<StepFigures>,
}

/// The lines of both plans. The order is that of both plans: a pair that would break it has two lines.
pub(crate) fn lines(
    a: &PlanSide<'_>,
    b: &PlanSide<'_>,
    matching: &PlanMatching,
    changes: &[PlanChange],
) -> Vec<DifferenceLine> {
    let changed = changed_nodes(changes);
    let is_changed = |is_b: bool, node: usize| changed.contains_key(&(is_b, node));
    let mut found = Vec::with_capacity(a.steps.len() + b.steps.len());
    let (mut next_a, mut next_b) = (0, 0);
    let ends = [(a.steps.len(), b.steps.len())];
    for (until_a, until_b) in in_order(matching).into_iter().chain(ends) {
        for at in next_a..until_a {
            let mark = match matching.a_to_b[at] {
                Some(_) => LineMark::MovedFrom,
                None => LineMark::Removed,
            };
            found.push(line(mark, (a, Some(at)), (b, None)));
        }
        for at in next_b..until_b {
            let mark = match matching.b_to_a[at] {
                Some(_) => LineMark::MovedTo,
                None => LineMark::Added,
            };
            found.push(line(mark, (a, None), (b, Some(at))));
        }
        if until_a < a.steps.len() && until_b < b.steps.len() {
            let [node_a, node_b] = [a.steps[until_a].node, b.steps[until_b].node];
            let mark = if is_changed(false, node_a) || is_changed(true, node_b) {
                LineMark::Changed
            } else {
                LineMark::Same
            };
            found.push(line(mark, (a, Some(until_a)), (b, Some(until_b))));
        }
        (next_a, next_b) = (until_a + 1, until_b + 1);
    }
    found
}

fn line(
    mark: LineMark,
    (a, at_a): (&PlanSide<'_>, Option<usize>),
    (b, at_b): (&PlanSide<'_>, Option<usize>),
) -> DifferenceLine {
    let step_a = at_a.map(|at| &a.steps[at]);
    let step_b = at_b.map(|at| &b.steps[at]);
    let shown = step_b.or(step_a);
    DifferenceLine {
        mark,
        depth: shown.map_or(0, |it| it.depth),
        subplan: shown.and_then(|it| it.subplan.clone()),
        a: at_a.map(|at| a.place(at)),
        b: at_b.map(|at| b.place(at)),
        a_figures: at_a.map(|at| a.figures[at].clone()),
        b_figures: at_b.map(|at| b.figures[at].clone()),
    }
}

/// The longest list of matched pairs in the order of both plans: the longest increasing subsequence of
/// the second positions, by the patience method.
fn in_order(matching: &PlanMatching) -> Vec<(usize, usize)> {
    let pairs: Vec<(usize, usize)> = matching.pairs().collect();
    let mut before: Vec<Option<usize>> = vec![None; pairs.len()];
    // The pair with the smallest second position that ends a list of each length.
    let mut ends: Vec<usize> = Vec::new();
    for (at, pair) in pairs.iter().enumerate() {
        let length = ends.partition_point(|&end| pairs[end].1 < pair.1);
        before[at] = length.checked_sub(1).map(|it| ends[it]);
        if length == ends.len() {
            ends.push(at);
        } else {
            ends[length] = at;
        }
    }
    let mut found = Vec::new();
    let mut next = ends.last().copied();
    while let Some(at) = next {
        found.push(pairs[at]);
        next = before[at];
    }
    found.reverse();
    found
}
