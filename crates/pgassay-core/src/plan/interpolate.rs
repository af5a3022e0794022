//! Replaces `${name}` in SQL, scripts and settings.

use std::collections::BTreeMap;

/// An undefined name in `${…}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UndefinedName {
    pub name: String,
    /// The line of the text that uses the name, from 1.
    pub line: usize,
}

/// Replaces every `${name}` with its value, and every `${name * 50}` with that many lines of it; the
/// number can be a name, too. Everything else, dollar quotes included, stays unchanged: only a `$`
/// directly before `{name` counts, and a name consists of letters, digits and `_`.
pub(super) fn interpolate(
    text: &str,
    values: &BTreeMap<String, String>,
) -> Result<String, UndefinedName> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, after) = rest.split_at(at);
        out.push_str(before);
        let Some((name, times, length)) = reference(after) else {
            out.push_str("${");
            rest = &after[2..];
            continue;
        };
        let value_of = |name: &str| {
            values.get(name).ok_or_else(|| UndefinedName {
                name: name.to_owned(),
                line: text[..text.len() - after.len()].matches('\n').count() + 1,
            })
        };
        let value = value_of(name)?;
        match times {
            None => out.push_str(value),
            Some(times) => {
                let number = match times.parse() {
                    Ok(number) => number,
                    // If it is not a number, it is the name of one.
                    Err(_) => value_of(times)?.parse().unwrap_or(0),
                };
                out.push_str(&vec![value.trim_end(); number].join("\n"));
            }
        }
        rest = &after[length..];
    }
    out.push_str(rest);
    Ok(out)
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
        assert_eq!(
            interpolate("${insert * many}", &values).unwrap_err().name,
            "many"
        );
        assert_eq!(interpolate("${a b} ${", &values).unwrap(), "${a b} ${");
    }

    #[test]
    fn an_unknown_name_is_reported_with_its_line() {
        let error = interpolate("a\nb ${row}", &values()).unwrap_err();
        assert_eq!(
            error,
            UndefinedName {
                name: "row".to_owned(),
                line: 2
            }
        );
    }
}
