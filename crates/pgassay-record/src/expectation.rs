//! Outcomes of a study's expectations, and the figures of its reference as measured.
//!
//! A check is *met* if the whole interval of its figures meets it, *not met* if the whole interval
//! misses it, and otherwise *inconclusive*, whatever the point estimates are: see [`CheckOutcome`].

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The outcome of an expectation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExpectationOutcome {
    /// The expectation.
    pub that: String,
    /// The check, as written.
    pub check: String,
    /// Whether it is met under all its conditions; `None` if it is inconclusive, or if nothing was
    /// measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub met: Option<bool>,
    /// The outcome; `None` if nothing was measured, and in results of older versions, whose `met` uses
    /// point estimates only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<CheckOutcome>,
    /// The check under each of its conditions.
    pub readings: Vec<Reading>,
}

/// The outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckOutcome {
    /// The whole interval meets it, under every condition.
    Met,
    /// The whole interval misses it, under at least one condition.
    NotMet,
    /// Part of the interval meets it, or there is no interval.
    Inconclusive,
}

impl CheckOutcome {
    /// Combines the outcomes under several conditions; `None` without any.
    pub fn of_all(outcomes: impl Iterator<Item = Self>) -> Option<Self> {
        outcomes.reduce(|all, one| match (all, one) {
            (Self::NotMet, _) | (_, Self::NotMet) => Self::NotMet,
            (Self::Inconclusive, _) | (_, Self::Inconclusive) => Self::Inconclusive,
            (Self::Met, Self::Met) => Self::Met,
        })
    }

    /// The outcome of a check that is either met or not.
    pub fn of_met(met: bool) -> Self {
        if met { Self::Met } else { Self::NotMet }
    }

    /// Whether it is met; `None` if it is inconclusive.
    pub fn met(self) -> Option<bool> {
        match self {
            Self::Met => Some(true),
            Self::NotMet => Some(false),
            Self::Inconclusive => None,
        }
    }
}

impl ExpectationOutcome {
    /// The outcome, by point estimates in results of older versions; `None` if nothing was measured.
    pub fn outcome(&self) -> Option<CheckOutcome> {
        self.outcome.or_else(|| self.met.map(CheckOutcome::of_met))
    }
}

impl Reading {
    /// The outcome under this condition.
    pub fn outcome(&self) -> CheckOutcome {
        self.outcome
            .unwrap_or_else(|| CheckOutcome::of_met(self.met))
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
    /// Confidence interval of the left side; `None` if it is exact, is a name, or has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_interval: Option<[f64; 2]>,
    /// Confidence interval of the right side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub right_interval: Option<[f64; 2]>,
    /// Whether the check is met.
    pub met: bool,
    /// The outcome; `None` in results of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<CheckOutcome>,
}

/// The source's figures and the measured ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReferenceTable {
    /// The rows, in the source's order.
    pub rows: Vec<ReferenceFigure>,
}

/// One figure of the source and as measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReferenceFigure {
    /// Its name in the source.
    pub name: String,
    /// The source's figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<f64>,
    /// The measured figure; the geometric mean under several conditions. `None` if nothing was
    /// measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<f64>,
    /// `was` over that of the base row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_ratio: Option<f64>,
    /// `is` over that of the base row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_ratio: Option<f64>,
}

/// Inclusive CPU shares of a function that the study watches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WatchedFunction {
    /// The function.
    pub name: String,
    /// Percentage of the server's CPU time in the function and its callees, in the plan's order of
    /// points; `None` if the point has no profile.
    pub shares: Vec<Option<f64>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expectations_of_older_versions_load() {
        let old = r#"{"that": "t", "check": "a.tps > 1", "met": false, "readings": [
            {"condition": 0, "left": "2", "right": "1", "met": true},
            {"condition": 1, "left": "0.5", "right": "1", "met": false}]}"#;
        let old: ExpectationOutcome = serde_json::from_str(old).expect("it opens");
        assert_eq!(old.outcome(), Some(CheckOutcome::NotMet));
        let readings: Vec<CheckOutcome> = old.readings.iter().map(Reading::outcome).collect();
        assert_eq!(readings, [CheckOutcome::Met, CheckOutcome::NotMet]);
    }

    #[test]
    fn one_missed_condition_decides_and_an_inconclusive_one_is_inconclusive() {
        use CheckOutcome::{Inconclusive, Met, NotMet};
        let of = |outcomes: &[CheckOutcome]| CheckOutcome::of_all(outcomes.iter().copied());
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[Met, Met]), Some(Met));
        assert_eq!(of(&[Met, Inconclusive]), Some(Inconclusive));
        assert_eq!(of(&[Inconclusive, NotMet, Met]), Some(NotMet));
    }
}
