//! Each pass on small plans.

use super::*;
use crate::partitions::KnownPartitions;
use crate::step::steps;

/// The labels of the matched steps of two plans, with `+` and `-` for the others.
fn matched(a: &str, b: &str) -> Vec<String> {
    let [plan_a, plan_b] =
        [a, b].map(|json| QueryPlan::parse(&format!(r#"[{{"Plan": {json}}}]"#)).unwrap());
    let [a, b] = [&plan_a, &plan_b].map(|plan| steps(plan, &KnownPartitions::default()));
    let found = match_steps((&plan_a, &a), (&plan_b, &b));
    let mirrored = match_steps((&plan_b, &b), (&plan_a, &a));
    assert_eq!(found.a_to_b, mirrored.b_to_a);
    assert_eq!(found.b_to_a, mirrored.a_to_b);
    let pairs = found
        .pairs()
        .map(|(at, to)| format!("{} = {}", a[at].label, b[to].label));
    let free = |steps: &[PlanStep], partners: &[Option<usize>], sign: char| -> Vec<String> {
        let steps = steps.iter().zip(partners).filter(|(_, to)| to.is_none());
        steps
            .map(|(it, _)| format!("{sign} {}", it.label))
            .collect()
    };
    let mut all: Vec<String> = pairs.collect();
    all.extend(free(&a, &found.a_to_b, '-'));
    all.extend(free(&b, &found.b_to_a, '+'));
    all
}

fn scan(alias: &str) -> String {
    format!(r#"{{"Node Type": "Seq Scan", "Relation Name": "{alias}", "Alias": "{alias}"}}"#)
}

fn node(node_type: &str, children: &[String]) -> String {
    let children = children.join(", ");
    format!(r#"{{"Node Type": "{node_type}", "Plans": [{children}]}}"#)
}

#[test]
fn pass_1_matches_equal_subtrees_wherever_they_are() {
    let sorted = node("Sort", &[scan("s")]);
    let a = node("Merge Join", &[sorted.clone(), scan("t")]);
    let b = node("Merge Join", &[scan("t"), node("Materialize", &[sorted])]);
    assert_eq!(
        matched(&a, &b),
        [
            "Merge Join = Merge Join",
            "Sort = Sort",
            "Seq Scan on s = Seq Scan on s",
            "Seq Scan on t = Seq Scan on t",
            "+ Materialize"
        ]
    );
}

#[test]
fn pass_2_matches_joins_of_the_same_tables_and_aggregates_from_the_top() {
    let inner = node("Nested Loop", &[scan("a"), scan("b")]);
    let a = node(
        "Aggregate",
        &[node("Hash Join", &[inner, node("Hash", &[scan("c")])])],
    );
    let inner = node("Hash Join", &[scan("c"), node("Hash", &[scan("b")])]);
    let partial = node("Aggregate", &[node("Nested Loop", &[inner, scan("a")])]);
    let b = node("Aggregate", &[node("Gather", &[partial])]);
    assert_eq!(
        matched(&a, &b),
        [
            "Aggregate = Aggregate",
            "Hash Join = Nested Loop",
            "Seq Scan on a = Seq Scan on a",
            "Seq Scan on b = Seq Scan on b",
            "Seq Scan on c = Seq Scan on c",
            "- Nested Loop",
            "- Hash",
            "+ Gather",
            "+ Aggregate",
            "+ Hash Join",
            "+ Hash"
        ]
    );
}

#[test]
fn pass_3_matches_scans_of_a_table_and_a_bitmap_with_its_indexes_is_one() {
    let a = scan("t");
    let b = r#"{"Node Type": "Bitmap Heap Scan", "Relation Name": "t", "Alias": "t", "Plans": [
        {"Node Type": "BitmapAnd", "Parent Relationship": "Outer", "Plans": [
          {"Node Type": "Bitmap Index Scan", "Index Name": "i"},
          {"Node Type": "Bitmap Index Scan", "Index Name": "j"}]},
        {"Node Type": "Seq Scan", "Parent Relationship": "SubPlan", "Subplan Name": "SubPlan 1",
         "Relation Name": "s", "Alias": "s"}]}"#;
    assert_eq!(
        matched(&a, b),
        [
            "Seq Scan on t = Bitmap Heap Scan using i, j on t",
            "+ Seq Scan on s"
        ]
    );
}

#[test]
fn pass_3_matches_partitions_by_root_and_name() {
    let partition = |name: &str, alias: &str, kind: &str| {
        format!(r#"{{"Node Type": "{kind}", "Relation Name": "{name}", "Alias": "{alias}"}}"#)
    };
    // As 12 and 13 name them.
    let a = [
        partition("p_0", "x", "Seq Scan"),
        partition("p_1", "x_1", "Seq Scan"),
    ];
    let b = [
        partition("p_1", "x_1", "Index Scan"),
        partition("p_2", "x_2", "Seq Scan"),
    ];
    assert_eq!(
        matched(&node("Append", &a), &node("Append", &b)),
        [
            "Append = Append",
            "Seq Scan on p_0 x = Seq Scan on p_2 x_2",
            "Seq Scan on p_1 x_1 = Index Scan on p_1 x_1"
        ]
    );
}

#[test]
fn pass_4_matches_what_has_no_table_by_type_and_role() {
    let result = node("Result", &[]);
    let function = r#"{"Node Type": "ProjectSet", "Parent Relationship": "Outer", "Plans": []}"#;
    let a = node("Limit", &[node("LockRows", std::slice::from_ref(&result))]);
    let b = node("Limit", &[node("Result", &[function.to_owned(), result])]);
    assert_eq!(
        matched(&a, &b),
        [
            "Limit = Limit",
            "Result = Result",
            "- LockRows",
            "+ ProjectSet",
            "+ Result"
        ]
    );
    // Queries of different tables: their scans have the same role.
    assert_eq!(
        matched(&node("Limit", &[scan("t")]), &node("Limit", &[scan("s")])),
        ["Limit = Limit", "Seq Scan on t = Seq Scan on s"]
    );
}

#[test]
fn a_cte_that_became_part_of_the_query_leaves_its_joins_the_same() {
    let aggregate = |extra: &str| {
        format!(
            r#"{{"Node Type": "Aggregate", {extra} "Plans": [{}]}}"#,
            scan("t")
        )
    };
    let cte = aggregate(r#""Parent Relationship": "InitPlan", "Subplan Name": "CTE c","#);
    let cte_scan = r#"{"Node Type": "CTE Scan", "CTE Name": "c", "Alias": "c"}"#;
    let a = node(
        "Hash Join",
        &[cte, scan("s"), node("Hash", &[cte_scan.to_owned()])],
    );
    let b = node("Hash Join", &[scan("s"), node("Hash", &[aggregate("")])]);
    assert_eq!(
        matched(&a, &b),
        [
            "Hash Join = Hash Join",
            "Aggregate = Aggregate",
            "Seq Scan on t = Seq Scan on t",
            "Seq Scan on s = Seq Scan on s",
            "Hash = Hash",
            "- CTE Scan on c"
        ]
    );
}
