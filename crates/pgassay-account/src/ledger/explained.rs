//! The share of a difference in rows with a known cause, with its interval.
//!
//! Waiting for the client's thread has a certain part and a possible one, an upper bound that takes all
//! that the certain part leaves of the server's wait. If it counted as known, nothing would be left
//! unexplained by construction, whatever the client measured. So it widens the interval: one end is
//! computed without it, the other one with all of it, on both sides alike.

use pgassay_stats as stats;

use super::ExplainedShare;

/// Figures of both sides, block by block.
pub(super) struct Explained {
    /// Rows with a known cause, without their possible part.
    pub known: Vec<[f64; 2]>,
    /// What is only possible.
    pub possible: Vec<[f64; 2]>,
    /// The amount that rows were trimmed by is an error like the remainder, with the opposite sign.
    pub trimmed: Vec<[f64; 2]>,
}

/// The share of the difference in rows with a known cause; `None` if there is no difference.
pub(super) fn explained_share(
    whole: &[[f64; 2]],
    explained: &Explained,
    level: f64,
) -> Option<ExplainedShare> {
    let add = |figures: &[[f64; 2]], more: &[[f64; 2]]| -> Vec<[f64; 2]> {
        let sum = |(it, more): (&[f64; 2], &[f64; 2])| [it[0] + more[0], it[1] + more[1]];
        figures.iter().zip(more).map(sum).collect()
    };
    let known = add(&explained.known, &explained.trimmed);
    let without = fieller(whole, &known, level)?;
    let has_possible = explained.possible.iter().flatten().any(|us| *us > 0.0);
    if !has_possible {
        return Some(without);
    }
    let with = fieller(whole, &add(&known, &explained.possible), level)?;
    let hull = |(a, b): ([f64; 2], [f64; 2])| [a[0].min(b[0]), a[1].max(b[1])];
    Some(ExplainedShare {
        share: without.share,
        interval: without.interval.zip(with.interval).map(hull),
        possible: Some(with.share - without.share),
    })
}

/// The mean difference of the explained part over that of the whole, with Fieller's interval: the
/// ratios ρ for which the pairs' t-test cannot distinguish `explained − ρ × whole` from 0 (Fieller,
/// "Some problems in interval estimation", 1954). `None` if the difference is 0.
fn fieller(whole: &[[f64; 2]], explained: &[[f64; 2]], level: f64) -> Option<ExplainedShare> {
    let differences =
        |figures: &[[f64; 2]]| -> Vec<f64> { figures.iter().map(|[a, b]| b - a).collect() };
    let (whole, explained) = (differences(whole), differences(explained));
    let sums: Vec<f64> = whole.iter().zip(&explained).map(|(w, e)| w + e).collect();
    // Squares of t × standard error; the square for the sum yields the covariance.
    let square = |values: &[f64]| -> Option<(f64, f64)> {
        let mean = stats::mean_difference(values, level).ok()?;
        let half = mean.interval.map(|it| (it.high - it.low) / 2.0);
        Some((mean.mean, half.map_or(f64::INFINITY, |half| half.powi(2))))
    };
    let ((whole_us, whole2), (explained_us, explained2)) = (square(&whole)?, square(&explained)?);
    let (_, sums2) = square(&sums)?;
    if whole_us.abs() <= f64::MIN_POSITIVE {
        return None;
    }
    let covariance = (sums2 - whole2 - explained2) / 2.0;
    // ρ² a − 2 ρ b + c ≤ 0.
    let a = whole_us.powi(2) - whole2;
    let b = whole_us * explained_us - covariance;
    let c = explained_us.powi(2) - explained2;
    let root = (b.powi(2) - a * c).max(0.0).sqrt();
    Some(ExplainedShare {
        share: explained_us / whole_us,
        interval: (a > 0.0 && root.is_finite()).then(|| [(b - root) / a, (b + root) / a]),
        possible: None,
    })
}
