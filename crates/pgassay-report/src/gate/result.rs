//! The comparisons of a gate, their figures and their verdicts.

use std::fmt;

use pgassay_account::comparison::{GateAnswer, GatedComparison};

use pgassay_model::wording::grouped;

use crate::{instructions, number};

/// What makes a gate fail.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GateLimit {
    /// A transaction takes longer than the baseline's by more than this, in percent.
    Slower(f64),
    /// A transaction executes more instructions than the baseline's by more than this, in percent.
    Instructions(f64),
}

impl fmt::Display for GateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slower(percent) => write!(f, "slower > {percent}%"),
            Self::Instructions(percent) => write!(f, "instructions > {percent}%"),
        }
    }
}

/// The verdict of a gate on a comparison, or on all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateVerdict {
    /// Surely not beyond the limit.
    Pass,
    /// Surely beyond the limit.
    Regression,
    /// The interval contains the limit.
    Inconclusive,
    /// What it should be compared with is missing, or is not comparable.
    NotComparable,
}

impl GateVerdict {
    /// The verdict on all comparisons: one regression fails, and one doubt is no pass.
    pub fn of(results: &[GateResult]) -> Self {
        let any = |wanted| results.iter().any(|it| it.verdict == wanted);
        if any(Self::Regression) {
            Self::Regression
        } else if any(Self::NotComparable) {
            Self::NotComparable
        } else if any(Self::Inconclusive) || results.is_empty() {
            Self::Inconclusive
        } else {
            Self::Pass
        }
    }

    /// Its name for people.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Regression => "regression",
            Self::Inconclusive => "inconclusive",
            Self::NotComparable => "not comparable",
        }
    }
}

/// The names of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateNames {
    /// The variant.
    pub variant: String,
    /// What it is compared with, as it follows "slower than".
    pub baseline: String,
    /// The condition's title.
    pub condition: String,
}

/// A comparison of a gate.
#[derive(Debug, Clone, PartialEq)]
pub struct GateResult {
    /// Its names.
    pub names: GateNames,
    /// The verdict.
    pub verdict: GateVerdict,
    /// What was measured, or why it is not comparable.
    pub figures: String,
    /// How many times as much a transaction costs as the baseline's; `None` if unknown.
    pub cost_ratio: Option<f64>,
    /// Whether the variant is surely better than the baseline.
    pub is_better: bool,
    /// A sentence on why it ended early without an answer; `None` if it did not.
    pub early_end: Option<String>,
}

impl GateResult {
    /// Of rates: `throughput ×0.912 [0.893, 0.931] (8 pairs), so mean time ×1.096 [1.074, 1.120]; limit ×1.050`.
    pub fn of_rates(names: GateNames, compared: &GatedComparison, limit_percent: f64) -> Self {
        // With a plain space, since logs and JSON are searched.
        let pairs = number::count(compared.pairs as u64, "pair").replace('\u{a0}', " ");
        let what = if compared.is_relative {
            "relative throughput, now / then,"
        } else {
            "throughput"
        };
        let figures = match (compared.ratio, compared.interval) {
            (Some(ratio), Some(interval)) => format!(
                "{what} {} {} ({pairs}{}), so mean time {} {}; limit {}",
                number::ratio(ratio),
                number::interval(interval.low, interval.high),
                level(interval.level),
                number::ratio(1.0 / ratio),
                number::interval(1.0 / interval.high, 1.0 / interval.low),
                number::ratio(1.0 + limit_percent / 100.0)
            ),
            (Some(ratio), None) => format!(
                "{what} {} (unstable: intervals of different analyses contradict each other; {pairs})",
                number::ratio(ratio)
            ),
            (None, _) => {
                format!(
                    "not analyzed ({pairs}); the first analysis takes 4 server starts or 4 pairs"
                )
            }
        };
        Self {
            names,
            verdict: match compared.answer {
                GateAnswer::Pass => GateVerdict::Pass,
                GateAnswer::Regression => GateVerdict::Regression,
                GateAnswer::Inconclusive => GateVerdict::Inconclusive,
            },
            figures,
            cost_ratio: compared.ratio.map(|it| 1.0 / it),
            is_better: compared.interval.is_some_and(|it| it.low > 1.0),
            early_end: None,
        }
    }

    /// Of instructions per transaction, the baseline's and the variant's, whose difference is known to ±`margin`:
    /// `61,872.3 → 62,871.2 instructions (+1.61% ± 0.02%)`. The verdict depends on `limit_percent`; `None` for the
    /// margin if a count gives no verdict, for the reason in `doubt`.
    pub fn of_instructions(
        names: GateNames,
        [before, now]: [f64; 2],
        margin: Result<f64, &str>,
        limit_percent: f64,
    ) -> Self {
        let (difference, allowed) = (now - before, limit_percent / 100.0 * before);
        let percent = |instructions: f64| 100.0 * instructions / before;
        let counted = format!(
            "{} → {} instructions per transaction ({}",
            tenths(before),
            tenths(now),
            instructions::change(now / before).replace('\u{a0}', " ")
        );
        let (verdict, figures) = match margin {
            Err(doubt) => (GateVerdict::Inconclusive, format!("{counted}; {doubt})")),
            Ok(margin) => {
                let verdict = match () {
                    () if difference - margin > allowed => GateVerdict::Regression,
                    () if difference + margin <= allowed => GateVerdict::Pass,
                    () => GateVerdict::Inconclusive,
                };
                (verdict, format!("{counted} ± {:.3}%)", percent(margin)))
            }
        };
        Self {
            names,
            verdict,
            figures,
            cost_ratio: Some(now / before),
            is_better: margin.is_ok_and(|margin| difference + margin < 0.0),
            early_end: None,
        }
    }

    /// Of a count that there is nothing to compare with yet. It passes, unless it is too inexact to be compared with
    /// later.
    pub fn first_count(names: GateNames, cost: f64, is_linear: bool) -> Self {
        let (verdict, why) = if is_linear {
            (GateVerdict::Pass, "nothing to compare with yet")
        } else {
            (GateVerdict::Inconclusive, "not linear")
        };
        Self {
            names,
            verdict,
            figures: format!("{} instructions per transaction; {why}", tenths(cost)),
            cost_ratio: None,
            is_better: false,
            early_end: None,
        }
    }

    /// Of a count that cannot be compared with an earlier one, because one of them is too inexact.
    pub fn inexact_count(names: GateNames, cost: f64, doubt: &str) -> Self {
        Self {
            names,
            verdict: GateVerdict::Inconclusive,
            figures: format!("now {} instructions per transaction; {doubt}", tenths(cost)),
            cost_ratio: None,
            is_better: false,
            early_end: None,
        }
    }

    /// Of what cannot be compared, for this reason.
    pub fn not_comparable(names: GateNames, reason: &str) -> Self {
        Self {
            names,
            verdict: GateVerdict::NotComparable,
            figures: reason.to_owned(),
            cost_ratio: None,
            is_better: false,
            early_end: None,
        }
    }

    /// The verdict, and whether the variant is better.
    pub(super) fn answer(&self) -> String {
        match (self.verdict, self.is_better) {
            (GateVerdict::Pass, true) => "pass (improved)".to_owned(),
            (verdict, _) => verdict.word().to_owned(),
        }
    }
}

/// The confidence level of an interval, which is higher with several comparisons.
fn level(level: f64) -> String {
    if level > USUAL_LEVEL {
        format!(", {} CI", number::percent(level))
    } else {
        String::new()
    }
}

/// Intervals of a single comparison have 0.95.
const USUAL_LEVEL: f64 = 0.950_5;

/// A number of instructions as `count` prints it: one decimal, and thousands separated.
fn tenths(value: f64) -> String {
    let tenths = (value * 10.0).round();
    let whole = (tenths / 10.0).trunc();
    format!("{}.{:.0}", grouped(whole), (tenths - whole * 10.0).abs())
}
