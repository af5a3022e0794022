//! From a study to its plan: checks that need more than one key, and every combination spelled out.

use std::collections::{BTreeMap, BTreeSet};

use super::interpolate::interpolate;
use super::{Condition, Overrides, Plan, PlannedScript, Point, Schedule, ServerPlan};
use crate::study::{Protocol, Scalar, Study, StudyError, StudySource, Variant, near};

/// Without `server.version`.
const DEFAULT_VERSION: &str = "18";
/// Any version does: the newest in the directory that was named.
const NEWEST_THERE: &str = "latest";
/// Shorter windows measure the switch between variants more than the variants.
const TRIAL_US_MIN: u64 = 50_000;
const SETTLE_US: u64 = 20_000;
const WARM_UP_WINDOW_US: u64 = 50_000;
const WARM_UP_CAP_US: u64 = 2_000_000;
/// Connections beyond the clients': set-up, checks, a user who looks in.
const CONNECTIONS_SPARE: u32 = 10;

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

fn check_names(study: &Study, source: &StudySource) -> Result<(), StudyError> {
    let scripts = study.script.iter().map(|script| script.name.as_str());
    unique(source, "script", scripts)?;
    let variants = study.variant.iter().map(|variant| variant.name.as_str());
    unique(source, "variant", variants)?;
    for (index, script) in study.script.iter().enumerate() {
        let path = ["script", &index.to_string()];
        match (&script.text, &script.file) {
            (None, None) => {
                return Err(source.error_at(
                    &path,
                    format!("script \"{}\" has neither `text` nor `file`", script.name),
                ));
            }
            (Some(text), _) if text.trim().is_empty() => {
                return Err(source.error_at(&path, format!("script \"{}\" is empty", script.name)));
            }
            _ => {}
        }
        if script.weight == 0 {
            return Err(source.error_at(
                &[path[0], path[1], "weight"],
                "a script's weight must be at least 1",
            ));
        }
    }
    Ok(())
}

fn unique<'a>(
    source: &StudySource,
    what: &str,
    names: impl Iterator<Item = &'a str>,
) -> Result<(), StudyError> {
    let mut seen = BTreeSet::new();
    let mut count = 0;
    for (index, name) in names.enumerate() {
        count += 1;
        let path = [what, &index.to_string(), "name"];
        if name.trim().is_empty() {
            return Err(source.error_at(&path, format!("a {what} needs a name that is not empty")));
        }
        if !seen.insert(name) {
            return Err(source.error_at(
                &path,
                format!("two {what}s are named \"{name}\"; names must differ"),
            ));
        }
    }
    if count == 0 {
        return Err(source.error_at(&[what], format!("a study needs at least one [[{what}]]")));
    }
    Ok(())
}

fn chosen_variants<'a>(
    study: &'a Study,
    source: &StudySource,
    overrides: &Overrides,
) -> Result<Vec<(usize, &'a Variant)>, StudyError> {
    let all: Vec<(usize, &Variant)> = study.variant.iter().enumerate().collect();
    let Some(wanted) = &overrides.variants else {
        return Ok(all);
    };
    let mut chosen = Vec::new();
    for name in wanted {
        let found = all.iter().find(|(_, variant)| variant.name == *name);
        chosen.push(*found.ok_or_else(|| {
            unknown_name(
                source,
                &["variant"],
                "variant",
                name,
                all.iter().map(|(_, variant)| variant.name.as_str()),
            )
        })?);
    }
    Ok(chosen)
}

fn unknown_name<'a>(
    source: &StudySource,
    path: &[&str],
    what: &str,
    name: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> StudyError {
    let list: Vec<&str> = known.clone().collect();
    let mut error = source.error_at(
        path,
        format!("there is no {what} \"{name}\"; known: {}", list.join(", ")),
    );
    error.hint = near(name, known).map(|near| format!("did you mean \"{near}\"?"));
    error
}

/// One combination of the conditions' lists.
#[derive(Debug, Clone, Default)]
struct Combination {
    clients: u32,
    script: Option<String>,
    version: Option<String>,
    protocol: Option<Protocol>,
    parameters: BTreeMap<String, String>,
    /// The parts that vary, as `(name, value)`.
    varying: Vec<(String, String)>,
}

impl Combination {
    fn label(&self) -> String {
        let parts: Vec<String> = self
            .varying
            .iter()
            .map(|(name, value)| match name.as_str() {
                "script" => value.clone(),
                _ => format!("{name}={value}"),
            })
            .collect();
        parts.join(", ")
    }
}

fn combinations(
    study: &Study,
    source: &StudySource,
    overrides: &Overrides,
) -> Result<Vec<Combination>, StudyError> {
    let conditions = &study.conditions;
    let clients = overrides.clients.as_ref().unwrap_or(&conditions.clients);
    if clients.is_empty() || clients.contains(&0) {
        return Err(source.error_at(
            &["conditions", "clients"],
            "`clients` must list numbers of at least 1",
        ));
    }
    let scripts = match &overrides.scripts {
        Some(wanted) => wanted,
        None => &conditions.script,
    };
    for (index, name) in scripts.iter().enumerate() {
        script_named(
            study,
            source,
            name,
            &["conditions", "script", &index.to_string()],
        )?;
    }
    let mut all = vec![Combination::default()];
    vary(&mut all, "script", scripts, String::clone, |at, value| {
        at.script = Some(value.clone());
    });
    vary(
        &mut all,
        "version",
        &conditions.version,
        String::clone,
        |at, value| at.version = Some(value.clone()),
    );
    vary(
        &mut all,
        "protocol",
        &conditions.protocol,
        |p| p.as_str().to_owned(),
        |at, value| at.protocol = Some(*value),
    );
    for (name, values) in &conditions.parameters {
        if values.is_empty() {
            return Err(source.error_at(
                &["conditions", "parameters", name],
                format!("the list of `{name}` is empty"),
            ));
        }
        vary(&mut all, name, values, Scalar::to_string, |at, value| {
            at.parameters.insert(name.clone(), value.to_string());
        });
    }
    // The number of clients is part of every title, so it is no part of the label.
    vary(&mut all, "", clients, u32::to_string, |at, value| {
        at.clients = *value;
    });
    Ok(all)
}

/// Replaces each combination by one for each value; an empty list leaves them as they are.
fn vary<T>(
    all: &mut Vec<Combination>,
    name: &str,
    values: &[T],
    text: impl Fn(&T) -> String,
    set: impl Fn(&mut Combination, &T),
) {
    if values.is_empty() {
        return;
    }
    let each = |base: &Combination| -> Vec<Combination> {
        values
            .iter()
            .map(|value| {
                let mut next = base.clone();
                set(&mut next, value);
                if values.len() > 1 && !name.is_empty() {
                    next.varying.push((name.to_owned(), text(value)));
                }
                next
            })
            .collect()
    };
    *all = all.iter().flat_map(each).collect();
}

fn script_named<'a>(
    study: &'a Study,
    source: &StudySource,
    name: &str,
    path: &[&str],
) -> Result<(usize, &'a crate::study::Script), StudyError> {
    study
        .script
        .iter()
        .enumerate()
        .find(|(_, script)| script.name == name)
        .ok_or_else(|| {
            unknown_name(
                source,
                path,
                "script",
                name,
                study.script.iter().map(|script| script.name.as_str()),
            )
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
        let fill = |(index, script): (usize, &crate::study::Script)| {
            let text = script.text.as_deref().unwrap_or_default();
            Ok(PlannedScript {
                index,
                name: script.name.clone(),
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

/// A condition's variants hold their connections at the same time.
fn count_connections(
    servers: &mut [ServerPlan],
    points: &[Point],
    conditions: &[Condition],
    variants: usize,
) {
    for (index, server) in servers.iter_mut().enumerate() {
        let at_once = points.chunks(variants).map(|of_condition| {
            let sharing = of_condition
                .iter()
                .filter(|point| point.server == index)
                .count() as u32;
            sharing * conditions[of_condition[0].condition].clients
        });
        server.connections = at_once.max().unwrap_or(0) + CONNECTIONS_SPARE;
    }
}

fn schedule(
    study: &Study,
    source: &StudySource,
    overrides: &Overrides,
    points: usize,
) -> Result<Schedule, StudyError> {
    let length = &study.length;
    let blocks = overrides.pairs.unwrap_or(length.pairs);
    if blocks < 2 {
        return Err(source.error_at(
            &["length", "pairs"],
            "`pairs` must be at least 2: one pair has no interval",
        ));
    }
    if length.threads == 0 {
        return Err(source.error_at(&["length", "threads"], "`threads` must be at least 1"));
    }
    let chosen = if overrides.quick {
        length.quick
    } else {
        length.full
    };
    let total = overrides.length.unwrap_or(chosen).duration().as_micros() as u64;
    let profiled = u32::from(!overrides.without_profile);
    let trials = points as u64 * u64::from(blocks) * u64::from(2 + profiled);
    Ok(Schedule {
        blocks,
        // Whole milliseconds read better and cost nothing.
        trial_us: (total / trials / 1000 * 1000).max(TRIAL_US_MIN),
        profiled,
        settle_us: SETTLE_US,
        warm_up_window_us: WARM_UP_WINDOW_US,
        warm_up_cap_us: WARM_UP_CAP_US,
        threads: length.threads,
        seed: overrides.seed,
    })
}
