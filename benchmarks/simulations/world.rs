//! Random numbers and noise for the simulations.

use pgassay_stats::random::SplitMix64;

/// A stream of random numbers.
pub struct Draws(SplitMix64);

impl Draws {
    /// Creates a stream from a seed.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// Uniform in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        self.0.next_f64()
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.uniform() < probability
    }

    /// Standard normal (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Student's t with three degrees of freedom, scaled to a standard deviation of 1.
    pub fn t3(&mut self) -> f64 {
        let squares: f64 = (0..3).map(|_| self.normal().powi(2)).sum();
        self.normal() / squares.sqrt()
    }

    /// A Poisson variate; above a mean of 200, a rounded normal one.
    pub fn poisson(&mut self, mean: f64) -> u64 {
        if mean > 200.0 {
            return (mean + mean.sqrt() * self.normal()).round().max(0.0) as u64;
        }
        let floor = (-mean).exp();
        let (mut product, mut count) = (self.uniform(), 0);
        while product > floor {
            product *= self.uniform();
            count += 1;
        }
        count
    }

    /// A log-normal factor with mean 1 and this coefficient of variation.
    pub fn factor(&mut self, cv: f64) -> f64 {
        let variance = (1.0 + cv * cv).ln();
        (variance.sqrt() * self.normal() - variance / 2.0).exp()
    }
}
