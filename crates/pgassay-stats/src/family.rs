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

use crate::multiplicity::{Step, holm_steps};
use crate::pairs::{Comparison, Estimate};
use crate::rank::{RankAgreement, agreement};
use crate::verdict::{Direction, EquivalenceMargin, Verdict};

/// Why a comparison is inconclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inconclusive {
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
    pub verdict: Verdict,
    /// Why it is inconclusive, if it is.
    pub inconclusive: Option<Inconclusive>,
    /// Confidence level of the interval that corresponds to the verdict.
    pub level: f64,
    /// The α of the test for a difference from 1, also used for the minimum detectable effect.
    pub sign_alpha: f64,
}

/// Judges all comparisons of a study. `alpha` is the probability of any false sign among them, and of any
/// false equivalence.
pub fn judge(
    comparisons: &[&Comparison],
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
            Comparison::Descriptive { .. } => Judged {
                verdict: Verdict::Inconclusive,
                inconclusive: Some(Inconclusive::OnePair),
                level: 1.0 - sign.alpha,
                sign_alpha: sign.alpha,
            },
            Comparison::Estimated(estimate) => judged(estimate, sign, equivalence, direction),
        })
        .collect()
}

/// Holm's steps for the comparisons that can be tested; the others are not part of the family.
fn steps_of(p_values: &[Option<f64>], alpha: f64) -> Vec<Step> {
    let tested: Vec<f64> = p_values.iter().copied().flatten().collect();
    let mut steps = holm_steps(&tested, alpha).into_iter();
    let untested = Step {
        alpha,
        claimed: false,
    };
    let step = |p_value: &Option<f64>| p_value.and_then(|_| steps.next()).unwrap_or(untested);
    p_values.iter().map(step).collect()
}

fn judged(estimate: &Estimate, sign: Step, equivalence: Step, direction: Direction) -> Judged {
    let (word, alpha) = if equivalence.claimed {
        (Verdict::Equivalent, equivalence.alpha)
    } else if sign.claimed {
        (direction.verdict_for(estimate.ratio > 1.0), sign.alpha)
    } else {
        (Verdict::Inconclusive, sign.alpha.min(equivalence.alpha))
    };
    let inconclusive = if estimate.is_constant() {
        Some(Inconclusive::BelowResolution)
    } else if word == Verdict::Inconclusive {
        Some(if estimate.below_resolution() {
            Inconclusive::BelowResolution
        } else {
            Inconclusive::Noise
        })
    } else {
        let agreement = agreement(&estimate.rank, estimate, alpha);
        (agreement == RankAgreement::Disagrees).then_some(Inconclusive::RanksDisagree)
    };
    Judged {
        verdict: inconclusive.map_or(word, |_| Verdict::Inconclusive),
        inconclusive,
        level: 1.0 - alpha,
        sign_alpha: sign.alpha,
    }
}

#[cfg(test)]
mod tests;
