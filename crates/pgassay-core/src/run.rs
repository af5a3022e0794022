//! A run as kept: the study, its plan, what was measured, and what it means.
//!
//! `run.json` of a result directory is this type. The schema is versioned: a field may be added
//! within a version, and a field's meaning never changes; see `docs/schema`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::calibration::CalibrationSummary;
use crate::comparison::{Comparison, PointSummary};
use crate::finding::Finding;
use crate::instructions::InstructionCosts;
use crate::ledger::Ledger;
use crate::measure::{ExpectationOutcome, ReferenceTable, WatchedFunction};
use crate::plan::Plan;
use crate::profile::Profile;
use crate::statement::ScriptStatements;
use crate::study::Study;
use crate::trial::Trial;

/// The value of [`Run::schema`] that this version writes.
pub const SCHEMA: &str = "pgassay.run/1";

/// Everything about one run of a study.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// Name and version of this form.
    pub schema: String,
    /// The run's name: its directory's, and what `pgassay show` takes.
    pub id: String,
    /// The study's name: its file's, without ending.
    pub study_name: String,
    /// Version of pgassay.
    pub pgassay: String,
    /// When it began, microseconds since 1970.
    pub started_us: i64,
    /// When it ended.
    pub ended_us: i64,
    /// Whether every planned trial was run.
    pub complete: bool,
    /// The study as it was read.
    pub study: Study,
    /// The plan that was followed.
    pub plan: Plan,
    /// The servers, in the plan's order.
    pub servers: Vec<ServerFacts>,
    /// The relays that made round trips longer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub relays: Vec<RelayFacts>,
    /// What limits measurements on this machine.
    pub checks: Vec<Check>,
    /// What the reader must know before believing a figure.
    pub warnings: Vec<Warning>,
    /// Every trial, in the order they ran.
    pub trials: Vec<Trial>,
    /// A profile per point, in the plan's order; empty where sampling was not possible.
    pub profiles: Vec<Profile>,
    /// What each statement takes, for the points whose transactions have several; of profiled trials.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub statements: Vec<ScriptStatements>,
    /// Figures of each point, in the plan's order.
    pub points: Vec<PointSummary>,
    /// Every variant against the baseline, under every condition.
    pub comparisons: Vec<Comparison>,
    /// Where each point's transactions spend their time, in the plan's order; points without exact
    /// totals have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ledgers: Vec<Ledger>,
    /// Known causes of lost time that were seen, the strongest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// What a transaction of every variant costs in instructions, where that was asked for. Its
    /// conditions are the plan's without the number of clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<InstructionCosts>,
    /// The second stage that tried the findings' remedies: a run of its own, whose baseline is the
    /// variant that had the trouble.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedies: Option<Box<Run>>,
    /// What the study's author believes, and whether it shows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expectations: Vec<ExpectationOutcome>,
    /// The figures of the study's source beside those found here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<ReferenceTable>,
    /// What A/A comparisons on this machine found before, where there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<CalibrationSummary>,
    /// Inclusive shares of the functions that the study watches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub watched: Vec<WatchedFunction>,
}

impl Run {
    /// How a server of the plan is set: by the study, or, where it is the user's own, by its owner.
    pub fn settings_of(&self, server: usize) -> Option<&BTreeMap<String, String>> {
        let planned = self.plan.servers.get(server)?;
        match &planned.dsn {
            None => Some(&planned.settings),
            Some(_) => Some(&self.servers.get(server)?.settings),
        }
    }
}

/// What a server was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServerFacts {
    /// Exact version, as `18.1`.
    pub version: String,
    /// Where its binaries came from, in words.
    pub origin: String,
    /// Arguments of `configure`.
    pub configure: String,
    /// Compiler flags.
    pub cflags: String,
    /// The compiler, as `version()` names it.
    pub compiler: String,
    /// What differs from PostgreSQL's own defaults on a server of the user's own, values as `SHOW`
    /// has them; texts are left out, but for names of libraries, since they may hold secrets.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

/// What a relay was asked for, and what it did.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RelayFacts {
    /// What it was to add to a round trip.
    pub delay_us: f64,
    /// Median round trip of one byte between two threads over TCP on loopback, without it.
    pub direct_us: f64,
    /// The same through it.
    pub relayed_us: f64,
    /// How much later than asked pieces left during the run, in the mean.
    pub late_mean_us: f64,
    /// The latest of them.
    pub late_max_us: f64,
}

/// One line of the machine's check-up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Check {
    /// What was looked at, as `kernel.perf_event_paranoid`.
    pub name: String,
    /// What was found.
    pub value: String,
    /// What it limits; `None` when all is well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<String>,
    /// The command that mends it, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
}

/// What the reader must know before believing a figure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Warning {
    /// A stable name for programs.
    pub kind: WarningKind,
    /// A sentence for people.
    pub message: String,
}

/// The kinds of warnings.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum WarningKind {
    /// The servers that are compared were built differently.
    BuildsDiffer,
    /// The load generator set the pace, not the server.
    ClientLimited,
    /// A point had not settled when its time to warm up was over.
    NotSteady,
    /// A load that writes is not put back before each trial, so that trials start from different states.
    StateChanges,
    /// Checkpoints or autovacuum fell into some trials and not into others.
    Maintenance,
    /// Variants keep their connections open on a server on which each makes snapshots dearer.
    OpenConnections,
    /// The hypervisor gave a noticeable share of the machine to others.
    Steal,
    /// Other programs used a noticeable share of the machine.
    ForeignLoad,
    /// CPU stacks could not be sampled, or not all of them.
    NoProfile,
    /// Samples were lost or stacks broken off.
    ProfileQuality,
    /// The run ended before all trials were done.
    Incomplete,
    /// A variant was left out, since what it requires is not there.
    Skipped,
    /// Remedies could not be tried, or there were none to try.
    Remedies,
    /// An installed PostgreSQL stood in for one that could not be fetched.
    Installed,
    /// A server of the user's own is set otherwise than the study sets its servers.
    SettingsDiffer,
    /// What a server of the user's own used could not be read.
    NotObserved,
    /// Databases that an earlier run left on a server of the user's own.
    Leftover,
}
