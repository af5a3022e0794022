//! A study: a question and how to answer it, as written in TOML.
//!
//! These types are the file format: unknown keys are errors, every key is documented, and the JSON
//! Schema for editors is derived from them. [`crate::plan`] works out what the keys mean together:
//! which servers are needed and which points are measured.
//!
//! A *variant* is one of the choices to compare; a *condition* is a situation to compare them in. Both
//! can set the same things, but conditions are lists: each combination of their values is a condition
//! with its own verdicts. One variant under one condition is a *point*.

mod conditions;
mod duration;
mod expectations;
pub mod limits;
mod network;
mod percentage;
mod scalar;
mod source;
mod wording;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use conditions::{Conditions, Length, Maintenance, MaintenanceTime, Quick};
pub use duration::HumanDuration;
pub use expectations::{Expectation, Reference, ReferenceRow};
pub use network::Network;
pub use percentage::Percentage;
pub use scalar::Scalar;
pub use source::{Location, StudyError, StudySource};
pub(crate) use wording::most_similar;

/// A study file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Study {
    /// The question, as a sentence that ends with a question mark.
    pub question: String,
    /// Source of the question or the method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The server for all variants that do not set their own.
    #[serde(default)]
    pub server: ServerChoice,
    /// Named values for `${name}` in SQL, scripts and settings; `--param name=value` overrides.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, Scalar>,
    /// The contents of the database.
    #[serde(default)]
    pub data: Data,
    /// The scripts that clients run repeatedly.
    pub script: Vec<Script>,
    /// The choices to compare. The first is the baseline.
    pub variant: Vec<Variant>,
    /// Compare each variant with the one before it instead of with the first: for releases or commits.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stepwise: bool,
    /// The conditions to compare variants in; each combination gets a verdict.
    #[serde(default)]
    pub conditions: Conditions,
    /// How long to measure.
    #[serde(default)]
    pub length: Length,
    /// When checkpoints and vacuum run.
    #[serde(default)]
    pub maintenance: Maintenance,
    /// Whether to take the plans of the scripts' statements with EXPLAIN after the last trial.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub plans: bool,
    /// Whether idle CPUs poll for work during the run instead of going to sleep, if that is permitted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_cpus_awake: bool,
    /// The variants and conditions to run with `--quick`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quick: Option<Quick>,
    /// The variant that does the least possible work: reports also show mean latencies relative to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<String>,
    /// The comparison whose costs the terminal shows in full, such as `VARIANT where script = plain
    /// and clients = 8`; see docs/study-file.md. Default: the most informative one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explain: Option<String>,
    /// Functions to list in the report with their share of the server's CPU time, callees included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub watch_functions: Vec<String>,
    /// What the author expects. An expectation that fails is a result, not an error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expect: Vec<Expectation>,
    /// Published figures to compare with the measured ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<Reference>,
}

/// Which PostgreSQL to run, and its settings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerChoice {
    /// A major version, `"18"` or `"9.6"` (its newest minor release in the cache, otherwise its newest), or an exact
    /// one, `"10.23"`. Default: `"18"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// A directory that contains `bin/postgres`, instead of a version to download.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binaries: Option<String>,
    /// An external server, as a libpq connection string: `"host=… user=…"` or a URI. pgassay does not
    /// change its configuration; it creates databases for the run and drops them afterwards, unless the load only reads
    /// and there is no setup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dsn: Option<String>,
    /// Settings for `postgresql.conf`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, Scalar>,
    /// Environment variables of the server's processes, in addition to `PATH`, `TZ`,
    /// `LD_LIBRARY_PATH` and the locale `C`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, Scalar>,
    /// Whether to enable data checksums (`initdb --data-checksums` or `--no-data-checksums`). Default:
    /// that of the version, which is off up to 17 and on since 18.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_checksums: Option<bool>,
}

/// The contents of the database.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// SQL to run once per database. Variants and conditions whose parameters change this SQL get
    /// separate databases on the same server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup: Option<String>,
    /// SQL to run before each trial, so that every trial of a write load starts from the same state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset: Option<String>,
}

/// A script in pgbench's script language.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// The name that variants and conditions use to select it.
    pub name: String,
    /// How often it is chosen relative to the other scripts, if several run together.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: u32,
    /// The text of the script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// A file with the script, relative to the study file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// One of pgbench's built-in scripts: `tpcb-like`, `simple-update` or `select-only`. `setup` must
    /// create their tables; the parameter `scale` gives their scale factor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub builtin: Option<String>,
    /// Whether to open a new connection for each transaction (pgbench's `-C`).
    #[serde(default, skip_serializing_if = "is_false")]
    pub reconnects: bool,
    /// What one transaction yields, for example `{ values = 10_000 }`: pgassay then reports and
    /// compares rates and costs per value instead of per transaction.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gives: BTreeMap<String, Scalar>,
}

// Serde passes the field by reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
pub(crate) fn is_false(value: &bool) -> bool {
    !value
}

fn yes() -> bool {
    true
}

// Serde passes the field by reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_yes(value: &bool) -> bool {
    *value
}

fn one() -> u32 {
    1
}

// Serde passes the field by reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_one(weight: &u32) -> bool {
    *weight == 1
}

/// Query protocol mode (pgbench's `-M`).
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// One `Query` message; values are interpolated into the text.
    #[default]
    Simple,
    /// `Parse`, `Bind` and `Execute` each time, with an unnamed statement.
    Extended,
    /// `Parse` once, then `Bind` and `Execute`.
    Prepared,
}

impl Protocol {
    /// The name in study files and in pgbench.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Simple => "simple",
            Self::Extended => "extended",
            Self::Prepared => "prepared",
        }
    }
}

/// The load driver of a variant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DriverKind {
    /// The PostgreSQL protocol, with scripts in pgbench's script language.
    #[default]
    Postgres,
    /// The Redis protocol. A script is a list of commands, one per line; pgassay sends all of them
    /// before it waits for the first reply. Reports throughput and latency, but no cost breakdown.
    Redis,
}

/// What a variant requires. If a requirement is missing, pgassay skips the variant, and the report
/// says so and how to install what is missing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Requires {
    /// An extension that must be installed for the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extension: Option<String>,
    /// A program that must be on `PATH`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// A build option of the server, by its name in PostgreSQL's `configure --with-…`: `lz4`, `zstd`,
    /// `llvm`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feature: Option<String>,
}

/// One of the choices to compare. What it does not set comes from the rest of the study.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// The name in reports.
    pub name: String,
    /// Query protocol mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// The script to run. Default: all scripts, chosen by weight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// PostgreSQL version. The variant gets its own server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Directory of PostgreSQL binaries. The variant gets its own server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binaries: Option<String>,
    /// An external server, instead of one that pgassay starts; see `server.dsn`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dsn: Option<String>,
    /// Settings for `postgresql.conf`, in addition to `server.settings`. The variant gets its own server.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, Scalar>,
    /// Environment variables of its server, in addition to `server.environment`. The variant gets its
    /// own server.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, Scalar>,
    /// Session settings, as with `PGOPTIONS`. The variant shares the server with the others, which makes
    /// the fairest comparison.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub session: BTreeMap<String, Scalar>,
    /// Idle connections to keep open during the run, in addition to the clients'. The variant gets its
    /// own server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_connections: Option<u32>,
    /// Whether to enable data checksums; see `server.data_checksums`. The variant gets its own server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_checksums: Option<bool>,
    /// Values for `${name}`; they override the study's `[parameters]`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, Scalar>,
    /// SQL to run after the study's `setup`. The variant gets its own database on the shared server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup: Option<String>,
    /// SQL to run before each trial of the variant, after the study's `reset`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset: Option<String>,
    /// Network between clients and server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// The load driver, if not PostgreSQL's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<DriverKind>,
    /// Address of a running Redis server: `host:port` or the path of a socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Requirements of the variant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requires: Option<Requires>,
}
