//! A study's text and the positions in it, so that an error names file, line and column.

use std::fmt;
use std::ops::Range;

use thiserror::Error;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Study;
use super::limits;
use super::wording::reworded;

/// The text of a study and the name of its file.
#[derive(Debug, Clone)]
pub struct StudySource {
    /// The file's path as the user gave it, or the name of a built-in study; empty if the command line is
    /// the study, whose errors then name no position.
    pub file: String,
    /// The file's text.
    pub text: String,
}

/// A position in a study file; line and column start at 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// Line number.
    pub line: usize,
    /// Column number, in characters.
    pub column: usize,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// An error in a study file: what is wrong, where, and what to do.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
#[error("{}{message}{}",
    position(file, *location),
    hint.as_ref().map_or(String::new(), |h| format!(" ({h})")))]
pub struct StudyError {
    /// The file, as in [`StudySource::file`].
    pub file: String,
    /// The position, if known.
    pub location: Option<Location>,
    /// What was found and what was expected.
    pub message: String,
    /// A similar name, or what to do.
    pub hint: Option<String>,
}

/// The position, as a prefix of a message.
fn position(file: &str, location: Option<Location>) -> String {
    match location {
        _ if file.is_empty() => String::new(),
        Some(location) => format!("{file}:{location}: "),
        None => format!("{file}: "),
    }
}

impl StudySource {
    /// Parses the text as a study.
    ///
    /// # Errors
    /// Invalid TOML, an unknown key (with the most similar known one), or a value of the wrong type.
    pub fn parse(&self) -> Result<Study, StudyError> {
        toml::from_str::<Study>(&self.text).map_err(|error| {
            let at = error.span().and_then(|span| self.text.get(span.start..));
            let message = error.message().trim().replace('\n', "; ");
            let before = error.span().and_then(|span| self.text.get(..span.start));
            let limits = limits::of_key(before.unwrap_or_default());
            let (message, hint) = reworded(&message, at.unwrap_or_default(), &limits);
            StudyError {
                file: self.file.clone(),
                location: error.span().map(|span| self.location(span.start)),
                message,
                hint,
            }
        })
    }

    /// An error at the value at `path`, or at the deepest part of the path that exists.
    /// Numbers in the path are indexes: `["variant", "1", "script"]`.
    pub fn error_at(&self, path: &[&str], message: impl Into<String>) -> StudyError {
        StudyError {
            file: self.file.clone(),
            location: self
                .offset_at(path)
                .map(|(offset, _)| self.location(offset)),
            message: message.into(),
            hint: None,
        }
    }

    /// The position of line `line` (from 1) of the string at `path`, which is known to users as `name`.
    pub fn position_in_text(&self, path: &[&str], line: usize, name: &str) -> String {
        match self.line_in_text(path, line) {
            Some(line) if !self.file.is_empty() => format!("{}:{line}", self.file),
            _ => format!("{name}:{line}"),
        }
    }

    /// The line of the file that holds line `line` (from 1) of the string at `path`.
    pub fn line_in_text(&self, path: &[&str], line: usize) -> Option<usize> {
        let (offset, is_whole_path) = self.offset_at(path)?;
        if !is_whole_path {
            // A script in a separate file has no lines in this one.
            return None;
        }
        let literal = &self.text[offset..];
        let multi_line = literal.starts_with("'''") || literal.starts_with("\"\"\"");
        // A newline right after the opening quotes is not part of the value.
        let trimmed = multi_line && literal[3..].trim_start_matches('\r').starts_with('\n');
        Some(self.location(offset).line + usize::from(trimmed) + line - 1)
    }

    /// Replaces the string at `path`; does nothing if there is none.
    pub fn replace(&mut self, path: &[&str], text: &str) {
        if let Some((span, true)) = self.span_of(path) {
            let literal = toml::Value::String(text.to_owned()).to_string();
            self.text.replace_range(span, &literal);
        }
    }

    fn location(&self, offset: usize) -> Location {
        let before = self.text.get(..offset).unwrap_or(&self.text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Location {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }

    /// Offset of the value at `path`, or of the deepest part of the path that exists, and whether
    /// the whole path exists.
    fn offset_at(&self, path: &[&str]) -> Option<(usize, bool)> {
        let (span, is_whole_path) = self.span_of(path)?;
        Some((span.start, is_whole_path))
    }

    fn span_of(&self, path: &[&str]) -> Option<(Range<usize>, bool)> {
        let document = DeTable::parse(&self.text).ok()?;
        let (first, rest) = path.split_first()?;
        let mut found = document.get_ref().get(*first)?;
        let mut is_whole_path = true;
        for step in rest {
            let Some(next) = child(found, step) else {
                is_whole_path = false;
                break;
            };
            found = next;
        }
        Some((found.span(), is_whole_path))
    }
}

fn child<'a, 'i>(value: &'a Spanned<DeValue<'i>>, step: &str) -> Option<&'a Spanned<DeValue<'i>>> {
    match step.parse::<usize>() {
        Ok(index) if value.get_ref().is_array() => value.get_ref().get(index),
        _ => value.get_ref().get(step),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> StudySource {
        StudySource {
            file: "s.toml".to_owned(),
            text: text.to_owned(),
        }
    }

    const MINIMAL: &str = "question = \"?\"\n[[script]]\nname = \"a\"\ntext = '''\nselect 1;\nselect 2;\n'''\n[[variant]]\nname = \"v\"\n";

    #[test]
    fn a_minimal_study_parses_with_its_defaults() {
        let study = source(MINIMAL).parse().unwrap();
        assert_eq!(study.conditions.clients, vec![8]);
        assert_eq!(study.length.pairs, None);
        assert_eq!(study.variant[0].protocol, None);
    }

    #[test]
    fn an_unknown_key_is_an_error_with_line_and_suggestion() {
        let error = source(&format!("{MINIMAL}protocoll = \"simple\"\n"))
            .parse()
            .unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("s.toml:10:1: unknown key `protocoll`"),
            "{text}"
        );
        assert!(text.contains("did you mean \"protocol\"?"), "{text}");
        // Regression: "unknown variant", in a study that has variants.
        let error = source(&format!("{MINIMAL}protocol = \"simpel\"\n"));
        let text = error.parse().unwrap_err().to_string();
        assert!(text.contains("unknown value `simpel`"), "{text}");
    }

    #[test]
    fn an_unknown_protocol_suggests_a_similar_one() {
        let text = source(&format!("{MINIMAL}protocol = \"prepard\"\n"))
            .parse()
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("s.toml:10:") && text.contains("did you mean \"prepared\"?"),
            "{text}"
        );
    }

    #[test]
    fn invalid_toml_is_an_error_with_its_line() {
        let text = source("question = \"?\"\nx y")
            .parse()
            .unwrap_err()
            .to_string();
        assert!(text.starts_with("s.toml:2:"), "{text}");
    }

    #[test]
    fn lines_inside_a_script_are_lines_of_the_file() {
        let source = source(MINIMAL);
        assert_eq!(source.line_in_text(&["script", "0", "text"], 1), Some(5));
        assert_eq!(source.line_in_text(&["script", "0", "text"], 2), Some(6));
    }

    #[test]
    fn a_value_can_be_replaced_and_the_rest_stays() {
        let mut replaced = source(&format!("{MINIMAL}dsn = 'host=\"h\"' # mine\n"));
        replaced.replace(&["variant", "0", "dsn"], "user='a\\b'");
        replaced.replace(&["variant", "0", "address"], "nowhere");
        let tail = replaced.text.strip_prefix(MINIMAL).unwrap();
        assert!(
            tail.ends_with(" # mine\n") && tail.lines().count() == 1,
            "{tail}"
        );
        let study = replaced.parse().unwrap();
        assert_eq!(study.variant[0].dsn.as_deref(), Some("user='a\\b'"));
    }

    #[test]
    fn an_error_points_at_the_deepest_part_that_exists() {
        let error = source(MINIMAL).error_at(&["variant", "0", "name"], "no");
        assert_eq!(error.location.unwrap().line, 9);
        let error = source(MINIMAL).error_at(&["variant", "0", "script"], "no");
        assert_eq!(error.location.unwrap().line, 8);
    }
}
