//! The combinations of the conditions' lists.

use std::collections::BTreeMap;

use super::Overrides;
use super::names::script_named;
use crate::study::{Protocol, Scalar, Study, StudyError, StudySource};

/// One combination of the conditions' lists.
#[derive(Debug, Clone, Default)]
pub(super) struct Combination {
    pub(super) clients: u32,
    pub(super) script: Option<String>,
    pub(super) version: Option<String>,
    pub(super) protocol: Option<Protocol>,
    pub(super) parameters: BTreeMap<String, String>,
    /// The parts that vary, as `(name, value)`.
    varying: Vec<(String, String)>,
}

impl Combination {
    /// What sets it apart from the study's other conditions, but for the number of clients.
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
}

pub(super) fn combinations(
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
