//! Figures of a run, by the expressions of its study.

use std::collections::BTreeMap;

use super::parse;
use super::{
    Check, ExpectationOutcome, Expression, Figure, Percentile, RatioFigure, Reading,
    ReferenceFigure, ReferenceTable, Relation, WatchedFunction, Where,
};
use crate::comparison::{Comparison, CostRow, PointSummary};
use crate::plan::Plan;
use crate::profile::Profile;
use crate::study::Study;

/// What a study's expectations and references came to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Readings {
    /// In the study's order.
    pub expectations: Vec<ExpectationOutcome>,
    /// The source's figures beside ours.
    pub reference: Option<ReferenceTable>,
    /// The functions that the study watches.
    pub watched: Vec<WatchedFunction>,
}

/// What expressions are about.
struct Measured<'a> {
    plan: &'a Plan,
    points: &'a [PointSummary],
    comparisons: &'a [Comparison],
    profiles: &'a [Profile],
}

/// Reads all that a study says of its figures. What was not measured is `None`, never an error.
pub fn read(
    study: &Study,
    plan: &Plan,
    points: &[PointSummary],
    comparisons: &[Comparison],
    profiles: &[Profile],
) -> Readings {
    let measured = Measured {
        plan,
        points,
        comparisons,
        profiles,
    };
    let expectations = study.expect.iter().map(|expected| {
        let readings = match parse::check(&expected.check) {
            Ok(check) => measured.readings(&check),
            Err(_) => Vec::new(),
        };
        let met = (!readings.is_empty()).then(|| readings.iter().all(|reading| reading.met));
        ExpectationOutcome {
            that: expected.that.clone(),
            check: expected.check.clone(),
            met,
            readings,
        }
    });
    Readings {
        expectations: expectations.collect(),
        reference: study.reference.as_ref().map(|it| measured.reference(it)),
        watched: measured.watched(&study.watch_functions),
    }
}

impl Measured<'_> {
    /// The check under every condition that it is about and that was measured.
    fn readings(&self, check: &Check) -> Vec<Reading> {
        let conditions = 0..self.plan.conditions.len();
        conditions
            .filter(|condition| self.is_at(*condition, &check.conditions))
            .filter_map(|condition| self.reading(check, condition))
            .collect()
    }

    fn reading(&self, check: &Check, condition: usize) -> Option<Reading> {
        if let Relation::Is(name) = &check.relation {
            let leading = self.leading(&check.left, condition)?;
            return Some(Reading {
                condition,
                met: leading.contains(name),
                left: leading.join(", "),
                right: name.clone(),
            });
        }
        let left = self.value(&check.left, condition)?;
        let right = self.value(check.right.as_ref()?, condition)?;
        let met = match check.relation {
            Relation::Less => left < right,
            Relation::LessOrEqual => left <= right,
            Relation::More => left > right,
            Relation::MoreOrEqual => left >= right,
            Relation::About(share) => (left / right - 1.0).abs() <= share,
            Relation::Is(_) => false,
        };
        Some(Reading {
            condition,
            left: figure(left),
            right: figure(right),
            met,
        })
    }

    fn is_at(&self, condition: usize, wanted: &[Where]) -> bool {
        let condition = &self.plan.conditions[condition];
        wanted.iter().all(|it| it.holds(condition))
    }

    /// The condition that differs from this one as it is said.
    fn other(&self, condition: usize, changes: &[Where]) -> Option<usize> {
        let mut wanted: BTreeMap<String, String> = self.plan.conditions[condition].values.clone();
        for change in changes {
            wanted.insert(change.name.clone(), change.values.first()?.clone());
        }
        let mut conditions = self.plan.conditions.iter();
        conditions.position(|other| other.values == wanted)
    }

    fn value(&self, expression: &Expression, condition: usize) -> Option<f64> {
        let value = match expression {
            Expression::Number(value) => *value,
            Expression::Condition(name) => {
                leading_number(self.plan.conditions[condition].values.get(name)?)?
            }
            Expression::Binary(left, sign, right) => {
                let (left, right) = (self.value(left, condition)?, self.value(right, condition)?);
                match sign {
                    '+' => left + right,
                    '-' => left - right,
                    '*' => left * right,
                    _ => left / right,
                }
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
        value.is_finite().then_some(value)
    }

    fn variant(&self, name: &str) -> Option<usize> {
        let mut variants = self.plan.variants.iter();
        variants.position(|variant| variant == name)
    }

    fn figure(&self, figure: &Figure, condition: usize, variant: usize) -> Option<f64> {
        if let Figure::Ratio(of) = figure {
            return self.ratio(*of, condition, variant);
        }
        let mut points = self.points.iter();
        let point = points.find(|it| (it.condition, it.variant) == (condition, variant))?;
        if point.trials == 0 {
            return None;
        }
        let units = self.plan.point(condition, variant).per_transaction() as f64;
        let counted = |name: &str| {
            let mut counters = point.counted.iter();
            let found = counters.find(|counter| counter.name == name)?;
            Some(found.per_transaction)
        };
        match figure {
            Figure::Tps => Some(point.tps),
            Figure::Rate => Some(point.tps * units),
            Figure::PerDay => Some(point.tps * units * 86_400.0),
            Figure::LatencyMs(Percentile::Mean) => Some(point.latency_mean_us / 1e3),
            Figure::LatencyMs(Percentile::P50) => Some(point.latency_p50_us / 1e3),
            Figure::LatencyMs(Percentile::P95) => Some(point.latency_p95_us / 1e3),
            Figure::LatencyMs(Percentile::P99) => Some(point.latency_p99_us / 1e3),
            Figure::CpuUs => Some(point.server_cpu_us? / units),
            Figure::Share(function) => {
                let index = condition * self.plan.variants.len() + variant;
                inclusive_share(self.profiles.get(index)?, function)
            }
            Figure::Counted(name) => counted(name),
            Figure::PerSecond(name) => Some(counted(name)? * point.tps),
            Figure::Ratio(_) | Figure::Leading => None,
        }
    }

    fn comparison(&self, condition: usize, variant: usize) -> Option<&Comparison> {
        let mut comparisons = self.comparisons.iter();
        comparisons.find(|it| (it.condition, it.variant) == (condition, variant))
    }

    fn ratio(&self, of: RatioFigure, condition: usize, variant: usize) -> Option<f64> {
        if variant == 0 {
            return Some(1.0);
        }
        let comparison = self.comparison(condition, variant)?;
        let ratio = match of {
            RatioFigure::Throughput => Some(&comparison.tps),
            RatioFigure::Mean => Some(&comparison.latency_mean),
            RatioFigure::P95 => Some(&comparison.latency_p95),
            RatioFigure::P99 => Some(&comparison.latency_p99),
            RatioFigure::Cpu => comparison.server_cpu.as_ref(),
        };
        ratio.map(|ratio| ratio.ratio)
    }

    /// The phase and the subsystem with the largest difference.
    fn leading(&self, expression: &Expression, condition: usize) -> Option<Vec<String>> {
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
        let both = [largest(&cost.phases), largest(&cost.subsystems)];
        Some(both.into_iter().flatten().collect())
    }

    fn reference(&self, reference: &crate::study::Reference) -> ReferenceTable {
        let mut rows: Vec<ReferenceFigure> = reference
            .row
            .iter()
            .map(|row| ReferenceFigure {
                name: row.name.clone(),
                was: row.was,
                is: self.mean(&row.is),
                was_ratio: None,
                is_ratio: None,
            })
            .collect();
        let base = reference.base.as_ref();
        let base = base.and_then(|base| rows.iter().position(|row| row.name == *base));
        if let Some(base) = base {
            let figure = figure_of(&reference.row[base].is);
            let base = rows[base].clone();
            // Values per day over values per second would be a number without a meaning.
            let alike = reference.row.iter().map(|row| figure_of(&row.is) == figure);
            for (row, _) in rows.iter_mut().zip(alike).filter(|(_, alike)| *alike) {
                row.was_ratio = row.was.zip(base.was).map(|(it, base)| it / base);
                row.is_ratio = row.is.zip(base.is).map(|(it, base)| it / base);
            }
        }
        ReferenceTable { rows }
    }

    /// The geometric mean of an expression over the conditions that it is about.
    fn mean(&self, text: &str) -> Option<f64> {
        let (expression, wanted) = parse::expression(text).ok()?;
        let values: Vec<f64> = (0..self.plan.conditions.len())
            .filter(|condition| self.is_at(*condition, &wanted))
            .filter_map(|condition| self.value(&expression, condition))
            .collect();
        match values[..] {
            [] => None,
            // A share may be 0.
            [only] => Some(only),
            _ => Some((values.iter().map(|it| it.ln()).sum::<f64>() / values.len() as f64).exp()),
        }
    }

    fn watched(&self, names: &[String]) -> Vec<WatchedFunction> {
        let share = |name: &str, index: usize| {
            let profile = self.profiles.get(index)?;
            inclusive_share(profile, name)
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

/// The figure that an expression is, whatever the variant; `None` for one that is computed.
fn figure_of(text: &str) -> Option<Figure> {
    match parse::expression(text).ok()?.0 {
        Expression::Figure { figure, .. } => Some(figure),
        _ => None,
    }
}

/// Per cent of a profile's samples with this function anywhere on their stacks; `None` without
/// samples. Clones that compilers make (`f.constprop.0`) count as the function.
fn inclusive_share(profile: &Profile, function: &str) -> Option<f64> {
    let total = profile.total();
    let is_it = |symbol: &Option<String>| {
        let name = symbol.as_deref().unwrap_or_default();
        name.split('.').next() == Some(function)
    };
    let frames: Vec<bool> = profile.frames.iter().map(|it| is_it(&it.symbol)).collect();
    let mut under = Vec::with_capacity(profile.nodes.len());
    let mut samples = 0;
    for node in &profile.nodes {
        // Callers come before callees.
        let of_caller = node.parent.is_some_and(|parent| under[parent as usize]);
        let is_under = of_caller || frames[node.frame as usize];
        under.push(is_under);
        samples += if is_under { node.total() } else { 0 };
    }
    (total > 0).then(|| 100.0 * samples as f64 / total as f64)
}

/// The number that a value begins with: 0.1 of `0.1ms`.
fn leading_number(text: &str) -> Option<f64> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    text[..end].parse().ok()
}

/// Four digits, as many as anyone compares.
fn figure(value: f64) -> String {
    let digits = 3 - (value.abs().max(1e-9).log10().floor() as i32).clamp(0, 3);
    format!("{value:.*}", digits as usize)
}
