//! A stored run: the study, its plan, the measurements and their evaluation.
//!
//! `run.json` in a result directory contains this type. The schema is versioned: within a version,
//! fields may be added, but the meaning of a field never changes; see `docs/schema`.

use std::collections::BTreeMap;

use pgassay_account::calibration::CalibrationSummary;
use pgassay_account::comparison::{Comparison, PointSummary};
use pgassay_account::instructions::InstructionCosts;
use pgassay_account::ledger::Ledger;
use pgassay_model::check::Check;
use pgassay_model::elapsed_time::ElapsedTime;
use pgassay_model::plan::Plan;
use pgassay_model::profile::Profile;
use pgassay_model::statement::ScriptStatements;
use pgassay_model::study::Study;
use pgassay_model::trial::Trial;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::expectation::{ExpectationOutcome, ReferenceTable, WatchedFunction};
use crate::finding::Finding;
use crate::plans::RunPlans;

/// The value of [`Run::schema`] that this version writes.
pub const SCHEMA: &str = "pgassay.run/2";

/// Everything about one run of a study.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// Name and version of the schema.
    pub schema: String,
    /// The run ID: the name of its directory, accepted by `pgassay show`.
    pub id: String,
    /// The study's name: its file name without extension.
    pub study_name: String,
    /// Version of pgassay.
    pub pgassay_version: String,
    /// Start time, microseconds since 1970.
    pub started_us: i64,
    /// End time, microseconds since 1970.
    pub ended_us: i64,
    /// Whether all planned trials were run.
    pub complete: bool,
    /// The study.
    pub study: Study,
    /// The plan.
    pub plan: Plan,
    /// The servers, in the plan's order.
    pub servers: Vec<ServerFacts>,
    /// The relays that added network delay.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub relays: Vec<RelayFacts>,
    /// Checks for limitations of measurements on this machine.
    pub checks: Vec<Check>,
    /// Warnings that affect the interpretation of the results.
    pub warnings: Vec<Warning>,
    /// All trials, in the order in which they ran.
    pub trials: Vec<Trial>,
    /// One profile per point, in the plan's order; empty if sampling was not possible.
    pub profiles: Vec<Profile>,
    /// Latency of each statement, from profiled trials; only for points with several statements per
    /// transaction.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub statements: Vec<ScriptStatements>,
    /// Figures of each point, in the plan's order.
    pub points: Vec<PointSummary>,
    /// The comparison of every variant with the baseline, under every condition.
    pub comparisons: Vec<Comparison>,
    /// Ledgers of the points, in the plan's order; none for points without exact totals.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ledgers: Vec<Ledger>,
    /// Known causes of lost time that were found, the strongest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// Instruction counts per transaction of every variant, if requested. Their conditions are the
    /// plan's without the number of clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<InstructionCosts>,
    /// The plans of the statements, and their differences; `None` if they were not taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plans: Option<RunPlans>,
    /// The run that tried the suggested fixes of the findings. Its baseline is the variant with the
    /// finding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix_trials: Option<Box<Run>>,
    /// The study's expectations and their outcomes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expectations: Vec<ExpectationOutcome>,
    /// Published figures and the measured ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<ReferenceTable>,
    /// Results of earlier A/A comparisons on this machine, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<CalibrationSummary>,
    /// Identifies the machine: a hash of its processor model, number of CPUs and ID; `None` in results of older
    /// versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_key: Option<String>,
    /// Inclusive shares of the functions in the study's `watch_functions`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub watched_functions: Vec<WatchedFunction>,
}

impl Run {
    /// How long it took, without the pauses before it was continued, microseconds.
    pub fn elapsed_us(&self) -> f64 {
        let paused_us = ElapsedTime::of(&self.trials).paused_us();
        let all_us = self.ended_us.saturating_sub(self.started_us);
        all_us.saturating_sub(paused_us).max(0) as f64
    }

    /// The settings of a server of the plan: the study's, or an external server's own.
    pub fn effective_settings(&self, server: usize) -> Option<&BTreeMap<String, String>> {
        let planned = self.plan.servers.get(server)?;
        match &planned.dsn {
            None => Some(&planned.settings),
            Some(_) => Some(&self.servers.get(server)?.settings),
        }
    }
}

/// Facts about a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServerFacts {
    /// Exact version, such as `18.1`.
    pub version: String,
    /// Origin of its binaries, for people.
    pub origin: String,
    /// Arguments of `configure`.
    pub configure: String,
    /// Compiler flags.
    pub cflags: String,
    /// The compiler, as reported by `version()`.
    pub compiler: String,
    /// SHA-256 of the executable; not known of an external server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executable: Option<String>,
    /// Settings of an external server that differ from PostgreSQL's defaults, with values as reported by
    /// `SHOW`. String values are omitted because they may contain secrets, except names of libraries.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

/// Digits of an executable's SHA-256 that a message shows.
const DIGITS_SHOWN: usize = 12;

impl ServerFacts {
    /// How the build of a later server differs: what, its value before, and its value now. What one of them does
    /// not record is not compared.
    pub fn build_differences<'a>(&'a self, now: &'a Self) -> Vec<(&'static str, &'a str, &'a str)> {
        let digits = |facts: &'a Self| {
            let executable = facts.executable.as_deref()?;
            executable.get(..DIGITS_SHOWN)
        };
        let (before_digits, now_digits) = digits(self).zip(digits(now)).unwrap_or_default();
        let parts = [
            ("version", &*self.version, &*now.version),
            ("compiler", &*self.compiler, &*now.compiler),
            ("compiler flags", &*self.cflags, &*now.cflags),
            ("configure options", &*self.configure, &*now.configure),
            ("SHA-256 of its executable", before_digits, now_digits),
        ];
        let parts = parts.into_iter();
        parts.filter(|(_, before, now)| before != now).collect()
    }
}

/// The requested delay of a relay, and its measured behavior.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RelayFacts {
    /// Requested delay per round trip.
    pub delay_us: f64,
    /// Median round-trip time of one byte between two threads over TCP on loopback, without the relay.
    pub direct_us: f64,
    /// The same through the relay.
    pub relayed_us: f64,
    /// Mean lateness of forwarded data during the run.
    pub late_mean_us: f64,
    /// Maximum lateness.
    pub late_max_us: f64,
}

/// A warning that affects the interpretation of the results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Warning {
    /// The kind: a stable name for programs.
    pub kind: WarningKind,
    /// The message for people.
    pub message: String,
    /// The variant that was skipped, which is no longer in the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

/// The kinds of warnings.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum WarningKind {
    /// The compared servers were built differently.
    BuildsDiffer,
    /// Transactions failed with serialization failures or deadlocks; they count in no figure.
    FailedTransactions,
    /// A script sent no statement to the server.
    NoStatement,
    /// Statements of two variants with different texts returned or changed different numbers of rows.
    RowsDiffer,
    /// Statements that write changed no rows while they were measured.
    RowsUnchanged,
    /// The load generator was the bottleneck, not the server.
    ClientLimited,
    /// Parallel workers used considerable CPU time, which a point's server CPU time leaves out.
    WorkerCpu,
    /// A point had not reached a steady state by the end of its warm-up.
    NotSteady,
    /// A write load is not reset before each trial, so trials start from different states.
    NoReset,
    /// Checkpoints or autovacuum ran during some trials but not others.
    Maintenance,
    /// Variants keep their connections open on a server where each connection makes snapshots more
    /// expensive.
    OpenConnections,
    /// Considerable CPU steal (noisy neighbors).
    CpuSteal,
    /// Other programs used a considerable share of the machine.
    OtherLoad,
    /// CPUs were to be kept awake, and the system did not permit it.
    CpusAsleep,
    /// CPU stacks could not be sampled, or not completely.
    NoProfile,
    /// Samples were lost or stacks truncated.
    ProfileQuality,
    /// Statements could not be explained.
    NoPlan,
    /// The run ended before all trials were done.
    Incomplete,
    /// A variant was skipped because its requirements are not met.
    Skipped,
    /// Suggested fixes could not be tried, or there were none.
    Fixes,
    /// An installed PostgreSQL replaced a version that could not be downloaded.
    InstalledVersionUsed,
    /// The data directory of a server that pgassay started is in memory: nothing waits for a disk.
    DataInMemory,
    /// An external server has different settings than the study.
    SettingsDiffer,
    /// The settings of two variants that differ in nothing else have the same values.
    SameSettings,
    /// No loaded module defines a setting of a variant, so that it has no effect except on what reads it.
    SettingUndefined,
    /// The servers of two variants that differ in nothing else have the same executable.
    SameBuild,
    /// A server was built for debugging: with assertions, or without optimization.
    DebugBuild,
    /// Resource usage of an external server could not be read.
    NotObserved,
    /// An earlier run left databases or settings on an external server.
    Leftover,
    /// An external server is different from before the run, or was during it.
    ServerChanged,
    /// The run was killed, stopped or failed, and then continued on new servers.
    Resumed,
}
