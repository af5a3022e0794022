//! Keys that conflict with `dsn`: pgassay uses an external server as configured.
//!
//! Variants and conditions that would have to change such a server are rejected, because the change
//! would not happen. The study's `[server]` does not apply to an external server that replaces it; its
//! settings are compared with that server's, and the report lists the differences.

use super::combination::Combination;
use super::expansion::Expansion;
use crate::study::{StudyError, Variant};

impl Expansion<'_> {
    /// Whether the point runs on an external server, even where a condition sets a version.
    pub(super) fn uses_external_server(&self, variant: &Variant, at: &Combination) -> bool {
        self.chosen(variant, at).dsn.is_some() || self.conditions_override_dsn(at)
    }

    /// Whether the conditions' versions would override `server.dsn`.
    fn conditions_override_dsn(&self, at: &Combination) -> bool {
        let of_study = self.overrides.versions.is_empty() && at.version.is_some();
        of_study && self.study.server.dsn.is_some()
    }

    /// Returns an error at the first key that would have to change the external server.
    pub(super) fn reject_conflicts_with_dsn(
        &self,
        index: usize,
        variant: &Variant,
        at: &Combination,
    ) -> Result<(), StudyError> {
        let number = index.to_string();
        let found = conflict_in_variant(variant)
            .map(|key| vec!["variant", number.as_str(), key])
            .or_else(|| {
                self.conflict_in_conditions(variant, at)
                    .map(|key| vec!["conditions", key])
            })
            .or_else(|| {
                self.conflict_in_server(variant)
                    .map(|key| vec!["server", key])
            });
        let Some(path) = found else { return Ok(()) };
        let key = path[path.len() - 1];
        let mut error = self.source.error_at(
            &path,
            format!(
                "`{key}` cannot be set for variant \"{}\": its `dsn` names an external server, which \
                 pgassay does not change",
                variant.name
            ),
        );
        if key == "settings" {
            let hint = "to change settings for the session only, use `session`";
            error.hint = Some(hint.to_owned());
        }
        Err(error)
    }

    fn conflict_in_conditions(&self, variant: &Variant, at: &Combination) -> Option<&'static str> {
        let has_versions = variant.dsn.is_some() && at.version.is_some();
        first_set_key([
            ("version", has_versions || self.conditions_override_dsn(at)),
            ("settings", !at.settings.is_empty()),
            ("network", at.network.is_some()),
        ])
    }

    /// The study's version, binaries and settings are for the servers that pgassay starts, …
    fn conflict_in_server(&self, variant: &Variant) -> Option<&'static str> {
        let server = &self.study.server;
        // … unless they are in the same table as `dsn`.
        let names_it = variant.dsn.is_none() && self.overrides.dsn.is_none();
        first_set_key([
            ("version", names_it && server.version.is_some()),
            ("binaries", names_it && server.binaries.is_some()),
            ("settings", names_it && !server.settings.is_empty()),
            ("environment", !server.environment.is_empty()),
            ("data_checksums", server.data_checksums.is_some()),
        ])
    }
}

fn conflict_in_variant(variant: &Variant) -> Option<&'static str> {
    let names_it = variant.dsn.is_some();
    first_set_key([
        ("version", names_it && variant.version.is_some()),
        ("binaries", names_it && variant.binaries.is_some()),
        ("settings", !variant.settings.is_empty()),
        ("environment", !variant.environment.is_empty()),
        ("data_checksums", variant.data_checksums.is_some()),
        ("idle_connections", variant.idle_connections.is_some()),
        ("network", variant.network.is_some()),
    ])
}

fn first_set_key<const N: usize>(keys: [(&'static str, bool); N]) -> Option<&'static str> {
    keys.into_iter()
        .find(|(_, is_set)| *is_set)
        .map(|(key, _)| key)
}
