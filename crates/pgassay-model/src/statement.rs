//! Latency of each statement of a script, as seen by the client.
//!
//! Outside a pipeline, it lasts from the start of the statement to the end of its result. In a pipeline,
//! it lasts from sending the pipeline to the completion of the statement, so it increases from one
//! statement to the next; the time of a single statement is the increase over the previous one.

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
    /// The statements in script order, without commands that do not wait for the server (`\set`).
    pub statements: Vec<StatementLatency>,
}

/// One statement, or the end of a pipeline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StatementLatency {
    /// Its line in the script, from 1.
    pub line: u32,
    /// Its first line, cut at 127 bytes.
    pub text: String,
    /// Whether it is sent in a pipeline. If so, pgassay times a random 1 in 50 executions and sends Flush
    /// after it; otherwise the server would buffer the result until the end of the pipeline.
    pub in_pipeline: bool,
    /// Number of timed executions.
    pub timed: u64,
    /// Mean latency.
    pub mean_us: f64,
    /// Median latency.
    pub p50_us: f64,
    /// 99th percentile of latency.
    pub p99_us: f64,
}

impl ScriptStatements {
    /// The statements that were sent in a pipeline and timed, in order.
    pub fn pipelined(&self) -> impl Iterator<Item = &StatementLatency> {
        let all = self.statements.iter();
        all.filter(|statement| statement.in_pipeline && statement.timed > 0)
    }
}
