//! The interval of ln(B/A) over a growing number of units, and simulated continuations.

use super::boundary::CriticalValues;
use crate::pairs::Interval;
use crate::random::SplitMix64;

/// An interval of ln(B/A).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LogRange {
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl LogRange {
    /// No information.
    pub(crate) const EVERYTHING: Self = Self {
        low: f64::NEG_INFINITY,
        high: f64::INFINITY,
    };

    pub(crate) fn around(mean: f64, half_width: f64) -> Self {
        Self {
            low: mean - half_width,
            high: mean + half_width,
        }
    }

    pub(crate) fn intersection(self, other: Self) -> Self {
        Self {
            low: self.low.max(other.low),
            high: self.high.min(other.high),
        }
    }

    pub(crate) fn is_empty(self) -> bool {
        self.low > self.high
    }

    /// Which side of `value` the whole interval is on; `None` if it contains the value or is empty.
    pub(crate) fn side_of(self, value: f64) -> Option<std::cmp::Ordering> {
        if self.is_empty() {
            None
        } else if self.low > value {
            Some(std::cmp::Ordering::Greater)
        } else if self.high < value {
            Some(std::cmp::Ordering::Less)
        } else {
            None
        }
    }

    /// Whether it lies within ±`margin_log`; never, without a margin.
    pub(crate) fn is_within(self, margin_log: f64) -> bool {
        margin_log > 0.0 && !self.is_empty() && self.low >= -margin_log && self.high <= margin_log
    }

    /// As ratios; `None` if empty.
    pub(crate) fn to_interval(self, alpha: f64) -> Option<Interval> {
        (!self.is_empty()).then(|| Interval {
            low: self.low.exp(),
            high: self.high.exp(),
            level: 1.0 - alpha,
        })
    }
}

/// Number, mean and sum of squared deviations of values (Welford, "Note on a method for calculating corrected
/// sums of squares and products", 1962).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Moments {
    count: usize,
    mean: f64,
    squares: f64,
}

impl Moments {
    pub(crate) fn of(values: &[f64]) -> Self {
        let mut moments = Self::default();
        for value in values {
            moments.push(*value);
        }
        moments
    }

    pub(crate) fn push(&mut self, value: f64) {
        self.count += 1;
        let from_old_mean = value - self.mean;
        self.mean += from_old_mean / self.count as f64;
        self.squares += from_old_mean * (value - self.mean);
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn mean(&self) -> f64 {
        self.mean
    }

    /// Sample standard deviation (n − 1); 0 for fewer than two values.
    pub(crate) fn sd(&self) -> f64 {
        (self.squares / (self.count.max(2) - 1) as f64).sqrt()
    }

    /// Standard error of the mean.
    pub(crate) fn std_err(&self) -> f64 {
        self.sd() / (self.count as f64).sqrt()
    }
}

/// A simulated comparison, or the continuation of a real one, with an interval at each of its levels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SimulatedPath<const LEVELS: usize> {
    pub(crate) moments: Moments,
    pub(crate) ranges: [LogRange; LEVELS],
}

impl<const LEVELS: usize> SimulatedPath<LEVELS> {
    /// A comparison without any unit.
    pub(crate) const NEW: Self = Self {
        moments: Moments {
            count: 0,
            mean: 0.0,
            squares: 0.0,
        },
        ranges: [LogRange::EVERYTHING; LEVELS],
    };

    /// Adds normal units with this mean and standard deviation until an analysis gives an answer. Returns the
    /// answer and the number of units; `None` if there is none by the last analysis. The levels have one schedule.
    pub(crate) fn first_answer<Answer>(
        mut self,
        stream: &mut SplitMix64,
        levels: [&CriticalValues; LEVELS],
        [mean, sd]: [f64; 2],
        answer: impl Fn([LogRange; LEVELS]) -> Option<Answer>,
    ) -> Option<(Answer, usize)> {
        let schedule = levels.first()?.schedule();
        while self.moments.count < schedule.cap() {
            self.moments.push(mean + sd * stream.next_normal());
            let Some(analysis) = schedule.analysis_at(self.moments.count) else {
                continue;
            };
            for (range, critical) in self.ranges.iter_mut().zip(levels) {
                let half_width = critical.values()[analysis] * self.moments.std_err();
                *range = range.intersection(LogRange::around(self.moments.mean, half_width));
            }
            if let Some(answer) = answer(self.ranges) {
                return Some((answer, self.moments.count));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pairs::mean_and_sd;
    use std::cmp::Ordering;

    #[test]
    fn moments_are_those_of_all_values() {
        let values = [0.3, -0.1, 0.25, 7.0, -3.0];
        let (mean, sd) = mean_and_sd(&values);
        let moments = Moments::of(&values);
        assert!((moments.mean() - mean).abs() < 1e-12 && (moments.sd() - sd).abs() < 1e-12);
        assert!((moments.std_err() - sd / 5f64.sqrt()).abs() < 1e-12);
        assert!(Moments::of(&[1.0]).sd().abs() < 1e-12);
    }

    #[test]
    fn an_empty_range_is_on_no_side_and_within_no_margin() {
        let range = LogRange::around(0.05, 0.01);
        assert_eq!(range.side_of(0.0), Some(Ordering::Greater));
        assert_eq!(range.side_of(0.07), Some(Ordering::Less));
        assert_eq!(range.side_of(0.05), None);
        assert!(range.is_within(0.0601) && !range.is_within(0.05) && !range.is_within(0.0));
        let empty = range.intersection(LogRange::around(0.0, 0.01));
        assert!(empty.is_empty() && !empty.is_within(1.0));
        assert_eq!(empty.side_of(-1.0), None);
        assert_eq!(empty.to_interval(0.05), None);
    }
}
