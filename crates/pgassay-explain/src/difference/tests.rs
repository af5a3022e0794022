//! What is and what is not a difference, and properties of all differences.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::lines::LineMark;
use crate::share::node_shares;
use crate::step::steps;

fn plan(node: &Value) -> QueryPlan {
    QueryPlan::parse(&json!([{ "Plan": node }]).to_string()).unwrap()
}

fn said(a: &Value, b: &Value) -> Vec<String> {
    let difference = PlanDifference::between(&plan(a), &plan(b));
    difference.changes.iter().map(ToString::to_string).collect()
}

fn scan(alias: &str) -> Value {
    json!({"Node Type": "Seq Scan", "Relation Name": alias, "Alias": alias})
}

fn with(mut node: Value, fields: &Value) -> Value {
    let fields = fields.as_object().unwrap().clone();
    node.as_object_mut().unwrap().extend(fields);
    node
}

#[test]
fn a_difference_in_costs_and_constants_alone_is_none() {
    let a = with(
        scan("t"),
        &json!({"Total Cost": 10.0, "Filter": "(t.k = 5)", "Plan Rows": 5}),
    );
    let b = with(
        scan("t"),
        &json!({"Total Cost": 99.0, "Filter": "(t.k = 6)", "Plan Rows": 9}),
    );
    let difference = PlanDifference::between(&plan(&a), &plan(&b));
    assert!(difference.is_none(), "{:?}", difference.changes);
    assert_eq!(difference.lines[0].mark, LineMark::Same);
}

/// Regression: EXISTS and IN had the same plan with other conditions, since only one of them had an alias.
#[test]
fn an_alias_in_one_text_only_is_no_difference() {
    let join = |alias: &str, other: &str| {
        let orders = json!({"Node Type": "Seq Scan", "Relation Name": "orders", "Alias": alias,
            "Filter": format!("({alias}.status = 'open'::text)")});
        let customers =
            json!({"Node Type": "Seq Scan", "Relation Name": "customer", "Alias": other});
        let hash = json!({"Node Type": "Hash", "Plans": [customers]});
        json!({"Node Type": "Sort", "Sort Key": [format!("{alias}.id"), format!("lower({other}.name)")],
            "Plans": [{"Node Type": "Hash Join", "Join Type": "Right Semi",
                "Hash Cond": format!("({alias}.customer = {other}.id)"), "Plans": [orders, hash]}]})
    };
    assert_eq!(said(&join("o", "c"), &join("orders", "c")), [""; 0]);
    assert_eq!(said(&join("o", "c"), &join("a", "z")), [""; 0]);
    // Another column is a difference whatever the alias.
    let mut other = join("orders", "c");
    other["Plans"][0]["Hash Cond"] = json!("(orders.payer = c.id)");
    assert!(!said(&join("o", "c"), &other).is_empty());
}

/// Regression: a list of 1000 values filled 70 lines of the terminal.
#[test]
fn a_condition_with_a_long_list_is_shortened() {
    let list = (0..1000).map(|it| it.to_string()).collect::<Vec<_>>();
    let filtered = |condition: &str| with(scan("t"), &json!({ "Filter": condition }));
    let long = format!(
        "((t.k = ANY ('{{{}}}'::integer[])) OR (t.é = 1))",
        list.join(",")
    );
    let said = said(&filtered(&long), &scan("t"));
    let [removed] = &said[..] else {
        panic!("{said:?}");
    };
    assert!(removed.starts_with("Condition removed: Filter of Seq Scan on t: ((t.k = ANY ('{0,1,"));
    assert!(
        removed.contains(" … ") && removed.ends_with("999}'::integer[])) OR (t.é = 1))"),
        "{removed}"
    );
    assert!(removed.len() < 300, "{removed}");
}

#[test]
fn differences_are_in_the_order_of_their_importance() {
    let hash = |batches: u32, child: Value| {
        json!({"Node Type": "Hash", "Hash Batches": batches,
        "Actual Rows": 10, "Actual Loops": 1, "Plans": [child]})
    };
    let ran = |rows: u32, estimate: u32, hit: u32| {
        json!({"Actual Rows": rows, "Actual Loops": 1,
        "Plan Rows": estimate, "Shared Hit Blocks": hit})
    };
    let a = json!({"Node Type": "Hash Join", "Hash Cond": "(a.id = b.id)", "Plans": [
        with(with(scan("a"), &json!({"Filter": "(a.k = 1)"})), &ran(100, 100, 900)),
        hash(1, with(scan("b"), &ran(1000, 10, 5)))]});
    let b = json!({"Node Type": "Sort", "Sort Key": ["a.k"], "Plans": [
        {"Node Type": "Hash Join", "Hash Cond": "(b.id = a.id)", "Plans": [
        with(scan("b"), &ran(1000, 900, 5)),
        hash(16, with(json!({"Node Type": "Index Scan", "Index Name": "i", "Relation Name": "a",
            "Alias": "a", "Index Cond": "(a.k = 1)"}), &ran(40, 40, 12)))]}]});
    assert_eq!(
        said(&a, &b),
        [
            "Method: Seq Scan on a → Index Scan using i on a",
            "Join order: (a b) → (b a)",
            "Added: Sort by a.k",
            "Condition moved: Filter of Seq Scan on a → Index Cond of Index Scan using i on a: (a.k = 1)",
            "Estimate of Seq Scan on b: estimated 10, actual 1.0k (100× too low) → estimated 900, \
             actual 1.0k (1.1× too low)",
            "Memory of Hash (a): none → 16 batches",
            "Buffers of Index Scan using i on a: 900 blocks → 12 blocks",
            "Rows of Index Scan using i on a: 100 → 40",
        ]
    );
}

#[test]
fn the_name_of_a_join_condition_follows_from_the_method() {
    let join = |node_type: &str, condition: &str| json!({"Node Type": node_type, condition: "(a.id = b.id)", "Plans": [scan("a"), scan("b")]});
    assert_eq!(
        said(
            &join("Merge Join", "Merge Cond"),
            &join("Hash Join", "Hash Cond")
        ),
        ["Method: Merge Join (a, b) → Hash Join"]
    );
}

#[test]
fn an_estimate_below_a_limit_that_has_enough_is_not_wrong() {
    let limited = |rows: u32| {
        json!({"Node Type": "Limit", "Plans": [
            with(scan("t"), &json!({"Plan Rows": 1000, "Actual Rows": rows, "Actual Loops": 1}))]})
    };
    let all = said(&limited(1), &limited(1000));
    assert_eq!(all, ["Rows of Seq Scan on t: 1 → 1.0k"]);
    // A step that never ran has no actual rows.
    let never = with(
        scan("t"),
        &json!({"Plan Rows": 1000, "Actual Rows": 0, "Actual Loops": 0}),
    );
    let once = with(
        scan("t"),
        &json!({"Plan Rows": 1000, "Actual Rows": 1000, "Actual Loops": 1}),
    );
    assert_eq!(said(&never, &once), ["Rows of Seq Scan on t: 0 → 1.0k"]);
}

/// Regression: "estimated 100, actual 1 (100× too high)" for the inner side of a nested loop semi-join.
#[test]
fn an_estimate_below_a_semi_join_that_found_its_match_is_not_wrong() {
    let inner = |rows: u32, relationship: &str| {
        let figures = json!({"Plan Rows": 1000, "Actual Rows": rows, "Actual Loops": 1,
            "Parent Relationship": relationship});
        with(scan("t"), &figures)
    };
    let outer = with(scan("o"), &json!({"Parent Relationship": "Outer"}));
    let join = |kind: &str, rows: u32| json!({"Node Type": "Nested Loop", "Join Type": kind, "Plans": [outer, inner(rows, "Inner")]});
    let estimates = |a: &Value, b: &Value| -> Vec<String> {
        let all = said(a, b).into_iter();
        all.filter(|it| it.starts_with("Estimate")).collect()
    };
    for kind in ["Semi", "Anti"] {
        assert!(estimates(&join(kind, 1000), &join(kind, 1)).is_empty());
        // It found more rows than estimated, however early it ended.
        assert_eq!(estimates(&join(kind, 1000), &join(kind, 100_000)).len(), 1);
    }
    assert_eq!(estimates(&join("Inner", 1000), &join("Inner", 1)).len(), 1);
    let merge = |rows: u32| json!({"Node Type": "Merge Join", "Join Type": "Inner", "Plans": [outer, inner(rows, "Inner")]});
    assert!(estimates(&merge(1000), &merge(1)).is_empty());
    let exists = |rows: u32| json!({"Node Type": "Result", "Plans": [inner(rows, "SubPlan")]});
    assert!(estimates(&exists(1000), &exists(1)).is_empty());
}

#[test]
fn rows_that_are_rounded_per_loop_do_not_differ() {
    let loops = |rows: f64, loops: u32| {
        with(
            scan("t"),
            &json!({"Actual Rows": rows, "Actual Loops": loops}),
        )
    };
    // 333 of each of three processes in a version before 18, and 1000 of one.
    assert!(said(&loops(333.0, 3), &loops(1000.0, 1)).is_empty());
    assert!(said(&loops(0.0, 1000), &loops(0.4, 1000)).is_empty());
    assert_eq!(said(&loops(1.0, 1000), &loops(3.0, 1000)).len(), 1);
}

#[test]
fn figures_that_only_one_plan_has_are_not_compared() {
    let a = with(
        scan("t"),
        &json!({"Actual Rows": 5, "Actual Loops": 1, "Shared Hit Blocks": 900}),
    );
    assert!(said(&a, &scan("t")).is_empty());
    let window = |extra: &Value| {
        with(
            json!({"Node Type": "WindowAgg", "Plans": [scan("t")],
        "Actual Rows": 1, "Actual Loops": 1}),
            extra,
        )
    };
    let on_disk = json!({"Storage": "Disk", "Maximum Storage": 900});
    let in_memory = json!({"Storage": "Memory", "Maximum Storage": 17});
    assert_eq!(said(&window(&on_disk), &window(&in_memory)).len(), 1);
}

#[test]
fn many_partitions_are_one_line() {
    let append = |count: usize, kind: &str| {
        let children: Vec<Value> = (1..=count)
            .map(|number| {
                json!({"Node Type": kind, "Parent Relationship": "Member", "Relation Name": format!("p_{number}"),
                    "Alias": format!("x_{number}"), "Filter": format!("(x_{number}.k = 3)"),
                    "Actual Rows": 10, "Actual Loops": 1, "Shared Hit Blocks": 5})
            })
            .collect();
        json!({"Node Type": "Append", "Plans": children})
    };
    let difference = PlanDifference::between(
        &plan(&append(12, "Seq Scan")),
        &plan(&append(4, "Seq Scan")),
    );
    let labels: Vec<_> = difference
        .lines
        .iter()
        .map(|it| it.b.as_ref().unwrap().label.as_str())
        .collect();
    assert_eq!(labels, ["Append", "4 × Seq Scan on partitions of x"]);
    let line = &difference.lines[1];
    assert_eq!(line.a_figures.as_ref().unwrap().rows, Some(120.0));
    let blocks = line.a_figures.as_ref().unwrap().own_buffers.unwrap();
    assert_eq!(blocks.accessed().to_string(), "60");
    assert_eq!(
        difference.changes[0].to_string(),
        "Method: 12 × Seq Scan on partitions of x → 4 × Seq Scan on partitions of x"
    );
    let eight =
        PlanDifference::between(&plan(&append(8, "Seq Scan")), &plan(&append(8, "Seq Scan")));
    assert_eq!(eight.lines.len(), 9);
    assert!(said(&append(12, "Seq Scan"), &append(12, "Seq Scan")).is_empty());
}

#[test]
fn a_step_that_moved_has_two_lines() {
    let join =
        |outer: Value, inner: Value| json!({"Node Type": "Nested Loop", "Plans": [outer, inner]});
    let a = join(join(scan("a"), scan("b")), scan("c"));
    let b = join(join(scan("c"), scan("b")), scan("a"));
    let difference = PlanDifference::between(&plan(&a), &plan(&b));
    let marks = |wanted| {
        difference
            .lines
            .iter()
            .filter(|it| it.mark == wanted)
            .count()
    };
    assert_eq!(marks(LineMark::MovedFrom), marks(LineMark::MovedTo));
    assert!(marks(LineMark::MovedFrom) > 0);
    let orders: Vec<_> = difference
        .changes
        .iter()
        .filter(|it| it.kind == PlanChangeKind::JoinOrder)
        .map(ToString::to_string)
        .collect();
    assert_eq!(orders, ["Join order: ((a b) c) → ((c b) a)"]);
}

#[test]
fn settings_that_are_not_equal_are_listed() {
    let with_settings = |settings: Value| {
        let text =
            json!([{"Plan": scan("t"), "Settings": settings, "JIT": {"Functions": 3}}]).to_string();
        QueryPlan::parse(&text).unwrap()
    };
    let a = with_settings(json!({"work_mem": "64kB", "jit": "off"}));
    let b = with_settings(json!({"jit": "off", "random_page_cost": "1.1"}));
    let difference = PlanDifference::between(&a, &b);
    let names: Vec<_> = difference
        .settings
        .iter()
        .map(|it| it.name.as_str())
        .collect();
    assert_eq!(names, ["random_page_cost", "work_mem"]);
    assert!(difference.is_none());
    // Regression: 11 vs 16, both with work_mem = 64MB, showed "work_mem: default → 64MB".
    let of_11 = PlanDifference::between(&plan(&scan("t")), &b);
    assert!(of_11.settings.is_empty());
    let defaults = PlanDifference::between(&with_settings(json!({})), &b);
    assert_eq!(defaults.settings.len(), 2);
    let without_jit = PlanDifference::between(&plan(&scan("t")), &a);
    assert_eq!(without_jit.b.jit_functions, Some(3.0));
    let text = crate::difference_text(&without_jit, ("off", "on"), 80);
    assert!(
        text.contains("Functions compiled by JIT: 0 → 3\n"),
        "{text}"
    );
}

/// Regression: "The statements have the same plans in all variants", where JIT compilation made one of them slower.
#[test]
fn a_plan_that_jit_compiles_differs_from_one_that_it_does_not() {
    let compiled = |functions: u32| {
        let text = json!([{"Plan": scan("t"), "JIT": {"Functions": functions}}]).to_string();
        QueryPlan::parse(&text).unwrap()
    };
    let difference = PlanDifference::between(&plan(&scan("t")), &compiled(4));
    assert!(!difference.is_none());
    let sentences = crate::difference_sentences(&difference, 5);
    assert_eq!(sentences, ["Functions compiled by JIT: 0 → 4"]);
    let more = PlanDifference::between(&compiled(3), &compiled(4));
    assert!(more.is_none());
}

#[test]
fn the_difference_survives_json() {
    let difference = PlanDifference::between(&plan(&scan("a")), &plan(&scan("b")));
    let text = serde_json::to_string(&difference).unwrap();
    assert_eq!(
        serde_json::from_str::<PlanDifference>(&text).unwrap(),
        difference
    );
    assert!(text.contains(r#""kind":"method""#), "{text}");
    let schema = serde_json::to_value(schemars::schema_for!(PlanDifference)).unwrap();
    assert!(schema["properties"]["changes"].is_object());
}

/// A node of a random kind above others.
fn node_above(kind: usize, numbers: [u32; 4], mut children: Vec<Value>) -> Value {
    let [rows, loops, blocks, choice] = numbers;
    let figures = json!({"Actual Rows": rows, "Actual Loops": loops % 4, "Plan Rows": rows % 977,
        "Total Cost": rows, "Shared Hit Blocks": blocks, "Temp Read Blocks": blocks % 50});
    let is_join = kind < 3;
    children.truncate(if is_join { 2 } else { 1 });
    if is_join && children.len() < 2 {
        children.push(with(scan("z"), &figures));
    }
    let mut node = match kind {
        0 => json!({"Node Type": "Nested Loop", "Join Filter": "(a.k = b.k)"}),
        1 => json!({"Node Type": "Hash Join", "Hash Cond": "(b.k = a.k)", "Join Type": "Left"}),
        2 => json!({"Node Type": "Merge Join", "Merge Cond": "((a.k = b.k) AND (a.id < 5))"}),
        3 => json!({"Node Type": "Sort", "Sort Key": [format!("a.c{}", choice % 2)],
            "Sort Method": "quicksort", "Sort Space Used": blocks,
            "Sort Space Type": if blocks % 2 == 0 { "Memory" } else { "Disk" }}),
        4 => json!({"Node Type": "Aggregate", "Strategy": "Hashed", "HashAgg Batches": blocks % 5}),
        5 => json!({"Node Type": "Limit"}),
        6 => json!({"Node Type": "Gather", "Workers Planned": 2}),
        7 => json!({"Node Type": "Hash", "Hash Batches": 1 + blocks % 4}),
        8 => json!({"Node Type": "Result", "One-Time Filter": "(InitPlan 1).col1"}),
        _ => json!({"Node Type": "Append"}),
    };
    if choice % 5 == 0 {
        children.insert(
            0,
            json!({"Node Type": "Result", "Parent Relationship": "InitPlan",
            "Subplan Name": "InitPlan 1", "Shared Hit Blocks": blocks % 7}),
        );
    }
    node = with(node, &figures);
    with(node, &json!({ "Plans": children }))
}

fn leaf() -> impl Strategy<Value = Value> {
    let parts = (0..5_usize, 0..4_usize, 0..4_usize, 0..5000_u32, 1..4_u32);
    parts.prop_map(|(kind, alias, condition, rows, loops)| {
        let alias = ["a", "b", "p_1", "p_2"][alias];
        let condition_kind = ["Filter", "Index Cond", "Recheck Cond", "Filter"][condition];
        let mut node = match kind {
            0 => json!({"Node Type": "Index Scan", "Index Name": format!("{alias}_i")}),
            1 => json!({"Node Type": "Bitmap Heap Scan", "Plans": [
                {"Node Type": "Bitmap Index Scan", "Index Name": "j", "Index Cond": "(k = 1)"}]}),
            2 => json!({"Node Type": "Result"}),
            _ => json!({"Node Type": "Seq Scan"}),
        };
        if kind != 2 {
            node = with(
                node,
                &json!({"Relation Name": alias, "Alias": alias,
                condition_kind: format!("(({alias}.k = {rows}) AND ({alias}.id < $1))")}),
            );
        }
        with(
            node,
            &json!({"Actual Rows": rows, "Actual Loops": loops, "Plan Rows": 10,
            "Shared Hit Blocks": rows % 400}),
        )
    })
}

fn any_plan() -> impl Strategy<Value = Value> {
    leaf().prop_recursive(6, 40, 4, |inner| {
        let numbers = [0..5000_u32, 0..9_u32, 0..500_u32, 0..9_u32];
        (0..10_usize, numbers, prop::collection::vec(inner, 1..4))
            .prop_map(|(kind, numbers, children)| node_above(kind, numbers, children))
    })
}

/// The changes with both plans exchanged, in an order of their own.
fn sorted(changes: &[PlanChange], is_mirrored: bool) -> Vec<String> {
    let mut all: Vec<String> = changes
        .iter()
        .cloned()
        .map(|it| {
            if !is_mirrored {
                return format!("{it:?}");
            }
            let kind = match it.kind {
                PlanChangeKind::NodeAdded => PlanChangeKind::NodeRemoved,
                PlanChangeKind::NodeRemoved => PlanChangeKind::NodeAdded,
                other => other,
            };
            let mirrored = PlanChange {
                kind,
                a: it.b,
                b: it.a,
                before: it.after,
                after: it.before,
                before_figure: it.after_figure,
                after_figure: it.before_figure,
            };
            format!("{mirrored:?}")
        })
        .collect();
    all.sort();
    all
}

proptest! {
    #[test]
    fn a_plan_does_not_differ_from_itself(node in any_plan()) {
        let plan = plan(&node);
        let difference = PlanDifference::between(&plan, &plan);
        prop_assert!(difference.is_none(), "{:?}", difference.changes);
        prop_assert!(difference.lines.iter().all(|it| it.mark == LineMark::Same && it.a == it.b));
    }

    #[test]
    fn the_difference_of_b_and_a_mirrors_that_of_a_and_b(a in any_plan(), b in any_plan()) {
        let (a, b) = (plan(&a), plan(&b));
        let forward = PlanDifference::between(&a, &b);
        let back = PlanDifference::between(&b, &a);
        prop_assert_eq!(sorted(&forward.changes, true), sorted(&back.changes, false));
    }

    #[test]
    fn every_step_is_in_the_tree_once_or_moved(a in any_plan(), b in any_plan()) {
        let (a, b) = (plan(&a), plan(&b));
        let difference = PlanDifference::between(&a, &b);
        let mut nodes: Vec<usize> = difference.lines.iter().filter_map(|it| Some(it.a.as_ref()?.node)).collect();
        prop_assert!(nodes.is_sorted());
        let count = nodes.len();
        nodes.dedup();
        prop_assert_eq!(nodes.len(), count);
        prop_assert_eq!(nodes.len(), steps(&a, &KnownPartitions::default()).len());
    }

    #[test]
    fn own_shares_are_never_negative_nor_more_than_the_total(node in any_plan()) {
        for share in node_shares(&plan(&node)) {
            if let (Some(own), Some(total)) = (share.own_buffers, share.buffers) {
                prop_assert!(own.accessed() >= 0.0 && own.accessed() <= total.accessed());
            }
        }
    }
}
