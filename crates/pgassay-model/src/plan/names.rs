//! Checks that the names of scripts and variants are unique and that references to them resolve.

use std::collections::BTreeSet;

use super::Overrides;
use crate::study::{Script, Study, StudyError, StudySource, Variant, most_similar};

pub(super) fn check_names(study: &Study, source: &StudySource) -> Result<(), StudyError> {
    let scripts = study.script.iter().map(|script| script.name.as_str());
    unique(source, "script", scripts)?;
    let variants = study.variant.iter().map(|variant| variant.name.as_str());
    unique(source, "variant", variants)?;
    if let Some(floor) = &study.floor
        && !study.variant.iter().any(|variant| variant.name == *floor)
    {
        let names = study.variant.iter().map(|variant| variant.name.as_str());
        return Err(unknown_name(source, &["floor"], "variant", floor, names));
    }
    for (index, script) in study.script.iter().enumerate() {
        let path = ["script", &index.to_string()];
        match &script.text {
            None => {
                return Err(source.error_at(
                    &path,
                    format!(
                        "script \"{}\" needs one of `text`, `file` and `builtin`",
                        script.name
                    ),
                ));
            }
            Some(text) if text.trim().is_empty() => {
                return Err(source.error_at(&path, format!("script \"{}\" is empty", script.name)));
            }
            Some(_) => {}
        }
        if script.weight == 0 {
            return Err(
                source.error_at(&[path[0], path[1], "weight"], "`weight` must be at least 1")
            );
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
            return Err(source.error_at(&path, format!("the name of a {what} must not be empty")));
        }
        if !seen.insert(name) {
            return Err(source.error_at(
                &path,
                format!("duplicate {what} name \"{name}\"; names must be unique"),
            ));
        }
    }
    if count == 0 {
        return Err(source.error_at(&[what], format!("a study needs at least one [[{what}]]")));
    }
    Ok(())
}

/// Rejects `--param` for a name that no text of the study refers to and that has no value in it, and parameters that
/// are named like the number of clients, which is always defined.
pub(super) fn check_parameters(
    study: &Study,
    source: &StudySource,
    overrides: &Overrides,
) -> Result<(), StudyError> {
    let quick = study.quick.iter().flat_map(|quick| quick.parameters.keys());
    let of_variants = study.variant.iter().flat_map(|it| it.parameters.keys());
    let mut known: BTreeSet<&str> = study
        .parameters
        .keys()
        .chain(study.conditions.parameters.keys())
        .chain(of_variants)
        .chain(quick)
        .map(String::as_str)
        .collect();
    if known.contains("clients") || overrides.parameters.contains_key("clients") {
        let message =
            "the parameter `clients` is always the number of clients; choose another name";
        let of_conditions = study.conditions.parameters.contains_key("clients");
        let path: &[&str] = if of_conditions {
            &["conditions", "parameters", "clients"]
        } else {
            &["parameters", "clients"]
        };
        return Err(source.error_at(path, message));
    }
    // pgbench's scripts and data have a scale, also without `parameters`.
    known.insert("scale");
    let scripts = study.script.iter().filter_map(|it| it.text.as_deref());
    let setups = study.variant.iter().filter_map(|it| it.setup.as_deref());
    let texts: Vec<&str> = [source.text.as_str()]
        .into_iter()
        .chain(study.data.setup.as_deref())
        .chain(scripts)
        .chain(setups)
        .collect();
    let is_used = |name: &str| {
        let begin = format!("${{{name}");
        texts.iter().any(|text| text.contains(&begin))
    };
    for name in overrides.parameters.keys() {
        if !known.contains(name.as_str()) && !is_used(name) {
            let known = known.iter().copied();
            let mut error = unknown_name(source, &[], "parameter", name, known);
            error.location = None;
            return Err(error);
        }
    }
    Ok(())
}

pub(super) fn chosen_variants<'a>(
    study: &'a Study,
    source: &StudySource,
    overrides: &Overrides,
) -> Result<Vec<(usize, &'a Variant)>, StudyError> {
    let all: Vec<(usize, &Variant)> = study.variant.iter().enumerate().collect();
    let quick = study.quick.as_ref().filter(|_| overrides.quick);
    let of_quick = quick.and_then(|quick| quick.variant.as_ref());
    let Some(wanted) = overrides.variants.as_ref().or(of_quick) else {
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

pub(super) fn unknown_name<'a>(
    source: &StudySource,
    path: &[&str],
    what: &str,
    name: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> StudyError {
    // Quoted: a name may contain a comma.
    let list: Vec<String> = known.clone().map(|it| format!("\"{it}\"")).collect();
    let mut error = source.error_at(
        path,
        format!("there is no {what} \"{name}\"; known: {}", list.join(", ")),
    );
    error.hint = most_similar(name, known).map(|near| format!("did you mean \"{near}\"?"));
    error
}

pub(super) fn script_named<'a>(
    study: &'a Study,
    source: &StudySource,
    name: &str,
    path: &[&str],
) -> Result<(usize, &'a Script), StudyError> {
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
