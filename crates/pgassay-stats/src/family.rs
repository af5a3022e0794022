//! Verdicts for all comparisons of a study together.
//!
//! With 27 comparisons without any difference, 95% intervals give at least one false verdict in 75% of
//! studies. Here the probability of any false `faster` or `slower` in the whole study is at most α, and
//! so is the probability of any false equivalence: Holm (1979) over all comparisons, whatever their
//! dependence (including a shared baseline).
//!
//! Signs and equivalences are two families. In a single family the step-down argument would fail: a
//! comparison with a true sign could falsely be called equivalent after passing on its α.
//!
//! Invariants: an interval is reported at the level of its verdict, so that the two agree; an
//! inconclusive one at the strictest level of all remaining comparisons. Comparisons that ranks
//! contradict are inconclusive, and so are those whose pairs are all equal.

use crate::multiplicity::{HolmStep, holm_steps};
use crate::pairs::{Estimate, PairComparison};
use crate::rank::{RankAgreement, agreement};
use crate::verdict::{Direction, EquivalenceMargin, FigureVerdict};

/// Why a comparison is inconclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InconclusiveReason {
    /// A single pair gives no estimate of the noise.
    OnePair,
    /// The interval contains 1 and extends beyond the margin.
    Noise,
    /// The rank test contradicts the interval, for example because of an outlier.
    RanksDisagree,
    /// The pairs do not vary, or vary by less than the resolution of the figures, and the interval widened
    /// by the resolution is inconclusive.
    BelowResolution,
}

/// The verdict for one comparison of a family.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judged {
    /// The verdict.
    pub verdict: FigureVerdict,
    /// Why it is inconclusive, if it is.
    pub inconclusive: Option<InconclusiveReason>,
    /// Confidence level of the interval that corresponds to the verdict.
    pub level: f64,
    /// The α of the test for a difference from 1, also used for the minimum detectable effect.
    pub sign_alpha: f64,
}

/// Judges all comparisons of a study. `alpha` is the probability of any false sign among them, and of any
/// false equivalence.
pub fn judge(
    comparisons: &[&PairComparison],
    direction: Direction,
    band: EquivalenceMargin,
    alpha: f64,
) -> Vec<Judged> {
    let p_values = |of: &dyn Fn(&Estimate) -> f64| -> Vec<Option<f64>> {
        let all = comparisons.iter();
        all.map(|it| it.estimate().map(of)).collect()
    };
    let signs = steps_of(&p_values(&|it| it.p_value), alpha);
    let margin_log = band.high().ln();
    let equivalences = steps_of(&p_values(&|it| it.equivalence_p_value(margin_log)), alpha);
    let steps = signs.into_iter().zip(equivalences);
    comparisons
        .iter()
        .zip(steps)
        .map(|(comparison, (sign, equivalence))| match comparison {
            PairComparison::Descriptive { .. } => Judged {
                verdict: FigureVerdict::Inconclusive,
                inconclusive: Some(InconclusiveReason::OnePair),
                level: 1.0 - sign.alpha,
                sign_alpha: sign.alpha,
            },
            PairComparison::Estimated(estimate) => judged(estimate, sign, equivalence, direction),
        })
        .collect()
}

/// Holm's steps for the comparisons that can be tested; the others are not part of the family.
fn steps_of(p_values: &[Option<f64>], alpha: f64) -> Vec<HolmStep> {
    let tested: Vec<f64> = p_values.iter().copied().flatten().collect();
    let mut steps = holm_steps(&tested, alpha).into_iter();
    let untested = HolmStep {
        alpha,
        claimed: false,
    };
    let step = |p_value: &Option<f64>| p_value.and_then(|_| steps.next()).unwrap_or(untested);
    p_values.iter().map(step).collect()
}

fn judged(
    estimate: &Estimate,
    sign: HolmStep,
    equivalence: HolmStep,
    direction: Direction,
) -> Judged {
    let (word, alpha) = if equivalence.claimed {
        (FigureVerdict::Equivalent, equivalence.alpha)
    } else if sign.claimed {
        (direction.verdict_for(estimate.ratio > 1.0), sign.alpha)
    } else {
        (
            FigureVerdict::Inconclusive,
            sign.alpha.min(equivalence.alpha),
        )
    };
    let inconclusive = if estimate.is_constant() {
        Some(InconclusiveReason::BelowResolution)
    } else if word == FigureVerdict::Inconclusive {
        Some(if estimate.below_resolution() {
            InconclusiveReason::BelowResolution
        } else {
            InconclusiveReason::Noise
        })
    } else {
        let agreement = agreement(&estimate.rank, estimate, alpha);
        (agreement == RankAgreement::Disagrees).then_some(InconclusiveReason::RanksDisagree)
    };
    Judged {
        verdict: inconclusive.map_or(word, |_| FigureVerdict::Inconclusive),
        inconclusive,
        level: 1.0 - alpha,
        sign_alpha: sign.alpha,
    }
}

#[cfg(test)]
mod tests;
