//! Evaluates the expressions of a study on the figures of a run.

use std::collections::BTreeMap;

use pgassay_account::comparison::{Comparison, Inconclusive, PointSummary, Ratio};
use pgassay_account::cost_row::CostRow;
use pgassay_model::expression::{
    ExpectationCheck, Expression, Figure, Percentile, RatioFigure, Relation, Where, parse_check,
    parse_expression,
};
use pgassay_model::plan::{Plan, PointId};
use pgassay_model::profile::Profile;
use pgassay_model::study::Study;
use pgassay_model::trial::Trial;
use pgassay_record::expectation::{
    CheckOutcome, ExpectationOutcome, Reading, ReferenceFigure, ReferenceTable, WatchedFunction,
};

use super::blocks::{inclusive_share, of_counter, of_trials};
use super::interval::{MeasuredValue, outcome};

/// The results of a study's expectations and references.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Readings {
    /// Outcomes of the expectations, in the study's order.
    pub expectations: Vec<ExpectationOutcome>,
    /// The source's figures and the measured ones.
    pub reference: Option<ReferenceTable>,
    /// The functions that the study watches.
    pub watched: Vec<WatchedFunction>,
}

/// The data that expressions refer to.
struct ExpressionData<'a> {
    /// Whether the baseline is the study's. `--variant` can choose another, to which ratios then refer.
    has_baseline: bool,
    plan: &'a Plan,
    trials: &'a [Trial],
    points: &'a [PointSummary],
    comparisons: &'a [Comparison],
    profiles: &'a [Profile],
}

/// Evaluates a study's expectations and references. A figure that was not measured is `None`, never an
/// error.
pub fn read(
    study: &Study,
    plan: &Plan,
    trials: &[Trial],
    points: &[PointSummary],
    comparisons: &[Comparison],
    profiles: &[Profile],
) -> Readings {
    let baseline = study.variant.first().map(|it| &it.name);
    let measured = ExpressionData {
        has_baseline: baseline == plan.variants.first(),
        plan,
        trials,
        points,
        comparisons,
        profiles,
    };
    let expectations = study.expect.iter().map(|expected| {
        let readings = match parse_check(&expected.check) {
            Ok(check) => measured.readings(&check),
            Err(_) => Vec::new(),
        };
        let outcome = CheckOutcome::of_all(readings.iter().map(Reading::outcome));
        ExpectationOutcome {
            that: expected.that.clone(),
            check: expected.check.clone(),
            met: outcome.and_then(CheckOutcome::met),
            outcome,
            readings,
        }
    });
    Readings {
        expectations: expectations.collect(),
        reference: study.reference.as_ref().map(|it| measured.reference(it)),
        watched: measured.watched(&study.watch_functions),
    }
}

impl ExpressionData<'_> {
    /// The check under each of its conditions that was measured.
    fn readings(&self, check: &ExpectationCheck) -> Vec<Reading> {
        let conditions = 0..self.plan.conditions.len();
        conditions
            .filter(|condition| self.is_at(*condition, &check.conditions))
            .filter_map(|condition| self.reading(check, condition))
            .collect()
    }

    fn reading(&self, check: &ExpectationCheck, condition: usize) -> Option<Reading> {
        if let Relation::Is(name) = &check.relation {
            let (leading, outcome) = self.leading(&check.left, condition, name)?;
            return Some(Reading {
                condition,
                left: leading,
                right: name.clone(),
                left_interval: None,
                right_interval: None,
                met: outcome == CheckOutcome::Met,
                outcome: Some(outcome),
            });
        }
        let left = self.value(&check.left, condition)?;
        let right = self.value(check.right.as_ref()?, condition)?;
        let outcome = outcome(left, &check.relation, right);
        Some(Reading {
            condition,
            left: figure(left.point),
            right: figure(right.point),
            left_interval: left.interval(),
            right_interval: right.interval(),
            met: outcome == CheckOutcome::Met,
            outcome: Some(outcome),
        })
    }

    fn is_at(&self, condition: usize, wanted: &[Where]) -> bool {
        let condition = &self.plan.conditions[condition];
        wanted.iter().all(|it| it.holds(condition))
    }

    /// The condition that differs from this one by `changes`.
    fn other(&self, condition: usize, changes: &[Where]) -> Option<usize> {
        let mut wanted: BTreeMap<String, String> = self.plan.conditions[condition].values.clone();
        for change in changes {
            wanted.insert(change.name.clone(), change.values.first()?.clone());
        }
        let mut conditions = self.plan.conditions.iter();
        conditions.position(|other| other.values == wanted)
    }

    fn value(&self, expression: &Expression, condition: usize) -> Option<MeasuredValue> {
        let value = match expression {
            Expression::Number(value) => MeasuredValue::exact(*value),
            Expression::Condition(name) => {
                let value = self.plan.conditions[condition].values.get(name)?;
                MeasuredValue::exact(leading_number(value)?)
            }
            Expression::Binary(left, sign, right) => {
                let (left, right) = (self.value(left, condition)?, self.value(right, condition)?);
                left.combined(*sign, right)
            }
            Expression::Figure {
                variant,
                figure,
                at,
            } => {
                let condition = self.other(condition, at)?;
                let variant = self.variant(variant)?;
                self.figure(figure, condition, variant)?
            }
        };
        value.point.is_finite().then_some(value)
    }

    fn variant(&self, name: &str) -> Option<usize> {
        let mut variants = self.plan.variants.iter();
        variants.position(|variant| variant == name)
    }

    fn figure(&self, figure: &Figure, condition: usize, variant: usize) -> Option<MeasuredValue> {
        if let Figure::Ratio(of) = figure {
            return self.ratio(*of, condition, variant);
        }
        let mut points = self.points.iter();
        let point = points.find(|it| (it.condition, it.variant) == (condition, variant))?;
        if point.trials == 0 {
            return None;
        }
        let units = self
            .plan
            .point(PointId::new(condition, variant))
            .per_transaction() as f64;
        let counted = |name: &str| {
            let mut counters = point.counters.iter();
            let found = counters.find(|counter| counter.name == name)?;
            Some(of_counter(self.trials, condition, variant, found))
        };
        let of_blocks = |value: f64| of_trials(self.trials, condition, variant, figure, value);
        match figure {
            Figure::Tps => Some(of_blocks(point.tps)),
            Figure::Rate => Some(of_blocks(point.tps * units)),
            Figure::PerDay => Some(of_blocks(point.tps * units * 86_400.0)),
            Figure::LatencyMs(Percentile::Mean) => Some(of_blocks(point.latency_mean_us / 1e3)),
            Figure::LatencyMs(Percentile::P50) => Some(of_blocks(point.latency_p50_us / 1e3)),
            Figure::LatencyMs(Percentile::P95) => Some(of_blocks(point.latency_p95_us / 1e3)),
            Figure::LatencyMs(Percentile::P99) => Some(of_blocks(point.latency_p99_us / 1e3)),
            Figure::CpuUs => Some(of_blocks(point.server_cpu_us? / units)),
            Figure::Share(function) => {
                let index = self.plan.index_of(PointId::new(condition, variant));
                inclusive_share(self.profiles.get(index)?, function)
            }
            Figure::Counted(name) => counted(name),
            Figure::PerSecond(name) => {
                let tps = self.figure(&Figure::Tps, condition, variant)?;
                Some(counted(name)?.combined('*', tps))
            }
            Figure::Ratio(_) | Figure::Leading => None,
        }
    }

    fn comparison(&self, condition: usize, variant: usize) -> Option<&Comparison> {
        let mut comparisons = self.comparisons.iter();
        comparisons.find(|it| (it.condition, it.variant) == (condition, variant))
    }

    /// A ratio with the interval that the report prints, at the level at which it was tested.
    fn ratio(&self, of: RatioFigure, condition: usize, variant: usize) -> Option<MeasuredValue> {
        if !self.has_baseline {
            return None;
        }
        if variant == 0 {
            return Some(MeasuredValue::exact(1.0));
        }
        let comparison = self.comparison(condition, variant)?;
        let ratio = match of {
            RatioFigure::Throughput => Some(&comparison.tps),
            RatioFigure::Mean => Some(&comparison.latency_mean),
            RatioFigure::P95 => Some(&comparison.latency_p95),
            RatioFigure::P99 => Some(&comparison.latency_p99),
            RatioFigure::Cpu => comparison.server_cpu.as_ref(),
        };
        ratio.map(|it| with_valid_interval(comparison, it))
    }

    /// The phase and the subsystem with the largest difference, and whether `name` is one of them.
    fn leading(
        &self,
        expression: &Expression,
        condition: usize,
        name: &str,
    ) -> Option<(String, CheckOutcome)> {
        let Expression::Figure { variant, at, .. } = expression else {
            return None;
        };
        let (condition, variant) = (self.other(condition, at)?, self.variant(variant)?);
        let cost = self.comparison(condition, variant)?.cost.as_ref()?;
        let largest = |rows: &[CostRow]| {
            let size = |row: &&CostRow| row.difference_us.abs();
            let largest = rows.iter().max_by(|a, b| size(a).total_cmp(&size(b)));
            largest.map(|row| row.name.clone())
        };
        let largest = match (largest(&cost.phases), largest(&cost.subsystems)) {
            (Some(phase), Some(subsystem)) if phase != subsystem => {
                format!("{phase} (phase) and {subsystem} (subsystem)")
            }
            (phase, subsystem) => phase.or(subsystem)?,
        };
        let of_list = |rows: &[CostRow]| leads(rows, name);
        let outcome = match (of_list(&cost.phases), of_list(&cost.subsystems)) {
            (Some(one), None) | (None, Some(one)) => one,
            (Some(CheckOutcome::Met), _) | (_, Some(CheckOutcome::Met)) => CheckOutcome::Met,
            (None, None) | (Some(CheckOutcome::NotMet), Some(CheckOutcome::NotMet)) => {
                CheckOutcome::NotMet
            }
            _ => CheckOutcome::Inconclusive,
        };
        Some((largest, outcome))
    }

    fn reference(&self, reference: &pgassay_model::study::Reference) -> ReferenceTable {
        let mut rows: Vec<ReferenceFigure> = reference
            .row
            .iter()
            .map(|row| ReferenceFigure {
                name: row.name.clone(),
                published: row.was,
                measured: self.mean(&row.is),
                published_ratio: None,
                measured_ratio: None,
            })
            .collect();
        let base = reference.base.as_ref();
        let base = base.and_then(|base| rows.iter().position(|row| row.name == *base));
        if let Some(base) = base {
            let figure = figure_of(&reference.row[base].is);
            let base = rows[base].clone();
            // Only ratios of the same figure are meaningful: not values per day over values per second.
            let alike = reference.row.iter().map(|row| figure_of(&row.is) == figure);
            for (row, _) in rows.iter_mut().zip(alike).filter(|(_, alike)| *alike) {
                row.published_ratio = row
                    .published
                    .zip(base.published)
                    .map(|(it, base)| it / base);
                row.measured_ratio = row.measured.zip(base.measured).map(|(it, base)| it / base);
            }
        }
        ReferenceTable { rows }
    }

    /// The geometric mean of an expression over its conditions.
    fn mean(&self, text: &str) -> Option<f64> {
        let (expression, wanted) = parse_expression(text).ok()?;
        let values: Vec<f64> = (0..self.plan.conditions.len())
            .filter(|condition| self.is_at(*condition, &wanted))
            .filter_map(|condition| Some(self.value(&expression, condition)?.point))
            .collect();
        match values[..] {
            [] => None,
            // A single value may be 0, as a share.
            [only] => Some(only),
            _ => Some((values.iter().map(|it| it.ln()).sum::<f64>() / values.len() as f64).exp()),
        }
    }

    fn watched(&self, names: &[String]) -> Vec<WatchedFunction> {
        let share = |name: &str, index: usize| {
            let profile = self.profiles.get(index)?;
            Some(inclusive_share(profile, name)?.point)
        };
        let watched = |name: &String| WatchedFunction {
            name: name.clone(),
            shares: (0..self.plan.points.len())
                .map(|index| share(name, index))
                .collect(),
        };
        names.iter().map(watched).collect()
    }
}

/// The figure of an expression, for any variant; `None` if the expression computes something.
fn figure_of(text: &str) -> Option<Figure> {
    match parse_expression(text).ok()?.0 {
        Expression::Figure { figure, .. } => Some(figure),
        _ => None,
    }
}

/// Whether the row of this name has the largest difference of its list, judged by the intervals of
/// all rows; `None` if there is no such row.
fn leads(rows: &[CostRow], name: &str) -> Option<CheckOutcome> {
    // The smallest and the largest absolute difference in a row's interval.
    let reach = |row: &CostRow| {
        let (low, high) = (row.low_us.abs(), row.high_us.abs());
        let has_interval = row.low_us < row.high_us;
        let least = if !has_interval || row.low_us * row.high_us <= 0.0 {
            0.0
        } else {
            low.min(high)
        };
        let most = if has_interval {
            low.max(high)
        } else {
            f64::INFINITY
        };
        (least, most)
    };
    let (least, most) = reach(rows.iter().find(|row| row.name == name)?);
    let others = || rows.iter().filter(|row| row.name != name).map(reach);
    Some(if others().all(|(_, of_other)| of_other < least) {
        CheckOutcome::Met
    } else if others().any(|(of_other, _)| of_other > most) {
        CheckOutcome::NotMet
    } else {
        CheckOutcome::Inconclusive
    })
}

/// The number at the start of a value: 0.1 for `0.1ms`.
fn leading_number(text: &str) -> Option<f64> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    text[..end].parse().ok()
}

/// Formats a value with up to four significant digits.
fn figure(value: f64) -> String {
    let digits = 3 - (value.abs().max(1e-9).log10().floor() as i32).clamp(0, 3);
    format!("{value:.*}", digits as usize)
}

/// A ratio of a comparison, with its interval if that is valid: before the first analysis, and if the analyses
/// contradict each other, the ends are those of no interval.
fn with_valid_interval(comparison: &Comparison, ratio: &Ratio) -> MeasuredValue {
    let is_unstable = comparison.inconclusive_reason == Some(Inconclusive::Unstable);
    // With one pair, both ends equal the ratio.
    if comparison.has_interval() && !is_unstable && ratio.low < ratio.high {
        MeasuredValue::within(ratio.ratio, [ratio.low, ratio.high])
    } else {
        MeasuredValue::without_interval(ratio.ratio)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgassay_account::comparison::Verdict;
    use pgassay_account::cost_row::Change;

    use crate::regressions::slower;

    fn row(name: &str, low_us: f64, high_us: f64) -> CostRow {
        CostRow {
            name: name.to_owned(),
            object: String::new(),
            baseline_us: 0.0,
            variant_us: 0.0,
            difference_us: f64::midpoint(low_us, high_us),
            low_us,
            high_us,
            change: Change::Inconclusive,
        }
    }

    /// Regression: expectations were met by ends that the report did not print: "no interval yet", "unstable".
    #[test]
    fn an_interval_that_is_not_valid_meets_no_expectation() {
        let mut comparison = slower(Verdict::Inconclusive);
        let measured = |it: &Comparison| with_valid_interval(it, &it.tps).interval();
        assert!(measured(&comparison).is_some());
        for reason in [
            Inconclusive::TooFewPairs,
            Inconclusive::Unstable,
            Inconclusive::OnePair,
        ] {
            comparison.inconclusive_reason = Some(reason);
            assert_eq!(measured(&comparison), None, "{reason:?}");
        }
    }

    #[test]
    fn the_leading_row_leads_by_its_interval() {
        let rows = [row("plan", -20.0, -10.0), row("execute", -2.0, 5.0)];
        assert_eq!(leads(&rows, "plan"), Some(CheckOutcome::Met));
        assert_eq!(leads(&rows, "execute"), Some(CheckOutcome::NotMet));
        assert_eq!(leads(&rows, "parse"), None);
        // Its mean is larger, but the intervals overlap.
        let near = [row("plan", -20.0, -4.0), row("execute", -2.0, 5.0)];
        assert_eq!(leads(&near, "plan"), Some(CheckOutcome::Inconclusive));
        let without = [row("plan", -12.0, -12.0), row("execute", -2.0, 5.0)];
        assert_eq!(leads(&without, "plan"), Some(CheckOutcome::Inconclusive));
    }
}
