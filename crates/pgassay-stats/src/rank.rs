//! The rank check: a cross-check of the t-interval that does not assume normality.
//!
//! Hodges and Lehmann (1963): the median of all Walsh averages (yᵢ + yⱼ)/2. Wilcoxon (1945):
//! the signed-rank test, with its exact distribution (ties included) up to [`EXACT_UP_TO`]
//! differences and the normal approximation with tie and continuity correction above.
//!
//! Invariants: the check never replaces the t-interval; it only shows whether the two agree. With fewer
//! than five pairs the rank test can never reject, and the check reports that.

use crate::distribution::normal_two_sided;
use crate::pairs::Estimate;

/// A p-value above this is clearly not significant. Between this and α, two valid tests often disagree; if
/// that counted as a contradiction, correct verdicts would be lost (see `benchmarks/simulations`).
pub const CLEARLY_NOT_SIGNIFICANT: f64 = 0.1;

/// The largest number of differences whose exact distribution is computed.
pub const EXACT_UP_TO: usize = 50;

/// Whether the rank test agrees with the t-interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankAgreement {
    /// There is no contradiction.
    Agrees,
    /// One test is significant at the given level and the other is clearly not (a p-value above
    /// [`CLEARLY_NOT_SIGNIFICANT`]), or the median lies outside the t-interval. Typical causes are outliers and bimodal
    /// pairs.
    Disagrees,
    /// There are too few pairs for the rank test to reject.
    TooFewPairs,
}

/// Hodges and Lehmann's estimate and Wilcoxon's test, and whether they agree with the t-interval.
#[derive(Debug, Clone, PartialEq)]
pub struct RankCheck {
    /// Hodges–Lehmann estimate of B/A, as a ratio.
    pub ratio: f64,
    /// Two-sided p-value of the signed-rank test against a ratio of 1.
    pub p_value: f64,
    /// Whether they agree with the t-interval.
    pub agreement: RankAgreement,
}

impl RankCheck {
    /// The initial value, before the check.
    pub(crate) fn none() -> Self {
        Self {
            ratio: 1.0,
            p_value: 1.0,
            agreement: RankAgreement::TooFewPairs,
        }
    }
}

/// The median of all Walsh averages of `values`; 0 without values. Takes memory for the values only: there are half
/// as many averages as the square of their number.
pub fn hodges_lehmann(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let averages = sorted.len() * (sorted.len() + 1) / 2;
    match averages {
        0 => 0.0,
        count if count % 2 == 1 => nth_walsh_average(&sorted, count / 2),
        count => f64::midpoint(
            nth_walsh_average(&sorted, count / 2 - 1),
            nth_walsh_average(&sorted, count / 2),
        ),
    }
}

/// The Walsh average of `sorted` with this position, counted from 0: by bisection between the smallest and the largest
/// number, of which there are at most 2^64.
fn nth_walsh_average(sorted: &[f64], position: usize) -> f64 {
    let (Some(first), Some(last)) = (sorted.first(), sorted.last()) else {
        return 0.0;
    };
    let (mut low, mut high) = (place(*first), place(*last));
    while low < high {
        let middle = (low + high).div_euclid(2);
        if walsh_averages_up_to(sorted, number(middle)) > position {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    number(low)
}

/// How many Walsh averages of `sorted` are at most `limit`.
fn walsh_averages_up_to(sorted: &[f64], limit: f64) -> usize {
    let mut end = sorted.len();
    let mut count = 0;
    for (index, left) in sorted.iter().enumerate() {
        let is_above = |right: f64| f64::midpoint(*left, right).total_cmp(&limit).is_gt();
        while end > index && is_above(sorted[end - 1]) {
            end -= 1;
        }
        if end <= index {
            break;
        }
        count += end - index;
    }
    count
}

/// The place of a number in the order of [`f64::total_cmp`], which shifts those below 0 likewise.
fn place(number: f64) -> i128 {
    let bits = number.to_bits().cast_signed();
    i128::from(bits ^ ((bits >> 63).cast_unsigned() >> 1).cast_signed())
}

/// The number in a place.
fn number(place: i128) -> f64 {
    let bits = place as i64;
    f64::from_bits((bits ^ ((bits >> 63).cast_unsigned() >> 1).cast_signed()).cast_unsigned())
}

/// Two-sided p-value of Wilcoxon's signed-rank test that `values` are symmetric about 0.
///
/// Zeros are dropped, as by Wilcoxon; ties share their mean rank. 1 if no values remain.
pub fn signed_rank_p_value(values: &[f64]) -> f64 {
    let mut ordered: Vec<f64> = values
        .iter()
        .copied()
        .filter(|value| value.abs() > 0.0)
        .collect();
    ordered.sort_by(|left, right| left.abs().total_cmp(&right.abs()));
    let (doubled_ranks, tie_sum) = doubled_mid_ranks(&ordered);
    let positive: u64 = ordered
        .iter()
        .zip(&doubled_ranks)
        .filter(|(value, _)| **value > 0.0)
        .map(|(_, rank)| rank)
        .sum();
    if ordered.is_empty() {
        1.0
    } else if ordered.len() <= EXACT_UP_TO {
        exact_p_value(&doubled_ranks, positive)
    } else {
        approximate_p_value(ordered.len() as f64, positive as f64 / 2.0, tie_sum)
    }
}

/// Twice the mid-ranks of values that are sorted by size, and Σ(t³ − t) over the groups of ties.
///
/// Doubling makes the half ranks of ties integers, so that the exact distribution needs no rounding.
fn doubled_mid_ranks(ordered: &[f64]) -> (Vec<u64>, f64) {
    let mut ranks = Vec::with_capacity(ordered.len());
    let mut tie_sum = 0.0;
    for group in ordered.chunk_by(|left, right| left.abs().total_cmp(&right.abs()).is_eq()) {
        let first = ranks.len() as u64 + 1;
        let size = group.len() as u64;
        ranks.extend(std::iter::repeat_n(2 * first + size - 1, group.len()));
        tie_sum += (size as f64).powi(3) - size as f64;
    }
    (ranks, tie_sum)
}

/// Under the null hypothesis all signs are equally likely; computes the distribution of the sum by
/// convolution.
fn exact_p_value(doubled_ranks: &[u64], positive: u64) -> f64 {
    let total: u64 = doubled_ranks.iter().sum();
    let mut chance = vec![0.0; total as usize + 1];
    chance[0] = 1.0;
    for &rank in doubled_ranks {
        let rank = rank as usize;
        for sum in (0..chance.len()).rev() {
            let with = if sum >= rank { chance[sum - rank] } else { 0.0 };
            chance[sum] = 0.5 * (chance[sum] + with);
        }
    }
    let smaller = positive.min(total - positive) as usize;
    let tail: f64 = chance[..=smaller].iter().sum();
    (2.0 * tail).min(1.0)
}

fn approximate_p_value(count: f64, positive: f64, tie_sum: f64) -> f64 {
    let mean = count * (count + 1.0) / 4.0;
    let variance = count * (count + 1.0) * (2.0 * count + 1.0) / 24.0 - tie_sum / 48.0;
    let distance = ((positive - mean).abs() - 0.5).max(0.0);
    normal_two_sided(distance / variance.sqrt())
}

/// Checks `log_ratios` against the `estimate` from the same units at `alpha`.
pub(crate) fn check(log_ratios: &[f64], estimate: &Estimate, alpha: f64) -> RankCheck {
    let mut rank = RankCheck {
        ratio: hodges_lehmann(log_ratios).exp(),
        p_value: signed_rank_p_value(log_ratios),
        agreement: RankAgreement::TooFewPairs,
    };
    rank.agreement = agreement(&rank, estimate, alpha);
    rank
}

/// Whether the ranks agree with the `estimate` at `alpha`.
pub(crate) fn agreement(rank: &RankCheck, estimate: &Estimate, alpha: f64) -> RankAgreement {
    let least_possible = 2.0 * 0.5f64.powi(i32::try_from(estimate.units).unwrap_or(i32::MAX));
    let contradicts = if estimate.p_value <= alpha {
        rank.p_value > CLEARLY_NOT_SIGNIFICANT
    } else {
        rank.p_value <= alpha && estimate.p_value > CLEARLY_NOT_SIGNIFICANT
    };
    let inside = estimate.interval_at(1.0 - alpha).contains(rank.ratio);
    if least_possible > CLEARLY_NOT_SIGNIFICANT {
        RankAgreement::TooFewPairs
    } else if contradicts || !inside {
        RankAgreement::Disagrees
    } else {
        RankAgreement::Agrees
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, expected: f64) {
        assert!(
            (found - expected).abs() < 1e-12,
            "{found} instead of {expected}"
        );
    }

    #[test]
    fn the_median_of_walsh_averages() {
        close(hodges_lehmann(&[1.0, 2.0, 10.0]), 3.75);
        close(hodges_lehmann(&[4.0]), 4.0);
        close(hodges_lehmann(&[]), 0.0);
    }

    #[test]
    fn the_median_is_that_of_all_averages() {
        let mut stream = crate::random::SplitMix64::new(7);
        for count in 1..60 {
            let values: Vec<f64> = (0..count)
                .map(|_| (stream.next_normal() * 4.0).round() / 8.0)
                .collect();
            let mut all = Vec::new();
            for (index, left) in values.iter().enumerate() {
                all.extend(
                    values[index..]
                        .iter()
                        .map(|right| f64::midpoint(*left, *right)),
                );
            }
            all.sort_by(f64::total_cmp);
            let (low, high) = (all[(all.len() - 1) / 2], all[all.len() / 2]);
            close(hodges_lehmann(&values), f64::midpoint(low, high));
        }
    }

    /// Regression: 40,000 pairs took 6.5 GB, and the result of a long run was lost.
    #[test]
    fn the_median_of_many_pairs_takes_no_memory_for_their_averages() {
        let values: Vec<f64> = (0..100_000).map(|it| f64::from(it) - 49_999.5).collect();
        close(hodges_lehmann(&values), 0.0);
    }

    #[test]
    fn exact_p_values_count_sign_patterns() {
        // All six positive: 1 of 64 patterns, twice.
        close(
            signed_rank_p_value(&[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]),
            2.0 / 64.0,
        );
        // The rank sum 1 on the negative side: patterns with sum 0 or 1.
        close(
            signed_rank_p_value(&[-0.1, 0.2, 0.3, 0.4, 0.5, 0.6]),
            4.0 / 64.0,
        );
        // Four ties of rank 2.5, all of one sign: still 1 of 16 patterns.
        close(signed_rank_p_value(&[0.1, 0.1, 0.1, 0.1]), 2.0 / 16.0);
        close(signed_rank_p_value(&[0.0, 0.0]), 1.0);
    }

    #[test]
    fn the_approximation_meets_the_exact_distribution() {
        let values: Vec<f64> = (1..=50)
            .map(|n| {
                if n % 3 == 0 {
                    -f64::from(n)
                } else {
                    f64::from(n)
                }
            })
            .collect();
        let exact = signed_rank_p_value(&values);
        let positive: f64 = values.iter().filter(|value| **value > 0.0).sum();
        let approximate = approximate_p_value(50.0, positive, 0.0);
        assert!(
            (exact - approximate).abs() < 2e-3,
            "{exact} against {approximate}"
        );
    }
}
