//! The conditions of a study, and how long it measures.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};

use super::{HumanDuration, Network, Percentage, Protocol, Scalar};

/// The conditions to compare variants in. Each combination of the lists is one condition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Conditions {
    /// Numbers of concurrent connections.
    #[serde(default = "default_clients")]
    pub clients: Vec<u32>,
    /// Names of scripts.
    #[serde(
        default,
        deserialize_with = "filled",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub script: Vec<String>,
    /// PostgreSQL versions.
    #[serde(
        default,
        deserialize_with = "filled",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub version: Vec<String>,
    /// Protocol modes.
    #[serde(
        default,
        deserialize_with = "filled",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub protocol: Vec<Protocol>,
    /// Networks between clients and server.
    #[serde(
        default,
        deserialize_with = "filled",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub network: Vec<Network>,
    /// Lists of values for server settings. Each combination gets its own server.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, Vec<Scalar>>,
    /// Lists of values for session settings.
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

/// A list that is given must have a value: an empty one would be ignored without a word.
fn filled<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let values = Vec::deserialize(deserializer)?;
    if values.is_empty() {
        let message = "this list is empty; add at least one value, or remove the key";
        return Err(D::Error::custom(message));
    }
    Ok(values)
}

/// As [`filled`], for a key whose absence means something else.
fn filled_if_given<'de, D, T>(deserializer: D) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    filled(deserializer).map(Some)
}

fn default_clients() -> Vec<u32> {
    vec![8]
}

/// What `--quick` changes in a study: shorter lists, so that a run ends within two minutes.
/// Keys that are absent here keep their values.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Quick {
    /// Names of the variants to run; the first is the baseline.
    #[serde(
        default,
        deserialize_with = "filled_if_given",
        skip_serializing_if = "Option::is_none"
    )]
    pub variant: Option<Vec<String>>,
    /// Numbers of concurrent connections.
    #[serde(
        default,
        deserialize_with = "filled_if_given",
        skip_serializing_if = "Option::is_none"
    )]
    pub clients: Option<Vec<u32>>,
    /// Names of scripts.
    #[serde(
        default,
        deserialize_with = "filled_if_given",
        skip_serializing_if = "Option::is_none"
    )]
    pub script: Option<Vec<String>>,
    /// PostgreSQL versions.
    #[serde(
        default,
        deserialize_with = "filled_if_given",
        skip_serializing_if = "Option::is_none"
    )]
    pub version: Option<Vec<String>>,
    /// Networks between clients and server.
    #[serde(
        default,
        deserialize_with = "filled_if_given",
        skip_serializing_if = "Option::is_none"
    )]
    pub network: Option<Vec<Network>>,
    /// Pairs per comparison.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pairs: Option<u32>,
    /// Values for `${name}`, for example fewer rows.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, Scalar>,
}

/// How long to measure: the total time inside trials, over all points (one variant under one
/// condition each). Connecting, warming up and resetting take additional time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Length {
    /// Measurement time with `--quick`.
    #[serde(default = "default_quick")]
    pub quick: HumanDuration,
    /// Measurement time without `--quick`.
    #[serde(default = "default_full")]
    pub full: HumanDuration,
    /// Pairs (blocks) per comparison, at least 2: their number is fixed. Without it, each comparison ends
    /// as soon as it has a verdict: sequentially, after 4 to 12 server starts, or after 4 to 48 pairs if
    /// the servers are not restarted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pairs: Option<u32>,
    /// Wanted half-width of the 95% interval of throughput, such as `"1%"`, instead of `pairs`: a first
    /// stage gives the standard deviation, and with it the number of further server starts (pairs, if the
    /// servers are not restarted). For figures to publish, because nothing stops at a verdict. Not with
    /// `--quick`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub half_width: Option<Percentage>,
    /// Load generator threads per point (pgbench's `-j`).
    #[serde(default = "default_threads")]
    pub threads: u32,
    /// Blocks between restarts of the servers that pgassay starts; 0 disables restarts. Each server
    /// start lays out memory differently, which alone can change throughput by several percent; with one
    /// server start per block, confidence intervals hold for any start.
    #[serde(default = "default_restart_every")]
    pub restart_every: u32,
}

impl Default for Length {
    fn default() -> Self {
        Self {
            quick: default_quick(),
            full: default_full(),
            pairs: None,
            half_width: None,
            threads: default_threads(),
            restart_every: default_restart_every(),
        }
    }
}

/// When the servers that pgassay starts run checkpoints and vacuum. A checkpoint or autovacuum that
/// runs during only some trials adds noise, or even a false difference. If a study sets `checkpoint_…`,
/// `max_wal_size` or `min_wal_size`, or `autovacuum…`, on any of its servers, all servers keep their settings of
/// checkpoints, or of vacuum. pgassay does not change external servers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Maintenance {
    /// Checkpoints.
    #[serde(default)]
    pub checkpoint: MaintenanceTime,
    /// Vacuum and analyze of the tables that exceed autovacuum's thresholds.
    #[serde(default)]
    pub vacuum: MaintenanceTime,
}

/// When checkpoints or vacuum run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MaintenanceTime {
    /// Never during a trial: pgassay runs them before the trials of a condition, if due.
    #[default]
    BetweenTrials,
    /// In every trial: pgassay starts them when the load starts.
    InEveryTrial,
    /// When the server decides.
    AsConfigured,
}

fn default_quick() -> HumanDuration {
    HumanDuration::from_secs(20)
}

fn default_full() -> HumanDuration {
    HumanDuration::from_secs(60)
}

impl MaintenanceTime {
    /// The wording in messages and reports.
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
