//! Text on the reliability of verdicts: why a comparison is inconclusive, its minimum detectable effect,
//! how many comparisons share the error rate, and which server starts a verdict covers.

use pgassay_account::comparison::{
    Basis, Comparison, CostDifference, Inconclusive, Ratio, UnitOfAnalysis, Verdict,
};
use pgassay_account::cost_row::Change;
use pgassay_record::run::{Run, Warning, WarningKind};

use crate::outline::{plus_minus_us, point};
use crate::{half_width, number};

/// A larger effect needs no statistics.
const EFFECT_MAX: f64 = 9.0;

/// The footnote mark of a comparison, see [`footnotes`]; empty for most.
pub(crate) fn mark(comparison: &Comparison) -> &'static str {
    match comparison.inconclusive_reason {
        Some(Inconclusive::BelowResolution) => " †",
        Some(Inconclusive::RanksDisagree) => " *",
        // Also for a widened interval with a verdict, and for results of older versions.
        _ if comparison.tps.ranks_disagree => " *",
        _ if comparison.tps.widened > 0.0 => " †",
        _ => "",
    }
}

/// The noise limit of function differences.
pub(crate) fn noise_of_functions(cost: &CostDifference) -> String {
    if plus_minus_us(&cost.total).is_none() {
        return "The noise of these differences is unknown with a single pair.".to_owned();
    }
    let mut functions = cost.functions.iter();
    let limit = number::micros(cost.minimum_detectable_us);
    let from = format!("of a typical function is detected from about {limit} µs on.");
    // The limit is that of functions that did not change: there may be none.
    match functions.any(|row| row.change != Change::Inconclusive) {
        true if cost.minimum_detectable_us <= 0.0 => String::new(),
        true => format!("The difference {from}"),
        false => format!("No difference of a single function is significant; that {from}"),
    }
}

/// That the totals of a breakdown are not those of all trials, if a block has too few samples to be in it.
pub(crate) fn other_totals(run: &Run, comparison: &Comparison) -> Option<String> {
    let cost = comparison.cost.as_ref()?;
    let variants = [run.plan.baseline_of(comparison.variant), comparison.variant];
    let [a, b] = variants.map(|it| point(run, comparison.condition, it)?.server_cpu_us);
    let all = [a?, b?];
    let shown = [cost.total.baseline_us, cost.total.variant_us];
    let is_equal = all
        .iter()
        .zip(shown)
        .all(|(all, shown)| (all - shown).abs() <= 0.01 * all);
    let [a, b] = all.map(number::micros);
    (!is_equal).then(|| {
        format!("These are the blocks in which both variants were sampled; in all blocks, the totals are {a} and {b}.")
    })
}

/// Why a comparison is inconclusive, if the interval alone does not show it.
pub(crate) fn reason(comparison: &Comparison) -> Option<String> {
    match comparison.inconclusive_reason? {
        Inconclusive::OnePair | Inconclusive::Noise => None,
        Inconclusive::Unstable => Some(
            "It is unstable: intervals of different analyses contradict each other, so the machine or the load \
             changed during the run."
                .to_owned(),
        ),
        Inconclusive::TooFewPairs => Some(
            "The run ended before the first analysis, which takes 4 server starts (4 pairs, if the servers are \
             not restarted)."
                .to_owned(),
        ),
        Inconclusive::RanksDisagree => Some(
            "The rank test contradicts the interval, possibly because of an outlier: check the pairs."
                .to_owned(),
        ),
        Inconclusive::BelowResolution => Some(format!(
            "The pairs vary by less than the resolution of throughput, so the interval is widened by {} \
             at each end: longer trials are needed.",
            number::percent(comparison.tps.widened)
        )),
    }
}

/// The reasons of a variant's inconclusive comparisons, each with its number of conditions unless it is
/// the reason of all.
pub(crate) fn reasons(comparisons: &[&Comparison]) -> String {
    let count = |wanted: Inconclusive| {
        let all = comparisons.iter();
        all.filter(|it| it.inconclusive_reason == Some(wanted))
            .count() as u64
    };
    let clause = |count: u64, text: &str| match count {
        0 => String::new(),
        _ if count == comparisons.len() as u64 => format!(" Reason: {text}."),
        _ => format!(
            " Inconclusive in {} because {text}.",
            number::count(count, "condition")
        ),
    };
    [
        (
            Inconclusive::RanksDisagree,
            "the rank test contradicts the interval",
        ),
        (
            Inconclusive::BelowResolution,
            "the pairs vary by less than the resolution of throughput",
        ),
        (
            Inconclusive::Unstable,
            "intervals of different analyses contradict each other",
        ),
        (
            Inconclusive::TooFewPairs,
            "the run ended before the first analysis",
        ),
    ]
    .map(|(reason, text)| clause(count(reason), text))
    .concat()
}

/// The footnotes for the marks of [`mark`] that occur.
pub(crate) fn footnotes(run: &Run) -> Vec<String> {
    let marked = |wanted: &str| run.comparisons.iter().any(|it| mark(it) == wanted);
    let mut notes = Vec::new();
    if marked(" *") {
        let revoked = |it: &Comparison| it.inconclusive_reason == Some(Inconclusive::RanksDisagree);
        let mut note =
            "* The rank test contradicts the mean, possibly because of an outlier: check the pairs."
                .to_owned();
        if run.comparisons.iter().any(revoked) {
            note.push_str(" A contradicted verdict becomes inconclusive.");
        }
        notes.push(note);
    }
    if marked(" †") {
        notes.push(
            "† The pairs vary by less than the resolution of throughput, so every pair may have the same \
             rounding error. The interval is widened by the resolution, which longer trials improve."
                .to_owned(),
        );
    }
    notes
}

/// The minimum detectable effect (MDE) as a range; results of older versions have a single value. Figures are
/// logarithms of ratios: `MDE 1.8 to 3.4%`.
pub(crate) fn detectable(ratio: &Ratio) -> Option<String> {
    let effects = match ratio.minimum_detectable_effect_range {
        Some([low, high]) => [Some(low), Some(high)],
        None => [Some(ratio.minimum_detectable_effect?), None],
    };
    let effects = effects.map(|log| log.map(f64::exp_m1));
    Some(match effects {
        [Some(low), _] if low > EFFECT_MAX => format!("MDE over {}", number::noise(EFFECT_MAX)),
        [Some(low), Some(high)] if high > EFFECT_MAX => {
            format!("MDE {} or more", number::noise(low))
        }
        [Some(low), Some(high)] => format!(
            "MDE {} to {}",
            number::noise(low).trim_end_matches('%'),
            number::noise(high)
        ),
        [only, _] => format!("MDE {}", number::noise(only?)),
    })
}

/// What the verdicts of the run rest on: the number of comparisons, and the server starts.
pub(crate) fn basis(run: &Run) -> Option<String> {
    let all: Vec<Basis> = run.comparisons.iter().filter_map(|it| it.basis).collect();
    let first = all.first()?;
    let mut parts = Vec::new();
    if first.comparisons > 1 && first.first_stage_units.is_none() {
        parts.push(format!(
            "Corrected for multiple comparisons (Holm): over {}, the probability of any false \"faster\" \
             or \"slower\" is at most 5%, and that of any false \"equivalent\" is also at most 5%.",
            match first.comparisons {
                2 => "both comparisons".to_owned(),
                many => format!("all {many} comparisons"),
            }
        ));
    }
    let fewest = all.iter().map(|it| it.server_starts).min().unwrap_or(0);
    let most = all.iter().map(|it| it.server_starts).max().unwrap_or(0);
    let by_starts = all.iter().all(|it| it.unit == UnitOfAnalysis::ServerStart);
    if first.units_max.is_some() && !run.comparisons.iter().any(Comparison::has_interval) {
        parts.push("There are no intervals yet.".to_owned());
        return Some(parts.join(" "));
    }
    if let Some(units_max) = first.units_max {
        parts.push(sequential_basis(by_starts, units_max));
    }
    parts.extend(half_width::basis(run, &all));
    parts.push(match (by_starts, fewest) {
        (true, 0 | 1) if most <= 1 => "There was a single server start, so there are no intervals.".to_owned(),
        (true, _) => {
            let starts = if most > fewest {
                format!("{fewest} to {most}")
            } else {
                fewest.to_string()
            };
            let figure = figure_of_a_start(run);
            format!("Intervals are computed from {starts} server starts, {figure}.")
        }
        (false, 0 | 1) => "Each verdict holds for this server start only: memory layout differs between \
                           starts."
            .to_owned(),
        (false, boots) => format!(
            "The verdicts hold for these {boots} server starts only: memory layout differs between starts."
        ),
    });
    if !by_starts {
        parts.extend(correlated(run));
    }
    Some(parts.join(" "))
}

/// Fewer pairs show no correlation that is not chance.
const PAIRS_OF_CORRELATION: usize = 12;

/// A caution if neighboring pairs are more alike than chance explains, in 1% of runs: in the comparison in the middle,
/// because of many some are. Intervals take pairs for independent: at a correlation of 0.2, they miss the truth in
/// 13% of comparisons instead of 5%.
fn correlated(run: &Run) -> Option<String> {
    let comparisons = run.comparisons.iter();
    let mut found: Vec<(f64, f64)> = comparisons
        .filter(|it| it.tps.by_pair.len() >= PAIRS_OF_CORRELATION)
        .filter_map(|it| {
            let chance = 2.33 / (it.tps.by_pair.len() as f64).sqrt();
            Some((it.tps.lag_one_correlation()?, chance))
        })
        .collect();
    found.sort_by(|a, b| (a.0 - a.1).total_cmp(&(b.0 - b.1)));
    let (middle, chance) = found.get(found.len().checked_sub(1)? / 2)?;
    (middle > chance).then(|| {
        format!(
            "Neighboring pairs are correlated ({}), as if something else on this server changed over several pairs: \
             intervals may be too narrow. Run it again, at a quieter time if possible, before you rely on a verdict.",
            number::decimals(*middle, 2)
        )
    })
}

/// What a server start is to an interval: the mean of its pairs, which is the pair itself if there is one.
fn figure_of_a_start(run: &Run) -> &'static str {
    let mut comparisons = run.comparisons.iter();
    let is_one = |it: &Comparison| {
        let starts = it.basis.map_or(0, |basis| basis.server_starts);
        it.tps.by_pair.len() == starts as usize
    };
    if comparisons.all(is_one) {
        "one pair each"
    } else {
        "each represented by the mean of its pairs"
    }
}

/// How a sequential run decided.
fn sequential_basis(by_starts: bool, units_max: u32) -> String {
    let unit = if by_starts {
        "each server start"
    } else {
        "every two pairs"
    };
    format!(
        "Analyzed after {unit}, from 4 to at most {units_max}. The interval is valid at every analysis, so it is wider \
         than SD/√pairs suggests. It is the intersection of all intervals so far, so it can only shrink."
    )
}

/// Whether a warning belongs next to the answer, because the variants may not be what the user meant to compare.
pub fn is_of_question(it: &Warning) -> bool {
    matches!(
        it.kind,
        WarningKind::RowsDiffer
            | WarningKind::RowsUnchanged
            | WarningKind::NoStatement
            | WarningKind::SameSettings
            | WarningKind::SameBuild
            | WarningKind::DebugBuild
    )
}

/// Whether more pairs alone may lead to a verdict.
pub(crate) fn needs_pairs(comparison: &Comparison) -> bool {
    let by_pairs = !matches!(
        comparison.inconclusive_reason,
        Some(
            Inconclusive::RanksDisagree
                | Inconclusive::BelowResolution
                | Inconclusive::Unstable
                | Inconclusive::TooFewPairs
        )
    );
    comparison.verdict == Verdict::Inconclusive && by_pairs
}

/// Why some rows have no marks: one side's binaries lack symbols that the other's have.
pub(crate) fn naming(cost: &CostDifference) -> Option<String> {
    let objects = cost.objects_with_unequal_symbols.join(", ");
    (!objects.is_empty()).then(|| {
        format!(
            "One side has more symbols for {objects} than the other, as if one build were stripped. Functions \
             that are named on one side only share one row, and phases and subsystems have no marks."
        )
    })
}
