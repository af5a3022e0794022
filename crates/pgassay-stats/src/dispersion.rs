//! The noise of a function's share between trials, beyond counting noise.
//!
//! The samples of one function in trial j are a Poisson count around Nⱼ·p·wⱼ, where w varies between
//! trials with the squared coefficient of variation cv². Assuming only counting noise (a pooled Poisson
//! test) gives 18% false discoveries at a cv of 2% and 51% at 5%. With few trials the cv² of a single
//! function is unknown, but hundreds of functions together determine it: the idea of edgeR (Robinson and
//! Smyth, "Moderated statistical tests for assessing differences in tag abundance", 2007; Robinson et
//! al., "edgeR: a Bioconductor package", 2010).
//!
//! Some functions occur in bursts: those that a checkpoint, a vacuum or another session calls. If one in
//! twenty varies by 100% and is judged by the noise of the others, 20 to 50% of A/A comparisons mark one
//! falsely. Phipson, Lee, Majewski, Alexander and Smyth ("Robust hyperparameter estimation protects
//! against hypervariable genes", 2016) give the prior less weight for outliers. Here the prior is a
//! mixture of two kinds, usual and bursty, because the kind of a rare function is unknown: its p-value is
//! the mean of the p-values of both kinds, weighted by their probabilities.
//!
//! By moments: per function and variant, d = (Σ(k − μ)² − E[Σ(k − μ)² if Poisson]) / D with
//! μⱼ = Nⱼ·K/N and D = Σ μⱼ²(1 − 2wⱼ + Σw²), w = Nⱼ/N. The cv² of a kind is the mean of all d,
//! weighted by (n − 1)/(1/μ + cv²)² and by the probability of this kind, iterated. Under either kind the
//! function's own sum of squares scales its variance, shrunk towards 1 as in edgeR's quasi-likelihood
//! (Lund et al., 2012).
//!
//! Invariants: never negative; functions with few samples are judged by the noise of the others, because
//! their own figures carry no information.

/// Prior degrees of freedom: the weight of the usual kind's noise relative to a function's own; edgeR's
/// default.
pub const PRIOR_DF: f64 = 10.0;

/// Prior degrees of freedom of the bursty kind, whose functions differ more from each other.
const BURSTY_PRIOR_DF: f64 = 3.0;

/// Minimum assumed share of bursty functions.
const BURSTY_SHARE_MIN: f64 = 0.01;

/// Minimum cv² of the bursty kind: a variation of 70%.
const BURSTY_CV2_MIN: f64 = 0.5;

/// Iterations of the weights of a kind for each reassignment of its functions.
const INNER_ROUNDS: usize = 3;

/// Iterations of the whole procedure; it converges to 4 digits in about 5.
const ROUNDS: usize = 12;

/// A squared coefficient of variation between trials, with its degrees of freedom.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dispersion {
    /// cv²: 0.0004 is a variation of 2% between trials.
    pub cv2: f64,
    /// Degrees of freedom of the estimate.
    pub df: f64,
}

/// The dispersion of one function in the trials of one variant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FunctionDispersion {
    /// d: cv² by moments; negative if the counts vary less than expected by chance.
    excess: f64,
    /// Mean samples per trial.
    mean: f64,
    /// Number of trials minus one.
    df: f64,
}

impl FunctionDispersion {
    /// Computes it from the function's samples and all samples of each trial; `None` with fewer than two
    /// trials or without samples.
    pub fn of(counts: &[u64], all_samples: &[u64]) -> Option<Self> {
        let trials = counts.len().min(all_samples.len());
        let (hits, total) = (sum(&counts[..trials]), sum(&all_samples[..trials]));
        if trials < 2 || hits <= 0.0 || total <= 0.0 {
            return None;
        }
        let share = hits / total;
        let weight_squares: f64 = all_samples
            .iter()
            .map(|n| (*n as f64 / total).powi(2))
            .sum();
        let (mut squares, mut by_chance, mut scale) = (0.0, 0.0, 0.0);
        for (count, samples) in counts.iter().zip(all_samples) {
            let weight = *samples as f64 / total;
            let expected = *samples as f64 * share;
            squares += (*count as f64 - expected).powi(2);
            by_chance += expected * (1.0 - share) * (1.0 - weight);
            scale += expected.powi(2) * (1.0 - 2.0 * weight + weight_squares);
        }
        let df = (trials - 1) as f64;
        (scale > 0.0).then(|| Self {
            excess: (squares - by_chance) / scale,
            mean: hits / trials as f64,
            df,
        })
    }

    /// Precision of `excess`, up to a factor, if the true value is `cv2`.
    fn weight(&self, cv2: f64) -> f64 {
        self.df / (1.0 / self.mean + cv2).powi(2)
    }

    /// The sum of squares relative to that expected from chance and `cv2`: chi-square with `df` degrees of
    /// freedom.
    fn scaled(&self, cv2: f64) -> f64 {
        let by_chance = 1.0 / self.mean;
        self.df * (self.excess + by_chance).max(0.0) / (by_chance + cv2)
    }

    /// Log-likelihood of the sum of squares under `cv2`, up to a constant.
    fn log_likelihood(&self, cv2: f64) -> f64 {
        let variance = 1.0 / self.mean + cv2;
        -0.5 * (self.df * variance.ln() + self.scaled(cv2))
    }

    /// Degrees of freedom of cv² itself: `df` if counting noise is negligible.
    fn effective_df(&self, cv2: f64) -> f64 {
        self.weight(cv2) * cv2.powi(2)
    }
}

/// The noise of all functions: two kinds, and how common each is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prior {
    /// Dispersion of most functions.
    pub usual: Dispersion,
    /// cv² of functions that occur in bursts.
    pub bursty_cv2: f64,
    /// Share of functions that occur in bursts.
    pub bursty_share: f64,
}

/// The noise of one function, assuming one of the two kinds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FunctionNoise {
    /// Probability of this kind for the function.
    pub probability: f64,
    /// cv² of the kind.
    pub cv2: f64,
    /// Factor for the variance, including counting noise, from the function's own sum of squares.
    pub scale: f64,
    /// Degrees of freedom of `scale`.
    pub df: f64,
}

/// Estimates the prior from the spreads of all functions; `None` if no spread is known.
pub fn prior(functions: &[Vec<FunctionDispersion>]) -> Option<Prior> {
    let known = functions.iter().filter(|spreads| !spreads.is_empty());
    let known: Vec<&[FunctionDispersion]> = known.map(Vec::as_slice).collect();
    if known.is_empty() {
        return None;
    }
    let mut found = Prior {
        usual: Dispersion { cv2: 0.0, df: 1.0 },
        bursty_cv2: 1.0,
        bursty_share: 0.05,
    };
    for _ in 0..ROUNDS {
        let bursty: Vec<f64> = known.iter().map(|it| found.chance_of_bursts(it)).collect();
        let usual: Vec<f64> = bursty.iter().map(|chance| 1.0 - chance).collect();
        found.usual = pooled(&known, &usual, found.usual.cv2);
        let least = BURSTY_CV2_MIN.max(10.0 * found.usual.cv2);
        found.bursty_cv2 = pooled(&known, &bursty, found.bursty_cv2).cv2.max(least);
        let share = bursty.iter().sum::<f64>() / known.len() as f64;
        found.bursty_share = share.max(BURSTY_SHARE_MIN);
    }
    Some(found)
}

impl Prior {
    /// The probability that a function with these spreads is of the bursty kind.
    fn chance_of_bursts(&self, spreads: &[FunctionDispersion]) -> f64 {
        let log_likelihood =
            |cv2: f64| -> f64 { spreads.iter().map(|it| it.log_likelihood(cv2)).sum() };
        let log_odds = (self.bursty_share / (1.0 - self.bursty_share)).ln()
            + log_likelihood(self.bursty_cv2)
            - log_likelihood(self.usual.cv2);
        1.0 / (1.0 + (-log_odds).exp())
    }

    /// The noise of a function with these spreads, under either kind.
    pub fn noise(&self, spreads: &[FunctionDispersion]) -> [FunctionNoise; 2] {
        let bursty = self.chance_of_bursts(spreads);
        let df: f64 = spreads.iter().map(|spread| spread.df).sum();
        let of_kind = |probability: f64, cv2: f64, prior_df: f64| {
            let squares: f64 = spreads.iter().map(|spread| spread.scaled(cv2)).sum();
            FunctionNoise {
                probability,
                cv2,
                scale: (prior_df + squares) / (prior_df + df),
                df: prior_df + df,
            }
        };
        [
            of_kind(1.0 - bursty, self.usual.cv2, PRIOR_DF),
            of_kind(bursty, self.bursty_cv2, BURSTY_PRIOR_DF),
        ]
    }
}

/// The dispersion of all functions, weighted, starting from an initial guess.
fn pooled(functions: &[&[FunctionDispersion]], weights: &[f64], guess: f64) -> Dispersion {
    let spreads = || {
        let each = functions.iter().zip(weights);
        each.flat_map(|(spreads, weight)| spreads.iter().map(move |spread| (spread, *weight)))
    };
    let mut cv2 = guess;
    for _ in 0..INNER_ROUNDS {
        let (mut sum, mut weighted) = (0.0, 0.0);
        for (spread, weight) in spreads() {
            let weight = weight * spread.weight(cv2);
            sum += weight;
            weighted += weight * spread.excess;
        }
        cv2 = (weighted / f64::max(sum, f64::MIN_POSITIVE)).max(0.0);
    }
    let df = spreads().map(|(spread, weight)| weight * spread.effective_df(cv2));
    Dispersion { cv2, df: df.sum() }
}

fn sum(counts: &[u64]) -> f64 {
    counts.iter().sum::<u64>() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;
    use crate::sampling::{factor, poisson};

    fn spreads(
        stream: &mut SplitMix64,
        functions: usize,
        trials: usize,
        cv: f64,
    ) -> Vec<FunctionDispersion> {
        (0..functions)
            .filter_map(|_| {
                let mean = 20.0 * (stream.next_f64() * 5.0).exp();
                let counts: Vec<u64> = (0..trials)
                    .map(|_| {
                        let mean = mean * factor(stream, cv);
                        poisson(stream, mean)
                    })
                    .collect();
                FunctionDispersion::of(&counts, &vec![100_000; trials])
            })
            .collect()
    }

    fn found(spreads: &[FunctionDispersion]) -> Prior {
        let functions: Vec<Vec<FunctionDispersion>> = spreads.iter().map(|it| vec![*it]).collect();
        prior(&functions).unwrap()
    }

    #[test]
    fn the_pooled_variation_is_recovered() {
        let mut stream = SplitMix64::new(77);
        for cv in [0.02, 0.05, 0.2] {
            let mean: f64 = (0..10)
                .map(|_| found(&spreads(&mut stream, 300, 6, cv)).usual.cv2)
                .sum::<f64>()
                / 10.0;
            assert!(
                (mean.sqrt() / cv - 1.0).abs() < 0.12,
                "{cv}: {}",
                mean.sqrt()
            );
        }
        let none = found(&spreads(&mut stream, 300, 6, 0.0));
        assert!(none.usual.cv2 < 0.01f64.powi(2), "{none:?}");
        assert!(none.bursty_share < 0.02, "{none:?}");
    }

    #[test]
    fn bursty_functions_do_not_raise_the_noise_of_the_others() {
        let mut stream = SplitMix64::new(5);
        let mut all = spreads(&mut stream, 285, 6, 0.05);
        all.extend(spreads(&mut stream, 15, 6, 1.0));
        let prior = found(&all);
        assert!(
            (prior.usual.cv2.sqrt() / 0.05 - 1.0).abs() < 0.3,
            "{prior:?}"
        );
        assert!((0.02..0.09).contains(&prior.bursty_share), "{prior:?}");
        assert!((0.5..2.0).contains(&prior.bursty_cv2), "{prior:?}");
    }

    #[test]
    fn the_prior_dominates_few_samples_but_not_many() {
        let prior = Prior {
            usual: Dispersion {
                cv2: 0.0004,
                df: 500.0,
            },
            bursty_cv2: 1.0,
            bursty_share: 0.05,
        };
        let wild_and_rare = FunctionDispersion {
            excess: 0.5,
            mean: 3.0,
            df: 5.0,
        };
        let [usual, bursty] = prior.noise(&[wild_and_rare]);
        assert!(
            usual.scale < 1.6 && bursty.probability < 0.5,
            "{usual:?} {bursty:?}"
        );
        let wild_and_frequent = FunctionDispersion {
            excess: 0.5,
            mean: 2_000.0,
            df: 5.0,
        };
        let [usual, bursty] = prior.noise(&[wild_and_frequent; 2]);
        assert!(
            bursty.probability > 0.999 && bursty.scale < 1.0,
            "{usual:?} {bursty:?}"
        );
        let [usual, bursty] = prior.noise(&[]);
        assert!((usual.probability - 0.95).abs() < 1e-9 && (usual.scale - 1.0).abs() < 1e-9);
        assert!((bursty.df - 3.0).abs() < 1e-9);
    }

    #[test]
    fn without_spreads_there_is_no_prior() {
        assert_eq!(FunctionDispersion::of(&[5], &[100]), None);
        assert_eq!(FunctionDispersion::of(&[0, 0], &[100, 100]), None);
        assert_eq!(prior(&[]), None);
        assert_eq!(prior(&[vec![], vec![]]), None);
    }
}
