//! Totals of a node over its loops, and its own share: what its children did not do.
//!
//! EXPLAIN prints rows and times as means per loop, blocks as sums, and both with everything below.
//! A subplan runs inside the node whose expression reads it. For a `SubPlan` this is the parent. An
//! `InitPlan` or a CTE is printed under the node that its query belongs to, but runs where it is first
//! read, which can be far below: there it is subtracted. A CTE runs as far as it is read, so that
//! its second reader may execute what the first one left.

use crate::lexeme::{LexemeKind, lexemes};
use crate::plan::{BufferUsage, PlanNode, QueryPlan};

/// Resources that are divided: ten block counters and the elapsed time.
const RESOURCES: usize = 11;
const TIME: usize = 10;

/// The totals of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct NodeShare {
    /// Rows of all loops and processes.
    pub rows: Option<f64>,
    /// The largest error of `rows`, which PostgreSQL rounds per loop.
    pub rows_error: f64,
    /// Processes that executed the node: 1 outside of parallel parts.
    pub processes: f64,
    /// Elapsed time in ms with the children: the mean of the processes.
    pub elapsed_ms: Option<f64>,
    /// Elapsed time in ms without the children.
    pub own_ms: Option<f64>,
    /// Blocks accessed with the children.
    pub buffers: Option<BufferUsage>,
    /// Blocks accessed without the children.
    pub own_buffers: Option<BufferUsage>,
}

/// The totals of all nodes of a plan, in the order of [`QueryPlan::nodes`].
pub fn node_shares(plan: &QueryPlan) -> Vec<NodeShare> {
    let processes = processes(plan);
    let nodes = plan.nodes.iter().zip(&processes);
    let total: Vec<[f64; RESOURCES]> = nodes.map(|(node, of)| resources(node, *of)).collect();
    let own = own_resources(plan, &total);
    let shares = plan.nodes.iter().enumerate().map(|(at, node)| {
        let of_blocks = |all: &[f64; RESOURCES]| {
            let mut figures = [0.0; TIME];
            figures.copy_from_slice(&all[..TIME]);
            node.buffers.map(|_| BufferUsage::of_figures(figures))
        };
        let has_time = node.actual.is_some_and(|it| it.total_ms.is_some());
        NodeShare {
            rows: node.actual.map(|it| it.rows * it.loops),
            rows_error: node.actual.map_or(0.0, |it| rounding(it.rows) * it.loops),
            processes: processes[at],
            elapsed_ms: has_time.then_some(total[at][TIME]),
            own_ms: has_time.then_some(own[at][TIME]),
            buffers: of_blocks(&total[at]),
            own_buffers: of_blocks(&own[at]),
        }
    });
    shares.collect()
}

/// Half of the last digit printed: rows without a fraction may be of a version before 18.
fn rounding(rows: f64) -> f64 {
    if rows.fract() == 0.0 { 0.5 } else { 0.005 }
}

/// The number of processes that executed each node. Each process executes the child of a Gather once.
fn processes(plan: &QueryPlan) -> Vec<f64> {
    let loops = |node: &PlanNode| node.actual.map_or(0.0, |it| it.loops).max(1.0);
    let mut found: Vec<f64> = Vec::with_capacity(plan.nodes.len());
    for node in &plan.nodes {
        let processes = match node.parent {
            None => 1.0,
            Some(at) => {
                let parent = &plan.nodes[at];
                let is_parallel = is_gather(parent) && !node.is_subplan();
                let started = (loops(node) / loops(parent)).max(1.0);
                found[at] * if is_parallel { started } else { 1.0 }
            }
        };
        found.push(processes);
    }
    found
}

fn is_gather(node: &PlanNode) -> bool {
    matches!(node.node_type.as_str(), "Gather" | "Gather Merge")
}

fn resources(node: &PlanNode, processes: f64) -> [f64; RESOURCES] {
    let mut all = [0.0; RESOURCES];
    let buffers = node.buffers.unwrap_or_default();
    all[..TIME].copy_from_slice(&buffers.figures());
    let time = node.actual.and_then(|it| Some(it.total_ms? * it.loops));
    all[TIME] = time.unwrap_or(0.0) / processes;
    all
}

/// Subtracts children, then `InitPlans` and CTEs where they are read.
fn own_resources(plan: &QueryPlan, total: &[[f64; RESOURCES]]) -> Vec<[f64; RESOURCES]> {
    let is_init = |node: &PlanNode| node.relationship.as_deref() == Some("InitPlan");
    let mut own = total.to_vec();
    for (at, node) in plan.nodes.iter().enumerate() {
        if let Some(parent) = node.parent.filter(|_| !is_init(node)) {
            for (own, of_child) in own[parent].iter_mut().zip(&total[at]) {
                *own = (*own - of_child).max(0.0);
            }
        }
    }
    for (at, node) in plan.nodes.iter().enumerate() {
        let Some(parent) = node.parent.filter(|_| is_init(node)) else {
            continue;
        };
        let mut left = total[at];
        for reader in readers(plan, at, parent) {
            for (own, left) in own[reader].iter_mut().zip(&mut left) {
                let part = own.min(*left);
                *own -= part;
                *left -= part;
            }
        }
    }
    own
}

/// The nodes that may have run an `InitPlan` or a CTE, in about the order of execution; at last the node
/// under which it is printed.
fn readers(plan: &QueryPlan, subplan: usize, parent: usize) -> Vec<usize> {
    let name = plan.nodes[subplan].subplan_name.as_deref().unwrap_or("");
    let cte = name.strip_prefix("CTE ");
    let reads = |node: &PlanNode| match cte {
        Some(cte) => node.node_type == "CTE Scan" && node.cte.as_deref() == Some(cte),
        None => node.expressions().any(|it| reads_result(it, name)),
    };
    let mut found = Vec::new();
    let mut visit = |at: usize| {
        if reads(&plan.nodes[at]) {
            // A Gather runs the InitPlans that its workers will read, before it starts them:
            // `ExecInitParallelPlan` in `src/backend/executor/execParallel.c`.
            found.push(if cte.is_some() {
                at
            } else {
                gather_above(plan, at, parent).unwrap_or(at)
            });
        }
    };
    post_order(plan, parent, subplan, &mut visit);
    found.push(parent);
    found
}

/// Visits the nodes below a node and then itself, without the subtree of `except`.
fn post_order(plan: &QueryPlan, at: usize, except: usize, visit: &mut impl FnMut(usize)) {
    for &child in &plan.nodes[at].children {
        if child != except {
            post_order(plan, child, except, visit);
        }
    }
    visit(at);
}

/// The outermost Gather between a node and an ancestor, which may be a Gather itself.
fn gather_above(plan: &QueryPlan, node: usize, ancestor: usize) -> Option<usize> {
    let mut found = None;
    let mut at = node;
    while at != ancestor {
        at = plan.nodes[at].parent?;
        if is_gather(&plan.nodes[at]) {
            found = Some(at);
        }
    }
    found
}

/// Whether an expression reads the result of an `InitPlan`: `$0` before 17, `(InitPlan 1).col1` since.
fn reads_result(expression: &str, subplan_name: &str) -> bool {
    let returned = returned_parameters(subplan_name);
    let number = subplan_name.split_whitespace().nth(1).unwrap_or("");
    let Some(all) = lexemes(expression) else {
        return false;
    };
    all.iter().enumerate().any(|(at, it)| match it.kind {
        LexemeKind::Parameter => it.parameter().is_some_and(|it| returned.contains(&it)),
        LexemeKind::Word if it.text == "InitPlan" => {
            all.get(at + 1).is_some_and(|next| next.text == number)
        }
        _ => false,
    })
}

/// The parameters in `InitPlan 1 (returns $0,$1)`, before 17.
pub(crate) fn returned_parameters(subplan_name: &str) -> Vec<u32> {
    let all = lexemes(subplan_name).unwrap_or_default();
    all.iter()
        .filter_map(crate::lexeme::Lexeme::parameter)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(json: &str) -> QueryPlan {
        QueryPlan::parse(&format!(r#"[{{"Plan": {json}}}]"#)).unwrap()
    }

    fn own_hits(plan: &QueryPlan) -> Vec<f64> {
        let shares = node_shares(plan);
        let own = shares.iter().map(|it| it.own_buffers.unwrap().shared_hit);
        own.collect()
    }

    #[test]
    fn rows_and_times_are_multiplied_by_loops_and_divided_by_processes() {
        let plan = plan(
            r#"{"Node Type": "Gather", "Actual Rows": 900, "Actual Loops": 1, "Actual Total Time": 12,
                "Plans": [{"Node Type": "Nested Loop", "Actual Rows": 300, "Actual Loops": 3,
                           "Actual Total Time": 10,
                  "Plans": [{"Node Type": "Seq Scan", "Actual Rows": 100, "Actual Loops": 3,
                             "Actual Total Time": 4},
                            {"Node Type": "Index Scan", "Actual Rows": 3.25, "Actual Loops": 300,
                             "Actual Total Time": 0.05}]}]}"#,
        );
        let shares = node_shares(&plan);
        let rows: Vec<_> = shares.iter().map(|it| it.rows.unwrap()).collect();
        assert_eq!(rows, [900.0, 900.0, 300.0, 975.0]);
        assert_eq!(shares[2].rows_error.to_string(), "1.5");
        assert_eq!(shares[3].rows_error.to_string(), "1.5");
        let elapsed: Vec<_> = shares.iter().map(|it| it.elapsed_ms.unwrap()).collect();
        assert_eq!(elapsed, [12.0, 10.0, 4.0, 5.0]);
        let own: Vec<_> = shares.iter().map(|it| it.own_ms.unwrap()).collect();
        assert_eq!(own, [2.0, 1.0, 4.0, 5.0]);
    }

    #[test]
    fn an_init_plan_is_subtracted_where_it_is_read() {
        for (name, read) in [
            ("InitPlan 1 (returns $0)", "(t.id > $0)"),
            ("InitPlan 1", "(t.id > (InitPlan 1).col1)"),
        ] {
            let plan = plan(&format!(
                r#"{{"Node Type": "Limit", "Shared Hit Blocks": 100, "Plans": [
                    {{"Node Type": "Aggregate", "Parent Relationship": "InitPlan",
                      "Subplan Name": "{name}", "Shared Hit Blocks": 40}},
                    {{"Node Type": "Sort", "Parent Relationship": "Outer", "Shared Hit Blocks": 100,
                      "Output": ["{read}"],
                      "Plans": [{{"Node Type": "Seq Scan", "Parent Relationship": "Outer",
                                 "Filter": "{read}", "Shared Hit Blocks": 100}}]}}]}}"#
            ));
            assert_eq!(own_hits(&plan), [0.0, 40.0, 0.0, 60.0], "{name}");
        }
    }

    #[test]
    fn an_init_plan_that_workers_read_runs_in_the_gather() {
        let plan = plan(
            r#"{"Node Type": "Aggregate", "Shared Hit Blocks": 100, "Plans": [
                {"Node Type": "Result", "Parent Relationship": "InitPlan",
                 "Subplan Name": "InitPlan 1 (returns $0)", "Shared Hit Blocks": 40},
                {"Node Type": "Gather", "Parent Relationship": "Outer", "Shared Hit Blocks": 100,
                 "Plans": [{"Node Type": "Seq Scan", "Parent Relationship": "Outer",
                            "Filter": "(id > $0)", "Shared Hit Blocks": 60}]}]}"#,
        );
        assert_eq!(own_hits(&plan), [0.0, 40.0, 0.0, 60.0]);
    }

    #[test]
    fn a_cte_is_subtracted_from_the_readers_that_ran_it() {
        let plan = plan(
            r#"{"Node Type": "Hash Join", "Shared Hit Blocks": 130, "Plans": [
                {"Node Type": "Seq Scan", "Parent Relationship": "InitPlan", "Subplan Name": "CTE c",
                 "Shared Hit Blocks": 85},
                {"Node Type": "CTE Scan", "Parent Relationship": "Outer", "CTE Name": "c",
                 "Shared Hit Blocks": 2},
                {"Node Type": "Hash", "Parent Relationship": "Inner", "Shared Hit Blocks": 83,
                 "Plans": [{"Node Type": "CTE Scan", "Parent Relationship": "Outer",
                            "CTE Name": "c", "Shared Hit Blocks": 83}]}]}"#,
        );
        assert_eq!(own_hits(&plan), [45.0, 85.0, 0.0, 0.0, 0.0]);
    }
}
