//! What varies independently: pairs of trials, or starts of the servers.
//!
//! Pairs that ran on one start of the servers share its memory layout, and with it an effect on
//! B/A of its own. If that effect has half of the pairs' standard deviation, pairs as units give 8%
//! false positives with 2 pairs a start, 22% with 6, and 54% where all ran on one start. So from
//! [`BOOTS_MIN`] starts on the unit is the mean of the pairs of a start.
//!
//! Two or three starts are too few: an interval of their means has one or two degrees of freedom, and at
//! the level of many comparisons finds next to nothing. There pairs stay the units, and the interval
//! is about these starts of the servers only. A mixed model keeps its promise there (3 to 5% false
//! positives, `docs/simulations.md`), but with one or two degrees of freedom wherever it finds that starts
//! differ.
//!
//! Source: Kalibera and Jones, "Rigorous benchmarking in reasonable time" (2013).

use std::collections::BTreeMap;

/// The fewest starts of the servers whose means carry an interval.
pub const BOOTS_MIN: usize = 4;

/// What the interval's degrees of freedom count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Pairs: the interval is about the starts of the servers that were seen.
    Pair,
    /// Starts of the servers, each with the mean of its pairs: the interval is about any start.
    Boot,
}

/// Values that vary independently.
#[derive(Debug, Clone, PartialEq)]
pub struct Units {
    /// ln(B/A) of each unit.
    pub log_ratios: Vec<f64>,
    /// What each of them is.
    pub unit: Unit,
    /// Different starts among the pairs; 1 where none were told.
    pub boots: usize,
}

/// The units of pairs that ran on these starts of the servers; `boots` is empty for one start.
pub fn units(log_ratios: &[f64], boots: &[u32]) -> Units {
    let mut by_boot: BTreeMap<u32, (f64, u32)> = BTreeMap::new();
    for (index, log_ratio) in log_ratios.iter().enumerate() {
        let boot = boots.get(index).copied().unwrap_or(0);
        let (sum, pairs) = by_boot.entry(boot).or_default();
        *sum += log_ratio;
        *pairs += 1;
    }
    let boots = by_boot.len();
    if boots < BOOTS_MIN {
        return Units {
            log_ratios: log_ratios.to_vec(),
            unit: Unit::Pair,
            boots,
        };
    }
    Units {
        log_ratios: by_boot
            .values()
            .map(|(sum, pairs)| sum / f64::from(*pairs))
            .collect(),
        unit: Unit::Boot,
        boots,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_starts_are_units_and_three_are_not() {
        let logs = [0.1, 0.3, 0.2, 0.4, 0.0, 0.2, 0.1, 0.1];
        let four = units(&logs, &[0, 0, 1, 1, 2, 2, 3, 3]);
        assert_eq!((four.unit, four.boots), (Unit::Boot, 4));
        for (found, expected) in four.log_ratios.iter().zip([0.2, 0.3, 0.1, 0.1]) {
            assert!((found - expected).abs() < 1e-12);
        }
        let three = units(&logs, &[0, 0, 1, 1, 2, 2, 2, 2]);
        assert_eq!((three.unit, three.boots), (Unit::Pair, 3));
        assert_eq!(three.log_ratios, logs);
        let untold = units(&logs, &[]);
        assert_eq!((untold.unit, untold.boots), (Unit::Pair, 1));
    }
}
