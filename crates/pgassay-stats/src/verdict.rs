//! The verdict: a word for an interval, against a band inside which nobody cares.
//!
//! [`crate::family`] gives the words of a study, whose comparisons share their error rate; here is
//! the rule for one interval.
//!
//! Invariants: `same` is a finding (the whole interval lies inside the band), `unresolved` is
//! the lack of one; the two are never mixed up. Swapping A and B turns faster into slower and
//! leaves same and unresolved alone, because the band is symmetric in logarithms.

use crate::error::{StatsError, check_positive};
use crate::pairs::Interval;

/// Which way is better for a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// As transactions per second.
    HigherIsBetter,
    /// As latency or cost per transaction.
    LowerIsBetter,
}

impl Direction {
    /// The word for a ratio above 1, or for one below.
    pub(crate) fn word(self, above: bool) -> Verdict {
        if above == (self == Self::HigherIsBetter) {
            Verdict::Faster
        } else {
            Verdict::Slower
        }
    }
}

/// Ratios so near to 1 that they count as the same.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Band {
    half_width_log: f64,
}

impl Band {
    /// ± `percent` %: the ratios from 1/(1 + p) to 1 + p.
    pub fn percent(percent: f64) -> Result<Self, StatsError> {
        check_positive("the equivalence band in percent", percent)?;
        Ok(Self {
            half_width_log: (percent / 100.0).ln_1p(),
        })
    }

    /// No band: every difference counts, and nothing is ever the same.
    pub fn none() -> Self {
        Self {
            half_width_log: 0.0,
        }
    }

    /// Lower end, as a ratio.
    pub fn low(self) -> f64 {
        (-self.half_width_log).exp()
    }

    /// Upper end, as a ratio.
    pub fn high(self) -> f64 {
        self.half_width_log.exp()
    }

    fn holds(self, interval: &Interval) -> bool {
        self.half_width_log > 0.0 && interval.low >= self.low() && interval.high <= self.high()
    }
}

impl Default for Band {
    /// ± 2 %.
    fn default() -> Self {
        Self {
            half_width_log: 0.02f64.ln_1p(),
        }
    }
}

/// The answer about one figure at one point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The interval excludes 1 on the better side and is not all inside the band.
    Faster,
    /// The interval excludes 1 on the worse side and is not all inside the band.
    Slower,
    /// The whole interval lies inside the band. It may still exclude 1: a difference that is
    /// real and too small to matter.
    Same,
    /// The interval holds 1 and reaches out of the band: more pairs are needed.
    Unresolved,
}

impl Verdict {
    /// The verdict on an interval of the ratio B/A.
    pub fn of(interval: &Interval, direction: Direction, band: Band) -> Self {
        if band.holds(interval) {
            return Self::Same;
        }
        if interval.low > 1.0 {
            direction.word(true)
        } else if interval.high < 1.0 {
            direction.word(false)
        } else {
            Self::Unresolved
        }
    }

    /// Whether more pairs could not change what is said.
    pub fn is_conclusive(self) -> bool {
        self != Self::Unresolved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(low: f64, high: f64) -> Interval {
        Interval {
            low,
            high,
            level: 0.95,
        }
    }

    #[test]
    fn every_case_has_its_word() {
        use Direction::{HigherIsBetter, LowerIsBetter};
        let table = [
            (1.03, 1.09, Verdict::Faster, Verdict::Slower),
            (0.90, 0.97, Verdict::Slower, Verdict::Faster),
            (0.99, 1.015, Verdict::Same, Verdict::Same),
            (1.001, 1.015, Verdict::Same, Verdict::Same),
            (1.01, 1.04, Verdict::Faster, Verdict::Slower),
            (0.97, 1.04, Verdict::Unresolved, Verdict::Unresolved),
            (0.999, 1.03, Verdict::Unresolved, Verdict::Unresolved),
        ];
        for (low, high, for_tps, for_latency) in table {
            let interval = interval(low, high);
            assert_eq!(
                Verdict::of(&interval, HigherIsBetter, Band::default()),
                for_tps,
                "{interval:?}"
            );
            assert_eq!(
                Verdict::of(&interval, LowerIsBetter, Band::default()),
                for_latency,
                "{interval:?}"
            );
        }
    }

    #[test]
    fn the_band_is_symmetric_and_may_be_absent() {
        let band = Band::percent(2.0).unwrap();
        assert!(
            (band.low() * band.high() - 1.0).abs() < 1e-15 && (band.high() - 1.02).abs() < 1e-12
        );
        let tiny = interval(0.9999, 1.0001);
        assert_eq!(
            Verdict::of(&tiny, Direction::HigherIsBetter, Band::none()),
            Verdict::Unresolved
        );
        assert!(Band::percent(-1.0).is_err() && Band::percent(f64::NAN).is_err());
        assert!(Verdict::Same.is_conclusive() && !Verdict::Unresolved.is_conclusive());
    }
}
