//! A study: a question and its definition, as its author wrote it in TOML.
//!
//! The types here are the file format: unknown keys are errors, every key is documented, and the
//! JSON Schema that editors use is derived from them. What the keys *mean together* (which servers
//! are needed, which points are measured) is decided in [`crate::plan`].
//!
//! A *variant* is what the question asks about; a *condition* is what it is asked under. Both may
//! set the same things, except that a condition gives lists: every combination is a point with a
//! verdict of its own.

mod scalar;
mod source;
mod span;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// Lines of `postgresql.conf`, verbatim.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, Scalar>,
}

/// What is in the database.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// SQL that runs once per server.
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

/// One choice under test. What it does not set comes from the study's other parts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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
    /// Lines of `postgresql.conf` beyond `server.settings`: it gets a server of its own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, Scalar>,
    /// Settings of its sessions only, as `PGOPTIONS` would give them: it shares the server, which
    /// makes the fairer pair.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub session: BTreeMap<String, Scalar>,
    /// Values for `${name}`, over the study's `[parameters]`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, Scalar>,
}

/// What the question is asked under. Every combination of the lists is a condition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Conditions {
    /// Concurrent connections.
    #[serde(default = "default_clients")]
    pub clients: Vec<u32>,
    /// Names of scripts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub script: Vec<String>,
    /// PostgreSQL versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub version: Vec<String>,
    /// Protocol modes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub protocol: Vec<Protocol>,
    /// Lists of values for `${name}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, Vec<Scalar>>,
}

impl Default for Conditions {
    fn default() -> Self {
        Self {
            clients: default_clients(),
            script: Vec::new(),
            version: Vec::new(),
            protocol: Vec::new(),
            parameters: BTreeMap::new(),
        }
    }
}

fn default_clients() -> Vec<u32> {
    vec![8]
}

/// How long to measure: the time inside trials, all points together; connecting, warming up and
/// resetting come on top. The plan is computed from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Length {
    /// With `--quick`.
    #[serde(default = "default_quick")]
    pub quick: Span,
    /// Otherwise.
    #[serde(default = "default_full")]
    pub full: Span,
    /// Pairs (blocks) per comparison, at least 2. More pairs of shorter trials beat fewer of
    /// longer ones until a trial is too short to be steady.
    #[serde(default = "default_pairs")]
    pub pairs: u32,
    /// Threads of the load generator per point (pgbench's `-j`).
    #[serde(default = "default_threads")]
    pub threads: u32,
}

impl Default for Length {
    fn default() -> Self {
        Self {
            quick: default_quick(),
            full: default_full(),
            pairs: default_pairs(),
            threads: default_threads(),
        }
    }
}

fn default_quick() -> Span {
    Span::from_secs(20)
}

fn default_full() -> Span {
    Span::from_secs(60)
}

fn default_pairs() -> u32 {
    6
}

fn default_threads() -> u32 {
    1
}
