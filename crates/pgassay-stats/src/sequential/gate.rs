//! A gate for builds: fails if B is slower than a limit, passes if it is not, and is otherwise inconclusive.
//!
//! The gate asks one question of a comparison's interval: on which side of the limit it lies. There is no test
//! for a difference: a build that is surely slower by 1% passes a limit of 5%. Each wrong answer has a probability
//! of at most α/2, 2.5%. An improvement is reported from the same interval and costs no α either.
//!
//! Invariant: the first answer stands, because the interval only narrows; a comparison that becomes unstable has
//! none.

use std::cmp::Ordering;

use super::comparison::SequentialComparison;
use super::futility::Outlook;
use super::path::LogRange;
use crate::error::StatsError;
use crate::verdict::Direction;

/// The answer of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateAnswer {
    /// The whole interval is beyond the limit.
    Regression,
    /// The whole interval is on the near side of the limit.
    Pass,
    /// The interval contains the limit, so far or at the last analysis; or the comparison is unstable.
    Inconclusive,
}

/// A rule such as `slower > 5%`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateRule {
    limit_log: f64,
}

impl GateRule {
    /// Fails if B is slower by more than `percent`%: if its times are more than (1 + p) times as long, or its
    /// rates less than 1/(1 + p) of A's. 0 fails at any slowdown, −3 unless B is faster by 3%.
    ///
    /// # Errors
    /// `percent` is −100 or less, or not finite.
    pub fn slower_than(percent: f64) -> Result<Self, StatsError> {
        let ratio = 1.0 + percent / 100.0;
        crate::error::check_positive("the limit of the gate, as a ratio,", ratio)?;
        Ok(Self {
            limit_log: ratio.ln(),
        })
    }

    /// The limit as a ratio B/A.
    pub fn threshold(self, direction: Direction) -> f64 {
        self.threshold_log(direction).exp()
    }

    /// The answer from the pairs so far, at the plan's α.
    pub fn answer(self, comparison: &SequentialComparison) -> GateAnswer {
        self.answer_on(comparison.range(), comparison.plan().direction)
    }

    /// The answer at another α up to 0.1: α/K for a gate of K comparisons of which none may fail by mistake.
    pub fn answer_at(
        self,
        comparison: &SequentialComparison,
        alpha: f64,
    ) -> Result<GateAnswer, StatsError> {
        let critical = comparison.plan().schedule.critical_values(alpha)?;
        let range = comparison.range_at(&critical);
        Ok(self.answer_on(range, comparison.plan().direction))
    }

    /// What to expect of the rest of a comparison without an answer at this α; `None` if there is one, if α is not in
    /// (0, 0.1], and before there is enough to judge by.
    pub fn outlook(self, comparison: &SequentialComparison, alpha: f64) -> Option<Outlook> {
        let direction = comparison.plan().direction;
        let critical = comparison.plan().schedule.critical_values(alpha).ok()?;
        let is_answered =
            |[range]: [LogRange; 1]| self.answer_on(range, direction) != GateAnswer::Inconclusive;
        if is_answered([comparison.range_at(&critical)]) {
            return None;
        }
        let goals = |mean: f64| [((mean - self.threshold_log(direction)).abs(), &critical)];
        Outlook::of_question(comparison, [&critical], is_answered, goals)
    }

    pub(super) fn answer_on(self, range: LogRange, direction: Direction) -> GateAnswer {
        let beyond = match direction {
            Direction::LowerIsBetter => Ordering::Greater,
            Direction::HigherIsBetter => Ordering::Less,
        };
        match range.side_of(self.threshold_log(direction)) {
            None => GateAnswer::Inconclusive,
            Some(side) if side == beyond => GateAnswer::Regression,
            Some(_) => GateAnswer::Pass,
        }
    }

    fn threshold_log(self, direction: Direction) -> f64 {
        match direction {
            Direction::LowerIsBetter => self.limit_log,
            Direction::HigherIsBetter => -self.limit_log,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pairs::Pair;
    use crate::random::SplitMix64;
    use crate::sequential::{AnalysisSchedule, SequentialPlan};

    fn run(direction: Direction, mean: f64, sd: f64, pairs: usize) -> SequentialComparison {
        let plan = SequentialPlan::new(AnalysisSchedule::Pairs, direction);
        let mut running = SequentialComparison::new(plan).unwrap();
        let mut stream = SplitMix64::new(5);
        for _ in 0..pairs {
            let variant = (mean + sd * stream.next_normal()).exp();
            let pair = Pair {
                baseline: 1.0,
                variant,
            };
            running.push(&[pair]).unwrap();
        }
        running
    }

    #[test]
    fn the_side_of_the_limit_is_the_answer_in_either_direction() {
        use Direction::{HigherIsBetter, LowerIsBetter};
        let rule = GateRule::slower_than(5.0).unwrap();
        assert!((rule.threshold(LowerIsBetter) - 1.05).abs() < 1e-12);
        assert!((rule.threshold(HigherIsBetter) - 1.0 / 1.05).abs() < 1e-12);
        for (direction, mean, expected) in [
            (LowerIsBetter, 0.10, GateAnswer::Regression),
            (LowerIsBetter, 0.01, GateAnswer::Pass),
            (LowerIsBetter, -0.10, GateAnswer::Pass),
            (LowerIsBetter, 1.05f64.ln(), GateAnswer::Inconclusive),
            (HigherIsBetter, -0.10, GateAnswer::Regression),
            (HigherIsBetter, -0.01, GateAnswer::Pass),
            (HigherIsBetter, 0.10, GateAnswer::Pass),
            (HigherIsBetter, -1.05f64.ln(), GateAnswer::Inconclusive),
        ] {
            let running = run(direction, mean, 0.01, 24);
            assert_eq!(rule.answer(&running), expected, "{direction:?} {mean}");
        }
        let none = run(LowerIsBetter, 0.1, 0.01, 3);
        assert_eq!(rule.answer(&none), GateAnswer::Inconclusive);
    }

    #[test]
    fn slower_by_less_than_the_limit_passes_and_a_stricter_level_needs_more() {
        let running = run(Direction::LowerIsBetter, 0.01, 0.003, 12);
        assert!(running.p_value().value().is_some());
        let rule = GateRule::slower_than(1.5).unwrap();
        assert_eq!(rule.answer(&running), GateAnswer::Pass);
        let strict = rule.answer_at(&running, 1e-5).unwrap();
        assert_eq!(strict, GateAnswer::Inconclusive);
        assert!(GateRule::slower_than(0.0).is_ok() && GateRule::slower_than(-100.0).is_err());
        assert!(GateRule::slower_than(f64::NAN).is_err());
    }

    #[test]
    fn a_comparison_near_the_limit_is_futile() {
        let rule = GateRule::slower_than(5.0).unwrap();
        let near = run(Direction::LowerIsBetter, 0.05, 0.08, 20);
        let outlook = rule.outlook(&near, 0.05).unwrap();
        assert!(outlook.chance < 0.3, "{outlook:?}");
        assert_eq!(
            rule.outlook(&run(Direction::LowerIsBetter, 0.2, 0.01, 20), 0.05),
            None
        );
    }
}
