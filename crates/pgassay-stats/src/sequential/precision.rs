//! An interval of a wanted half-width: Stein's two stages.
//!
//! Where a verdict stops early, the estimate is biased away from no difference (by at most 0.1 standard deviations
//! of the pairs), and a lucky verdict exaggerates. A figure for publication comes from here: the pilot determines
//! the number of pairs, and its standard deviation alone gives the interval's width.
//!
//! Source: Stein, "A two-sample test for a linear hypothesis whose power is independent of the variance" (1945).
//! Invariant: the half-width is at most the wanted one.

use crate::distribution::t_quantile;
use crate::error::{StatsError, check_positive, check_probability};
use crate::pairs::{Interval, Pair, log_ratios, mean_and_sd};

/// Stein's first stage: the total number of pairs for an interval with the desired half-width.
///
/// n = max(pilot, ⌈(t·s/d)²⌉) with s and its degrees of freedom from the pilot.
/// `half_width_log` is on the log scale (0.005 is about ±0.5%).
pub fn stein_pairs(pilot: &[Pair], half_width_log: f64, level: f64) -> Result<usize, StatsError> {
    check_positive("the half-width", half_width_log)?;
    let (quantile, pilot_sd) = pilot_spread(pilot, level)?;
    let needed = (quantile * pilot_sd / half_width_log).powi(2).ceil() as usize;
    Ok(needed.max(pilot.len()))
}

/// Stein's second stage: the interval of B/A from all pairs, of which the first `pilot_pairs` are the
/// pilot.
///
/// Uses only the pilot's standard deviation, because it determined the number of pairs; including the
/// later pairs' would lose the nominal coverage.
pub fn stein_interval(
    pairs: &[Pair],
    pilot_pairs: usize,
    level: f64,
) -> Result<Interval, StatsError> {
    let pilot = pairs.get(..pilot_pairs).ok_or(StatsError::InvalidPilot {
        pilot: pilot_pairs,
        pairs: pairs.len(),
    })?;
    let (quantile, pilot_sd) = pilot_spread(pilot, level)?;
    let (mean, _) = mean_and_sd(&log_ratios(pairs)?);
    let half_width = quantile * pilot_sd / (pairs.len() as f64).sqrt();
    Ok(Interval {
        low: (mean - half_width).exp(),
        high: (mean + half_width).exp(),
        level,
    })
}

fn pilot_spread(pilot: &[Pair], level: f64) -> Result<(f64, f64), StatsError> {
    check_probability("the confidence level", level)?;
    if pilot.len() < 2 {
        return Err(StatsError::InvalidPilot {
            pilot: pilot.len(),
            pairs: pilot.len(),
        });
    }
    let (_, pilot_sd) = mean_and_sd(&log_ratios(pilot)?);
    Ok((
        t_quantile(f64::midpoint(1.0, level), (pilot.len() - 1) as f64),
        pilot_sd,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;

    fn draw(stream: &mut SplitMix64, count: usize, effect: f64, sd: f64) -> Vec<Pair> {
        (0..count)
            .map(|_| Pair {
                baseline: 1.0,
                variant: (effect + sd * stream.next_normal()).exp(),
            })
            .collect()
    }

    #[test]
    fn a_pilot_needs_two_pairs_that_exist() {
        let pairs = draw(&mut SplitMix64::new(3), 4, 0.0, 0.01);
        assert!(stein_pairs(&pairs[..1], 0.01, 0.95).is_err());
        assert!(stein_interval(&pairs, 5, 0.95).is_err());
        assert!(stein_pairs(&pairs, 0.0, 0.95).is_err());
    }

    #[test]
    fn steins_stages_keep_their_width_and_coverage() {
        let (mut stream, truth, wanted) = (SplitMix64::new(1945), 0.01, 0.006);
        let (simulations, mut covered) = (6_000, 0);
        for _ in 0..simulations {
            let mut pairs = draw(&mut stream, 8, truth, 0.015);
            let all = stein_pairs(&pairs, wanted, 0.95).unwrap();
            let rest = draw(&mut stream, all - 8, truth, 0.015);
            pairs.extend(rest);
            let interval = stein_interval(&pairs, 8, 0.95).unwrap();
            assert!((interval.high / interval.low).ln() / 2.0 <= wanted + 1e-12);
            covered += u32::from(interval.contains(truth.exp()));
        }
        let share = f64::from(covered) / f64::from(simulations);
        assert!((0.942..=0.958).contains(&share), "{share}");
    }
}
