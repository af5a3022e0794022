//! What a study's question is asked under, and how long it is measured.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Network, Protocol, Scalar, Span};

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
    /// Ways between clients and server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub network: Vec<Network>,
    /// Lists of values of settings of the server, each of which gets a server of its own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, Vec<Scalar>>,
    /// Lists of values of settings of the sessions only.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub session: BTreeMap<String, Vec<Scalar>>,
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
            network: Vec::new(),
            settings: BTreeMap::new(),
            session: BTreeMap::new(),
            parameters: BTreeMap::new(),
        }
    }
}

fn default_clients() -> Vec<u32> {
    vec![8]
}

/// What `--quick` leaves of a study: shorter lists, so that all of it ends within two minutes.
/// What is not named here is as it is without `--quick`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Quick {
    /// Names of variants; the first is the baseline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<Vec<String>>,
    /// Concurrent connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clients: Option<Vec<u32>>,
    /// Names of scripts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<Vec<String>>,
    /// PostgreSQL versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Vec<String>>,
    /// Ways between clients and server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Vec<Network>>,
    /// Pairs per comparison.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pairs: Option<u32>,
    /// Values for `${name}`, such as fewer rows.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, Scalar>,
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
    /// Blocks between restarts of the servers that pgassay starts; 0 means never. Each start lays out
    /// memory anew, which alone can change throughput by several percent; with one start per block,
    /// intervals hold for any start.
    #[serde(default = "default_restart_every")]
    pub restart_every: u32,
}

impl Default for Length {
    fn default() -> Self {
        Self {
            quick: default_quick(),
            full: default_full(),
            pairs: default_pairs(),
            threads: default_threads(),
            restart_every: default_restart_every(),
        }
    }
}

/// When the servers that pgassay starts run checkpoints and vacuum. A checkpoint or an autovacuum that
/// falls into some trials only is noise at best, and a false difference at worst. A study that sets
/// `autovacuum`, `checkpoint_timeout` or `max_wal_size` itself decides for that part; servers that
/// run already are left as they are configured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Maintenance {
    /// Checkpoints.
    #[serde(default)]
    pub checkpoint: MaintenanceTime,
    /// Vacuum and analyze of tables that autovacuum's own thresholds select.
    #[serde(default)]
    pub vacuum: MaintenanceTime,
}

/// A time for checkpoints or vacuum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MaintenanceTime {
    /// In no trial: pgassay runs what is due before a condition's trials begin.
    #[default]
    BetweenTrials,
    /// In every trial: started as its load starts.
    InEveryTrial,
    /// When the server decides.
    AsConfigured,
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

impl MaintenanceTime {
    /// As prose has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BetweenTrials => "between trials",
            Self::InEveryTrial => "in every trial",
            Self::AsConfigured => "as configured",
        }
    }
}

fn default_restart_every() -> u32 {
    1
}

fn default_threads() -> u32 {
    1
}
