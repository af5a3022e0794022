//! Expands a study into its plan: checks that involve several keys, and all combinations.

use std::collections::BTreeMap;

use super::combination::{Combination, combinations};
use super::expansion::{Expansion, replace_setting};
use super::names::{check_names, check_parameters, chosen_variants, script_named};
use super::schedule::{choose, count_connections, schedules};
use super::server_set::ServerSet;
use super::yields::yield_of;
use super::{Condition, Overrides, Plan, PlannedScript, PlannedSql, Point, Requirement};

use crate::study::{DriverKind, Requires, Scalar, Script, Study, StudyError, StudySource, Variant};

/// Limit on the SQL and the scripts of all points together, in bytes.
const TEXTS_MAX_BYTES: usize = 256 << 20;

/// Expands a study into its plan.
///
/// The caller must already have replaced the `file` of each script with its text: this module reads no
/// files.
///
/// # Errors
/// Unknown and duplicate names, keys set by both a variant and a condition, empty lists, undefined
/// `${…}`, and numbers that no server or machine can serve; each with its position in the file.
pub fn plan(
    study: &Study,
    source: &StudySource,
    overrides: &Overrides,
) -> Result<Plan, StudyError> {
    check_names(study, source)?;
    crate::expression::check_names(study, source)?;
    check_parameters(study, source, overrides)?;
    let variants = chosen_variants(study, source, overrides)?;
    let combinations = combinations(study, source, overrides, variants.len())?;
    let mut expansion = Expansion {
        study,
        source,
        overrides,
        servers: ServerSet::default(),
    };
    let mut points = Vec::new();
    let mut texts_bytes = 0;
    let mut conditions = Vec::new();
    for (condition, combination) in combinations.iter().enumerate() {
        conditions.push(Condition {
            clients: combination.clients,
            label: combination.label(),
            values: combination.values(),
        });
        for (variant, (index, definition)) in variants.iter().enumerate() {
            let mut point = expansion.point(*index, definition, combination)?;
            (point.variant, point.condition) = (variant, condition);
            texts_bytes += memory_bytes(&point);
            if texts_bytes + expansion.servers.setup_bytes > TEXTS_MAX_BYTES {
                return Err(source.error_at(
                    &["conditions"],
                    format!(
                        "the SQL and scripts of all variants and conditions exceed {} MiB; use \
                         shorter ones, or fewer conditions",
                        TEXTS_MAX_BYTES >> 20
                    ),
                ));
            }
            points.push(point);
        }
    }
    let mut servers = expansion.servers.plans;
    if study.stepwise && !study.expect.is_empty() {
        let message = "expectations compare with the first variant; remove `stepwise` or `expect`";
        return Err(source.error_at(&["stepwise"], message.to_owned()));
    }
    count_connections(source, &mut servers, &points, &conditions, variants.len())?;
    let has_own_server = servers.iter().any(|it| it.dsn.is_none());
    let schedules = schedules(study, source, overrides, (points.len(), has_own_server))?;
    let mut plan = Plan {
        variants: variants
            .iter()
            .map(|(_, variant)| variant.name.clone())
            .collect(),
        stepwise: study.stepwise,
        requirements: requirements(variants.iter().map(|(_, variant)| *variant)),
        servers,
        conditions,
        points,
        schedule: schedules[0],
        gate_against: overrides.gate_against.clone(),
    };
    choose(&mut plan, &schedules, overrides);
    Ok(plan)
}

/// What a point's scripts and SQL take in memory. Short texts take less than the rest of a script.
fn memory_bytes(point: &Point) -> usize {
    let of_script = |it: &PlannedScript| {
        let file = it.file.as_ref().map_or(0, String::len);
        size_of::<PlannedScript>() + it.name.len() + file + it.text.len()
    };
    let of_sql = |it: &PlannedSql| size_of::<PlannedSql>() + it.text.len();
    let scripts: usize = point.scripts.iter().map(of_script).sum();
    scripts + point.resets.iter().map(of_sql).sum::<usize>()
}

/// The program that the Redis driver starts if a variant names no address.
const REDIS_PROGRAM: &str = "redis-server";

/// What the variants need, in their order.
fn requirements<'a>(variants: impl Iterator<Item = &'a Variant>) -> Vec<Requirement> {
    let of_variant = |(number, variant): (usize, &Variant)| {
        let mut requires = variant.requires.clone().unwrap_or_default();
        match (variant.driver, &variant.address) {
            (Some(DriverKind::Redis), None) => {
                let program = requires.program.take();
                requires.program = Some(program.unwrap_or_else(|| REDIS_PROGRAM.to_owned()));
            }
            // The server runs elsewhere, so its program need not be here.
            (Some(DriverKind::Redis), Some(_)) => requires.program = None,
            _ => {}
        }
        (requires != Requires::default()).then_some(Requirement {
            variant: number,
            requires,
        })
    };
    variants.enumerate().filter_map(of_variant).collect()
}

impl Expansion<'_> {
    /// The point of a variant under a combination; the caller sets its indexes.
    fn point(
        &mut self,
        index: usize,
        variant: &Variant,
        at: &Combination,
    ) -> Result<Point, StudyError> {
        self.reject_keys_set_twice(index, variant, at)?;
        let values = self.values(variant, at);
        let driver = variant.driver.unwrap_or_default();
        let network = variant.network.or(at.network).unwrap_or_default();
        let (server, database) = match driver {
            DriverKind::Postgres => self.add_server(index, variant, at, &values, network)?,
            DriverKind::Redis if variant.dsn.is_some() => {
                return Err(self.source.error_at(
                    &["variant", &index.to_string(), "dsn"],
                    "`dsn` is for PostgreSQL servers; for Redis, use `address`",
                ));
            }
            // It has no PostgreSQL server; code that needs an index gets the baseline's.
            DriverKind::Redis => (0, 0),
        };
        let scripts = self.scripts(index, variant, at, &values)?;
        Ok(Point {
            variant: 0,
            condition: 0,
            server,
            database,
            driver,
            address: variant.address.clone(),
            network,
            rate_per_s: None,
            protocol: variant.protocol.or(at.protocol).unwrap_or_default(),
            session: self.session(index, variant, at, &values)?,
            gives: yield_of(self, &scripts, &values)?,
            reconnects: self.reconnects(&scripts)?,
            scripts,
            resets: self.sql(index, variant, "reset", &values)?,
            scale: self.scale(&values)?,
        })
    }

    /// Clients reconnect for every transaction or never, so all scripts of a point must agree.
    fn reconnects(&self, scripts: &[PlannedScript]) -> Result<bool, StudyError> {
        let of = |script: &PlannedScript| self.study.script[script.index].reconnects;
        let first = scripts.first().is_some_and(of);
        match scripts.iter().find(|script| of(script) != first) {
            None => Ok(first),
            Some(script) => Err(self.source.error_at(
                &["script", &script.index.to_string(), "reconnects"],
                format!(
                    "scripts that run together must have the same `reconnects`, but \"{}\" and \"{}\" differ",
                    scripts[0].name, script.name
                ),
            )),
        }
    }

    fn session(
        &self,
        index: usize,
        variant: &Variant,
        at: &Combination,
        values: &BTreeMap<String, String>,
    ) -> Result<BTreeMap<String, String>, StudyError> {
        let number = index.to_string();
        let sources: [(&[&str], &BTreeMap<String, Scalar>); 2] = [
            (&["conditions", "session"], &at.session),
            (&["variant", &number, "session"], &variant.session),
        ];
        let mut session = BTreeMap::new();
        for (place, given) in sources {
            for (name, value) in given {
                let path: Vec<&str> = place.iter().copied().chain([name.as_str()]).collect();
                if is_part_of_connection(name) {
                    let message = format!(
                        "`{name}` is not a setting but part of the connection, which the study and its `dsn` decide; \
                         remove it"
                    );
                    return Err(self.source.error_at(&path, message));
                }
                let value = self.fill_parameters(value.as_str(), values, &path)?;
                replace_setting(&mut session, name, value);
            }
        }
        Ok(session)
    }

    /// The parameter `scale`, from which pgbench's scripts compute their numbers of rows.
    fn scale(&self, values: &BTreeMap<String, String>) -> Result<i64, StudyError> {
        let Some(text) = values.get("scale") else {
            return Ok(1);
        };
        text.parse().map_err(|_| {
            let message = format!(
                "the parameter `scale` (pgbench's `:scale`) must be a whole number, not \"{text}\""
            );
            self.source.error_at(&["parameters", "scale"], message)
        })
    }

    /// Rejects keys that both the variant and the conditions set.
    fn reject_keys_set_twice(
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
            ("network", variant.network.is_some() && at.network.is_some()),
        ];
        let rejected = |path: &[&str], key: &str| {
            let other = match (key, &self.overrides.scripts) {
                ("script", Some(_)) => "--script",
                _ => "[conditions]",
            };
            let message = format!(
                "`{key}` is set by variant \"{}\" and by {other}; remove one of them",
                variant.name
            );
            Err(self.source.error_at(path, message))
        };
        let index = index.to_string();
        if let Some((key, _)) = both.iter().find(|(_, both)| *both) {
            return rejected(&["variant", &index, key], key);
        }
        // PostgreSQL's names of settings have no case. A session's setting replaces the server's.
        let of_conditions = || at.settings.keys().chain(at.session.keys());
        for (table, map) in [
            ("settings", &variant.settings),
            ("session", &variant.session),
        ] {
            let is_twice =
                |name: &&String| of_conditions().any(|other| other.eq_ignore_ascii_case(name));
            if let Some(name) = map.keys().find(is_twice) {
                return rejected(&["variant", &index, table, name], name);
            }
        }
        let is_twice = |name: &&String| at.parameters.contains_key(*name);
        match variant.parameters.keys().find(is_twice) {
            None => Ok(()),
            Some(name) => rejected(&["variant", &index, "parameters", name], name),
        }
    }

    /// Values for `${…}`. In increasing precedence: study, condition, variant, `--quick`, command line.
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
        let quick = self.study.quick.as_ref().filter(|_| self.overrides.quick);
        values.extend(quick.map_or_else(BTreeMap::new, |quick| scalars(&quick.parameters)));
        values.extend(self.overrides.parameters.clone());
        values.insert("clients".to_owned(), at.clients.to_string());
        values
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
                text: self.fill_parameters(
                    text,
                    values,
                    &["script", &index.to_string(), "text"],
                )?,
            })
        };
        chosen.into_iter().map(fill).collect()
    }
}

/// Whether a server takes a parameter of this name, in the message that starts a session, for something else than a
/// setting (`ProcessStartupPacket` in `backend_startup.c`).
fn is_part_of_connection(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    matches!(name.as_str(), "user" | "database" | "replication") || name.starts_with("_pq_.")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a study with 20,000 scripts of three bytes under 4,900 conditions took 5.8 GB.
    #[test]
    fn a_short_script_takes_more_memory_than_its_text() {
        let text = "[[script]]\nname = \"a\"\ntext = \";\"\n[[variant]]\nname = \"v\"\n[[variant]]\nname = \"w\"\n";
        let source = StudySource {
            file: "s.toml".to_owned(),
            text: format!("question = \"q\"\n{text}"),
        };
        let study: Study = source.parse().unwrap();
        let plan = plan(&study, &source, &Overrides::default()).unwrap();
        let bytes = memory_bytes(&plan.points[0]);
        assert!(bytes >= size_of::<PlannedScript>() + 2, "{bytes}");
    }
}
