//! Random variates for simulations in tests.

use crate::random::SplitMix64;

/// A standard normal number.
pub(crate) fn normal(stream: &mut SplitMix64) -> f64 {
    stream.next_normal()
}

/// A Poisson number; for means above 200, a rounded normal one, which is close enough for these tests.
pub(crate) fn poisson(stream: &mut SplitMix64, mean: f64) -> u64 {
    if mean > 200.0 {
        return (mean + mean.sqrt() * normal(stream)).round().max(0.0) as u64;
    }
    let floor = (-mean).exp();
    let (mut product, mut count) = (stream.next_f64(), 0);
    while product > floor {
        product *= stream.next_f64();
        count += 1;
    }
    count
}

/// A log-normal factor with mean 1 and the coefficient of variation `cv`.
pub(crate) fn factor(stream: &mut SplitMix64, cv: f64) -> f64 {
    let variance = (1.0 + cv * cv).ln();
    (variance.sqrt() * normal(stream) - variance / 2.0).exp()
}
