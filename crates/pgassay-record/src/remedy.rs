//! Suggested fixes that can be run as variants of the same study.

use std::collections::BTreeMap;

use pgassay_model::plan::{Point, ServerPlan};
use pgassay_model::study::Protocol;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What to change in the affected variant; everything else stays the same.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemedyVariant {
    /// Its name, such as `work_mem=64MB`.
    pub name: String,
    /// The query protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// The PostgreSQL version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Settings in `postgresql.conf`: these need a separate server.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// Session settings: these share the server.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub session: BTreeMap<String, String>,
}

impl RemedyVariant {
    /// Uses another protocol.
    pub fn protocol(protocol: Protocol) -> Self {
        Self {
            name: format!("protocol={}", protocol.as_str()),
            protocol: Some(protocol),
            ..Self::default()
        }
    }

    /// Uses another version.
    pub fn version(version: &str) -> Self {
        Self {
            name: format!("version={version}"),
            version: Some(version.to_owned()),
            ..Self::default()
        }
    }

    /// Changes session settings.
    pub fn session(pairs: &[(&str, &str)]) -> Self {
        Self {
            name: named(pairs),
            session: owned(pairs),
            ..Self::default()
        }
    }

    /// Changes server settings.
    pub fn settings(pairs: &[(&str, &str)]) -> Self {
        Self {
            name: named(pairs),
            settings: owned(pairs),
            ..Self::default()
        }
    }

    /// Whether it changes anything at a point whose server has these settings, and can be applied.
    pub fn changes(
        &self,
        point: &Point,
        server: &ServerPlan,
        set: &BTreeMap<String, String>,
    ) -> bool {
        let session = self.session.iter().any(|(name, value)| {
            let now = point.session.get(name).or(set.get(name));
            now != Some(value)
        });
        let settings = self
            .settings
            .iter()
            .any(|(name, value)| set.get(name) != Some(value));
        let protocol = self.protocol.is_some_and(|it| it != point.protocol);
        let version = self
            .version
            .as_ref()
            .is_some_and(|it| server.version.as_ref() != Some(it));
        // pgassay does not change settings of an external server, nor replace it.
        let is_possible =
            server.dsn.is_none() || (self.settings.is_empty() && self.version.is_none());
        is_possible && (session || settings || protocol || version)
    }

    /// The server that it needs, with enough connections for all variants that share it.
    pub fn server(&self, of: &ServerPlan, remedies: usize) -> ServerPlan {
        let mut server = of.clone();
        server.connections *= remedies as u32 + 1;
        server.settings.extend(self.settings.clone());
        if let Some(version) = &self.version {
            server.version = Some(version.clone());
            server.binaries = None;
        }
        server
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
