//! Replaces `${name}` in SQL, scripts and settings.

use std::collections::BTreeMap;

/// Limit on a text after its parameters are replaced, in bytes. The largest script of the built-in
/// studies has 10,000 lines.
const TEXT_MAX_BYTES: usize = 16 << 20;

/// What stands for a `$` before a brace: `${$}{name}` becomes `${name}`.
const DOLLAR: &str = "${$}";

/// An error in a `${…}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InterpolateError {
    pub problem: InterpolateProblem,
    /// The line of the text that contains it, from 1.
    pub line: usize,
}

/// What is wrong with a `${…}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum InterpolateProblem {
    /// The name is not defined.
    Undefined { name: String },
    /// What follows the `*` is not a number of lines.
    NotACount { name: String, value: String },
    /// The text would be too long.
    TooLong { times: usize },
}

/// Replaces every `${name}` with its value, and every `${name * 50}` with that many lines of it; the
/// number can be a name, too; and every `${$}` with a `$`. Everything else, dollar quotes included, stays
/// unchanged: only a `$` directly before `{name` counts, and a name consists of letters, digits and `_`.
pub(super) fn interpolate(
    text: &str,
    values: &BTreeMap<String, String>,
) -> Result<String, InterpolateError> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, after) = rest.split_at(at);
        out.push_str(before);
        if let Some(after) = after.strip_prefix(DOLLAR) {
            out.push('$');
            rest = after;
            continue;
        }
        let Some((name, times, length)) = reference(after) else {
            out.push_str("${");
            rest = &after[2..];
            continue;
        };
        replace(name, times, values, &mut out).map_err(|problem| InterpolateError {
            problem,
            line: text[..text.len() - after.len()].matches('\n').count() + 1,
        })?;
        rest = &after[length..];
    }
    out.push_str(rest);
    Ok(out)
}

/// The text for a study in which nothing of this text is replaced.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, after) = rest.split_at(at);
        out.push_str(before);
        let is_replaced = after.starts_with(DOLLAR) || reference(after).is_some();
        out.push_str(if is_replaced { DOLLAR } else { "$" });
        rest = &after[1..];
    }
    out.push_str(rest);
    out
}

/// Appends the value of a `${name}` or `${name * times}`.
fn replace(
    name: &str,
    times: Option<&str>,
    values: &BTreeMap<String, String>,
    out: &mut String,
) -> Result<(), InterpolateProblem> {
    let value_of = |name: &str| {
        values
            .get(name)
            .ok_or_else(|| InterpolateProblem::Undefined {
                name: name.to_owned(),
            })
    };
    let value = value_of(name)?;
    let (line, times) = match times {
        None => (value.as_str(), 1),
        Some(times) => {
            let is_number = times.bytes().all(|byte| byte.is_ascii_digit());
            // If it is not a number, it is the name of one.
            let number = if is_number { times } else { value_of(times)? };
            let parsed = number.parse::<usize>();
            let times = parsed.map_err(|_| InterpolateProblem::NotACount {
                name: times.to_owned(),
                value: number.to_owned(),
            })?;
            (value.trim_end(), times)
        }
    };
    let length = (line.len() + 1)
        .checked_mul(times)
        .and_then(|length| length.checked_add(out.len()));
    if length.is_none_or(|length| length > TEXT_MAX_BYTES) {
        return Err(InterpolateProblem::TooLong { times });
    }
    for number in 0..times {
        if number > 0 {
            out.push('\n');
        }
        out.push_str(line);
    }
    Ok(())
}

impl InterpolateProblem {
    /// The message, unless the name is not defined.
    pub(super) fn message(&self) -> String {
        match self {
            Self::Undefined { name } => format!("there is no parameter \"{name}\""),
            Self::NotACount { name, value } if name == value => {
                format!("{value} is not a number of lines")
            }
            Self::NotACount { name, value } => format!(
                "the parameter `{name}` is a number of lines here, but its value is \"{value}\"; \
                 use a whole number, 0 or more"
            ),
            Self::TooLong { times: 1 } => format!(
                "with its parameters replaced, this text exceeds {} MiB; shorten it",
                TEXT_MAX_BYTES >> 20
            ),
            Self::TooLong { times } => format!(
                "with {times} lines repeated here, this text exceeds {} MiB; repeat fewer",
                TEXT_MAX_BYTES >> 20
            ),
        }
    }
}

/// Name, number and length of the `${name}` or `${name * number}` at the start of a text.
fn reference(text: &str) -> Option<(&str, Option<&str>, usize)> {
    let end = text.find('}')?;
    let is_name = |word: &str| {
        !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let inside = &text[2..end];
    let (name, times) = match inside.split_once('*') {
        Some((name, times)) => (name.trim(), Some(times.trim())),
        None => (inside, None),
    };
    (is_name(name) && times.is_none_or(is_name)).then_some((name, times, end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> BTreeMap<String, String> {
        BTreeMap::from([("rows".to_owned(), "1000".to_owned())])
    }

    #[test]
    fn names_are_replaced_and_dollar_quotes_are_not() {
        let text = "do $$ begin perform ${rows}; end $$; select $1, '$ {x}', '${ }'";
        let want = "do $$ begin perform 1000; end $$; select $1, '$ {x}', '${ }'";
        assert_eq!(interpolate(text, &values()).unwrap(), want);
    }

    /// Regression: `compare 'select $${a}$$::text[]'` failed, and `${clients}` in a statement was replaced.
    #[test]
    fn an_escaped_text_stays_as_it_is() {
        for (text, escaped_text) in [
            ("select $${rows}$$::text[]", "select $${$}{rows}$$::text[]"),
            ("${a * 2} ${$} $", "${$}{a * 2} ${$}{$} $"),
            ("$${\"a\": 1}$$", "$${\"a\": 1}$$"),
            ("${ ${${rows}", "${ ${${$}{rows}"),
        ] {
            assert_eq!(escaped(text), escaped_text);
            assert_eq!(interpolate(escaped_text, &values()).unwrap(), text);
        }
        assert_eq!(interpolate("$$${rows}$$", &values()).unwrap(), "$$1000$$");
    }

    #[test]
    fn a_value_is_repeated_line_by_line() {
        let values = BTreeMap::from([
            ("insert".to_owned(), "insert into t values (1);".to_owned()),
            ("count".to_owned(), "2".to_owned()),
        ]);
        let want = "begin;\ninsert into t values (1);\ninsert into t values (1);\nend;";
        for text in [
            "begin;\n${insert * 2}\nend;",
            "begin;\n${insert*count}\nend;",
        ] {
            assert_eq!(interpolate(text, &values).unwrap(), want);
        }
        let error = interpolate("${insert * many}", &values).unwrap_err();
        let name = "many".to_owned();
        assert_eq!(error.problem, InterpolateProblem::Undefined { name });
        assert_eq!(interpolate("${a b} ${", &values).unwrap(), "${a b} ${");
    }

    #[test]
    fn an_unknown_name_is_reported_with_its_line() {
        let error = interpolate("a\nb ${row}", &values()).unwrap_err();
        assert_eq!(
            error,
            InterpolateError {
                problem: InterpolateProblem::Undefined {
                    name: "row".to_owned()
                },
                line: 2
            }
        );
    }

    #[test]
    fn a_count_that_is_no_number_is_an_error() {
        let values = BTreeMap::from([
            ("insert".to_owned(), "insert into t values (1);".to_owned()),
            ("count".to_owned(), "ten".to_owned()),
            ("less".to_owned(), "-1".to_owned()),
        ]);
        for (text, words) in [
            ("${insert * count}", "its value is \"ten\""),
            ("${insert * less}", "its value is \"-1\""),
            ("${insert * 99999999999999999999}", "not a number of lines"),
        ] {
            let error = interpolate(text, &values).unwrap_err();
            let message = error.problem.message();
            assert!(message.contains(words), "{message}");
        }
    }

    #[test]
    fn repeating_16_gigabytes_is_an_error() {
        let values = BTreeMap::from([("line".to_owned(), "x".repeat(1024))]);
        for text in [
            "${line * 16000000}",
            "${line * 18446744073709551615}",
            &"${line * 10000}".repeat(2),
        ] {
            let error = interpolate(text, &values).unwrap_err();
            let message = error.problem.message();
            assert!(message.contains("exceeds 16 MiB"), "{message}");
        }
        assert_eq!(interpolate("${line * 0}", &values).unwrap(), "");
        let long = interpolate("${line * 10000}", &values).unwrap();
        assert_eq!(long.len(), 10_000 * 1025 - 1);
    }
}
