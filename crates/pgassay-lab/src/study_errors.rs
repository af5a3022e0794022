//! Errors that name the location in the study file they come from.

use anyhow::anyhow;
use pgassay_model::study::{StudyError, StudySource};

use crate::study::LoadedStudy;

/// An error at line `line` (1-based) of the text at `path`.
pub fn at_line(source: &StudySource, path: &[&str], line: usize, message: &str) -> anyhow::Error {
    let mut error: StudyError = source.error_at(path, message);
    if let (Some(location), Some(line)) = (&mut error.location, source.line_in_text(path, line)) {
        location.line = line;
        location.column = 1;
    }
    error.into()
}

/// An error about a PostgreSQL version, without location if it came from the command line.
pub fn at_version(found: &LoadedStudy, version: &str, message: &str) -> anyhow::Error {
    let mut paths = Vec::new();
    for (index, variant) in found.study.variant.iter().enumerate() {
        if variant.version.as_deref() == Some(version) {
            paths.push(vec![
                "variant".to_owned(),
                index.to_string(),
                "version".to_owned(),
            ]);
        }
    }
    for (index, of_condition) in found.study.conditions.version.iter().enumerate() {
        if of_condition == version {
            paths.push(vec![
                "conditions".to_owned(),
                "version".to_owned(),
                index.to_string(),
            ]);
        }
    }
    if found.study.server.version.as_deref() == Some(version) {
        paths.push(vec!["server".to_owned(), "version".to_owned()]);
    }
    at_first(found, &paths, message)
}

/// An error about an external server, without location if it came from the command line.
pub fn at_dsn(found: &LoadedStudy, dsn: &str, message: &str) -> anyhow::Error {
    let is_it = |named: &Option<String>| named.as_deref() == Some(dsn);
    let mut paths = Vec::new();
    for (index, variant) in found.study.variant.iter().enumerate() {
        if is_it(&variant.dsn) {
            paths.push(vec![
                "variant".to_owned(),
                index.to_string(),
                "dsn".to_owned(),
            ]);
        }
    }
    if is_it(&found.study.server.dsn) {
        paths.push(vec!["server".to_owned(), "dsn".to_owned()]);
    }
    at_first(found, &paths, message)
}

/// A setting of a server or a session.
#[derive(Clone, Copy)]
pub struct SettingInUse<'a> {
    /// The study's table that has it: `settings` or `session`.
    pub table: &'static str,
    /// Its name.
    pub name: &'a str,
    /// Its value.
    pub value: &'a str,
}

/// An error about a setting, at the first place that sets it to its value. Names the variant whose server has it.
/// Without location if it came from the command line.
pub fn at_setting(found: &LoadedStudy, setting: SettingInUse<'_>, message: &str) -> anyhow::Error {
    let places = places_of(found, setting);
    // A `${parameter}` has a value that the study does not show.
    let is_value = |(_, value): &&(Vec<String>, &str)| *value == setting.value;
    let Some((path, _)) = places.iter().find(is_value).or(places.first()) else {
        return anyhow!(message.to_owned());
    };
    // What a session does is announced with its variant.
    let variant = (path[0] == "variant" && setting.table != "session")
        .then(|| path[1].parse::<usize>().ok())
        .flatten();
    let message = match variant {
        Some(index) => format!("variant \"{}\": {message}", found.study.variant[index].name),
        None => message.to_owned(),
    };
    at_first(found, std::slice::from_ref(path), &message)
}

/// Where a study sets a setting, and to which values, as written.
fn places_of<'a>(found: &'a LoadedStudy, setting: SettingInUse<'_>) -> Vec<(Vec<String>, &'a str)> {
    let SettingInUse { table, name, .. } = setting;
    let (study, is_session) = (&found.study, table == "session");
    let path = |parts: &[&str]| parts.iter().map(|&part| part.to_owned()).collect();
    let mut places: Vec<(Vec<String>, &str)> = Vec::new();
    for (index, variant) in study.variant.iter().enumerate() {
        let map = if is_session {
            &variant.session
        } else {
            &variant.settings
        };
        if let Some(value) = map.get(name) {
            let index = index.to_string();
            places.push((path(&["variant", &index, table, name]), value.as_str()));
        }
    }
    let lists = if is_session {
        &study.conditions.session
    } else {
        &study.conditions.settings
    };
    for (index, value) in lists.get(name).into_iter().flatten().enumerate() {
        let index = index.to_string();
        places.push((path(&["conditions", table, name, &index]), value.as_str()));
    }
    if let Some(value) = study.server.settings.get(name).filter(|_| !is_session) {
        places.push((path(&["server", "settings", name]), value.as_str()));
    }
    places
}

fn at_first(found: &LoadedStudy, paths: &[Vec<String>], message: &str) -> anyhow::Error {
    match paths.first() {
        Some(path) => {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            found.source.error_at(&path, message).into()
        }
        None => anyhow!(message.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn found() -> LoadedStudy {
        let source = StudySource {
            file: "s.toml".to_owned(),
            text: "question = \"?\"\nscript = []\nserver.settings = { work_mem = \"2MB\" }\n\
                   [[variant]]\nname = \"v\"\nsession = { work_mem = \"1MB\" }\n\
                   [[variant]]\nname = \"w\"\nsession = { work_mem = \"1MBB\" }\nsettings.jit = \"no\"\n\
                   [conditions.session]\njit = [\n\"on\",\n\"maybe\"]\n"
                .to_owned(),
        };
        let study = source.parse().unwrap();
        LoadedStudy::new("s", source, study).unwrap()
    }

    #[test]
    fn a_setting_that_is_refused_is_an_error_of_its_variant_and_line() {
        for (table, name, value, expected) in [
            ("session", "work_mem", "1MBB", "s.toml:9:24: no"),
            ("session", "work_mem", "1MB", "s.toml:6:24: no"),
            ("session", "work_mem", "?", "s.toml:6:24: no"),
            ("session", "jit", "maybe", "s.toml:14:1: no"),
            ("settings", "work_mem", "2MB", "s.toml:3:32: no"),
            ("settings", "jit", "no", "s.toml:10:16: variant \"w\": no"),
            ("settings", "fsync", "on", "no"),
        ] {
            let setting = SettingInUse { table, name, value };
            assert_eq!(at_setting(&found(), setting, "no").to_string(), expected);
        }
    }
}
