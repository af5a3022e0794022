//! Figures of a run by name, and what a study says of them: expectations and references.
//!
//! An expression is made of numbers, `+ - * /` and parentheses, and of
//! - `VARIANT.FIGURE`, as `prepared.tps_ratio`; a name that is more than letters, digits and `_` is
//!   quoted: `'128 range'.tps`. The figures are in [`Figure`];
//! - `VARIANT.FIGURE[network = 0ms]`: the same under another condition;
//! - the name of a condition's list, as `clients` or `network`: the number that its value begins with.
//!
//! A check is two expressions and `<`, `<=`, `>`, `>=`, or `~` with `within 20 %`; or
//! `VARIANT.leading = PHASE`. After `where` follow the conditions under which it must hold, as
//! `script = plain and clients = 1|8`; without them it must hold under all.
//!
//! The comparison that a report is to explain is named alike: `VARIANT where clients = 8`.

//!
//! A check is *met* where the whole interval of its figures meets it, *not met* where all of it
//! misses, and else *inconclusive*, whatever the best estimates say: see [`Outcome`].

mod blocks;
mod evaluate;
mod explained;
mod interval;
mod parse;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use evaluate::{Readings, read};
pub use explained::is_explained;
pub use parse::{MeasureError, check_names};

use crate::plan::Condition;

/// A figure of a point, or of its comparison with the baseline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Figure {
    /// `tps_ratio`, `latency_ratio`, `p95_ratio`, `p99_ratio`, `cpu_ratio`: over the baseline's.
    Ratio(RatioFigure),
    /// `tps`: transactions a second.
    Tps,
    /// `rate`: a second, in the study's unit.
    Rate,
    /// `per_day`: the rate, kept up for a day.
    PerDay,
    /// `latency_ms`, `p50_ms`, `p95_ms`, `p99_ms`: of a transaction.
    LatencyMs(Percentile),
    /// `cpu_us`: the server's, per transaction or per unit.
    CpuUs,
    /// `share(FUNCTION)`: per cent of the server's CPU time in it and what it calls.
    Share(String),
    /// `counted(COUNTER)`: per transaction.
    Counted(String),
    /// `per_second(COUNTER)`.
    PerSecond(String),
    /// `leading`: the phase or subsystem with the largest difference from the baseline.
    Leading,
}

/// What is divided by the baseline's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RatioFigure {
    Throughput,
    Mean,
    P95,
    P99,
    Cpu,
}

/// Which latency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Percentile {
    Mean,
    P50,
    P95,
    P99,
}

/// A condition's name and the values that will do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Where {
    pub(crate) name: String,
    pub(crate) values: Vec<String>,
}

impl Where {
    /// Whether a condition has one of these values.
    pub(crate) fn holds(&self, condition: &Condition) -> bool {
        let value = condition.values.get(&self.name);
        value.is_some_and(|value| self.values.contains(value))
    }
}

/// An expression.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Expression {
    Number(f64),
    /// A condition's value.
    Condition(String),
    Figure {
        variant: String,
        figure: Figure,
        /// Under which other condition.
        at: Vec<Where>,
    },
    Binary(Box<Expression>, char, Box<Expression>),
}

/// How two sides must compare.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Relation {
    Less,
    LessOrEqual,
    More,
    MoreOrEqual,
    /// Within this share of the right side.
    About(f64),
    /// By name.
    Is(String),
}

/// A check: two sides, and where it must hold.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Check {
    pub(crate) left: Expression,
    pub(crate) relation: Relation,
    /// Absent where the relation is by name.
    pub(crate) right: Option<Expression>,
    pub(crate) conditions: Vec<Where>,
}

/// What became of an expectation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExpectationOutcome {
    /// The belief.
    pub that: String,
    /// The check, as written.
    pub check: String,
    /// Whether it is met under all conditions that it is about; `None` where it is inconclusive, and
    /// where nothing of it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub met: Option<bool>,
    /// What it came to; `None` where nothing of it was measured, and in results of older versions,
    /// whose `met` is by the point estimates alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Under each of them.
    pub readings: Vec<Reading>,
}

/// What a check came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The whole interval meets it; under several conditions, under each of them.
    Met,
    /// The whole interval misses it, under one condition at least.
    NotMet,
    /// Part of the interval meets it, or there is no interval.
    Inconclusive,
}

impl Outcome {
    /// Of a check that must hold under several conditions; `None` without any.
    fn of_all(outcomes: impl Iterator<Item = Self>) -> Option<Self> {
        outcomes.reduce(|all, one| match (all, one) {
            (Self::NotMet, _) | (_, Self::NotMet) => Self::NotMet,
            (Self::Inconclusive, _) | (_, Self::Inconclusive) => Self::Inconclusive,
            (Self::Met, Self::Met) => Self::Met,
        })
    }

    fn of_met(met: bool) -> Self {
        if met { Self::Met } else { Self::NotMet }
    }

    fn met(self) -> Option<bool> {
        match self {
            Self::Met => Some(true),
            Self::NotMet => Some(false),
            Self::Inconclusive => None,
        }
    }
}

impl ExpectationOutcome {
    /// What it came to, in results of older versions by the point estimates; `None` where nothing
    /// was measured.
    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome.or_else(|| self.met.map(Outcome::of_met))
    }
}

impl Reading {
    /// What the check came to under this condition.
    pub fn outcome(&self) -> Outcome {
        self.outcome.unwrap_or_else(|| Outcome::of_met(self.met))
    }
}

/// A check under one condition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Reading {
    /// Index into the plan's conditions.
    pub condition: usize,
    /// The left side, as a number or a name.
    pub left: String,
    /// The right side.
    pub right: String,
    /// The interval of the left side; `None` where it is exact, a name, or without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_interval: Option<[f64; 2]>,
    /// That of the right side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub right_interval: Option<[f64; 2]>,
    /// Whether it is met.
    pub met: bool,
    /// What it came to; `None` in results of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}

/// The source's figures beside ours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReferenceTable {
    /// In the source's order.
    pub rows: Vec<ReferenceFigure>,
}

/// One figure on both sides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReferenceFigure {
    /// Its name in the source.
    pub name: String,
    /// What the source found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<f64>,
    /// What was found here; under several conditions their geometric mean. `None` where nothing was
    /// measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is: Option<f64>,
    /// `was` over the base row's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was_ratio: Option<f64>,
    /// `is` over the base row's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_ratio: Option<f64>,
}

/// Inclusive shares of a function that the study watches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WatchedFunction {
    /// The function.
    pub name: String,
    /// Per cent of the server's CPU time in it and what it calls, in the plan's order of points;
    /// `None` where the point has no profile.
    pub shares: Vec<Option<f64>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expectations_of_older_versions_open_with_what_they_said() {
        let old = r#"{"that": "t", "check": "a.tps > 1", "met": false, "readings": [
            {"condition": 0, "left": "2", "right": "1", "met": true},
            {"condition": 1, "left": "0.5", "right": "1", "met": false}]}"#;
        let old: ExpectationOutcome = serde_json::from_str(old).expect("it opens");
        assert_eq!(old.outcome(), Some(Outcome::NotMet));
        let readings: Vec<Outcome> = old.readings.iter().map(Reading::outcome).collect();
        assert_eq!(readings, [Outcome::Met, Outcome::NotMet]);
    }

    #[test]
    fn one_condition_decides_against_and_any_open_one_leaves_it_open() {
        use Outcome::{Inconclusive, Met, NotMet};
        let of = |outcomes: &[Outcome]| Outcome::of_all(outcomes.iter().copied());
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[Met, Met]), Some(Met));
        assert_eq!(of(&[Met, Inconclusive]), Some(Inconclusive));
        assert_eq!(of(&[Inconclusive, NotMet, Met]), Some(NotMet));
    }
}
