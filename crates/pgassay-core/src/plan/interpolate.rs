//! `${name}` in SQL, scripts and settings.

use std::collections::BTreeMap;

/// A name in `${…}` that nothing defines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unknown {
    /// The name.
    pub name: String,
    /// The line of the text that uses it, from 1.
    pub line: usize,
}

/// The text with every `${name}` replaced by its value. Anything else, dollar quotes included,
/// stays as it is: only a `$` right before `{name}` counts, and a name is letters, digits and `_`.
pub(super) fn interpolate(
    text: &str,
    values: &BTreeMap<String, String>,
) -> Result<String, Unknown> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, after) = rest.split_at(at);
        out.push_str(before);
        let name_end = after[2..]
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .map_or(after.len(), |end| end + 2);
        let name = &after[2..name_end];
        if name.is_empty() || !after[name_end..].starts_with('}') {
            out.push_str("${");
            rest = &after[2..];
            continue;
        }
        let Some(value) = values.get(name) else {
            let line = text[..text.len() - after.len()].matches('\n').count() + 1;
            return Err(Unknown {
                name: name.to_owned(),
                line,
            });
        };
        out.push_str(value);
        rest = &after[name_end + 1..];
    }
    out.push_str(rest);
    Ok(out)
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
    fn an_unknown_name_is_reported_with_its_line() {
        let error = interpolate("a\nb ${row}", &values()).unwrap_err();
        assert_eq!(
            error,
            Unknown {
                name: "row".to_owned(),
                line: 2
            }
        );
    }
}
