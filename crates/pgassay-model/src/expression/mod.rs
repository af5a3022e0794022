//! Figures of a run by name, for a study's expectations and references.
//!
//! An expression consists of numbers, `+ - * /`, parentheses, and
//! - `VARIANT.FIGURE`, such as `prepared.tps_ratio`; a name with other characters than letters, digits
//!   and `_` is quoted: `'128 range'.tps`. See [`Figure`];
//! - `VARIANT.FIGURE[network = 0ms]`: the same under another condition;
//! - the name of a condition, such as `clients` or `network`: the number at the start of its value.
//!
//! A check is two expressions with `<`, `<=`, `>`, `>=`, or `~` and `within 20%`; or
//! `VARIANT.leading = PHASE`. The conditions under which it must hold follow after `where`, as in
//! `script = plain and clients = 1|8`; by default it must hold under all conditions.
//!
//! The comparison that a report explains is named the same way: `VARIANT where clients = 8`.

mod explained;
mod parse;

use crate::plan::Condition;

pub use explained::is_explained;
pub use parse::{ExpressionError, check_names, parse_check, parse_expression};

/// A figure of a point, or of its comparison with the baseline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Figure {
    /// `tps_ratio`, `latency_ratio`, `p95_ratio`, `p99_ratio`, `cpu_ratio`: over the baseline.
    Ratio(RatioFigure),
    /// `tps`: transactions per second.
    Tps,
    /// `rate`: per second, in the study's unit.
    Rate,
    /// `per_day`: the rate over a day.
    PerDay,
    /// `latency_ms`, `p50_ms`, `p95_ms`, `p99_ms`: transaction latency.
    LatencyMs(Percentile),
    /// `cpu_us`: the server's CPU time, per transaction or per unit.
    CpuUs,
    /// `share(FUNCTION)`: percentage of the server's CPU time in it and its callees.
    Share(String),
    /// `counters(COUNTER)`: a counter per transaction.
    Counted(String),
    /// `per_second(COUNTER)`: a counter per second.
    PerSecond(String),
    /// `leading`: the phase or subsystem with the largest difference from the baseline.
    Leading,
}

/// The figure that is divided by the baseline's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RatioFigure {
    /// Throughput.
    Throughput,
    /// Mean latency.
    Mean,
    /// 95th percentile of latency.
    P95,
    /// 99th percentile of latency.
    P99,
    /// The server's CPU time.
    Cpu,
}

/// A statistic of the latency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Percentile {
    /// The mean.
    Mean,
    /// The median.
    P50,
    /// The 95th percentile.
    P95,
    /// The 99th percentile.
    P99,
}

/// A condition's name and the accepted values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Where {
    /// The name.
    pub name: String,
    /// The values.
    pub values: Vec<String>,
}

impl Where {
    /// Whether `condition` has one of these values.
    pub fn holds(&self, condition: &Condition) -> bool {
        let value = condition.values.get(&self.name);
        value.is_some_and(|value| self.values.contains(value))
    }
}

/// An expression.
#[derive(Debug, Clone, PartialEq)]
pub enum Expression {
    /// A number.
    Number(f64),
    /// A condition's value.
    Condition(String),
    /// A figure of a variant.
    Figure {
        /// The variant.
        variant: String,
        /// The figure.
        figure: Figure,
        /// The other condition, if any.
        at: Vec<Where>,
    },
    /// Two expressions, combined by `+`, `-`, `*` or `/`.
    Binary(Box<Expression>, char, Box<Expression>),
}

/// How two sides must compare.
#[derive(Debug, Clone, PartialEq)]
pub enum Relation {
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    More,
    /// `>=`
    MoreOrEqual,
    /// Within this share of the right side.
    Within(f64),
    /// By name.
    Is(String),
}

/// A check: two sides, and where it must hold.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpectationCheck {
    /// The left side.
    pub left: Expression,
    /// How the sides must compare.
    pub relation: Relation,
    /// The right side; absent if the relation is by name.
    pub right: Option<Expression>,
    /// The conditions under which it must hold; all if empty.
    pub conditions: Vec<Where>,
}
