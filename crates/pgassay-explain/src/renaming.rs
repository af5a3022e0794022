//! Tables that two texts of a query give different aliases: `exists (select from t x …)`, `in (select … from t)`.

use std::collections::{BTreeMap, BTreeSet};

use crate::matching::PlanMatching;
use crate::step::{PlanStep, ScanIdentity};

/// The aliases of the second plan, with those that the first one gives the same tables; empty if they are not one
/// to one.
pub(crate) fn renamed(
    a: &[PlanStep],
    b: &[PlanStep],
    matching: &PlanMatching,
) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut taken = BTreeMap::new();
    for (of_a, of_b) in matching.pairs() {
        let (Some(before), Some(after)) = (&a[of_a].scan, &b[of_b].scan) else {
            continue;
        };
        if !is_same_table(before, after) {
            continue;
        }
        let known = found.insert(after.root.clone(), before.root.clone());
        let known_as = taken.insert(before.root.clone(), after.root.clone());
        let is_unclear = known.is_some_and(|it| it != before.root)
            || known_as.is_some_and(|it| it != after.root);
        if is_unclear {
            return BTreeMap::new();
        }
    }
    // A table in one plan only keeps its alias, which may be the other plan's alias of another table.
    let is_free = |(after, before): (&String, &String)| {
        let keeps = |steps: &[PlanStep], alias: &String, known: &BTreeMap<String, String>| {
            roots(steps).contains(alias) && !known.contains_key(alias)
        };
        !keeps(b, before, &found) && !keeps(a, after, &taken)
    };
    if !found.iter().all(is_free) {
        return BTreeMap::new();
    }
    found.retain(|after, before| after != before);
    found
}

fn is_same_table(a: &ScanIdentity, b: &ScanIdentity) -> bool {
    let has_names = !a.root.is_empty() && !b.root.is_empty();
    has_names && (&a.schema, &a.object) == (&b.schema, &b.object)
}

fn roots(steps: &[PlanStep]) -> BTreeSet<&String> {
    let scans = steps.iter().filter_map(|it| it.scan.as_ref());
    scans.map(|it| &it.root).collect()
}
