//! The inputs of the expansion of a study, and the text that they produce.

use std::collections::BTreeMap;

use super::interpolate::{InterpolateProblem, interpolate};
use super::names::unknown_name;
use super::server_set::ServerSet;
use super::{Overrides, PlannedSql};
use crate::study::{Study, StudyError, StudySource, Variant};

/// The inputs of every step of the expansion, and the servers found so far.
pub(super) struct Expansion<'a> {
    pub(super) study: &'a Study,
    pub(super) source: &'a StudySource,
    pub(super) overrides: &'a Overrides,
    pub(super) servers: ServerSet,
}

impl Expansion<'_> {
    /// The study's `setup` or `reset`, followed by the variant's.
    pub(super) fn sql(
        &self,
        index: usize,
        variant: &Variant,
        key: &str,
        values: &BTreeMap<String, String>,
    ) -> Result<Vec<PlannedSql>, StudyError> {
        let (shared, own) = match key {
            "setup" => (&self.study.data.setup, &variant.setup),
            _ => (&self.study.data.reset, &variant.reset),
        };
        let mut all = Vec::new();
        for (of_variant, text) in [(None, shared), (Some(index), own)] {
            let Some(text) = text else { continue };
            let mut sql = PlannedSql {
                of_variant,
                text: String::new(),
            };
            let path = sql.path(key);
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            sql.text = self.fill_parameters(text, values, &path)?;
            if !sql.text.trim().is_empty() {
                all.push(sql);
            }
        }
        Ok(all)
    }

    /// Replaces `${name}` in the text at this path of the study.
    pub(super) fn fill_parameters(
        &self,
        text: &str,
        values: &BTreeMap<String, String>,
        path: &[&str],
    ) -> Result<String, StudyError> {
        interpolate(text, values).map_err(|wrong| {
            let mut error = match &wrong.problem {
                InterpolateProblem::Undefined { name } => {
                    let known = values.keys().map(String::as_str);
                    unknown_name(self.source, path, "parameter", name, known)
                }
                other => self.source.error_at(path, other.message()),
            };
            if let (Some(location), Some(line)) = (
                &mut error.location,
                self.source.line_in_text(path, wrong.line),
            ) {
                location.line = line;
                location.column = 1;
            }
            error
        })
    }
}

/// Sets a setting, whose name has no case in PostgreSQL: a later source replaces an earlier one however each writes it.
pub(super) fn replace_setting(all: &mut BTreeMap<String, String>, name: &str, value: String) {
    all.retain(|other, _| !other.eq_ignore_ascii_case(name));
    all.insert(name.to_owned(), value);
}
