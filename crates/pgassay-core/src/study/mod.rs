//! A study: a question and its definition, as its author wrote it in TOML.
//!
//! The types here are the file format: unknown keys are errors, every key is documented, and the
//! JSON Schema that editors use is derived from them. What the keys *mean together* (which servers
//! are needed, which points are measured) is decided in [`crate::plan`].
//!
//! A *variant* is what the question asks about; a *condition* is what it is asked under. Both may
//! set the same things, except that a condition gives lists: every combination is a point with a
//! verdict of its own.

mod conditions;
mod network;
mod reading;
mod scalar;
mod source;
mod span;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use conditions::{Conditions, Length, Maintenance, MaintenanceTime, Quick};
pub use network::Network;
pub use reading::{Expectation, Reference, ReferenceRow};
pub use scalar::Scalar;
pub(crate) use source::near;
pub use source::{Location, StudyError, StudySource};
pub use span::Span;

/// A study file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Study {
    /// The question, in a sentence that ends with a question mark.
    pub question: String,
    /// Where the question or the method comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The server that all variants share unless they say otherwise.
    #[serde(default)]
    pub server: ServerChoice,
    /// Named values for `${name}` in SQL, scripts and settings; `--param name=value` overrides.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, Scalar>,
    /// What is in the database.
    #[serde(default)]
    pub data: Data,
    /// What a client does, over and over.
    pub script: Vec<Script>,
    /// The choices under test. The first is the baseline.
    pub variant: Vec<Variant>,
    /// What the question is asked under; every combination gets a verdict.
    #[serde(default)]
    pub conditions: Conditions,
    /// How long to measure.
    #[serde(default)]
    pub length: Length,
    /// When checkpoints and vacuum run.
    #[serde(default)]
    pub maintenance: Maintenance,
    /// What `--quick` leaves of variants and conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quick: Option<Quick>,
    /// The variant that is the smallest thing measurable: figures are also told above it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<String>,
    /// The comparison whose costs the terminal tells in full, as `VARIANT where script = plain and
    /// clients = 8`; see [`crate::measure`]. Without it, the one that tells the most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explain: Option<String>,
    /// Functions whose share of the server's CPU time, callees included, the report tables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub watch_functions: Vec<String>,
    /// What the author believes. An expectation that fails is news, not an error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expect: Vec<Expectation>,
    /// Figures that others found, to stand beside those found here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<Reference>,
}

/// Which PostgreSQL, and how it is set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerChoice {
    /// `"18"` (its newest minor release), `"9.6"`, or exact: `"10.23"`. Default: `"18"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// A directory that holds `bin/postgres`, instead of a version that is fetched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binaries: Option<String>,
    /// A server that runs already, instead: `"host=… user=…"` or a URI, as libpq has them. It is
    /// used as it is, in databases made for the run and dropped after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dsn: Option<String>,
    /// Lines of `postgresql.conf`, verbatim.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, Scalar>,
    /// Variables of the environment that the server's processes run in, beside `PATH`, `TZ`,
    /// `LD_LIBRARY_PATH` and the locale `C`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, Scalar>,
    /// Whether pages have checksums (`initdb --data-checksums`, or `--no-data-checksums`). Default:
    /// the version's own, which is no until 17 and yes since 18.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_checksums: Option<bool>,
}

/// What is in the database.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// SQL that runs once per database. Variants and conditions whose parameters change it get a
    /// database each, on the server that they share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup: Option<String>,
    /// SQL that runs before each trial, so that a load that writes starts from the same state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset: Option<String>,
}

/// A script in pgbench's language.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// The name by which variants and conditions select it.
    pub name: String,
    /// How often it is chosen, relative to the others, where several run together.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: u32,
    /// The script itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// A file that holds it, relative to the study file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// One of pgbench's own scripts: `tpcb-like`, `simple-update` or `select-only`. Its tables are
    /// the set-up's business; the parameter `scale` says how large they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub builtin: Option<String>,
    /// Whether each run of it has a connection of its own, opened for it: pgbench's `-C`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub reconnects: bool,
    /// What one run of it gives, as `{ values = 10_000 }`: rates and costs are then told in values
    /// instead of transactions, and compared so.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gives: BTreeMap<String, Scalar>,
}

// Serde hands the field by reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
pub(crate) fn is_false(value: &bool) -> bool {
    !value
}

fn one() -> u32 {
    1
}

// Serde hands the field by reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_one(weight: &u32) -> bool {
    *weight == 1
}

/// How statements travel: pgbench's `-M`.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// One `Query` message; values are written into the text.
    #[default]
    Simple,
    /// `Parse`, `Bind`, `Execute` each time, without a name.
    Extended,
    /// `Parse` once, then `Bind` and `Execute`.
    Prepared,
}

impl Protocol {
    /// The word that study files and pgbench use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Simple => "simple",
            Self::Extended => "extended",
            Self::Prepared => "prepared",
        }
    }
}

/// What a variant is driven by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DriverKind {
    /// PostgreSQL's protocol, and scripts in pgbench's language.
    #[default]
    Postgres,
    /// Redis's protocol. A script is a list of commands, one a line, all of which are sent before
    /// the first reply is waited for. Rates and latencies, without an account of costs.
    Redis,
}

/// What must be there for a variant to run. Unmet, the variant is left out, and the report says so
/// and how to have it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Requires {
    /// An extension that the server's installation must hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extension: Option<String>,
    /// A program that must be on `PATH`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// What the server must have been built with, by the name that PostgreSQL's `configure
    /// --with-…` has for it: `lz4`, `zstd`, `llvm`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feature: Option<String>,
}

/// One choice under test. What it does not set comes from the study's other parts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// Its name in every table.
    pub name: String,
    /// How statements travel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// The script it runs; without one, all scripts by their weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// Its PostgreSQL version: it gets a server of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Its binaries: it gets a server of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binaries: Option<String>,
    /// A server that runs already, instead of one made for the run; as `server.dsn`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dsn: Option<String>,
    /// Lines of `postgresql.conf` beyond `server.settings`: it gets a server of its own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, Scalar>,
    /// Variables of its server's environment, beyond `server.environment`: it gets a server of its own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, Scalar>,
    /// Settings of its sessions only, as `PGOPTIONS` would give them: it shares the server, which
    /// makes the fairer pair.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub session: BTreeMap<String, Scalar>,
    /// Connections that do nothing, beside those of the load and for as long as the run: it gets a
    /// server of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_connections: Option<u32>,
    /// Whether its pages have checksums, as under `[server]`: it gets a server of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_checksums: Option<bool>,
    /// Values for `${name}`, over the study's `[parameters]`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, Scalar>,
    /// SQL that runs after the study's `setup`: the variant gets a database of its own on the
    /// server that it shares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup: Option<String>,
    /// SQL that runs after the study's `reset`, before each of its trials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset: Option<String>,
    /// The way between clients and server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// What it is driven by, if that is not PostgreSQL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<DriverKind>,
    /// Where a server that runs already is reached. Redis: `host:port`, or
    /// the path of a socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// What must be there for it to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requires: Option<Requires>,
}
