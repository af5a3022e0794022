//! The unit of analysis: pairs of trials, or server starts.
//!
//! Pairs on the same server start share its memory layout, which has an effect of its own on B/A. If the
//! standard deviation of that effect is half that of the pairs, using pairs as units gives 8% false
//! positives with 2 pairs per server start, 22% with 6, and 54% with a single server start. So with
//! [`SERVER_STARTS_MIN`] server starts or more, the unit is the mean of the pairs of a server start.
//!
//! Two or three server starts are too few: an interval of their means has one or two degrees of freedom
//! and detects almost nothing at the level of many comparisons. In that case the units are pairs, and
//! the interval holds for these server starts only. A mixed model would have the nominal error rate (3 to
//! 5% false positives, `docs/simulations.md`), but only one or two degrees of freedom whenever it
//! detects that server starts differ.
//!
//! Source: Kalibera and Jones, "Rigorous benchmarking in reasonable time" (2013).

use std::collections::BTreeMap;

/// Minimum number of server starts for an interval from their means.
pub const SERVER_STARTS_MIN: usize = 4;

/// The unit of analysis: what varies independently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitOfIndependence {
    /// Pairs: the interval holds for the observed server starts only.
    Pair,
    /// Server starts, each with the mean of its pairs: the interval holds for any server start.
    ServerStart,
}

/// Values that vary independently.
#[derive(Debug, Clone, PartialEq)]
pub struct Units {
    /// ln(B/A) of each unit.
    pub log_ratios: Vec<f64>,
    /// What the units are.
    pub unit: UnitOfIndependence,
    /// Number of server starts among the pairs; 1 if unknown.
    pub boots: usize,
}

/// The units of pairs that ran on the server starts `server_starts`; empty for a single server start.
pub fn units(log_ratios: &[f64], boots: &[u32]) -> Units {
    let mut by_boot: BTreeMap<u32, (f64, u32)> = BTreeMap::new();
    for (index, log_ratio) in log_ratios.iter().enumerate() {
        let boot = boots.get(index).copied().unwrap_or(0);
        let (sum, pairs) = by_boot.entry(boot).or_default();
        *sum += log_ratio;
        *pairs += 1;
    }
    let boots = by_boot.len();
    if boots < SERVER_STARTS_MIN {
        return Units {
            log_ratios: log_ratios.to_vec(),
            unit: UnitOfIndependence::Pair,
            boots,
        };
    }
    Units {
        log_ratios: by_boot
            .values()
            .map(|(sum, pairs)| sum / f64::from(*pairs))
            .collect(),
        unit: UnitOfIndependence::ServerStart,
        boots,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_starts_are_units_from_four_on() {
        let logs = [0.1, 0.3, 0.2, 0.4, 0.0, 0.2, 0.1, 0.1];
        let four = units(&logs, &[0, 0, 1, 1, 2, 2, 3, 3]);
        assert_eq!(
            (four.unit, four.boots),
            (UnitOfIndependence::ServerStart, 4)
        );
        for (found, expected) in four.log_ratios.iter().zip([0.2, 0.3, 0.1, 0.1]) {
            assert!((found - expected).abs() < 1e-12);
        }
        let three = units(&logs, &[0, 0, 1, 1, 2, 2, 2, 2]);
        assert_eq!((three.unit, three.boots), (UnitOfIndependence::Pair, 3));
        assert_eq!(three.log_ratios, logs);
        let unknown_starts = units(&logs, &[]);
        assert_eq!(
            (unknown_starts.unit, unknown_starts.boots),
            (UnitOfIndependence::Pair, 1)
        );
    }
}
