//! The noise of a function's share between trials, beyond what counting explains.
//!
//! Samples of one function in trial j are a Poisson count around Nⱼ·p·wⱼ, where w varies from
//! trial to trial with the squared coefficient of variation cv². Counting noise alone (a pooled
//! Poisson test) makes 18 % false discoveries at a cv of 2 % and 51 % at 5 %. With few trials no
//! single function tells its own cv², but hundreds together do: the idea of edgeR (Robinson and
//! Smyth, "Moderated statistical tests for assessing differences in tag abundance", 2007;
//! Robinson et al., "edgeR: a Bioconductor package", 2010).
//!
//! Here by moments: per function and variant, d = (Σ(k − μ)² − E[Σ(k − μ)² if Poisson]) / D with
//! μⱼ = Nⱼ·K/N and D = Σ μⱼ²(1 − 2wⱼ + Σw²), w = Nⱼ/N. The pooled cv² is the mean of all d,
//! weighted by (n − 1)/(1/μ + cv²)², iterated. A function's own cv² is its d, drawn towards the
//! pooled one as if that were known with [`PRIOR_DF`] degrees of freedom.
//!
//! Invariants: never negative; a function with few samples gets the pooled value, because its
//! own figure says nothing.

/// The weight of the pooled value against a function's own: edgeR's usual prior.
pub const PRIOR_DF: f64 = 10.0;

/// How often the weights are computed anew; they settle to 4 digits in about 5 rounds.
const ROUNDS: usize = 12;

/// A squared coefficient of variation between trials, and how well it is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dispersion {
    /// cv²: .0004 is a variation of 2 % between trials.
    pub cv2: f64,
    /// Degrees of freedom behind it.
    pub df: f64,
}

/// What the trials of one variant say about one function's dispersion.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// d: cv² by moments, negative when the counts vary less than chance.
    excess: f64,
    /// Mean samples per trial.
    mean: f64,
    /// Trials less one.
    df: f64,
}

impl Spread {
    /// From the function's samples and all samples of each trial; `None` with fewer than two
    /// trials or no samples.
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

    /// How precisely `excess` is known, up to a factor, if the truth is `cv2`.
    fn weight(&self, cv2: f64) -> f64 {
        self.df / (1.0 / self.mean + cv2).powi(2)
    }

    /// Degrees of freedom about cv² itself: all of them when counting noise is negligible.
    fn effective_df(&self, cv2: f64) -> f64 {
        self.weight(cv2) * cv2.powi(2)
    }
}

/// The dispersion that all functions share; `None` when no spread is known.
pub fn pooled(spreads: &[Spread]) -> Option<Dispersion> {
    if spreads.is_empty() {
        return None;
    }
    let mut cv2: f64 = 0.0;
    for _ in 0..ROUNDS {
        let weights: f64 = spreads.iter().map(|spread| spread.weight(cv2)).sum();
        let weighted: f64 = spreads
            .iter()
            .map(|spread| spread.weight(cv2) * spread.excess)
            .sum();
        cv2 = (weighted / weights).max(0.0);
    }
    Some(Dispersion {
        cv2,
        df: spreads.iter().map(|spread| spread.effective_df(cv2)).sum(),
    })
}

/// One function's dispersion: its own `spreads` drawn towards the `pooled` one.
pub fn moderated(spreads: &[Spread], pooled: Dispersion) -> Dispersion {
    let prior_df = PRIOR_DF.min(pooled.df.max(1.0));
    let mut own = Dispersion {
        cv2: pooled.cv2,
        df: prior_df,
    };
    for _ in 0..ROUNDS {
        let evidence: f64 = spreads
            .iter()
            .map(|spread| spread.effective_df(own.cv2))
            .sum();
        let weighted: f64 = spreads
            .iter()
            .map(|spread| spread.effective_df(own.cv2) * spread.excess)
            .sum();
        let cv2 = (prior_df * pooled.cv2 + weighted) / (prior_df + evidence);
        own = Dispersion {
            cv2: cv2.max(0.0),
            df: prior_df + evidence,
        };
    }
    own
}

fn sum(counts: &[u64]) -> f64 {
    counts.iter().sum::<u64>() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;
    use crate::sampling::{factor, poisson};

    fn spreads(stream: &mut SplitMix64, functions: usize, trials: usize, cv: f64) -> Vec<Spread> {
        (0..functions)
            .filter_map(|_| {
                let mean = 20.0 * (stream.next_f64() * 5.0).exp();
                let counts: Vec<u64> = (0..trials)
                    .map(|_| {
                        let mean = mean * factor(stream, cv);
                        poisson(stream, mean)
                    })
                    .collect();
                Spread::of(&counts, &vec![100_000; trials])
            })
            .collect()
    }

    #[test]
    fn the_pooled_variation_is_found_back() {
        let mut stream = SplitMix64::new(77);
        for cv in [0.02, 0.05, 0.2] {
            let found: f64 = (0..10)
                .map(|_| pooled(&spreads(&mut stream, 300, 6, cv)).unwrap().cv2)
                .sum::<f64>()
                / 10.0;
            assert!(
                (found.sqrt() / cv - 1.0).abs() < 0.12,
                "{cv}: {}",
                found.sqrt()
            );
        }
        let none = pooled(&spreads(&mut stream, 300, 6, 0.0)).unwrap();
        assert!(none.cv2 < 0.01f64.powi(2), "{none:?}");
    }

    #[test]
    fn few_samples_say_nothing_and_many_say_much() {
        let pool = Dispersion {
            cv2: 0.0004,
            df: 500.0,
        };
        let wild_and_rare = Spread {
            excess: 0.5,
            mean: 3.0,
            df: 5.0,
        };
        assert!(moderated(&[wild_and_rare], pool).cv2 < 0.0005);
        let wild_and_frequent = Spread {
            excess: 0.04,
            mean: 20_000.0,
            df: 5.0,
        };
        let own = moderated(&[wild_and_frequent; 2], pool);
        assert!(
            own.cv2 > 0.015 && own.cv2 < 0.04 && own.df > 15.0,
            "{own:?}"
        );
        assert_eq!(
            moderated(&[], pool),
            Dispersion {
                cv2: 0.0004,
                df: 10.0
            }
        );
    }

    #[test]
    fn nothing_known_is_none() {
        assert_eq!(Spread::of(&[5], &[100]), None);
        assert_eq!(Spread::of(&[0, 0], &[100, 100]), None);
        assert_eq!(pooled(&[]), None);
    }
}
