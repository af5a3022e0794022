//! The words for what TOML's parser and serde found and expected: theirs are of programming languages.

use std::fmt;
use std::ops::RangeInclusive;

use serde::de::{Error, Visitor};

/// Tables of which a study can have several.
const REPEATED: [&str; 4] = ["variant", "script", "expect", "row"];

/// A message and a hint, for a parser's message about what begins at `at`, where whole numbers have
/// these limits.
pub(super) fn reworded(
    message: &str,
    at: &str,
    limits: &RangeInclusive<u32>,
) -> (String, Option<String>) {
    if let Some((found, expected)) = mismatch(message) {
        return match header(at) {
            Some((name, 1)) => (
                format!("[{name}] is one table, but `{name}` is a list of tables"),
                Some(header_hint(name, 1)),
            ),
            Some((name, brackets)) => (
                format!("[[{name}]] is a list of tables, but `{name}` is one table"),
                Some(header_hint(name, brackets)),
            ),
            None => (
                format!(
                    "expected {}, found {}",
                    wanted(expected, found, limits),
                    noun(found)
                ),
                None,
            ),
        };
    }
    if message == "duplicate key" {
        let name: String = at.chars().take_while(|c| is_of_key(*c)).collect();
        // The position is after the bracket.
        let hint = REPEATED.contains(&name.as_str());
        let hint = hint.then(|| header_hint(&name, 1));
        let hint = hint.unwrap_or_else(|| "remove one of them, or join them".to_owned());
        return (format!("`{name}` appears twice"), Some(hint));
    }
    let shown = match message.split_once(" `") {
        Some(("unknown field", rest)) => format!("unknown key `{rest}"),
        // Not one of the study's variants.
        Some(("unknown variant", rest)) => format!("unknown value `{rest}"),
        _ => message.to_owned(),
    };
    (shown, suggest_known_key(message))
}

/// What serde found, and what it expected.
fn mismatch(message: &str) -> Option<(&str, &str)> {
    let rest = message.strip_prefix("invalid type: ");
    let rest = rest.or_else(|| message.strip_prefix("invalid value: "))?;
    rest.rsplit_once(", expected ")
}

/// The name of the table whose header begins here, and the number of its opening brackets.
fn header(at: &str) -> Option<(&str, usize)> {
    let line = at.lines().next()?;
    let name = line.trim_start_matches('[');
    let brackets = line.len() - name.len();
    let end = name.find(']')?;
    // `[1]` is a list.
    let is_name = name[..end].starts_with(|c: char| c.is_ascii_alphabetic());
    let is_header = (1..=2).contains(&brackets) && is_name && name[..end].chars().all(is_of_key);
    let name = name[..end].rsplit('.').next()?;
    is_header.then_some((name, brackets))
}

fn is_of_key(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-.".contains(c)
}

fn header_hint(name: &str, brackets: usize) -> String {
    match brackets {
        1 => format!("write [[{name}]] for each {name}"),
        _ => format!("write [{name}], and only once"),
    }
}

/// What was expected, with an example.
fn wanted(expected: &str, found: &str, limits: &RangeInclusive<u32>) -> String {
    let value = found
        .split_once('`')
        .map(|(_, rest)| rest.trim_end_matches('`'));
    let text = found.strip_prefix("string ");
    let example = |otherwise: &str| text.or(value).unwrap_or(otherwise).to_owned();
    match expected {
        "u32" | "u64" | "usize" if value.is_some() => {
            let (least, most) = (limits.start(), limits.end());
            format!("a whole number from {least} to {most}, such as 8")
        }
        "u32" | "u64" | "usize" => "a whole number without quotes, such as 8".to_owned(),
        "f64" => "a number without quotes, such as 1.5".to_owned(),
        "a sequence" => format!("a list, such as [{}]", example("8")),
        "a map" => "a table, such as { name = \"value\" }".to_owned(),
        "a string" => match value {
            Some(value) => format!("a string in quotes, such as \"{value}\""),
            None => "a string in quotes".to_owned(),
        },
        "a boolean" => "true or false, without quotes".to_owned(),
        other => other.to_owned(),
    }
}

/// What serde found, in words.
fn noun(found: &str) -> String {
    match found.split_once(' ') {
        // Beyond 64 bits: `integer `9…9` as i128`.
        Some(("integer", value)) => {
            let value = value.trim_start_matches('`').split('`').next();
            format!("the number {}", value.unwrap_or_default())
        }
        Some(("floating", value)) => {
            let value = value.trim_start_matches("point ").trim_matches('`');
            format!("the number {value}")
        }
        Some(("boolean", value)) => value.trim_matches('`').to_owned(),
        Some(("string", value)) => format!("the string {value}"),
        _ => match found {
            "map" => "a table".to_owned(),
            "sequence" => "a list".to_owned(),
            other => other.to_owned(),
        },
    }
}

/// Serde's message lists the accepted keys; suggests the most similar one.
fn suggest_known_key(message: &str) -> Option<String> {
    let rest = message
        .strip_prefix("unknown field `")
        .or_else(|| message.strip_prefix("unknown variant `"))?;
    let (unknown, expected) = rest.split_once('`')?;
    let known = expected.split('`').skip(1).step_by(2);
    most_similar(unknown, known).map(|name| format!("did you mean \"{name}\"?"))
}

/// The candidate most similar to a mistyped word, if any is similar enough.
pub(crate) fn most_similar<'a>(
    word: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    candidates
        .map(|candidate| (strsim::jaro_winkler(word, candidate), candidate))
        .filter(|(likeness, _)| *likeness > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

/// Reads a string. An error about another type describes what the string should contain.
pub(super) struct QuotedText(pub &'static str);

impl Visitor<'_> for QuotedText {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::super::StudySource;

    /// The error of a study with these lines, of which the first is on line 5.
    fn refused(lines: &str) -> String {
        let source = StudySource {
            file: "s.toml".to_owned(),
            text: format!(
                "question = \"?\"\n[[script]]\nname = \"a\"\ntext = \"select 1\"\n{lines}\n"
            ),
        };
        source.parse().unwrap_err().to_string()
    }

    /// Regression: the message ended with a backtick and "as i128".
    #[test]
    fn a_number_beyond_64_bits_is_shown_as_it_is() {
        let message = refused("[conditions]\nclients = [99999999999999999999]");
        assert!(
            message.ends_with("found the number 99999999999999999999"),
            "{message}"
        );
    }

    #[test]
    fn a_table_written_as_another_kind_says_how_to_write_it() {
        let each = "(write [[variant]] for each variant)";
        for (lines, start) in [
            (
                "[variant]\nname = \"v\"",
                "s.toml:5:1: [variant] is one table, ",
            ),
            (
                "[variant]\nname = \"v\"\n[variant]\nname = \"w\"",
                "s.toml:7:2: `variant` appears twice",
            ),
            (
                "[[variant]]\nname = \"v\"\n[variant]\nname = \"w\"",
                "s.toml:7:2: `variant` appears twice",
            ),
        ] {
            let words = refused(lines);
            assert!(words.starts_with(start) && words.ends_with(each), "{words}");
        }
        let words = refused("[[variant]]\nname = \"v\"\n[[length]]\nquick = \"3s\"");
        assert!(
            words.ends_with("(write [length], and only once)"),
            "{words}"
        );
    }

    #[test]
    fn a_value_of_the_wrong_type_says_what_is_expected_in_words() {
        let whole = "a whole number from 1 to 262143, such as 8";
        for (line, expected, found) in [
            (
                "clients = [\"8\"]",
                "a whole number without quotes, such as 8",
                "the string \"8\"",
            ),
            ("clients = [-1]", whole, "the number -1"),
            ("clients = [1.5]", whole, "the number 1.5"),
            ("clients = 8", "a list, such as [8]", "the number 8"),
            (
                "script = \"a\"",
                "a list, such as [\"a\"]",
                "the string \"a\"",
            ),
            (
                "version = [18]",
                "a string in quotes, such as \"18\"",
                "the number 18",
            ),
            (
                "settings = [1]",
                "a table, such as { name = \"value\" }",
                "a list",
            ),
        ] {
            let words = refused(&format!("[[variant]]\nname = \"v\"\n[conditions]\n{line}"));
            let expected = format!(": expected {expected}, found {found}");
            assert!(
                words.starts_with("s.toml:8:") && words.ends_with(&expected),
                "{words}"
            );
        }
        let words = refused("[[variant]]\nname = \"v\"\ndata_checksums = \"yes\"");
        assert!(
            words.contains("expected true or false, without quotes"),
            "{words}"
        );
        let words = refused("[[variant]]\nname = \"v\"\n[length]\nquick = 3\n");
        assert!(
            words.contains("expected a duration in quotes, such as \"20s\""),
            "{words}"
        );
        let words = refused("[[variant]]\nname = \"v\"\n[length]\nhalf_width = 1\n");
        assert!(
            words.contains("expected a percentage in quotes, such as \"1%\""),
            "{words}"
        );
    }

    #[test]
    fn a_number_out_of_range_gives_the_limits_of_its_key_and_not_those_of_its_type() {
        for (line, limits) in [
            ("[length]\npairs = -1", "from 2 to 100000"),
            ("[length]\npairs = 4294967296", "from 2 to 100000"),
            ("[length]\nthreads = -1", "from 1 to 1024"),
            ("[length]\nrestart_every = -1", "from 0 to 100000"),
            ("idle_connections = -1", "from 0 to 262143"),
            ("[conditions]\nclients = [1, -1]", "from 1 to 262143"),
        ] {
            let words = refused(&format!("[[variant]]\nname = \"v\"\n{line}"));
            assert!(words.contains(limits), "{line}: {words}");
        }
    }
}
