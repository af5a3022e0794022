//! The order in which a plan joins tables: `((a b) c)`, the outer side first, as in `pg_hint_plan`'s
//! Leading hint.

use std::collections::BTreeSet;

use crate::plan::QueryPlan;
use crate::step::{PlanStep, StepClass};

/// A join with all joins below it that only pass-through steps separate.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JoinTree {
    /// The topmost join's step.
    pub(crate) step: usize,
    /// The names of what is joined.
    pub(crate) leaves: BTreeSet<String>,
    /// `((a b) c)`.
    pub(crate) order: String,
}

/// All join trees of a plan.
pub(crate) fn join_trees(plan: &QueryPlan, steps: &[PlanStep]) -> Vec<JoinTree> {
    let is_top = |at: usize| {
        let mut above = steps[at].parent;
        let mut below = at;
        while let Some(at) = above {
            if plan.nodes[steps[below].node].is_subplan() {
                return true;
            }
            match steps[at].class {
                StepClass::Join => return false,
                class if passes(class) => (below, above) = (at, steps[at].parent),
                _ => return true,
            }
        }
        true
    };
    let tops = (0..steps.len()).filter(|&at| steps[at].class == StepClass::Join && is_top(at));
    tops.map(|step| {
        let mut leaves = BTreeSet::new();
        let order = describe(plan, steps, step, &mut leaves);
        JoinTree {
            step,
            leaves,
            order,
        }
    })
    .collect()
}

fn passes(class: StepClass) -> bool {
    class.is_pass_through()
        && !matches!(
            class,
            StepClass::PassThrough("Limit" | "Unique" | "Subquery Scan")
        )
}

fn describe(
    plan: &QueryPlan,
    steps: &[PlanStep],
    at: usize,
    leaves: &mut BTreeSet<String>,
) -> String {
    let step = &steps[at];
    let inputs: Vec<usize> = step
        .children
        .iter()
        .copied()
        .filter(|&child| !plan.nodes[steps[child].node].is_subplan())
        .collect();
    match (step.class, &inputs[..]) {
        (StepClass::Join, [outer, inner]) => {
            let outer = describe(plan, steps, *outer, leaves);
            let inner = describe(plan, steps, *inner, leaves);
            format!("({outer} {inner})")
        }
        (class, [input]) if passes(class) => describe(plan, steps, *input, leaves),
        _ => {
            let name = leaf(plan, step);
            leaves.insert(name.clone());
            name
        }
    }
}

/// The alias of a scan; the tables of anything else, such as an aggregate.
fn leaf(plan: &QueryPlan, step: &PlanStep) -> String {
    let alias = plan.nodes[step.node].alias.as_ref();
    if let Some(scan) = &step.scan {
        return scan.root.clone();
    }
    if let Some(alias) = alias {
        return alias.clone();
    }
    let tables: Vec<&str> = step.aliases.iter().map(String::as_str).collect();
    format!("{{{}}}", tables.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partitions::KnownPartitions;
    use crate::step::steps;

    #[test]
    fn the_outer_side_comes_first() {
        let plan = QueryPlan::parse(
            r#"[{"Plan": {"Node Type": "Limit", "Plans": [
                {"Node Type": "Hash Join", "Plans": [
                  {"Node Type": "Merge Join", "Plans": [
                    {"Node Type": "Seq Scan", "Alias": "a"},
                    {"Node Type": "Sort", "Plans": [{"Node Type": "Seq Scan", "Alias": "b"}]}]},
                  {"Node Type": "Hash", "Plans": [
                    {"Node Type": "Aggregate", "Plans": [
                      {"Node Type": "Nested Loop", "Plans": [{"Node Type": "Seq Scan", "Alias": "c"},
                        {"Node Type": "Seq Scan", "Alias": "d"}]}]}]}]}]}}]"#,
        )
        .unwrap();
        let trees = join_trees(&plan, &steps(&plan, &KnownPartitions::default()));
        let orders: Vec<_> = trees.iter().map(|it| it.order.as_str()).collect();
        assert_eq!(orders, ["((a b) {c, d})", "(c d)"]);
    }
}
