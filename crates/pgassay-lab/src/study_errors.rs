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

/// An error about a server setting.
pub fn at_setting(found: &LoadedStudy, name: &str, message: &str) -> anyhow::Error {
    let mut paths = Vec::new();
    for (index, variant) in found.study.variant.iter().enumerate() {
        if variant.settings.contains_key(name) {
            paths.push(vec![
                "variant".to_owned(),
                index.to_string(),
                "settings".to_owned(),
                name.to_owned(),
            ]);
        }
    }
    if found.study.conditions.settings.contains_key(name) {
        paths.push(vec![
            "conditions".to_owned(),
            "settings".to_owned(),
            name.to_owned(),
        ]);
    }
    if found.study.server.settings.contains_key(name) {
        paths.push(vec![
            "server".to_owned(),
            "settings".to_owned(),
            name.to_owned(),
        ]);
    }
    at_first(found, &paths, message)
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
