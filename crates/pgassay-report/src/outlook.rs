//! What it would take to decide a comparison that is inconclusive.

use pgassay_account::comparison::{Basis, Comparison, Ratio};
use pgassay_model::elapsed_time::ElapsedTime;
use pgassay_record::run::Run;

use crate::outline::EQUIVALENCE_MARGIN;
use crate::{number, reliability};

/// How many pairs would decide all inconclusive comparisons, if there are any.
pub(crate) fn pairs_for_verdicts(run: &Run) -> Option<String> {
    let undecided = || {
        run.comparisons
            .iter()
            .filter(|it| reliability::needs_pairs(it))
    };
    let hardest = undecided().max_by_key(|it| {
        let units = it.basis.and_then(|basis| basis.units_needed);
        (units.map(u64::from), pairs_needed(&it.tps))
    })?;
    let subject = if undecided().count() > 1 {
        "Deciding all of them"
    } else {
        "A verdict"
    };
    Some(needed(subject, run, hardest))
}

/// What a verdict would take: time and units for a sequential comparison, otherwise pairs.
pub(crate) fn needed(subject: &str, run: &Run, comparison: &Comparison) -> String {
    match comparison.basis {
        Some(basis) if basis.units_max.is_some() => {
            let needed = units_sentence(subject, run, basis, &comparison.tps);
            early_end(run, basis).map_or_else(|| needed.clone(), |why| format!("{why} {needed}"))
        }
        _ => pairs_sentence(subject, &comparison.tps),
    }
}

/// Why a comparison without a verdict ended before the last of its units; `None` if it did not, or if the run was
/// interrupted.
fn early_end(run: &Run, basis: Basis) -> Option<String> {
    let most = basis
        .units_max
        .filter(|most| basis.units < *most && run.complete)?;
    let after = format!("after {} of at most {}", basis.units, units(most, basis));
    let limit_us = run.plan.schedule.max_time_us;
    let reached = limit_us.filter(|limit_us| ElapsedTime::of(&run.trials).us() >= *limit_us);
    Some(match reached {
        Some(limit_us) => format!(
            "The time limit of {} (--max-time) ended it {after}.",
            number::duration(limit_us as f64)
        ),
        None => format!(
            "It ended {after}, because the chance of a verdict by the last one was below 10%."
        ),
    })
}

/// `A verdict needs about 30 server starts instead of 12 (--pairs 30): about 4 min.`
fn units_sentence(subject: &str, run: &Run, basis: Basis, ratio: &Ratio) -> String {
    let is_gate = run.plan.schedule.gate_limit_percent.is_some();
    let Some(needed) = basis.units_needed else {
        return format!("{subject} needs more {}s, with --pairs.", basis.unit.name());
    };
    let taken = run
        .comparisons
        .iter()
        .filter_map(|it| Some(it.basis?.units));
    let each_us = run.elapsed_us() / f64::from(taken.max().unwrap_or(1).max(1));
    let pairs_each = ratio.by_pair.len() as f64 / f64::from(basis.units.max(1));
    let pairs = (f64::from(needed) * pairs_each.max(1.0)).ceil();
    // A gate refuses a number of pairs.
    let option = if is_gate {
        String::new()
    } else {
        format!(" (--pairs {pairs})")
    };
    format!(
        "{subject} needs about {} instead of {}{option}: about {}.",
        units(needed, basis),
        basis.units,
        number::duration(f64::from(needed) * each_us)
    )
}

/// `12 server starts`
fn units(count: u32, basis: Basis) -> String {
    number::count(u64::from(count), basis.unit.name())
}

/// How many pairs an inconclusive comparison needs.
fn pairs_sentence(subject: &str, ratio: &Ratio) -> String {
    match pairs_needed(ratio) {
        Some(pairs) => format!(
            "{subject} needs about {pairs} pairs instead of {}.",
            ratio.by_pair.len()
        ),
        None => format!("{subject} needs more than one pair."),
    }
}

/// About how many pairs would give a verdict if the true ratio is as estimated.
///
/// The width of an interval shrinks with the square root of the number of pairs. A verdict is reached
/// once the interval either excludes 1 (half-width below the effect) or fits into the equivalence
/// margin (half-width below what the effect leaves of it), whichever comes first.
fn pairs_needed(ratio: &Ratio) -> Option<u64> {
    let pairs = ratio.by_pair.len();
    let half_width = (ratio.high / ratio.low).ln() / 2.0;
    if pairs < 2 || !half_width.is_finite() {
        return None;
    }
    let effect = ratio.ratio.ln().abs();
    let goal = effect.max((1.0 + EQUIVALENCE_MARGIN).ln() - effect);
    let needed = pairs as f64 * (half_width / goal).powi(2);
    Some((needed.ceil() as u64).max(pairs as u64 + 1))
}
