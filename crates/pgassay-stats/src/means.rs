//! Differences of means in the unit of measurement, for figures that can be 0.
//!
//! For figures that are never 0, use ratios ([`crate::pairs`]). [`mean_difference`] is for pairs: sums of
//! its means are means of sums, which preserves the identities of a ledger. [`welch`] is for unpaired
//! values with possibly different variances.
//!
//! Source: Welch, "The generalization of 'Student's' problem when several different population
//! variances are involved" (1947), with Satterthwaite's degrees of freedom.

use crate::distribution::{t_quantile, t_two_sided};
use crate::error::{StatsError, check_probability};
use crate::pairs::{Interval, mean_and_sd};

/// Mean of `b` minus mean of `a`, with its interval at `confidence_level` if both have two values or more. Constant
/// values give an interval of zero width.
pub fn welch(a: &[f64], b: &[f64], level: f64) -> (f64, Option<Interval>) {
    let ((mean_a, sd_a), (mean_b, sd_b)) = (mean_and_sd(a), mean_and_sd(b));
    let difference = mean_b - mean_a;
    if a.len() < 2 || b.len() < 2 {
        return (difference, None);
    }
    let (count_a, count_b) = (a.len() as f64, b.len() as f64);
    let (variance_a, variance_b) = (sd_a.powi(2) / count_a, sd_b.powi(2) / count_b);
    let variance = variance_a + variance_b;
    let half_width = if variance > 0.0 {
        let df = variance.powi(2)
            / (variance_a.powi(2) / (count_a - 1.0) + variance_b.powi(2) / (count_b - 1.0));
        t_quantile(f64::midpoint(1.0, level), df) * variance.sqrt()
    } else {
        0.0
    };
    let interval = Interval {
        low: difference - half_width,
        high: difference + half_width,
        level,
    };
    (difference, Some(interval))
}

/// Sample standard deviation (n − 1); 0 for fewer than two values.
pub fn standard_deviation(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    mean_and_sd(values).1
}

/// The mean of differences.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mean {
    /// The mean, in the differences' unit.
    pub mean: f64,
    /// Its interval; `None` with fewer than two differences.
    pub interval: Option<Interval>,
    /// Two-sided p-value of the t-test against 0; 1 without an interval.
    pub p_value: f64,
}

/// The mean of `differences` with its interval at the confidence `confidence_level` (0.95).
///
/// # Errors
/// No differences, or a level that is not a probability.
pub fn mean_difference(differences: &[f64], level: f64) -> Result<Mean, StatsError> {
    check_probability("the confidence level", level)?;
    if differences.is_empty() {
        return Err(StatsError::NoPairs);
    }
    let (mean, sd) = mean_and_sd(differences);
    let count = differences.len() as f64;
    if differences.len() < 2 {
        return Ok(Mean {
            mean,
            interval: None,
            p_value: 1.0,
        });
    }
    let (std_err, df) = (sd / count.sqrt(), count - 1.0);
    let half_width = t_quantile(f64::midpoint(1.0, level), df) * std_err;
    let p_value = match () {
        () if std_err > 0.0 => t_two_sided(mean / std_err, df),
        () if mean.abs() > 0.0 => 0.0,
        () => 1.0,
    };
    Ok(Mean {
        mean,
        interval: Some(Interval {
            low: mean - half_width,
            high: mean + half_width,
            level,
        }),
        p_value,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_have_the_interval_of_a_textbook_t_test() {
        // R: t.test(c(-3, 1, 2, 4)) → mean 1, 95% interval −3.684434 … 5.684434.
        let mean = mean_difference(&[-3.0, 1.0, 2.0, 4.0], 0.95).unwrap();
        let interval = mean.interval.unwrap();
        assert!((mean.mean - 1.0).abs() < 1e-12);
        assert!((interval.low + 3.684_434).abs() < 1e-5);
        assert!((interval.high - 5.684_434).abs() < 1e-5);
        assert!((0.5..0.6).contains(&mean.p_value));
    }

    #[test]
    fn one_difference_has_no_interval_and_equal_ones_are_certain() {
        let one = mean_difference(&[2.5], 0.95).unwrap();
        assert!(one.interval.is_none() && one.p_value >= 1.0);
        let equal = mean_difference(&[2.0, 2.0], 0.95).unwrap();
        assert!(equal.p_value <= 0.0 && equal.interval.unwrap().contains(2.0));
        let nothing = mean_difference(&[0.0, 0.0, 0.0], 0.95).unwrap();
        assert!(nothing.p_value >= 1.0);
        assert_eq!(mean_difference(&[], 0.95), Err(StatsError::NoPairs));
    }

    #[test]
    fn welch_matches_the_textbook() {
        // With equal sizes and variances this is Student's test: standard error sqrt(2/3) with 4 degrees
        // of freedom, whose 97.5% quantile is 2.776445.
        let (difference, interval) = welch(&[1.0, 2.0, 3.0], &[3.0, 4.0, 5.0], 0.95);
        let half = 2.776_445 * (2.0_f64 / 3.0).sqrt();
        let interval = interval.unwrap();
        assert!((difference - 2.0).abs() < 1e-12);
        assert!((interval.low - (2.0 - half)).abs() < 1e-5, "{interval:?}");
        assert!((interval.high - (2.0 + half)).abs() < 1e-5, "{interval:?}");
        // If only one side varies, only its degrees of freedom count.
        let (_, interval) = welch(&[1.0, 1.0, 1.0], &[3.0, 4.0, 5.0], 0.95);
        let half = 4.302_653 * (1.0_f64 / 3.0).sqrt();
        assert!((interval.unwrap().low - (3.0 - half)).abs() < 1e-5);
    }

    #[test]
    fn constants_differ_with_certainty_and_single_values_have_no_interval() {
        let (difference, interval) = welch(&[1.0, 1.0], &[2.0, 2.0, 2.0], 0.99);
        assert!((difference - 1.0).abs() < 1e-12);
        assert!(interval.unwrap().low > 0.999);
        assert_eq!(welch(&[1.0], &[2.0, 2.0], 0.95).1, None);
        assert!(standard_deviation(&[3.0]).abs() < 1e-12);
    }
}
