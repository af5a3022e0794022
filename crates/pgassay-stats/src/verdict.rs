//! The verdict for a single interval, given an equivalence margin.
//!
//! [`crate::family`] computes the verdicts of a study, whose comparisons share one error rate.
//!
//! Invariants: equivalence is a result (the whole interval lies within the margin), inconclusiveness is
//! the lack of one. Swapping A and B turns faster into slower and does not affect the other verdicts,
//! because the margin is symmetric in logarithms.

use crate::error::{StatsError, check_positive};
use crate::pairs::Interval;

/// Whether higher or lower figures are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// For transactions per second.
    HigherIsBetter,
    /// For latency or cost per transaction.
    LowerIsBetter,
}

impl Direction {
    /// The verdict for a ratio above or below 1.
    pub(crate) fn verdict_for(self, above: bool) -> FigureVerdict {
        if above == (self == Self::HigherIsBetter) {
            FigureVerdict::Faster
        } else {
            FigureVerdict::Slower
        }
    }
}

/// The equivalence margin: ratios close enough to 1 to count as equivalent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EquivalenceMargin {
    half_width_log: f64,
}

impl EquivalenceMargin {
    /// ±`percent`%: ratios from 1/(1 + p) to 1 + p.
    pub fn percent(percent: f64) -> Result<Self, StatsError> {
        check_positive("the equivalence margin in percent", percent)?;
        Ok(Self {
            half_width_log: (percent / 100.0).ln_1p(),
        })
    }

    /// No margin: every difference counts, and nothing is ever equivalent.
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

    /// Half its width in ln(B/A).
    pub(crate) fn half_width_log(self) -> f64 {
        self.half_width_log
    }

    /// Whether the whole interval lies within the margin.
    pub fn holds(self, interval: &Interval) -> bool {
        self.half_width_log > 0.0 && interval.low >= self.low() && interval.high <= self.high()
    }
}

impl Default for EquivalenceMargin {
    /// ±2%.
    fn default() -> Self {
        Self {
            half_width_log: 0.02f64.ln_1p(),
        }
    }
}

/// The verdict on one figure of one comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FigureVerdict {
    /// The interval excludes 1 on the better side and is not entirely within the margin.
    Faster,
    /// The interval excludes 1 on the worse side and is not entirely within the margin.
    Slower,
    /// Equivalent: the whole interval lies within the margin. It can still exclude 1: the difference is
    /// real but too small to matter.
    Equivalent,
    /// Inconclusive: the interval contains 1 and extends beyond the margin. More pairs are needed.
    Inconclusive,
}

impl FigureVerdict {
    /// The verdict on an interval of the ratio B/A.
    pub fn of(interval: &Interval, direction: Direction, band: EquivalenceMargin) -> Self {
        if band.holds(interval) {
            return Self::Equivalent;
        }
        if interval.low > 1.0 {
            direction.verdict_for(true)
        } else if interval.high < 1.0 {
            direction.verdict_for(false)
        } else {
            Self::Inconclusive
        }
    }

    /// Whether this is any verdict other than inconclusive.
    pub fn is_conclusive(self) -> bool {
        self != Self::Inconclusive
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
    fn every_case_has_its_verdict() {
        use Direction::{HigherIsBetter, LowerIsBetter};
        let table = [
            (1.03, 1.09, FigureVerdict::Faster, FigureVerdict::Slower),
            (0.90, 0.97, FigureVerdict::Slower, FigureVerdict::Faster),
            (
                0.99,
                1.015,
                FigureVerdict::Equivalent,
                FigureVerdict::Equivalent,
            ),
            (
                1.001,
                1.015,
                FigureVerdict::Equivalent,
                FigureVerdict::Equivalent,
            ),
            (1.01, 1.04, FigureVerdict::Faster, FigureVerdict::Slower),
            (
                0.97,
                1.04,
                FigureVerdict::Inconclusive,
                FigureVerdict::Inconclusive,
            ),
            (
                0.999,
                1.03,
                FigureVerdict::Inconclusive,
                FigureVerdict::Inconclusive,
            ),
        ];
        for (low, high, for_tps, for_latency) in table {
            let interval = interval(low, high);
            assert_eq!(
                FigureVerdict::of(&interval, HigherIsBetter, EquivalenceMargin::default()),
                for_tps,
                "{interval:?}"
            );
            assert_eq!(
                FigureVerdict::of(&interval, LowerIsBetter, EquivalenceMargin::default()),
                for_latency,
                "{interval:?}"
            );
        }
    }

    #[test]
    fn the_margin_is_symmetric_and_optional() {
        let band = EquivalenceMargin::percent(2.0).unwrap();
        assert!(
            (band.low() * band.high() - 1.0).abs() < 1e-15 && (band.high() - 1.02).abs() < 1e-12
        );
        let tiny = interval(0.9999, 1.0001);
        assert_eq!(
            FigureVerdict::of(&tiny, Direction::HigherIsBetter, EquivalenceMargin::none()),
            FigureVerdict::Inconclusive
        );
        assert!(
            EquivalenceMargin::percent(-1.0).is_err()
                && EquivalenceMargin::percent(f64::NAN).is_err()
        );
        assert!(
            FigureVerdict::Equivalent.is_conclusive()
                && !FigureVerdict::Inconclusive.is_conclusive()
        );
    }
}
