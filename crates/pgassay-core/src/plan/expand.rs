//! From a study to its plan: checks that need more than one key, and every combination spelled out.

use std::collections::BTreeMap;

use super::combination::{Combination, combinations};
use super::interpolate::interpolate;
use super::names::{check_names, chosen_variants, script_named, unknown_name};
use super::schedule::{count_connections, schedule};
use super::{Condition, Overrides, Plan, PlannedScript, Point, ServerPlan};
use crate::study::{Scalar, Script, Study, StudyError, StudySource, Variant};

/// Without `server.version`.
const DEFAULT_VERSION: &str = "18";
/// Any version does: the newest in the directory that was named.
const NEWEST_THERE: &str = "latest";

/// Spells a study out.
///
/// Scripts that name a file must have had its text put in by the caller, who may read files.
///
/// # Errors
/// Names that do not exist or exist twice, things set by a variant and a condition at once, lists
/// that are empty, `${…}` that nothing defines: each with its place in the file.
pub fn plan(
    study: &Study,
    source: &StudySource,
    overrides: &Overrides,
) -> Result<Plan, StudyError> {
    check_names(study, source)?;
    let variants = chosen_variants(study, source, overrides)?;
    let combinations = combinations(study, source, overrides)?;
    let mut expansion = Expansion {
        study,
        source,
        overrides,
        servers: Vec::new(),
    };
    let mut points = Vec::new();
    let mut conditions = Vec::new();
    for (condition, combination) in combinations.iter().enumerate() {
        conditions.push(Condition {
            clients: combination.clients,
            label: combination.label(),
        });
        for (variant, (index, definition)) in variants.iter().enumerate() {
            let mut point = expansion.point(*index, definition, combination)?;
            (point.variant, point.condition) = (variant, condition);
            points.push(point);
        }
    }
    let mut servers = expansion.servers;
    count_connections(&mut servers, &points, &conditions, variants.len());
    let schedule = schedule(study, source, overrides, points.len())?;
    Ok(Plan {
        variants: variants
            .iter()
            .map(|(_, variant)| variant.name.clone())
            .collect(),
        servers,
        conditions,
        points,
        schedule,
    })
}

struct Expansion<'a> {
    study: &'a Study,
    source: &'a StudySource,
    overrides: &'a Overrides,
    servers: Vec<ServerPlan>,
}

impl Expansion<'_> {
    /// The point of a variant under a combination; the caller fills its indices in.
    fn point(
        &mut self,
        index: usize,
        variant: &Variant,
        at: &Combination,
    ) -> Result<Point, StudyError> {
        self.refuse_both(index, variant, at)?;
        let values = self.values(variant, at);
        let server = self.server(index, variant, at, &values)?;
        let mut session = BTreeMap::new();
        for (name, value) in &variant.session {
            let path = ["variant", &index.to_string(), "session", name];
            session.insert(name.clone(), self.filled(value.as_str(), &values, &path)?);
        }
        let reset = self.study.data.reset.as_deref().unwrap_or_default();
        Ok(Point {
            variant: 0,
            condition: 0,
            server,
            protocol: variant.protocol.or(at.protocol).unwrap_or_default(),
            session,
            scripts: self.scripts(index, variant, at, &values)?,
            reset: self.filled(reset, &values, &["data", "reset"])?,
            scale: self.scale(&values)?,
        })
    }

    /// pgbench's scripts count rows in it.
    fn scale(&self, values: &BTreeMap<String, String>) -> Result<i64, StudyError> {
        let Some(text) = values.get("scale") else {
            return Ok(1);
        };
        text.parse().map_err(|_| {
            let message = format!(
                "the parameter `scale` is pgbench's `:scale`, a whole number, not \"{text}\""
            );
            self.source.error_at(&["parameters", "scale"], message)
        })
    }

    /// What is asked about cannot also be what it is asked under.
    fn refuse_both(
        &self,
        index: usize,
        variant: &Variant,
        at: &Combination,
    ) -> Result<(), StudyError> {
        let both = [
            ("script", variant.script.is_some() && at.script.is_some()),
            ("version", variant.version.is_some() && at.version.is_some()),
            (
                "protocol",
                variant.protocol.is_some() && at.protocol.is_some(),
            ),
        ];
        match both.iter().find(|(_, both)| *both) {
            None => Ok(()),
            Some((key, _)) => Err(self.source.error_at(
                &["variant", &index.to_string(), key],
                format!("`{key}` is set by variant \"{}\" and by [conditions]; it can be one or the other", variant.name),
            )),
        }
    }

    /// Values for `${…}`: study, then condition, then variant, then command line.
    fn values(&self, variant: &Variant, at: &Combination) -> BTreeMap<String, String> {
        let mut values = BTreeMap::new();
        let scalars = |map: &BTreeMap<String, Scalar>| -> BTreeMap<String, String> {
            map.iter()
                .map(|(name, value)| (name.clone(), value.to_string()))
                .collect()
        };
        values.extend(scalars(&self.study.parameters));
        values.extend(at.parameters.clone());
        values.extend(scalars(&variant.parameters));
        values.extend(self.overrides.parameters.clone());
        values.insert("clients".to_owned(), at.clients.to_string());
        values
    }

    fn filled(
        &self,
        text: &str,
        values: &BTreeMap<String, String>,
        path: &[&str],
    ) -> Result<String, StudyError> {
        interpolate(text, values).map_err(|unknown| {
            let mut error = unknown_name(
                self.source,
                path,
                "parameter",
                &unknown.name,
                values.keys().map(String::as_str),
            );
            if let (Some(location), Some(line)) = (
                &mut error.location,
                self.source.line_in_text(path, unknown.line),
            ) {
                location.line = line;
                location.column = 1;
            }
            error
        })
    }

    fn scripts(
        &self,
        index: usize,
        variant: &Variant,
        at: &Combination,
        values: &BTreeMap<String, String>,
    ) -> Result<Vec<PlannedScript>, StudyError> {
        let chosen = match (&variant.script, &at.script) {
            (Some(name), _) => vec![script_named(
                self.study,
                self.source,
                name,
                &["variant", &index.to_string(), "script"],
            )?],
            (None, Some(name)) => vec![script_named(
                self.study,
                self.source,
                name,
                &["conditions", "script"],
            )?],
            (None, None) => self.study.script.iter().enumerate().collect(),
        };
        let fill = |(index, script): (usize, &Script)| {
            let text = script.text.as_deref().unwrap_or_default();
            Ok(PlannedScript {
                index,
                name: script.name.clone(),
                file: script.file.clone(),
                weight: script.weight,
                text: self.filled(text, values, &["script", &index.to_string(), "text"])?,
            })
        };
        chosen.into_iter().map(fill).collect()
    }

    /// The version, and the directory of its binaries where one is named. Whoever comes first of
    /// variant, condition, command line and study decides both; binaries alone may be of any version.
    fn programs(&self, variant: &Variant, at: &Combination) -> (String, Option<String>) {
        let (shared, over) = (&self.study.server, self.overrides);
        let choices = [
            (variant.version.clone(), variant.binaries.clone()),
            (at.version.clone(), None),
            (over.version.clone(), over.binaries.clone()),
            (shared.version.clone(), shared.binaries.clone()),
        ];
        let chosen = choices
            .into_iter()
            .find(|(version, binaries)| version.is_some() || binaries.is_some());
        match chosen {
            Some((Some(version), binaries)) => (version, binaries),
            Some((None, binaries)) => (NEWEST_THERE.to_owned(), binaries),
            None => (DEFAULT_VERSION.to_owned(), None),
        }
    }

    /// The index of the server that these choices need; equal needs share one.
    fn server(
        &mut self,
        index: usize,
        variant: &Variant,
        at: &Combination,
        values: &BTreeMap<String, String>,
    ) -> Result<usize, StudyError> {
        let shared = &self.study.server;
        let (version, binaries) = self.programs(variant, at);
        let mut settings = BTreeMap::new();
        let of_variant = variant
            .settings
            .iter()
            .map(|pair| (["variant", "settings"], pair));
        for (place, (name, value)) in shared
            .settings
            .iter()
            .map(|pair| (["server", "settings"], pair))
            .chain(of_variant)
        {
            let number = index.to_string();
            let path: Vec<&str> = if place[0] == "server" {
                vec![place[0], place[1], name]
            } else {
                vec![place[0], &number, place[1], name]
            };
            settings.insert(name.clone(), self.filled(value.as_str(), values, &path)?);
        }
        let setup = self.study.data.setup.as_deref().unwrap_or_default();
        let wanted = ServerPlan {
            version,
            binaries,
            settings,
            setup: self.filled(setup, values, &["data", "setup"])?,
            connections: 0,
        };
        if let Some(found) = self.servers.iter().position(|server| *server == wanted) {
            return Ok(found);
        }
        self.servers.push(wanted);
        Ok(self.servers.len() - 1)
    }
}
