//! Partitions of a table, recognized by the names of an Append's children.
//!
//! EXPLAIN does not print the partitioned table. Since 13 its partitions have its alias with a number
//! (`p_1`, `p_2`), before the first one has the alias itself, and without an alias all have their own
//! names. If the planner leaves one partition, it removes the Append (since 12) and the scan has the
//! table's alias.

use std::collections::{BTreeMap, BTreeSet};

use crate::plan::{PlanNode, QueryPlan};

/// Whether a node puts the rows of its children one after the other.
pub(crate) fn is_append(node: &PlanNode) -> bool {
    matches!(node.node_type.as_str(), "Append" | "Merge Append")
}

/// What plans that are compared know of each other's partitions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct KnownPartitions {
    /// The roots whose partitions are one step: in all plans or in none, or they could not be matched.
    pub(crate) folded: BTreeSet<String>,
    /// The root of each partition that is scanned without an alias.
    by_name: BTreeMap<String, String>,
}

impl KnownPartitions {
    /// Of plans that are compared; an Append has at most this many steps below.
    pub(crate) fn of(plans: [&QueryPlan; 2], children_max: usize) -> Self {
        let mut known = Self::default();
        for plan in plans {
            let wide = (0..plan.nodes.len()).filter(|&at| members(plan, at).len() > children_max);
            known
                .folded
                .extend(wide.filter_map(|at| append_root(plan, at)));
            let roots = appended_roots(plan);
            let partitions = plan
                .nodes
                .iter()
                .filter_map(|it| it.object.as_ref().zip(it.alias.as_ref()));
            known.by_name.extend(
                partitions
                    .filter_map(|(name, alias)| Some((name.clone(), roots.get(alias)?.clone()))),
            );
        }
        known
    }
}

/// The alias of each partition in a plan, and the alias of its root.
pub(crate) fn partition_roots(
    plan: &QueryPlan,
    known: &KnownPartitions,
) -> BTreeMap<String, String> {
    let mut found = appended_roots(plan);
    // In 12, the only partition left has its own name for an alias.
    for node in plan.nodes.iter().filter(|it| it.object == it.alias) {
        let root = node
            .alias
            .as_ref()
            .and_then(|alias| known.by_name.get_key_value(alias));
        if let Some((name, root)) = root {
            found.entry(name.clone()).or_insert_with(|| root.clone());
        }
    }
    found
}

fn appended_roots(plan: &QueryPlan) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for at in 0..plan.nodes.len() {
        let Some(root) = append_root(plan, at) else {
            continue;
        };
        for alias in scanned_aliases(plan, at) {
            found.insert(alias.to_owned(), root.clone());
        }
    }
    found
}

/// The children of an Append that are not subplans; none for other nodes.
fn members(plan: &QueryPlan, at: usize) -> Vec<usize> {
    let node = &plan.nodes[at];
    let children = node.children.iter().copied();
    let members = children.filter(|it| is_append(node) && !plan.nodes[*it].is_subplan());
    members.collect()
}

/// The alias of the table whose partitions an Append scans. `None` if the node is no Append, or appends
/// scans of different tables, as UNION ALL does.
pub(crate) fn append_root(plan: &QueryPlan, at: usize) -> Option<String> {
    if !is_append(&plan.nodes[at]) {
        return None;
    }
    let aliases = scanned_aliases(plan, at);
    let first = *aliases.first()?;
    let root = without_number(first);
    if aliases.iter().all(|it| without_number(it) == root) {
        return Some(root.to_owned());
    }
    // Before 13: the partitions' own names, such as `orders_jan` and `orders_feb`.
    let mut root = first;
    while let Some(end) = root.rfind('_') {
        root = &root[..end];
        let is_common = |it: &&str| it.strip_prefix(root).is_some_and(|it| it.starts_with('_'));
        if aliases.iter().all(is_common) {
            return Some(root.to_owned());
        }
    }
    None
}

/// `p` for `p_12`.
fn without_number(alias: &str) -> &str {
    let stem = alias.trim_end_matches(|it: char| it.is_ascii_digit());
    match stem.strip_suffix('_') {
        Some(root) if stem.len() < alias.len() && !root.is_empty() => root,
        _ => alias,
    }
}

/// The aliases of the scans below a node, without those of its subplans.
fn scanned_aliases(plan: &QueryPlan, at: usize) -> Vec<&str> {
    let mut found = Vec::new();
    let mut left = vec![at];
    while let Some(at) = left.pop() {
        let node = &plan.nodes[at];
        if node.children.is_empty() || node.node_type == "Bitmap Heap Scan" {
            found.extend(node.alias.as_deref());
        }
        let children = node.children.iter().rev();
        left.extend(children.filter(|it| !plan.nodes[**it].is_subplan()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(aliases: &[&str]) -> Option<String> {
        let scan = |alias: &&str| format!(r#"{{"Node Type": "Seq Scan", "Alias": "{alias}"}}"#);
        let scans: Vec<String> = aliases.iter().map(scan).collect();
        let json = format!(
            r#"[{{"Plan": {{"Node Type": "Append", "Plans": [{}]}}}}]"#,
            scans.join(",")
        );
        append_root(&QueryPlan::parse(&json).unwrap(), 0)
    }

    #[test]
    fn the_root_is_what_the_names_have_in_common() {
        assert_eq!(root(&["x_1", "x_2", "x_12"]).as_deref(), Some("x"));
        assert_eq!(root(&["x", "x_1", "x_2"]).as_deref(), Some("x"));
        assert_eq!(
            root(&["orders_jan", "orders_feb"]).as_deref(),
            Some("orders")
        );
        assert_eq!(
            root(&["m_2024_01", "m_2024_02", "m_2025_01"]).as_deref(),
            Some("m")
        );
        assert_eq!(root(&["a", "b"]), None);
        assert_eq!(root(&["s", "s_names"]), None);
        assert_eq!(root(&[]), None);
        assert_eq!(root(&["_1"]).as_deref(), Some("_1"));
    }
}
