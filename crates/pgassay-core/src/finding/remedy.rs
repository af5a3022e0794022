//! Remedies as variants of the study in which the trouble was found.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::study::Protocol;

/// What to change of the variant that had the trouble; everything else stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemedyVariant {
    /// Its name, as `work_mem=64MB`.
    pub name: String,
    /// How statements travel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// The PostgreSQL version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Lines of `postgresql.conf`: needs a server of its own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// Settings of its sessions: shares the server.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub session: BTreeMap<String, String>,
}

impl RemedyVariant {
    /// Another protocol.
    pub(super) fn protocol(protocol: Protocol) -> Self {
        Self {
            name: format!("protocol={}", protocol.as_str()),
            protocol: Some(protocol),
            ..Self::default()
        }
    }

    /// Another version.
    pub(super) fn version(version: &str) -> Self {
        Self {
            name: format!("version={version}"),
            version: Some(version.to_owned()),
            ..Self::default()
        }
    }

    /// Settings of sessions.
    pub(super) fn session(pairs: &[(&str, &str)]) -> Self {
        Self {
            name: named(pairs),
            session: owned(pairs),
            ..Self::default()
        }
    }

    /// Settings of the server.
    pub(super) fn settings(pairs: &[(&str, &str)]) -> Self {
        Self {
            name: named(pairs),
            settings: owned(pairs),
            ..Self::default()
        }
    }
}

fn named(pairs: &[(&str, &str)]) -> String {
    let words: Vec<String> = pairs
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    words.join(" ")
}

fn owned(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}
