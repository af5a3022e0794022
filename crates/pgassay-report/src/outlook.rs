//! What it would take to decide a comparison that is inconclusive.

use pgassay_account::comparison::{Basis, Comparison, Ratio, UnitOfAnalysis};
use pgassay_model::elapsed_time::ElapsedTime;
use pgassay_model::study::limits;
use pgassay_record::run::{Run, WarningKind};

use crate::outline::EQUIVALENCE_MARGIN;
use crate::{calibration, number, reliability};

/// The units before the first analysis of a sequential comparison (docs/method.md, When a run ends).
const FIRST_ANALYSIS: u32 = 4;
/// A run that takes longer, in microseconds, is seldom worth it.
const LONG_US: f64 = 3600e6;

/// Which comparisons a sentence is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Undecided {
    /// A single one.
    One,
    /// The one that takes longest among several.
    HardestOfSeveral,
}

impl Undecided {
    fn decision(self) -> &'static str {
        match self {
            Self::One => "For a verdict",
            Self::HardestOfSeveral => "To decide all of them",
        }
    }

    fn comparison(self) -> &'static str {
        match self {
            Self::One => "The comparison",
            Self::HardestOfSeveral => "The slowest comparison to decide",
        }
    }
}

/// Why a run compares nothing; `None` if it does.
pub(crate) fn without_comparison(run: &Run) -> Option<String> {
    let is_skipped = |kind: WarningKind| kind == WarningKind::Skipped;
    let skipped = run.warnings.iter().filter(|it| is_skipped(it.kind)).count();
    let why = match (run.plan.variants.len(), skipped) {
        _ if !run.comparisons.is_empty() => return None,
        (2.., _) => {
            "No verdict: no pair of trials was completed. The figures below are descriptive only."
                .to_owned()
        }
        (_, 0) => "There is only one variant, so nothing is compared.".to_owned(),
        (_, skipped) => format!(
            "Nothing is compared: of {}, only one could run (the warnings of this report say why).",
            number::count(skipped as u64 + 1, "variant")
        ),
    };
    Some(why)
}

/// What it means that comparisons are inconclusive, if any are because of noise, and how many pairs would decide all of
/// them, unless the answers above say so.
pub(crate) fn inconclusive(run: &Run) -> Option<String> {
    // A gate asks another question.
    if run.plan.schedule.gate_limit_percent.is_some() {
        return None;
    }
    let undecided = || {
        run.comparisons
            .iter()
            .filter(|it| reliability::needs_pairs(it) && !is_answered(run, it))
    };
    let meaning = undecided()
        .any(Comparison::has_interval)
        .then_some("the interval contains ×1 and extends beyond ±2%.");
    // The answer on a variant with a single comparison has what it needs.
    let is_alone = |it: &Comparison| {
        let of_variant = run
            .comparisons
            .iter()
            .filter(|other| other.variant == it.variant);
        of_variant.count() == 1
    };
    if undecided().all(is_alone) {
        return meaning.map(str::to_owned);
    }
    let hardest = undecided().max_by_key(|it| {
        let units = it.basis.and_then(|basis| basis.units_needed);
        (units.map(u64::from), pairs_needed(it))
    })?;
    let which = if undecided().count() > 1 {
        Undecided::HardestOfSeveral
    } else {
        Undecided::One
    };
    let needed = needed(which, run, hardest);
    Some(meaning.map_or_else(|| needed.clone(), |it| format!("{it} {needed}")))
}

/// Whether a comparison needs no verdict: it is of a variant with itself, and all there is to say is that it is.
pub(crate) fn is_answered(run: &Run, comparison: &Comparison) -> bool {
    run.complete && calibration::is_repeated(run, comparison.variant)
}

/// What a verdict would take: time and units for a sequential comparison, otherwise pairs.
pub(crate) fn needed(which: Undecided, run: &Run, comparison: &Comparison) -> String {
    let sequential = comparison.basis.filter(|basis| basis.units_max.is_some());
    let needed = || match sequential {
        Some(basis) => units_sentence(which, run, basis, &comparison.tps),
        None => pairs_sentence(which, run, comparison),
    };
    if !run.complete {
        let resume = format!(
            "The run ended early; pgassay resume {} continues it.",
            run.id
        );
        return if suffices(run, comparison) {
            resume
        } else {
            format!("{resume} {}", needed())
        };
    }
    let needed = needed();
    match sequential.and_then(|basis| early_end(which, run, basis)) {
        Some(why) => format!("{why} {needed}"),
        None => needed,
    }
}

/// Whether the planned units or pairs are enough for a verdict, as far as is known.
fn suffices(run: &Run, comparison: &Comparison) -> bool {
    if calibration::is_repeated(run, comparison.variant) {
        return true;
    }
    match comparison.basis {
        Some(basis) if basis.units_max.is_some() => basis.units_needed <= basis.units_max,
        _ => pairs_needed(comparison)
            .is_none_or(|pairs| pairs <= u64::from(run.plan.schedule.blocks)),
    }
}

/// Why a comparison without a verdict ended before the last of its units; `None` if it did not.
pub(crate) fn early_end(which: Undecided, run: &Run, basis: Basis) -> Option<String> {
    let most = basis.units_max.filter(|most| basis.units < *most)?;
    let after = format!("after {} of at most {}", basis.units, units(most, basis));
    let comparison = which.comparison();
    let limit_us = run.plan.schedule.max_time_us;
    let reached = limit_us.filter(|limit_us| ElapsedTime::of(&run.trials).is_up(*limit_us));
    if let Some(limit_us) = reached {
        let limit = number::duration(limit_us as f64);
        return Some(format!(
            "{comparison} ended {after}, at the time limit of {limit} (--max-time)."
        ));
    }
    // Futility is not judged before.
    let judged_from = match basis.unit {
        UnitOfAnalysis::ServerStart => 6,
        UnitOfAnalysis::Pair => 10,
    };
    if let Some(limit_us) = limit_us.filter(|_| basis.units < judged_from) {
        let limit = number::duration(limit_us as f64);
        return Some(format!(
            "{comparison} ended {after}: the time limit of {limit} (--max-time) left no time for it."
        ));
    }
    // Comparisons that are decided leave their share of the error rate to the others.
    let is_enough_now = basis.units_needed.is_some_and(|needed| needed <= most);
    let then = if is_enough_now {
        " while more comparisons were undecided"
    } else {
        ""
    };
    Some(format!(
        "{comparison} ended {after}, because the chance of a verdict after all {most} was below 10%{then}."
    ))
}

/// `For a verdict, run about 30 server starts (--pairs 30, about 4 min).`
fn units_sentence(which: Undecided, run: &Run, basis: Basis, ratio: &Ratio) -> String {
    let decision = which.decision();
    let taken = run
        .comparisons
        .iter()
        .filter_map(|it| Some(it.basis?.units));
    let each_us = run.elapsed_us() / f64::from(taken.max().unwrap_or(1).max(1));
    let time = |units: u32| number::duration(f64::from(units) * each_us);
    let Some(needed) = basis.units_needed else {
        let least = basis.units.saturating_add(1).max(FIRST_ANALYSIS);
        return format!(
            "{decision}, run at least {} (about {}).",
            units(least, basis),
            time(least)
        );
    };
    let pairs_each = ratio.by_pair.len() as f64 / f64::from(basis.units.max(1));
    let needed = rounded_up(u64::from(needed)) as u32;
    let pairs = rounded_up((f64::from(needed) * pairs_each.max(1.0)).ceil() as u64);
    format!(
        "{decision}, run about {} ({}, about {}).{}",
        units(needed, basis),
        pairs_option(pairs),
        time(needed),
        if_too_long(f64::from(needed) * each_us)
    )
}

/// The option that measures so many pairs, if it accepts them.
fn pairs_option(pairs: u64) -> String {
    if pairs > u64::from(*limits::PAIRS.end()) {
        "more than --pairs accepts".to_owned()
    } else {
        format!("--pairs {pairs}")
    }
}

/// What else would help if the time is long.
fn if_too_long(time_us: f64) -> &'static str {
    if time_us < LONG_US {
        return "";
    }
    " On a machine without other load it takes less; pgassay count compares instructions instead, which \
     hardly vary (CPU work only, no waits)."
}

/// `12 server starts`
fn units(count: u32, basis: Basis) -> String {
    number::count(u64::from(count), basis.unit.name())
}

/// An estimate to two digits, upwards: a standard deviation from a few pairs does not give more.
fn rounded_up(estimate: u64) -> u64 {
    let step = 10_u64.pow(estimate.max(1).ilog10().saturating_sub(1));
    estimate.div_ceil(step).saturating_mul(step)
}

/// How many pairs an inconclusive comparison needs.
fn pairs_sentence(which: Undecided, run: &Run, comparison: &Comparison) -> String {
    let decision = which.decision();
    let Some(needed) = pairs_needed(comparison) else {
        return format!("{decision}, run more than one pair.");
    };
    let pairs = comparison.tps.by_pair.len();
    let needed = rounded_up(needed);
    let time_us = run.elapsed_us() / pairs as f64 * needed as f64;
    format!(
        "{decision}, run about {} ({}, about {}).{}",
        number::count(needed, "pair"),
        pairs_option(needed),
        number::duration(time_us),
        if_too_long(time_us)
    )
}

/// The half-width of a 95% interval is 1.96 standard errors, and an effect of 2.80 of them is found in 80% of cases.
const HALF_WIDTH_OF_EFFECT: f64 = 1.96 / 2.80;
/// An interval whose half-width is this share of the margin is within it in 80% of cases if the true ratio is 1: the
/// estimate must not be off by more than 1.28 standard errors, in either direction.
const HALF_WIDTH_OF_MARGIN: f64 = 1.96 / (1.96 + 1.28);

/// About how many pairs would give a verdict in 80% of cases if the true ratio is as estimated.
///
/// A verdict is reached once the interval either excludes 1 (half-width below the effect) or fits into the equivalence
/// margin (half-width below what the effect leaves of it), whichever comes first. With a half-width equal to either,
/// that is an even chance.
fn pairs_needed(comparison: &Comparison) -> Option<u64> {
    let ratio = &comparison.tps;
    let pairs = ratio.by_pair.len();
    let units = comparison.basis.map_or(pairs, |basis| basis.units as usize);
    let effect = ratio.ratio.ln().abs();
    let to_margin = (1.0 + EQUIVALENCE_MARGIN).ln() - effect;
    let half_width = (effect * HALF_WIDTH_OF_EFFECT).max(to_margin * HALF_WIDTH_OF_MARGIN);
    let needed = ratio.pairs_for(half_width, units)?;
    Some(needed.max(pairs as u64 + 1))
}
