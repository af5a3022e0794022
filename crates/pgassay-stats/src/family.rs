//! Verdicts on all comparisons of a study together.
//!
//! With 27 comparisons of which none differs, intervals of 95% give at least one false word in 75% of
//! studies. Here the chance of any false `faster` or `slower` in the whole study is at most α, and
//! so is the chance of any false `same`: Holm (1979) over all comparisons, whatever their dependence
//! (a shared baseline included).
//!
//! Signs and equivalences are two families. In one family the step-down argument fails: a comparison
//! with a true sign could still be called equivalent falsely after it has given its α away.
//!
//! Invariants: an interval is printed at the level at which its word was reached, so that both
//! agree; one without a word at the strictest level that any open comparison is held to. What
//! ranks contradict has no word, and neither have pairs that are all the same figure.

use crate::multiplicity::{Step, holm_steps};
use crate::pairs::{Comparison, Estimate};
use crate::rank::{RankAgreement, agreement};
use crate::verdict::{Band, Direction, Verdict};

/// Why there is no verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inconclusive {
    /// One pair tells no noise.
    OnePair,
    /// The interval holds 1 and reaches out of the margin.
    Noise,
    /// The interval has a verdict that ranks contradict, as with an outlier.
    RanksDisagree,
    /// The pairs do not vary at all, or by less than the steps in which the figures are read, and the
    /// interval that allows for the steps has no verdict.
    BelowResolution,
}

/// The verdict on one comparison of a family.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judged {
    /// The word.
    pub verdict: Verdict,
    /// Why there is none.
    pub inconclusive: Option<Inconclusive>,
    /// Confidence level of the interval that agrees with the word.
    pub level: f64,
    /// The α at which a difference from 1 was tested: that of the minimum detectable effect.
    pub sign_alpha: f64,
}

/// Judges all comparisons of a study; `alpha` is the chance of any false sign among them, and of any
/// false equivalence.
pub fn judge(
    comparisons: &[&Comparison],
    direction: Direction,
    band: Band,
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
                verdict: Verdict::Unresolved,
                inconclusive: Some(Inconclusive::OnePair),
                level: 1.0 - sign.alpha,
                sign_alpha: sign.alpha,
            },
            Comparison::Estimated(estimate) => judged(estimate, sign, equivalence, direction),
        })
        .collect()
}

/// Holm's steps over those that can be tested at all; the others are not in the family.
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
        (Verdict::Same, equivalence.alpha)
    } else if sign.claimed {
        (direction.word(estimate.ratio > 1.0), sign.alpha)
    } else {
        (Verdict::Unresolved, sign.alpha.min(equivalence.alpha))
    };
    let inconclusive = if estimate.is_constant() {
        Some(Inconclusive::BelowResolution)
    } else if word == Verdict::Unresolved {
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
        verdict: inconclusive.map_or(word, |_| Verdict::Unresolved),
        inconclusive,
        level: 1.0 - alpha,
        sign_alpha: sign.alpha,
    }
}

#[cfg(test)]
mod tests;
