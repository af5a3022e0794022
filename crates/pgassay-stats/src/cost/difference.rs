//! The result of a comparison of costs.

use crate::dispersion::Dispersion;
use crate::pairs::Interval;

/// A row with a relative cost below this on one side counts as added or removed. The 2% allow for
/// occasional samples from a warm-up or another session.
const ABSENT_BELOW_SHARE: f64 = 0.02;
/// A row that is this share of all the time is not absent, however much more it was on the other side: if a variant is
/// 75 times as fast, all that is left of it is little of the baseline's.
const PRESENT_FROM_SHARE_OF_TOTAL: f64 = 0.01;

/// The cost of a row on one side.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// µs per transaction.
    pub us: f64,
    /// Number of samples, over all trials.
    pub samples: u64,
}

/// B minus A. Intervals are for this row alone; the class includes the correction for many rows.
#[derive(Debug, Clone, PartialEq)]
pub struct CostChange {
    /// Difference, µs per transaction.
    pub delta_us: f64,
    /// Its standard error, µs per transaction; `None` if descriptive.
    pub std_err_us: Option<f64>,
    /// Its interval, µs per transaction; `None` if descriptive.
    pub delta_interval_us: Option<Interval>,
    /// B/A; `None` if A has no samples.
    pub ratio: Option<f64>,
    /// Its interval; the upper end is infinite if A has no samples.
    pub ratio_interval: Option<Interval>,
}

/// How the cost of a row changed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ChangeClass {
    /// Added: it has a cost in B and almost none in A.
    Added,
    /// Increased in B.
    Increased,
    /// Decreased in B.
    Decreased,
    /// Removed: it has a cost in A and almost none in B.
    Removed,
    /// No significant change.
    Unchanged {
        /// A smaller change, in µs per transaction, would have been missed with a probability of 20% or
        /// more.
        detectable_us: f64,
    },
    /// One trial on a side, so no test is possible.
    Descriptive,
}

impl ChangeClass {
    /// What a significant change from A to B is called. The totals are those of all rows. Every table of costs has this
    /// rule, so that two tables do not call one row differently.
    pub fn of_significant([cost_a, cost_b]: [f64; 2], [total_a, total_b]: [f64; 2]) -> Self {
        let is_absent = |cost: f64, other: f64, total: f64| {
            cost <= ABSENT_BELOW_SHARE * other && cost <= PRESENT_FROM_SHARE_OF_TOTAL * total
        };
        if is_absent(cost_a, cost_b, total_a) {
            Self::Added
        } else if is_absent(cost_b, cost_a, total_b) {
            Self::Removed
        } else if cost_b > cost_a {
            Self::Increased
        } else {
            Self::Decreased
        }
    }
}

/// One row of the difference.
#[derive(Debug, Clone, PartialEq)]
pub struct RowDifference {
    /// The baseline's cost.
    pub a: Cost,
    /// The variant's cost.
    pub b: Cost,
    /// B minus A.
    pub change: CostChange,
    /// p-value of this row alone; 1 if descriptive.
    pub p_value: f64,
    /// p-value corrected for the number of rows.
    pub p_adjusted: f64,
    /// How the cost changed.
    pub class: ChangeClass,
}

/// The difference of two profiles.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfileDifference {
    /// The rows, in the order of the table.
    pub rows: Vec<RowDifference>,
    /// Exact total of A, µs per transaction.
    pub total_a_us: f64,
    /// Exact total of B, µs per transaction.
    pub total_b_us: f64,
    /// Change of the total.
    pub total: CostChange,
    /// Noise of shares between trials; `None` with a single trial on a side.
    pub dispersion: Option<Dispersion>,
}

/// The differences of groups (subsystems) and of the rows (functions) in them.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupedDifference {
    /// One row per group, with Holm's correction.
    pub groups: ProfileDifference,
    /// One row per function, with Benjamini and Hochberg's correction within changed groups.
    pub rows: ProfileDifference,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: with an index, `execute` was "removed" although it was half of the time that was left.
    #[test]
    fn a_row_with_half_of_the_time_that_is_left_is_not_removed() {
        let class = ChangeClass::of_significant;
        let [before, after] = [50_672.0, 383.4];
        assert_eq!(
            class([before, after], [54_000.0, 719.0]),
            ChangeClass::Decreased
        );
        assert_eq!(
            class([before, after], [54_000.0, 51_000.0]),
            ChangeClass::Removed
        );
        assert_eq!(
            class([after, before], [719.0, 54_000.0]),
            ChangeClass::Increased
        );
        assert_eq!(
            class([after, before], [51_000.0, 54_000.0]),
            ChangeClass::Added
        );
        assert_eq!(class([5.0, 0.0], [9.0, 4.0]), ChangeClass::Removed);
    }
}
