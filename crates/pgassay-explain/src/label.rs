//! A node in words, as EXPLAIN's text format prints it (`ExplainNode`,
//! `src/backend/commands/explain.c`), without schemas.

use crate::plan::{PlanNode, QueryPlan};

/// `Index Scan using t_k on t x`.
pub(crate) fn label(plan: &QueryPlan, at: usize) -> String {
    let node = &plan.nodes[at];
    let mut text = method(plan, at);
    match (&node.object, &node.alias) {
        (Some(object), Some(alias)) if object != alias => {
            text.push(' ');
            text.push_str(alias);
        }
        (None, Some(alias)) => {
            text.push_str(" on ");
            text.push_str(alias);
        }
        _ => {}
    }
    text
}

/// `Index Scan using t_k on t`: without the alias.
pub(crate) fn method(plan: &QueryPlan, at: usize) -> String {
    let node = &plan.nodes[at];
    let mut text = String::new();
    if node.is_parallel_aware {
        text.push_str("Parallel ");
    }
    if node.is_async {
        text.push_str("Async ");
    }
    text.push_str(&node_name(node));
    if node.scan_direction.as_deref() == Some("Backward") {
        text.push_str(" Backward");
    }
    let indexes = indexes(plan, at);
    if !indexes.is_empty() {
        text.push_str(" using ");
        text.push_str(&indexes.join(", "));
    }
    if let Some(object) = &node.object {
        text.push_str(" on ");
        text.push_str(object);
    }
    text
}

/// The name of a node with its variety: `HashAggregate`, `Hash Left Join`, `Update`.
fn node_name(node: &PlanNode) -> String {
    let strategy = node.strategy.as_deref().unwrap_or("");
    match node.node_type.as_str() {
        "Aggregate" => {
            let mode = match node.partial_mode.as_deref() {
                Some(mode @ ("Partial" | "Finalize")) => format!("{mode} "),
                _ => String::new(),
            };
            let name = match strategy {
                "Sorted" => "GroupAggregate",
                "Hashed" => "HashAggregate",
                "Mixed" => "MixedAggregate",
                _ => "Aggregate",
            };
            format!("{mode}{name}")
        }
        "SetOp" => {
            let name = if strategy == "Hashed" {
                "HashSetOp"
            } else {
                "SetOp"
            };
            let command = node.command.as_deref().unwrap_or("");
            format!("{name} {command}").trim_end().to_owned()
        }
        "ModifyTable" => node
            .operation
            .clone()
            .unwrap_or_else(|| node.node_type.clone()),
        join @ ("Nested Loop" | "Hash Join" | "Merge Join") => match node.join_type.as_deref() {
            None | Some("Inner") => join.to_owned(),
            Some(kind) => format!("{} {kind} Join", join.trim_end_matches(" Join")),
        },
        other => other.to_owned(),
    }
}

/// The index of a scan, or those of a Bitmap Heap Scan.
fn indexes(plan: &QueryPlan, at: usize) -> Vec<&str> {
    let node = &plan.nodes[at];
    let end = if node.node_type == "Bitmap Heap Scan" {
        node.end.min(plan.nodes.len())
    } else {
        at + 1
    };
    let mut found: Vec<&str> = Vec::new();
    for index in plan.nodes[at..end]
        .iter()
        .filter_map(|it| it.index.as_deref())
    {
        if !found.contains(&index) {
            found.push(index);
        }
    }
    found
}

/// `12 × Seq Scan on partitions of p`.
pub(crate) fn folded(plan: &QueryPlan, members: &[usize], root: &str) -> String {
    let node = &plan.nodes[members[0]];
    let mut name = node_name(node);
    if node.is_parallel_aware {
        name = format!("Parallel {name}");
    }
    format!("{} × {name} on partitions of {root}", members.len())
}

/// `InitPlan 1` for `InitPlan 1 (returns $0)`.
pub(crate) fn subplan(name: &str) -> String {
    name.split(" (returns ").next().unwrap_or(name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_named_as_in_the_text_format() {
        for (json, expected) in [
            (
                r#"{"Node Type": "Aggregate", "Strategy": "Sorted", "Partial Mode": "Finalize"}"#,
                "Finalize GroupAggregate",
            ),
            (
                r#"{"Node Type": "Aggregate", "Strategy": "Plain", "Partial Mode": "Simple"}"#,
                "Aggregate",
            ),
            (
                r#"{"Node Type": "Hash Join", "Join Type": "Left", "Parallel Aware": true}"#,
                "Parallel Hash Left Join",
            ),
            (
                r#"{"Node Type": "Nested Loop", "Join Type": "Anti"}"#,
                "Nested Loop Anti Join",
            ),
            (
                r#"{"Node Type": "Merge Join", "Join Type": "Inner"}"#,
                "Merge Join",
            ),
            (
                r#"{"Node Type": "Index Only Scan", "Scan Direction": "Backward", "Index Name": "i",
                    "Relation Name": "t", "Alias": "x"}"#,
                "Index Only Scan Backward using i on t x",
            ),
            (
                r#"{"Node Type": "Bitmap Heap Scan", "Relation Name": "t", "Alias": "t", "Plans": [
                    {"Node Type": "BitmapOr", "Plans": [{"Index Name": "i"}, {"Index Name": "j"},
                    {"Index Name": "i"}]}]}"#,
                "Bitmap Heap Scan using i, j on t",
            ),
            (
                r#"{"Node Type": "ModifyTable", "Operation": "Update", "Relation Name": "t", "Alias": "t"}"#,
                "Update on t",
            ),
            (
                r#"{"Node Type": "SetOp", "Strategy": "Hashed", "Command": "Except"}"#,
                "HashSetOp Except",
            ),
            (
                r#"{"Node Type": "Values Scan", "Alias": "*VALUES*"}"#,
                "Values Scan on *VALUES*",
            ),
        ] {
            let plan = QueryPlan::parse(&format!(r#"[{{"Plan": {json}}}]"#)).unwrap();
            assert_eq!(label(&plan, 0), expected);
        }
        assert_eq!(subplan("InitPlan 1 (returns $0)"), "InitPlan 1");
    }
}
