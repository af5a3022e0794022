//! Figures with their intervals, and the outcome of relations between them.
//!
//! Figures are combined by interval arithmetic, as if all errors could be at their worst at once. An
//! expression's interval is therefore never too narrow: a check is inconclusive rather than wrong.

use pgassay_model::expression::Relation;
use pgassay_record::expectation::CheckOutcome;

/// A figure and its confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct MeasuredValue {
    /// The point estimate.
    pub point: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl MeasuredValue {
    /// A number without error.
    pub fn exact(point: f64) -> Self {
        Self {
            point,
            low: point,
            high: point,
        }
    }

    /// A figure with unknown noise: its interval is unbounded.
    pub fn without_interval(point: f64) -> Self {
        Self {
            point,
            low: f64::NEG_INFINITY,
            high: f64::INFINITY,
        }
    }

    /// A figure with an interval, extended to contain the figure.
    pub fn within(point: f64, [low, high]: [f64; 2]) -> Self {
        Self {
            point,
            low: low.min(point),
            high: high.max(point),
        }
    }

    /// The interval, if its ends are finite and differ.
    pub fn interval(&self) -> Option<[f64; 2]> {
        let is_one = self.low.is_finite() && self.high.is_finite() && self.low < self.high;
        is_one.then_some([self.low, self.high])
    }

    /// `+`, `-`, `*` or `/`.
    pub fn combined(self, sign: char, other: Self) -> Self {
        match sign {
            '+' => self.ends(other, |a, b| a + b),
            '-' => self.ends(other, |a, b| a - b),
            '*' => self.ends(other, |a, b| a * b),
            // A divisor that may be 0 allows any quotient.
            _ if other.low <= 0.0 && other.high >= 0.0 => {
                Self::without_interval(self.point / other.point)
            }
            _ => self.ends(other, |a, b| a / b),
        }
    }

    fn ends(self, other: Self, of: fn(f64, f64) -> f64) -> Self {
        let all = [
            of(self.low, other.low),
            of(self.low, other.high),
            of(self.high, other.low),
            of(self.high, other.high),
        ];
        let point = of(self.point, other.point);
        // Arithmetic with infinite ends may yield NaN.
        if all.iter().any(|end| end.is_nan()) {
            return Self::without_interval(point);
        }
        Self {
            point,
            low: all.iter().copied().fold(f64::INFINITY, f64::min),
            high: all.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

/// `Met` if the whole interval meets the relation, `NotMet` if the whole interval misses it.
pub(super) fn outcome(
    left: MeasuredValue,
    relation: &Relation,
    right: MeasuredValue,
) -> CheckOutcome {
    let (met, missed) = match relation {
        Relation::Less => (left.high < right.low, left.low >= right.high),
        Relation::LessOrEqual => (left.high <= right.low, left.low > right.high),
        Relation::More => (left.low > right.high, left.high <= right.low),
        Relation::MoreOrEqual => (left.low >= right.high, left.high < right.low),
        Relation::Within(share) => {
            let ratio = left.combined('/', right);
            let (least, most) = (1.0 - share, 1.0 + share);
            let is_inside = ratio.low >= least && ratio.high <= most;
            (is_inside, ratio.high < least || ratio.low > most)
        }
        Relation::Is(_) => (false, false),
    };
    match (met, missed) {
        (true, _) => CheckOutcome::Met,
        (_, true) => CheckOutcome::NotMet,
        _ => CheckOutcome::Inconclusive,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(point: f64, low: f64, high: f64) -> MeasuredValue {
        MeasuredValue::within(point, [low, high])
    }

    /// 2.05 exceeds a limit of 1.2, but its interval is 0.17 to 24.9.
    #[test]
    fn a_point_estimate_inside_is_inconclusive_while_its_interval_reaches_out() {
        let limit = MeasuredValue::exact(1.2);
        let wide = within(2.05, 0.17, 24.9);
        assert_eq!(
            outcome(wide, &Relation::More, limit),
            CheckOutcome::Inconclusive
        );
        assert_eq!(
            outcome(wide, &Relation::Less, limit),
            CheckOutcome::Inconclusive
        );
        let narrow = within(2.05, 1.9, 2.2);
        assert_eq!(outcome(narrow, &Relation::More, limit), CheckOutcome::Met);
        assert_eq!(
            outcome(narrow, &Relation::Less, limit),
            CheckOutcome::NotMet
        );
        let unknown = MeasuredValue::without_interval(2.05);
        let outcome = outcome(unknown, &Relation::More, limit);
        assert_eq!(outcome, CheckOutcome::Inconclusive);
    }

    #[test]
    fn within_needs_the_whole_interval_inside_or_outside() {
        let near = Relation::Within(0.2);
        let one = MeasuredValue::exact(1.0);
        assert_eq!(
            outcome(within(1.0, 0.9, 1.1), &near, one),
            CheckOutcome::Met
        );
        let reaching = within(1.0, 0.7, 1.1);
        assert_eq!(outcome(reaching, &near, one), CheckOutcome::Inconclusive);
        assert_eq!(
            outcome(within(1.5, 1.3, 1.7), &near, one),
            CheckOutcome::NotMet
        );
    }

    #[test]
    fn exact_figures_meet_or_miss_at_the_limit_itself() {
        let (zero, one) = (MeasuredValue::exact(0.0), MeasuredValue::exact(1.0));
        assert_eq!(
            outcome(zero, &Relation::LessOrEqual, zero),
            CheckOutcome::Met
        );
        assert_eq!(outcome(zero, &Relation::Less, zero), CheckOutcome::NotMet);
        assert_eq!(outcome(one, &Relation::MoreOrEqual, one), CheckOutcome::Met);
        assert_eq!(
            outcome(one, &Relation::LessOrEqual, zero),
            CheckOutcome::NotMet
        );
    }

    #[test]
    fn arithmetic_keeps_the_worst_of_both() {
        let (a, b) = (within(2.0, 1.0, 3.0), within(4.0, 2.0, 8.0));
        assert_eq!(a.combined('+', b).interval(), Some([3.0, 11.0]));
        assert_eq!(a.combined('-', b).interval(), Some([-7.0, 1.0]));
        assert_eq!(a.combined('*', b).interval(), Some([2.0, 24.0]));
        assert_eq!(a.combined('/', b).interval(), Some([0.125, 1.5]));
        let around_0 = within(0.5, -1.0, 1.0);
        assert_eq!(a.combined('/', around_0).interval(), None);
        let unknown = MeasuredValue::without_interval(5.0);
        let product = MeasuredValue::exact(0.0).combined('*', unknown);
        assert_eq!((product.point, product.interval()), (0.0, None));
        assert_eq!(
            MeasuredValue::exact(2.0)
                .combined('+', MeasuredValue::exact(3.0))
                .interval(),
            None
        );
    }
}
