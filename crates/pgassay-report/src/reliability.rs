//! How far a verdict can be trusted, in words: why there is none, what it could have found, how many
//! comparisons share its error rate, and which starts of the servers it is about.

use pgassay_core::comparison::{
    Basis, Comparison, CostDifference, Inconclusive, Ratio, UnitOfAnalysis, Verdict,
};
use pgassay_core::run::Run;

use crate::number;

/// What sends the reader from a row to the line that explains it; empty for most.
pub(crate) fn mark(comparison: &Comparison) -> &'static str {
    match comparison.inconclusive {
        Some(Inconclusive::BelowResolution) => " †",
        Some(Inconclusive::RanksDisagree) => " *",
        // A widened interval with a verdict, and ranks of an older version, are explained as well.
        _ if comparison.tps.ranks_disagree => " *",
        _ if comparison.tps.widened > 0.0 => " †",
        _ => "",
    }
}

/// Why a comparison is inconclusive, where the interval alone does not show it.
pub(crate) fn reason(comparison: &Comparison) -> Option<String> {
    match comparison.inconclusive? {
        Inconclusive::OnePair | Inconclusive::Noise => None,
        Inconclusive::RanksDisagree => Some(
            "The rank test contradicts the interval, as with an outlier: look at the pairs."
                .to_owned(),
        ),
        Inconclusive::BelowResolution => Some(format!(
            "The pairs vary by less than the resolution of the rate, so the interval is widened by {} \
             at each end: longer trials are needed.",
            number::percent(comparison.tps.widened)
        )),
    }
}

/// The reasons of a variant's comparisons, each with the number of its conditions.
pub(crate) fn reasons(comparisons: &[&Comparison]) -> String {
    let count = |wanted: Inconclusive| {
        let all = comparisons.iter();
        all.filter(|it| it.inconclusive == Some(wanted)).count() as u64
    };
    let clause = |count: u64, text: &str| match count {
        0 => String::new(),
        _ => format!(
            " Inconclusive under {} because {text}.",
            number::count(count, "condition")
        ),
    };
    clause(
        count(Inconclusive::RanksDisagree),
        "the rank test contradicts the interval",
    ) + &clause(
        count(Inconclusive::BelowResolution),
        "the pairs vary by less than the resolution of the rate",
    )
}

/// What the marks of [`mark`] mean, where there are any.
pub(crate) fn footnotes(run: &Run) -> Vec<String> {
    let marked = |wanted: &str| run.comparisons.iter().any(|it| mark(it) == wanted);
    let mut notes = Vec::new();
    if marked(" *") {
        let revoked = |it: &Comparison| it.inconclusive == Some(Inconclusive::RanksDisagree);
        let mut note =
            "* The rank test contradicts the mean, as with an outlier: look at the pairs."
                .to_owned();
        if run.comparisons.iter().any(revoked) {
            note.push_str(" A verdict that it contradicts is inconclusive.");
        }
        notes.push(note);
    }
    if marked(" †") {
        notes.push(
            "† The pairs vary by less than the resolution of the rate, so rounding may repeat in every \
             pair. The interval is widened by the resolution; longer trials make it finer."
                .to_owned(),
        );
    }
    notes
}

/// The minimum detectable effect as a range; results of older versions have one figure.
pub(crate) fn detectable(ratio: &Ratio) -> Option<String> {
    match ratio.detectable_range {
        Some([low, high]) => Some(format!(
            "MDE {} to {}",
            number::noise(low).trim_end_matches("\u{a0}%"),
            number::noise(high)
        )),
        None => Some(format!("detects ≥ {}", number::noise(ratio.detectable?))),
    }
}

/// What all comparisons of the run rest on: the family's size, and the starts of the servers.
pub(crate) fn basis(run: &Run) -> Option<String> {
    let all: Vec<Basis> = run.comparisons.iter().filter_map(|it| it.basis).collect();
    let first = all.first()?;
    let mut parts = Vec::new();
    if first.family > 1 {
        parts.push(format!(
            "Over all {} comparisons together the chance of any false faster or slower is at most 5%, \
             and so is that of any false same (Holm’s correction).",
            first.family
        ));
    }
    let fewest = all.iter().map(|it| it.boots).min().unwrap_or(0);
    parts.push(match (all.iter().all(|it| it.unit == UnitOfAnalysis::Boot), fewest) {
        (true, _) => format!(
            "Intervals are over {fewest} starts of the servers, each with the mean of its pairs."
        ),
        (false, 0 | 1) => "Each verdict is about this start of the servers: another one lays out memory \
                           differently."
            .to_owned(),
        (false, boots) => format!(
            "Each verdict is about these {boots} starts of the servers: for one about any start, 4 are \
             needed."
        ),
    });
    Some(parts.join(" "))
}

/// Whether more pairs alone may turn this into a verdict.
pub(crate) fn needs_pairs(comparison: &Comparison) -> bool {
    let by_pairs = !matches!(
        comparison.inconclusive,
        Some(Inconclusive::RanksDisagree | Inconclusive::BelowResolution)
    );
    comparison.verdict == Verdict::Unresolved && by_pairs
}

/// Why some rows bear no marks: one side's programs lack symbols that the other's have.
pub(crate) fn naming(cost: &CostDifference) -> Option<String> {
    let objects = cost.unevenly_named.join(", ");
    (!objects.is_empty()).then(|| {
        format!(
            "One side has more symbols of {objects} than the other, as a stripped build has fewer: functions \
             with a name on one side only share one row, and phases and subsystems are not marked."
        )
    })
}
