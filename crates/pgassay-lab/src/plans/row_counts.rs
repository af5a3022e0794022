//! How many rows statements returned or changed when EXPLAIN executed them. Pure.

use pgassay_explain::{PlanNode, QueryPlan};

/// Rows of the statements of a baseline and of a variant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StatementRows {
    /// Whether they are the rows that were changed; otherwise, those that were returned.
    pub are_changed: bool,
    /// The baseline's and the variant's.
    pub rows: [f64; 2],
}

impl StatementRows {
    /// Of two plans; `None` if they were not executed, or their rows cannot be compared. Some statements return none of
    /// the rows of their plan: `keeps`.
    pub(super) fn of(plans: [&QueryPlan; 2], keeps: [bool; 2]) -> Option<Self> {
        if let [Some(before), Some(after)] = plans.map(changed) {
            return Some(Self {
                are_changed: true,
                rows: [before, after],
            });
        }
        let [before, after] = plans.map(returned);
        (keeps == [false, false]).then_some(Self {
            are_changed: false,
            rows: [before?, after?],
        })
    }

    /// Whether they differ.
    pub fn differ(&self) -> bool {
        differ(self.rows)
    }
}

/// Whether two executions of a statement returned or changed different numbers of rows.
pub(super) fn rows_vary(first: &QueryPlan, again: &QueryPlan) -> bool {
    let is_other = |of: fn(&QueryPlan) -> Option<f64>| {
        let counts = of(first).zip(of(again));
        counts.is_some_and(|(first, again)| differ([first, again]))
    };
    is_other(returned) || is_other(changed)
}

fn differ([one, other]: [f64; 2]) -> bool {
    (one - other).abs() >= 1.0
}

fn returned(plan: &QueryPlan) -> Option<f64> {
    rows(plan.nodes.first()?)
}

fn rows(node: &PlanNode) -> Option<f64> {
    node.actual.map(|it| it.rows * it.loops)
}

/// The rows that an INSERT, UPDATE, DELETE or MERGE changed: those that it found, without those that it left alone.
fn changed(plan: &QueryPlan) -> Option<f64> {
    let root = plan.nodes.first()?;
    root.actual?;
    if root.node_type != "ModifyTable" {
        return None;
    }
    let counted = |key: &str| root.rest.get(key).and_then(serde_json::Value::as_f64);
    let is_nothing = root
        .rest
        .get("Conflict Resolution")
        .is_some_and(|it| it.as_str() == Some("NOTHING"));
    let is_merge = root.operation.as_deref() == Some("Merge");
    if is_nothing || is_merge {
        let kinds = ["Tuples Inserted", "Tuples Updated", "Tuples Deleted"].map(counted);
        return kinds.into_iter().flatten().reduce(|sum, it| sum + it);
    }
    let inputs = root.children.iter().map(|&at| &plan.nodes[at]);
    let inputs = inputs
        .filter(|it| matches!(it.relationship.as_deref(), None | Some("Outer" | "Member")))
        .map(rows);
    inputs.sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use serde_json::{Value, json};

    use super::*;

    fn plan(root: &Value) -> QueryPlan {
        QueryPlan::parse(&json!([{"Plan": root}]).to_string()).unwrap()
    }

    /// A statement whose inputs, as of partitions, have these rows.
    fn write(operation: &str, inputs: &[u32]) -> Value {
        let input = |rows: &u32| json!({"Node Type": "Seq Scan", "Parent Relationship": "Outer", "Actual Rows": rows, "Actual Loops": 1});
        let sub = json!({"Node Type": "Seq Scan", "Parent Relationship": "InitPlan", "Actual Rows": 7,
            "Actual Loops": 1});
        let inputs = inputs.iter().map(input).chain([sub]);
        json!({"Node Type": "ModifyTable", "Operation": operation, "Actual Rows": 0, "Actual Loops": 1,
            "Plans": inputs.collect::<Vec<_>>()})
    }

    /// Regression: an UPDATE of 100 rows was compared with one of 50 without a word.
    #[test]
    fn rows_that_were_changed_are_compared() {
        let [fewer, more] =
            [write("Update", &[50]), write("Update", &[60, 40])].map(|it| plan(&it));
        let found = StatementRows::of([&fewer, &more], [true, true]).unwrap();
        assert_eq!((found.are_changed, found.rows), (true, [50.0, 100.0]));
        assert!(found.differ());
        let same = StatementRows::of([&fewer, &fewer], [true, true]).unwrap();
        assert!(!same.differ());
        let select = plan(&json!({"Node Type": "Seq Scan", "Actual Rows": 3, "Actual Loops": 1}));
        assert_eq!(StatementRows::of([&fewer, &select], [true, false]), None);
        let returned = StatementRows::of([&select, &select], [false, false]).unwrap();
        assert_eq!((returned.are_changed, returned.rows), (false, [3.0, 3.0]));
        assert_eq!(StatementRows::of([&select, &select], [true, false]), None);
    }

    #[test]
    fn rows_that_a_statement_left_alone_were_not_changed() {
        let of = |operation: &str, more: Value| {
            let mut root = write(operation, &[10]);
            let (root_keys, more) = (root.as_object_mut().unwrap(), more.as_object().unwrap());
            root_keys.extend(more.clone());
            changed(&plan(&root))
        };
        let nothing = json!({"Conflict Resolution": "NOTHING", "Tuples Inserted": 4, "Conflicting Tuples": 6});
        assert_eq!(of("Insert", nothing), Some(4.0));
        let update =
            json!({"Conflict Resolution": "UPDATE", "Tuples Inserted": 4, "Conflicting Tuples": 6});
        assert_eq!(of("Insert", update), Some(10.0));
        let merge = json!({"Tuples Inserted": 1, "Tuples Updated": 2, "Tuples Deleted": 3, "Tuples Skipped": 4});
        assert_eq!(of("Merge", merge), Some(6.0));
        assert_eq!(of("Merge", json!({})), None, "before 15");
    }

    /// Regression: two random samples "returned different numbers of rows" by chance.
    #[test]
    fn a_statement_that_differs_from_itself_varies() {
        let scan = |rows: u32| {
            plan(&json!({"Node Type": "Sample Scan", "Actual Rows": rows, "Actual Loops": 1}))
        };
        assert!(rows_vary(&scan(512), &scan(498)));
        assert!(!rows_vary(&scan(512), &scan(512)));
        let [some, others] = [write("Delete", &[5]), write("Delete", &[6])].map(|it| plan(&it));
        assert!(rows_vary(&some, &others) && !rows_vary(&some, &some));
        assert!(
            !rows_vary(&plan(&json!({"Node Type": "Result"})), &scan(1)),
            "not executed"
        );
    }
}
