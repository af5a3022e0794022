//! The options of one connection request.

use std::collections::BTreeMap;

use super::{ConninfoError, keywords};

/// Options with a value. As in libpq, an empty value counts as unset, but is no word of a [`Self::choice`].
#[derive(Default)]
pub(super) struct ConninfoOptions(BTreeMap<&'static str, String>);

impl ConninfoOptions {
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    /// The value, even if it is empty.
    pub(super) fn given(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Sets an option if it is not set yet.
    pub(super) fn set_default(&mut self, name: &str, value: String) {
        if let Some(keyword) = keywords::find(name) {
            self.0.entry(keyword.name).or_insert(value);
        }
    }

    pub(super) fn number(&self, name: &'static str) -> Result<Option<u32>, ConninfoError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let number: i64 = value.trim().parse().map_err(|_| ConninfoError::Value {
            option: name,
            value: value.into(),
            expected: "an integer",
        })?;
        // To libpq, negative numbers mean "not set".
        Ok(Some(u32::try_from(number.max(0)).unwrap_or(u32::MAX)))
    }

    /// Returns the value for one of several words.
    pub(super) fn choice<T: Copy>(
        &self,
        name: &'static str,
        default: T,
        choices: &[(&str, T)],
        expected: &'static str,
    ) -> Result<T, ConninfoError> {
        let Some(value) = self.given(name) else {
            return Ok(default);
        };
        let found = choices.iter().find(|(word, _)| *word == value);
        found
            .map(|(_, choice)| *choice)
            .ok_or_else(|| ConninfoError::Value {
                option: name,
                value: value.into(),
                expected,
            })
    }
}
