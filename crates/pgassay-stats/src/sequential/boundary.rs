//! When interim analyses take place, and how large |t| must be at each of them.
//!
//! The analyses of a comparison share one α. After n of at most N units they have spent α·n/N together: the
//! power family of spending functions with exponent 1 (Kim and DeMets, "Design and analysis of group
//! sequential tests based on the type I error spending rate function", 1987; Lan and DeMets, 1983). The
//! critical values are those of Student's t, not of a known variance: with the latter, 5% would be 5.4%
//! (23 analyses of pairs) or 5.8% (9 analyses of units).
//!
//! Between the tabulated levels, ln α is interpolated on ln p, where p is the nominal two-sided p-value of
//! |t|. Below the last level each analysis has exactly the α that it may spend (Bonferroni's inequality), which
//! is valid and a little conservative.
//!
//! Invariant: [`AnalysisSchedule::p_value`] is at most α exactly if |t| is at least the critical value for α.

// A name of the literature is not code.
#![allow(clippy::doc_markdown)]

use super::table::{BY_PAIRS, BY_UNITS, FAMILY_ALPHAS};
use crate::distribution::{t_quantile, t_two_sided};
use crate::error::{StatsError, check_probability};

/// The largest α of a comparison: the first row of the tables.
pub const FAMILY_ALPHA_MAX: f64 = FAMILY_ALPHAS[0];

/// The planned analyses of a comparison; fixed before its first trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AnalysisSchedule {
    /// After every block of two pairs, from 4 to 48 pairs. The verdict is about the observed server starts.
    Pairs,
    /// After every unit, from 4 to 12. A unit is the mean of the pairs that share a state: a server start, a
    /// data layout, a wide block of correlated pairs.
    Units,
}

impl AnalysisSchedule {
    /// What its units are, in the plural.
    pub fn unit_name(self) -> &'static str {
        match self {
            Self::Pairs => "pairs",
            Self::Units => "server starts",
        }
    }

    /// Number of units (pairs, with [`AnalysisSchedule::Pairs`]) at the first analysis.
    pub fn first(self) -> usize {
        4
    }

    /// Units between two analyses.
    pub fn step(self) -> usize {
        match self {
            Self::Pairs => 2,
            Self::Units => 1,
        }
    }

    /// Number of units at the last analysis.
    pub fn cap(self) -> usize {
        match self {
            Self::Pairs => 48,
            Self::Units => 12,
        }
    }

    /// Number of analyses.
    pub fn analyses(self) -> usize {
        (self.cap() - self.first()) / self.step() + 1
    }

    /// Number of units at an analysis, counted from 0.
    pub fn units_at(self, analysis: usize) -> usize {
        self.first() + analysis * self.step()
    }

    /// The analysis after this number of units, if there is one.
    pub fn analysis_at(self, units: usize) -> Option<usize> {
        let beyond_first = units.checked_sub(self.first())?;
        let is_planned = units <= self.cap() && beyond_first.is_multiple_of(self.step());
        is_planned.then(|| beyond_first / self.step())
    }

    /// The critical |t| of every analysis for the level `alpha` of the whole comparison.
    ///
    /// # Errors
    /// `alpha` is not positive, or above [`FAMILY_ALPHA_MAX`].
    pub fn critical_values(self, alpha: f64) -> Result<CriticalValues, StatsError> {
        check_probability("alpha", alpha)?;
        if alpha > FAMILY_ALPHA_MAX * (1.0 + SAME) {
            return Err(StatsError::AlphaAboveTable {
                alpha,
                alpha_max: FAMILY_ALPHA_MAX,
            });
        }
        let values = (0..self.analyses()).map(|analysis| self.critical_value(analysis, alpha));
        Ok(CriticalValues {
            schedule: self,
            alpha,
            values: values.collect(),
        })
    }

    /// The smallest α of a comparison at which an analysis with this |t| excludes 0.
    pub fn p_value(self, analysis: usize, t: f64) -> SequentialP {
        let t = t.abs();
        let passed = (0..FAMILY_ALPHAS.len())
            .take_while(|row| t >= self.tabulated(*row, analysis))
            .count();
        if passed == 0 {
            return SequentialP::ABOVE_TABLE;
        }
        let nominal = t_two_sided(t, self.degrees_of_freedom(analysis));
        let Some(below) = FAMILY_ALPHAS.get(passed) else {
            let spent = nominal / self.share_spent(analysis);
            return SequentialP(spent.min(FAMILY_ALPHAS[passed - 1]));
        };
        let above = FAMILY_ALPHAS[passed - 1];
        let [from, to] = [passed - 1, passed].map(|row| self.nominal(row, analysis).ln());
        let share = (nominal.ln() - from) / (to - from);
        SequentialP((above.ln() + share * (below.ln() - above.ln())).exp())
    }

    fn critical_value(self, analysis: usize, alpha: f64) -> f64 {
        let is_row = |row: &f64| (alpha / row - 1.0).abs() < SAME;
        if let Some(row) = FAMILY_ALPHAS.iter().position(is_row) {
            return self.tabulated(row, analysis);
        }
        let df = self.degrees_of_freedom(analysis);
        // The lower quantile, because 1 − p/2 has no digits left for a small p.
        let quantile = |nominal: f64| -t_quantile(nominal / 2.0, df);
        let Some(below) = FAMILY_ALPHAS.iter().position(|row| *row < alpha) else {
            let last = self.tabulated(FAMILY_ALPHAS.len() - 1, analysis);
            return quantile(alpha * self.share_spent(analysis)).max(last);
        };
        let [from, to] = [below - 1, below].map(|row| FAMILY_ALPHAS[row].ln());
        let [p_from, p_to] = [below - 1, below].map(|row| self.nominal(row, analysis).ln());
        let share = (alpha.ln() - from) / (to - from);
        quantile((p_from + share * (p_to - p_from)).exp())
    }

    fn tabulated(self, row: usize, analysis: usize) -> f64 {
        match self {
            Self::Pairs => BY_PAIRS[row][analysis],
            Self::Units => BY_UNITS[row][analysis],
        }
    }

    /// The two-sided p-value of a tabulated value, as if it were the only analysis.
    fn nominal(self, row: usize, analysis: usize) -> f64 {
        t_two_sided(
            self.tabulated(row, analysis),
            self.degrees_of_freedom(analysis),
        )
    }

    fn degrees_of_freedom(self, analysis: usize) -> f64 {
        (self.units_at(analysis) - 1) as f64
    }

    /// The share of α that becomes available at this analysis.
    fn share_spent(self, analysis: usize) -> f64 {
        let units = if analysis == 0 {
            self.first()
        } else {
            self.step()
        };
        units as f64 / self.cap() as f64
    }
}

/// Levels whose ratio differs from 1 by less than this are the same.
const SAME: f64 = 1e-9;

/// The critical |t| of every analysis of a schedule at one level.
#[derive(Debug, Clone, PartialEq)]
pub struct CriticalValues {
    schedule: AnalysisSchedule,
    alpha: f64,
    values: Vec<f64>,
}

impl CriticalValues {
    /// The schedule.
    pub fn schedule(&self) -> AnalysisSchedule {
        self.schedule
    }

    /// The two-sided α of all analyses together.
    pub fn alpha(&self) -> f64 {
        self.alpha
    }

    /// One value for each analysis, from the first to the last.
    pub fn values(&self) -> &[f64] {
        &self.values
    }
}

/// A sequential p-value: the smallest α at which the interval of a comparison excludes a value.
///
/// It never rises, and it is at most α exactly if the interval at the level 1 − α excludes the value. It is
/// not comparable with the p-value of an ordinary t-test, which would be too small after such stopping.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct SequentialP(f64);

impl SequentialP {
    /// Above [`FAMILY_ALPHA_MAX`], where the tables end.
    pub const ABOVE_TABLE: Self = Self(1.0);

    /// The value; `None` above the tables.
    pub fn value(self) -> Option<f64> {
        (self.0 <= FAMILY_ALPHA_MAX).then_some(self.0)
    }

    /// The value for a correction such as Holm's: 1 above the tables.
    pub fn or_one(self) -> f64 {
        self.0
    }

    /// The smaller of both.
    pub(crate) fn min(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }

    /// The larger of both.
    pub(crate) fn max(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }
}

impl std::fmt::Display for SequentialP {
    /// `> 0.1`, `0.032` or `< 0.00001`: two significant digits.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(value) = self.value() else {
            return write!(out, "> {FAMILY_ALPHA_MAX}");
        };
        if value < 0.00001 {
            return write!(out, "< 0.00001");
        }
        let decimals = (1.0 - value.log10().floor()) as usize;
        write!(out, "{value:.decimals$}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;
    use crate::sequential::path::Moments;

    const SCHEDULES: [AnalysisSchedule; 2] = [AnalysisSchedule::Pairs, AnalysisSchedule::Units];

    #[test]
    fn analyses_follow_every_block_and_every_unit() {
        let pairs = AnalysisSchedule::Pairs;
        assert_eq!((pairs.analyses(), pairs.units_at(22)), (23, 48));
        let found: Vec<_> = [2, 4, 5, 6, 48, 50].map(|n| pairs.analysis_at(n)).into();
        assert_eq!(found, [None, Some(0), None, Some(1), Some(22), None]);
        let units = AnalysisSchedule::Units;
        assert_eq!((units.analyses(), units.units_at(8)), (9, 12));
        assert_eq!(
            [3, 4, 12, 13].map(|n| units.analysis_at(n).is_some()),
            [false, true, true, false]
        );
    }

    #[test]
    fn the_first_analysis_has_the_quantile_of_its_share() {
        for schedule in SCHEDULES {
            for (row, alpha) in FAMILY_ALPHAS.iter().enumerate() {
                let share = schedule.first() as f64 / schedule.cap() as f64;
                let exact = -t_quantile(alpha * share / 2.0, 3.0);
                let found = schedule.tabulated(row, 0);
                assert!(
                    (found / exact - 1.0).abs() < 5e-4,
                    "{alpha}: {found} {exact}"
                );
            }
        }
    }

    #[test]
    fn p_values_and_critical_values_are_inverse_at_every_level() {
        let alphas = [
            0.1,
            0.07,
            0.05,
            0.03,
            0.005,
            0.05 / 18.0,
            0.002,
            0.001,
            5e-4,
            3e-5,
            1e-5,
            1e-7,
            1e-10,
        ];
        for schedule in SCHEDULES {
            for alpha in alphas {
                let critical = schedule.critical_values(alpha).unwrap();
                assert!(critical.values().is_sorted_by(|left, right| left > right));
                for (analysis, t) in critical.values().iter().enumerate() {
                    let p = |t: f64| schedule.p_value(analysis, t).or_one();
                    // Just below a critical value the p-value is above α. Below the tables there is a step.
                    assert!(p(t * 1.000_001) <= alpha, "{alpha} {analysis}");
                    assert!(p(t * 0.999_999) > alpha, "{alpha} {analysis}");
                }
            }
            assert!(schedule.critical_values(0.11).is_err());
            assert!(schedule.critical_values(0.0).is_err());
            assert_eq!(schedule.p_value(0, 0.3), SequentialP::ABOVE_TABLE);
            assert!(schedule.p_value(0, f64::INFINITY).or_one() <= 0.0);
        }
    }

    #[test]
    fn p_values_have_two_digits_or_are_beyond_the_table() {
        let shown = [1.0, 0.1, 0.0512, 0.0324, 0.00241, 0.000_011, 3e-7]
            .map(|value| SequentialP(value).to_string());
        assert_eq!(
            shown,
            [
                "> 0.1",
                "0.10",
                "0.051",
                "0.032",
                "0.0024",
                "0.000011",
                "< 0.00001"
            ]
        );
    }

    /// Shares of simulated comparisons without a difference that exclude 0 by the given analyses.
    fn crossed(
        schedule: AnalysisSchedule,
        critical: &[f64],
        at: &[usize],
        paths: usize,
    ) -> Vec<f64> {
        let mut stream = SplitMix64::new(48);
        let mut hits = vec![0_usize; critical.len()];
        for _ in 0..paths {
            let mut moments = Moments::default();
            for units in 1..=schedule.cap() {
                moments.push(stream.next_normal());
                let Some(analysis) = schedule.analysis_at(units) else {
                    continue;
                };
                if moments.mean().abs() > critical[analysis] * moments.std_err() {
                    hits[analysis] += 1;
                    break;
                }
            }
        }
        let by = |last: &usize| hits[..=*last].iter().sum::<usize>() as f64 / paths as f64;
        at.iter().map(by).collect()
    }

    #[test]
    fn simulated_comparisons_cross_the_tabulated_values_as_often_as_planned() {
        let paths = 20_000;
        for (schedule, at) in [
            (AnalysisSchedule::Pairs, [0, 2, 8, 22]),
            (AnalysisSchedule::Units, [0, 1, 4, 8]),
        ] {
            for alpha in [0.1, 0.05, 0.03] {
                let critical = schedule.critical_values(alpha).unwrap();
                let shares = |scale: f64| {
                    let values: Vec<f64> = critical.values().iter().map(|c| c * scale).collect();
                    crossed(schedule, &values, &at, paths)
                };
                let excess = |shares: Vec<f64>| {
                    let planned = at.map(|analysis| {
                        alpha * schedule.units_at(analysis) as f64 / schedule.cap() as f64
                    });
                    let of_one = |(share, planned): (f64, f64)| {
                        (share - planned) / (planned * (1.0 - planned) / paths as f64).sqrt()
                    };
                    shares
                        .into_iter()
                        .zip(planned)
                        .map(of_one)
                        .collect::<Vec<f64>>()
                };
                let found = excess(shares(1.0));
                assert!(found.iter().all(|it| it.abs() < 3.0), "{alpha} {found:?}");
                // The same check notices a table that is 5% off.
                let low = excess(shares(0.95));
                assert!(low.iter().any(|it| *it > 3.0), "{alpha} {low:?}");
            }
        }
    }
}
