//! The combinations of the values in the conditions' lists.

use std::collections::{BTreeMap, BTreeSet};

use super::Overrides;
use super::names::script_named;
use super::schedule::CONNECTIONS_MAX;
use crate::study::{Conditions, Network, Protocol, Scalar, Study, StudyError, StudySource};

/// Limit on points (one variant under one condition each): more could not be measured in a day.
const POINTS_MAX: usize = 10_000;

/// One combination of values, one from each list.
#[derive(Debug, Clone, Default)]
pub(super) struct Combination {
    pub(super) clients: u32,
    pub(super) script: Option<String>,
    pub(super) version: Option<String>,
    pub(super) protocol: Option<Protocol>,
    pub(super) network: Option<Network>,
    pub(super) settings: BTreeMap<String, Scalar>,
    pub(super) session: BTreeMap<String, Scalar>,
    pub(super) parameters: BTreeMap<String, String>,
    /// The value from each list, as `(name, value)`.
    all: Vec<(String, String)>,
    /// The values from lists with more than one value, as `(name, value)`.
    varying: Vec<(String, String)>,
}

impl Combination {
    /// What distinguishes it from the study's other conditions, apart from the number of clients.
    pub(super) fn label(&self) -> String {
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

    /// The value from each list, by name.
    pub(super) fn values(&self) -> BTreeMap<String, String> {
        let mut values: BTreeMap<String, String> = self.all.iter().cloned().collect();
        values.insert("clients".to_owned(), self.clients.to_string());
        values
    }
}

/// All combinations, for a number of variants.
pub(super) fn combinations(
    study: &Study,
    source: &StudySource,
    overrides: &Overrides,
    variants: usize,
) -> Result<Vec<Combination>, StudyError> {
    let conditions = &with_given_parameters(study, overrides);
    let quick = study.quick.as_ref().filter(|_| overrides.quick);
    let clients = numbers_of_clients(study, source, overrides)?;
    let scripts = overrides
        .scripts
        .as_ref()
        .or(quick.and_then(|quick| quick.script.as_ref()))
        .unwrap_or(&conditions.script);
    for (index, name) in scripts.iter().enumerate() {
        let path = ["conditions", "script", &index.to_string()];
        script_named(study, source, name, &path)?;
    }
    // A version on the command line replaces the shared version, or the list of versions. So does a
    // server or a build, which has only one version.
    let versions = match overrides.versions.len() {
        _ if overrides.dsn.is_some() || overrides.binaries.is_some() => &Vec::new(),
        0 => quick
            .and_then(|quick| quick.version.as_ref())
            .unwrap_or(&conditions.version),
        1 if conditions.version.is_empty() => &conditions.version,
        _ => &overrides.versions,
    };
    let networks = quick
        .and_then(|quick| quick.network.as_ref())
        .unwrap_or(&conditions.network);
    let lists = (&scripts[..], &versions[..], &networks[..], clients);
    check_lists((source, conditions), lists, variants)?;
    let mut all = vec![Combination::default()];
    expand_by_list(&mut all, "script", scripts, String::clone, |at, value| {
        at.script = Some(value.clone());
    });
    expand_by_list(&mut all, "version", versions, String::clone, |at, value| {
        at.version = Some(value.clone());
    });
    let protocol = |protocol: &Protocol| protocol.as_str().to_owned();
    expand_by_list(
        &mut all,
        "protocol",
        &conditions.protocol,
        protocol,
        |at, value| {
            at.protocol = Some(*value);
        },
    );
    expand_by_list(
        &mut all,
        "network",
        networks,
        Network::to_string,
        |at, value| {
            at.network = Some(*value);
        },
    );
    expand_by_named_lists(&mut all, source, conditions)?;
    // Every title includes the number of clients, so the label does not.
    expand_by_list(&mut all, "", clients, u32::to_string, |at, value| {
        at.clients = *value;
    });
    Ok(all)
}

/// The study's conditions. A parameter that `--quick` or the command line sets has no other values.
fn with_given_parameters(study: &Study, overrides: &Overrides) -> Conditions {
    let mut conditions = study.conditions.clone();
    let quick = study.quick.as_ref().filter(|_| overrides.quick);
    let of_quick = quick.into_iter().flat_map(|quick| &quick.parameters);
    let of_quick = of_quick.map(|(name, value)| (name, value.clone()));
    let given = overrides.parameters.iter();
    let given = given.map(|(name, value)| (name, Scalar(value.clone())));
    for (name, value) in of_quick.chain(given) {
        if let Some(list) = conditions.parameters.get_mut(name) {
            *list = vec![value];
        }
    }
    conditions
}

/// Scripts, versions, networks and numbers of clients: lists that `--quick` or the command line may replace.
type ReplaceableLists<'a> = (&'a [String], &'a [String], &'a [Network], &'a [u32]);

/// Rejects lists with a value twice, and those with too many combinations.
fn check_lists(
    (source, conditions): (&StudySource, &Conditions),
    (scripts, versions, networks, clients): ReplaceableLists<'_>,
    variants: usize,
) -> Result<(), StudyError> {
    let protocols = conditions.protocol.iter();
    for (name, values) in [
        ("script", scripts.to_vec()),
        ("version", versions.to_vec()),
        ("network", networks.iter().map(Network::to_string).collect()),
        ("clients", clients.iter().map(u32::to_string).collect()),
        (
            "protocol",
            protocols.map(|it| it.as_str().to_owned()).collect(),
        ),
    ] {
        reject_repeated(source, &["conditions", name], &values)?;
    }
    let lengths = [scripts.len(), versions.len(), networks.len(), clients.len()];
    check_size(source, conditions, &lengths, variants)
}

/// Rejects a list with a value twice: its conditions would have the same name.
fn reject_repeated(
    source: &StudySource,
    path: &[&str],
    values: &[String],
) -> Result<(), StudyError> {
    let mut seen = BTreeSet::new();
    match values.iter().find(|value| !seen.insert(*value)) {
        None => Ok(()),
        Some(value) => {
            let name = path.last().copied().unwrap_or_default();
            let message = format!("`{name}` lists {value} twice; remove one");
            Err(source.error_at(path, message))
        }
    }
}

/// Checks the number of points before any of them is made. `lengths` are those of the lists that
/// `--quick` or the command line may replace.
fn check_size(
    source: &StudySource,
    lists: &Conditions,
    lengths: &[usize],
    variants: usize,
) -> Result<(), StudyError> {
    let named = [&lists.settings, &lists.session, &lists.parameters];
    let named = named.iter().flat_map(|lists| lists.values().map(Vec::len));
    let conditions = lengths
        .iter()
        .copied()
        .chain([lists.protocol.len()])
        .chain(named)
        .fold(1_usize, |all, length| all.saturating_mul(length.max(1)));
    let points = conditions.saturating_mul(variants);
    if points <= POINTS_MAX {
        return Ok(());
    }
    let message = format!(
        "{variants} variants under {conditions} conditions are {points} points, and {POINTS_MAX} is \
         the maximum; shorten the lists"
    );
    Err(source.error_at(&["conditions"], message))
}

fn numbers_of_clients<'a>(
    study: &'a Study,
    source: &StudySource,
    overrides: &'a Overrides,
) -> Result<&'a [u32], StudyError> {
    let conditions = &study.conditions;
    let quick = study.quick.as_ref().filter(|_| overrides.quick);
    let clients = overrides
        .clients
        .as_ref()
        .or(quick.and_then(|quick| quick.clients.as_ref()))
        .unwrap_or(&conditions.clients);
    if clients.is_empty() || clients.contains(&0) {
        return Err(source.error_at(
            &["conditions", "clients"],
            "`clients` must list at least one number, each 1 or more",
        ));
    }
    if let Some(many) = clients.iter().find(|clients| **clients > CONNECTIONS_MAX) {
        let message = format!(
            "{many} clients are too many: PostgreSQL allows {CONNECTIONS_MAX} connections at most"
        );
        return Err(source.error_at(&["conditions", "clients"], message));
    }
    Ok(clients)
}

/// Sets a named value in a combination.
type SetValue = fn(&mut Combination, &str, &Scalar);

/// Combines the lists that have user-defined names.
fn expand_by_named_lists(
    all: &mut Vec<Combination>,
    source: &StudySource,
    conditions: &Conditions,
) -> Result<(), StudyError> {
    let set_setting: SetValue = |at, name, value| {
        at.settings.insert(name.to_owned(), value.clone());
    };
    let set_session: SetValue = |at, name, value| {
        at.session.insert(name.to_owned(), value.clone());
    };
    let set_parameter: SetValue = |at, name, value| {
        at.parameters.insert(name.to_owned(), value.to_string());
    };
    let tables = [
        ("settings", &conditions.settings, set_setting),
        ("session", &conditions.session, set_session),
        ("parameters", &conditions.parameters, set_parameter),
    ];
    for (table, lists, set) in tables {
        for (name, values) in lists {
            if values.is_empty() {
                let path = ["conditions", table, name];
                let message = format!("the list for `{name}` is empty; add at least one value");
                return Err(source.error_at(&path, message));
            }
            let texts: Vec<String> = values.iter().map(Scalar::to_string).collect();
            reject_repeated(source, &["conditions", table, name], &texts)?;
            expand_by_list(all, name, values, Scalar::to_string, |at, value| {
                set(at, name, value);
            });
        }
    }
    Ok(())
}

/// Replaces each combination with one per value; an empty list changes nothing.
fn expand_by_list<T>(
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
                if !name.is_empty() {
                    next.all.push((name.to_owned(), text(value)));
                }
                if values.len() > 1 && !name.is_empty() {
                    next.varying.push((name.to_owned(), text(value)));
                }
                next
            })
            .collect()
    };
    *all = all.iter().flat_map(each).collect();
}
