//! The servers and databases that points need; points with equal needs share them.

use std::collections::BTreeMap;

use super::ServerPlan;
use super::combination::Combination;
use super::expansion::{Expansion, replace_setting};
use crate::study::{Network, Scalar, StudyError, Variant};

/// Used if `server.version` is not set.
const DEFAULT_VERSION: &str = "18";
/// Accepts any version: the newest in the given directory.
const NEWEST_AVAILABLE: &str = "latest";
/// Which PostgreSQL to use: a version, a directory of binaries, or an external server.
#[derive(Clone, Default)]
pub(super) struct ServerSource {
    version: Option<String>,
    binaries: Option<String>,
    pub(super) dsn: Option<String>,
}

impl ServerSource {
    fn new(version: Option<&String>, binaries: Option<&String>, dsn: Option<&String>) -> Self {
        Self {
            version: version.cloned(),
            binaries: binaries.cloned(),
            dsn: dsn.cloned(),
        }
    }

    fn is_any(&self) -> bool {
        self.version.is_some() || self.binaries.is_some() || self.dsn.is_some()
    }
}

impl Expansion<'_> {
    /// Indexes of the server and of the database that a point needs.
    pub(super) fn add_server(
        &mut self,
        index: usize,
        variant: &Variant,
        at: &Combination,
        values: &BTreeMap<String, String>,
        network: Network,
    ) -> Result<(usize, usize), StudyError> {
        let chosen = self.chosen(variant, at);
        if self.uses_external_server(variant, at) {
            self.reject_conflicts_with_dsn(index, variant, at)?;
        }
        let wanted = ServerPlan {
            version: chosen.version,
            binaries: chosen.binaries,
            dsn: chosen.dsn,
            settings: self.settings(index, variant, at, values)?,
            environment: self.environment(index, variant, values)?,
            databases: Vec::new(),
            tcp: network.needs_tcp(),
            tls: network == Network::Tls,
            data_checksums: variant.data_checksums.or(self.study.server.data_checksums),
            idle_connections: variant.idle_connections.unwrap_or(0),
            connections: 0,
        };
        let setup = self.sql(index, variant, "setup", values)?;
        Ok(self.servers.find_or_add(&wanted, setup))
    }

    /// The first of variant, condition, command line and study that sets anything decides version,
    /// binaries and DSN together. Binaries without a version can be of any version.
    pub(super) fn chosen(&self, variant: &Variant, at: &Combination) -> ServerSource {
        let (shared, over) = (&self.study.server, self.overrides);
        let of_variant = (&variant.version, &variant.binaries, &variant.dsn);
        let of_study = (&shared.version, &shared.binaries, &shared.dsn);
        let of = |(version, binaries, dsn): (&Option<_>, &Option<_>, &Option<_>)| {
            ServerSource::new(version.as_ref(), binaries.as_ref(), dsn.as_ref())
        };
        let over = (over.versions.first(), &over.binaries, &over.dsn);
        let choices = [
            of(of_variant),
            ServerSource::new(at.version.as_ref(), None, None),
            ServerSource::new(over.0, over.1.as_ref(), over.2.as_ref()),
            of(of_study),
        ];
        let mut chosen = choices
            .into_iter()
            .find(ServerSource::is_any)
            .unwrap_or_default();
        if chosen.version.is_none() && chosen.dsn.is_none() {
            let of_binaries = chosen.binaries.as_ref().map(|_| NEWEST_AVAILABLE);
            chosen.version = Some(of_binaries.unwrap_or(DEFAULT_VERSION).to_owned());
        }
        chosen
    }

    /// The study's settings, overridden by the condition's, then by the variant's.
    fn settings(
        &self,
        index: usize,
        variant: &Variant,
        at: &Combination,
        values: &BTreeMap<String, String>,
    ) -> Result<BTreeMap<String, String>, StudyError> {
        let number = index.to_string();
        let sources: [(&[&str], &BTreeMap<String, Scalar>); 3] = [
            (&["server", "settings"], &self.study.server.settings),
            (&["conditions", "settings"], &at.settings),
            (&["variant", &number, "settings"], &variant.settings),
        ];
        let mut settings = BTreeMap::new();
        for (place, given) in sources {
            for (name, value) in given {
                let path: Vec<&str> = place.iter().copied().chain([name.as_str()]).collect();
                let value = self.fill_parameters(value.as_str(), values, &path)?;
                replace_setting(&mut settings, name, value);
            }
        }
        Ok(settings)
    }

    /// The study's environment variables, overridden by the variant's.
    fn environment(
        &self,
        index: usize,
        variant: &Variant,
        values: &BTreeMap<String, String>,
    ) -> Result<BTreeMap<String, String>, StudyError> {
        let number = index.to_string();
        let sources: [(&[&str], &BTreeMap<String, Scalar>); 2] = [
            (&["server", "environment"], &self.study.server.environment),
            (&["variant", &number, "environment"], &variant.environment),
        ];
        let mut environment = BTreeMap::new();
        for (place, given) in sources {
            for (name, value) in given {
                let path: Vec<&str> = place.iter().copied().chain([name.as_str()]).collect();
                if let Some(reason) = check_environment_name(name) {
                    return Err(self.source.error_at(&path, format!("`{name}` {reason}")));
                }
                environment.insert(
                    name.clone(),
                    self.fill_parameters(value.as_str(), values, &path)?,
                );
            }
        }
        Ok(environment)
    }
}

/// Why this name is not allowed as an environment variable of a server.
fn check_environment_name(name: &str) -> Option<&'static str> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.starts_with(|c: char| c.is_ascii_digit()) || name.is_empty() || !name.chars().all(fits)
    {
        return Some(
            "is not a valid environment variable name: use letters, digits and `_`, not starting with \
             a digit",
        );
    }
    name.starts_with("PG").then_some(
        "is reserved: PG variables can redirect PostgreSQL's programs; use `settings`, `session`, `version` or \
         `binaries` instead",
    )
}
