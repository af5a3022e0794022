//! What each statement of a script takes, as its client sees it.
//!
//! Outside of a pipeline that is from the statement's begin to the last of its answer. In a pipeline
//! it is from when the pipeline was sent to the statement's completion, so that it rises from one
//! statement to the next; what the statement alone took is the step from the one before it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The statements of one script at one point, over all its profiled trials.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScriptStatements {
    /// Index into the plan's conditions.
    pub condition: usize,
    /// Index into the plan's variants.
    pub variant: usize,
    /// The script's name.
    pub script: String,
    /// In the script's order; what waits for nothing (`\set`) is not among them.
    pub statements: Vec<StatementLatency>,
}

/// One statement, or the end of a pipeline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StatementLatency {
    /// Its line in the script, from 1.
    pub line: u32,
    /// Its first line, cut at 127 bytes.
    pub text: String,
    /// Whether it is sent in a pipeline. Then it is timed once in 50 times, drawn at random, and
    /// followed by a Flush: the server would keep its answer until the pipeline's end otherwise.
    pub in_pipeline: bool,
    /// How often it was timed.
    pub timed: u64,
    /// Mean latency.
    pub mean_us: f64,
    /// Median latency.
    pub p50_us: f64,
    /// 99th percentile of latency.
    pub p99_us: f64,
}

impl ScriptStatements {
    /// Those that were sent in a pipeline and were timed, in order.
    pub fn pipelined(&self) -> impl Iterator<Item = &StatementLatency> {
        let all = self.statements.iter();
        all.filter(|statement| statement.in_pipeline && statement.timed > 0)
    }
}
