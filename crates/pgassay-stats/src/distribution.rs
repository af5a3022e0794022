//! Quantiles and tails of distributions.
//!
//! Thin wrappers over `statrs` that hide its types and its panics on invalid parameters. Tails are
//! computed directly (with the regularized beta function and erfc), never as `1 - cdf`: a p-value of
//! 1e-30 must not become 0, or corrected p-values would lose their order.
//!
//! Invariant: callers pass probabilities in (0, 1) and positive degrees of freedom or counts; public
//! functions check that first.

use statrs::distribution::{Beta, ContinuousCDF, Gamma, Normal, StudentsT};
use statrs::function::beta::{beta_reg, ln_beta};
use statrs::function::erf::erfc;
use statrs::function::factorial::ln_binomial;
use statrs::function::gamma::ln_gamma;

/// Beyond this many degrees of freedom, t and normal quantiles agree to 5 digits.
const NORMAL_FROM_DF: f64 = 1e5;

/// Quantile of the standard normal distribution.
pub(crate) fn normal_quantile(probability: f64) -> f64 {
    Normal::new(0.0, 1.0)
        .expect("the standard normal's parameters are valid")
        .inverse_cdf(probability)
}

/// P(|Z| ≥ |z|) for a standard normal Z.
pub(crate) fn normal_two_sided(z: f64) -> f64 {
    erfc(z.abs() / std::f64::consts::SQRT_2)
}

/// P(Z ≤ z) for a standard normal Z.
pub(crate) fn normal_below(z: f64) -> f64 {
    0.5 * erfc(-z / std::f64::consts::SQRT_2)
}

/// Density of s/σ, where s is a standard deviation with `df` degrees of freedom.
pub(crate) fn chi_density(ratio: f64, df: f64) -> f64 {
    let half = df / 2.0;
    let log = half * half.ln() - ln_gamma(half) + (df - 1.0) * ratio.ln() - half * ratio * ratio;
    2.0 * log.exp()
}

/// Quantile of chi-square with `df` degrees of freedom.
pub(crate) fn chi_square_quantile(probability: f64, df: f64) -> f64 {
    Gamma::new(df / 2.0, 0.5)
        .expect("degrees of freedom are positive")
        .inverse_cdf(probability)
}

/// Quantile of the ratio of two variances, each with `df` degrees of freedom (Fisher's F).
pub(crate) fn variance_ratio_quantile(probability: f64, df: f64) -> f64 {
    let share = Beta::new(df / 2.0, df / 2.0)
        .expect("degrees of freedom are positive")
        .inverse_cdf(probability);
    share / (1.0 - share)
}

/// Quantile of Student's t with `df` degrees of freedom (infinite: the normal's).
pub(crate) fn t_quantile(probability: f64, df: f64) -> f64 {
    if df >= NORMAL_FROM_DF {
        return normal_quantile(probability);
    }
    StudentsT::new(0.0, 1.0, df)
        .expect("degrees of freedom are positive")
        .inverse_cdf(probability)
}

/// P(|T| ≥ |t|) for Student's T with `df` degrees of freedom.
pub(crate) fn t_two_sided(t: f64, df: f64) -> f64 {
    if t.is_infinite() {
        return 0.0;
    }
    if df >= NORMAL_FROM_DF {
        return normal_two_sided(t);
    }
    beta_reg(df / 2.0, 0.5, df / (df + t * t))
}

/// Garwood's exact interval for a Poisson mean with `count` observed events.
pub(crate) fn poisson_interval(count: u64, level: f64) -> (f64, f64) {
    let tail = (1.0 - level) / 2.0;
    let quantile = |shape: f64, probability: f64| {
        Gamma::new(shape, 1.0)
            .expect("the shape is a positive count")
            .inverse_cdf(probability)
    };
    let low = if count == 0 {
        0.0
    } else {
        quantile(count as f64, tail)
    };
    (low, quantile(count as f64 + 1.0, 1.0 - tail))
}

/// Clopper and Pearson's exact interval for the share of `hits` among `trials`.
pub(crate) fn binomial_interval(hits: u64, trials: u64, level: f64) -> (f64, f64) {
    let tail = (1.0 - level) / 2.0;
    let quantile = |a: f64, b: f64, probability: f64| {
        Beta::new(a, b)
            .expect("both shapes are positive counts")
            .inverse_cdf(probability)
    };
    let misses = trials - hits;
    let low = if hits == 0 {
        0.0
    } else {
        quantile(hits as f64, misses as f64 + 1.0, tail)
    };
    let high = if misses == 0 {
        1.0
    } else {
        quantile(hits as f64 + 1.0, misses as f64, 1.0 - tail)
    };
    (low, high)
}

/// The interval of a share at a confidence level: Clopper and Pearson's, which is conservative
/// ("The use of confidence or fiducial limits illustrated in the case of the binomial", 1934).
/// `None` without trials.
pub fn share_interval(hits: u64, trials: u64, level: f64) -> Option<(f64, f64)> {
    (trials > 0 && hits <= trials).then(|| binomial_interval(hits, trials, level))
}

/// Two-sided exact binomial p-value of `hits` among `trials` at `share`: twice the smaller tail.
pub(crate) fn binomial_two_sided(hits: u64, trials: u64, share: f64) -> f64 {
    // P(X ≥ h) = I_p(h, n-h+1), the beta form of the binomial's tail.
    let at_least = |h: u64| {
        if h == 0 {
            1.0
        } else {
            beta_reg(h as f64, (trials - h) as f64 + 1.0, share)
        }
    };
    let at_most = |h: u64| {
        if h == trials {
            1.0
        } else {
            beta_reg((trials - h) as f64, h as f64 + 1.0, 1.0 - share)
        }
    };
    (2.0 * at_least(hits).min(at_most(hits))).min(1.0)
}

/// Two-sided p-value of `hits` among `trials` if the share varies around `share` with variance
/// `logit_variance` of its log odds: beta-binomial, twice the smaller tail.
pub(crate) fn beta_binomial_two_sided(
    hits: u64,
    trials: u64,
    share: f64,
    logit_variance: f64,
) -> f64 {
    // Var(share) ≈ (share·(1 − share))²·v, and a beta's is share·(1 − share)/(a + b + 1).
    let weight = 1.0 / (share * (1.0 - share) * logit_variance) - 1.0;
    if logit_variance <= 0.0 || weight > 1e9 {
        return binomial_two_sided(hits, trials, share);
    }
    let weight = weight.max(1.0);
    let (a, b) = (share * weight, (1.0 - share) * weight);
    // Sum from the side with fewer hits, which has fewer terms.
    let (fewer, a, b) = if 2 * hits > trials {
        (trials - hits, b, a)
    } else {
        (hits, a, b)
    };
    let whole = ln_beta(a, b);
    let chance = |k: u64| {
        let log = ln_binomial(trials, k) + ln_beta(k as f64 + a, (trials - k) as f64 + b) - whole;
        log.exp()
    };
    let below: f64 = (0..fewer).map(chance).sum();
    let here = chance(fewer);
    (2.0 * (below + here).min(1.0 - below)).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, expected: f64, tolerance: f64) {
        assert!(
            (found - expected).abs() <= tolerance,
            "{found} instead of {expected} ± {tolerance}"
        );
    }

    #[test]
    fn quantiles_are_those_of_the_printed_tables() {
        close(normal_quantile(0.975), 1.959_964, 1e-6);
        for (df, p, expected) in [
            (1.0, 0.975, 12.706),
            (5.0, 0.975, 2.571),
            (5.0, 0.8, 0.920),
            (11.0, 0.995, 3.106),
            (1e7, 0.975, 1.960),
        ] {
            close(t_quantile(p, df), expected, 5e-4);
        }
    }

    #[test]
    fn the_interval_of_20_in_400_is_3_to_8_percent() {
        let (low, high) = share_interval(20, 400, 0.95).unwrap();
        close(low, 0.0308, 1e-4);
        close(high, 0.0762, 1e-4);
        assert_eq!(share_interval(0, 0, 0.95), None);
        assert_eq!(share_interval(2, 1, 0.95), None);
    }

    #[test]
    fn spreads_are_those_of_the_printed_tables() {
        close(chi_square_quantile(0.9, 5.0), 9.236, 1e-3);
        close(chi_square_quantile(0.1, 5.0), 1.610, 1e-3);
        close(variance_ratio_quantile(0.95, 5.0), 5.050, 1e-3);
        // With one degree of freedom s/σ is |Z|.
        close(chi_density(1.0, 1.0), 2.0 * 0.241_971, 1e-5);
        close(normal_below(1.644_854), 0.95, 1e-6);
    }

    #[test]
    fn tails_keep_their_digits() {
        close(t_two_sided(t_quantile(0.975, 7.0), 7.0), 0.05, 1e-9);
        let tiny = normal_two_sided(12.0);
        assert!(tiny > 0.0 && tiny < 1e-30);
        assert!(t_two_sided(60.0, 40.0) > 0.0);
        assert!(t_two_sided(f64::INFINITY, 4.0) <= 0.0);
    }

    #[test]
    fn exact_intervals_are_those_of_the_literature() {
        // Garwood (1936), 95%: 0 → (0, 3.689), 3 → (0.619, 8.767), 10 → (4.795, 18.390).
        for (count, low, high) in [(0, 0.0, 3.689), (3, 0.619, 8.767), (10, 4.795, 18.390)] {
            let interval = poisson_interval(count, 0.95);
            close(interval.0, low, 1e-3);
            close(interval.1, high, 1e-3);
        }
        let interval = binomial_interval(0, 10, 0.95);
        close(interval.0, 0.0, 0.0);
        close(interval.1, 0.3085, 1e-4);
        close(binomial_interval(20, 400, 0.95).0, 0.0308, 2e-4);
        close(binomial_interval(20, 400, 0.95).1, 0.0762, 2e-4);
    }

    #[test]
    fn a_beta_binomial_is_a_binomial_without_variation_and_wider_with_it() {
        for (hits, trials, share) in [(2, 10, 0.5), (0, 30, 0.2), (17, 20, 0.5)] {
            let exact = binomial_two_sided(hits, trials, share);
            close(
                beta_binomial_two_sided(hits, trials, share, 0.0),
                exact,
                1e-12,
            );
            close(
                beta_binomial_two_sided(hits, trials, share, 1e-7),
                exact,
                1e-4,
            );
            assert!(beta_binomial_two_sided(hits, trials, share, 0.5) > 2.0 * exact);
        }
        // With a = b = 1 all numbers of hits are equally likely: 3 of 11, twice.
        close(
            beta_binomial_two_sided(2, 10, 0.5, 4.0 / 3.0),
            6.0 / 11.0,
            1e-9,
        );
    }

    #[test]
    fn binomial_tails_sum_by_hand() {
        // 2 of 10 at one half: (1 + 10 + 45) / 1024, twice.
        close(binomial_two_sided(2, 10, 0.5), 2.0 * 56.0 / 1024.0, 1e-12);
        close(binomial_two_sided(0, 10, 0.5), 2.0 / 1024.0, 1e-12);
        close(binomial_two_sided(10, 10, 0.5), 2.0 / 1024.0, 1e-12);
        close(binomial_two_sided(5, 10, 0.5), 1.0, 0.0);
    }
}
