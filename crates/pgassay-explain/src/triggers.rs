//! Triggers that fire for one of two statements only, or another number of times.

use std::collections::{BTreeMap, BTreeSet};

use crate::change::{PlanChange, PlanChangeKind};
use crate::number::short;
use crate::plan::QueryPlan;

/// The triggers of one name: a partitioned table has one on each partition.
#[derive(Default)]
struct Fired<'a> {
    relations: BTreeSet<&'a str>,
    calls: f64,
}

/// The changes of triggers, by name. Only an execution fires them.
pub(crate) fn changes(a: &QueryPlan, b: &QueryPlan) -> Vec<PlanChange> {
    let is_executed =
        |plan: &QueryPlan| plan.nodes.first().is_some_and(|root| root.actual.is_some());
    if !is_executed(a) || !is_executed(b) {
        return Vec::new();
    }
    let (before, after) = (fired(a), fired(b));
    let names: BTreeSet<&str> = before.keys().chain(after.keys()).copied().collect();
    let changes = names.into_iter().map(|name| {
        let of = |fired: &BTreeMap<&str, Fired<'_>>| fired.get(name).map(|it| text(name, it));
        let calls = |fired: &BTreeMap<&str, Fired<'_>>| fired.get(name).map(|it| it.calls);
        PlanChange {
            kind: PlanChangeKind::Trigger,
            a: None,
            b: None,
            before: of(&before),
            after: of(&after),
            before_figure: calls(&before),
            after_figure: calls(&after),
        }
    });
    changes.filter(is_changed).collect()
}

/// Whether a trigger fires in one plan only, or its calls differ as rows do.
fn is_changed(change: &PlanChange) -> bool {
    match (change.before_figure, change.after_figure) {
        (Some(before), Some(after)) => crate::changes::differ(before, after, 0.0),
        _ => true,
    }
}

fn fired(plan: &QueryPlan) -> BTreeMap<&str, Fired<'_>> {
    let mut all: BTreeMap<&str, Fired<'_>> = BTreeMap::new();
    for it in &plan.triggers {
        let fired = all.entry(&it.name).or_default();
        fired.relations.extend(it.relation.as_deref());
        fired.calls += it.calls;
    }
    all
}

/// `audit on t, 1 call`.
fn text(name: &str, fired: &Fired<'_>) -> String {
    let calls = short(fired.calls);
    let plural = if calls == "1" { "" } else { "s" };
    let relations: Vec<&str> = fired.relations.iter().copied().collect();
    let on = match relations[..] {
        [] => String::new(),
        [only] => format!(" on {only}"),
        [..] => format!(" on {} tables", relations.len()),
    };
    format!("{name}{on}, {calls} call{plural}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn plan(triggers: &serde_json::Value, loops: Option<f64>) -> QueryPlan {
        let mut node = json!({"Node Type": "ModifyTable", "Operation": "Insert"});
        if let Some(loops) = loops {
            node["Actual Rows"] = json!(0);
            node["Actual Loops"] = json!(loops);
        }
        let text = json!([{ "Plan": node, "Triggers": triggers }]).to_string();
        QueryPlan::parse(&text).unwrap()
    }

    fn said(a: &serde_json::Value, b: &serde_json::Value) -> Vec<String> {
        let [a, b] = [a, b].map(|it| plan(it, Some(1.0)));
        let changes = changes(&a, &b);
        changes.iter().map(ToString::to_string).collect()
    }

    /// Regression: an INSERT with a trigger had "the same plan" as one without.
    #[test]
    fn a_trigger_of_one_statement_is_a_difference() {
        let none = json!([]);
        let audit = json!([{"Trigger Name": "audit", "Relation": "t", "Calls": 1}]);
        assert_eq!(said(&none, &audit), ["Trigger added: audit on t, 1 call"]);
        assert_eq!(said(&audit, &none), ["Trigger removed: audit on t, 1 call"]);
        assert_eq!(said(&audit, &audit), [""; 0]);
        let [none, audit] = [&none, &audit].map(|it| plan(it, None));
        assert!(changes(&none, &audit).is_empty(), "nothing was executed");
    }

    /// The trigger of a foreign key has the OID of its constraint in its name.
    #[test]
    fn foreign_keys_are_compared_by_the_names_of_their_constraints() {
        let key = |oid: u32, calls: u32| {
            json!([{"Trigger Name": format!("RI_ConstraintTrigger_c_{oid}"), "Constraint Name": "t_u_fkey",
                "Relation": "t", "Calls": calls}])
        };
        assert_eq!(said(&key(16_390, 5), &key(24_500, 5)), [""; 0]);
        assert_eq!(
            said(&key(16_390, 1), &key(24_500, 1000)),
            ["Trigger: t_u_fkey on t, 1 call → t_u_fkey on t, 1.0k calls"]
        );
    }

    #[test]
    fn triggers_of_partitions_are_one() {
        let of = |partitions: &[&str]| {
            let each = partitions.iter();
            let each = each.map(|it| json!({"Trigger Name": "audit", "Relation": it, "Calls": 2}));
            serde_json::Value::Array(each.collect())
        };
        assert_eq!(said(&of(&["p1", "p2"]), &of(&["p1", "p3"])), [""; 0]);
        assert_eq!(
            said(&of(&[]), &of(&["p1", "p2"])),
            ["Trigger added: audit on 2 tables, 4 calls"]
        );
    }
}
