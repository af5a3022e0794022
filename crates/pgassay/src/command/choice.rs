//! What `compare` and `count` understand as a choice: settings, a version, a protocol.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use pgassay_model::plan::escaped;
use pgassay_model::study::{Protocol, Scalar, Variant};
use pgassay_server::VersionRequest;

const PROTOCOLS: &str = "expected simple, extended or prepared";

/// A variant that differs from the baseline at most in its protocol.
pub fn variant(name: &str, protocol: Protocol) -> Variant {
    Variant {
        name: name.to_owned(),
        protocol: Some(protocol),
        ..Variant::default()
    }
}

/// The settings in `NAME=VALUE,NAME=VALUE`. A comma belongs to a value unless another name follows, and to a value in
/// quotes in any case.
pub fn assignments(choice: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for part in choice.split(',') {
        let name = part.split_once('=').map(|(name, _)| name.trim());
        let is_name = |it: &str| {
            let mut characters = it.chars();
            characters
                .next()
                .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
                && characters.all(|c| c.is_ascii_alphanumeric() || "_.".contains(c))
        };
        match all.last_mut() {
            Some(last) if has_open_quote(last) || !name.is_some_and(is_name) => {
                last.extend([",", part]);
            }
            _ => all.push(part.to_owned()),
        }
    }
    all
}

/// Whether the value in `NAME=VALUE` begins with a quote, as in `postgresql.conf`, and does not end with one.
fn has_open_quote(pair: &str) -> bool {
    let value = pair.split_once('=').map_or("", |(_, value)| value.trim());
    value.starts_with('\'') && !value.matches('\'').count().is_multiple_of(2)
}

/// A value without its quotes, as `postgresql.conf` has them: `'it''s'` is `it's`.
fn unquoted(value: &str) -> Option<String> {
    let inner = value.strip_prefix('\'')?.strip_suffix('\'')?;
    let is_one = !inner.replace("''", "").contains('\'');
    is_one.then(|| inner.replace("''", "'"))
}

/// The variant that `--vs` describes.
pub fn other(choice: &str, protocol: Protocol) -> Result<Variant> {
    let mut variant = variant(choice, protocol);
    if choice.contains('=') {
        variant.settings = settings("--vs", &assignments(choice))?;
        // No setting has this name, and results call such a variant so.
        if let Some(Scalar(word)) = variant.settings.remove("protocol") {
            let mode = mode(&word).with_context(|| format!("--vs {choice}: {PROTOCOLS}"));
            variant.protocol = Some(mode?);
        }
    } else if let Some(mode) = mode(choice) {
        variant.protocol = Some(mode);
    } else if VersionRequest::parse(choice).is_ok() {
        variant.version = Some(choice.to_owned());
    } else {
        bail!(
            "--vs {choice}: expected a setting (NAME=VALUE), a version (17) or a protocol (simple)"
        );
    }
    Ok(variant)
}

/// The protocol with this name.
pub fn mode(word: &str) -> Option<Protocol> {
    [Protocol::Simple, Protocol::Extended, Protocol::Prepared]
        .into_iter()
        .find(|protocol| protocol.as_str() == word)
}

/// The same, for clap.
pub fn protocol(word: &str) -> Result<Protocol, String> {
    mode(word).ok_or_else(|| PROTOCOLS.to_owned())
}

/// Settings that `flag` specifies as `NAME=VALUE`, for a study.
pub fn settings(flag: &str, pairs: &[String]) -> Result<BTreeMap<String, Scalar>> {
    pairs
        .iter()
        .map(|pair| match pair.split_once('=') {
            Some(_) if has_open_quote(pair) => {
                let flag = if flag.starts_with("--") {
                    format!("{flag} ")
                } else {
                    String::new()
                };
                bail!(
                    "{flag}{pair}: the quote has no end (a quote within a value is written as '')"
                )
            }
            Some((name, value)) if !name.trim().is_empty() => {
                let value = unquoted(value.trim()).unwrap_or_else(|| value.trim().to_owned());
                Ok((name.trim().to_owned(), Scalar(escaped(&value))))
            }
            // A dialog has no flag.
            _ if !flag.starts_with("--") => {
                bail!("{pair}: expected NAME=VALUE, for example work_mem=4MB")
            }
            _ => bail!("{flag} {pair}: expected NAME=VALUE, for example {flag} work_mem=4MB"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a value with a comma could not be given.
    #[test]
    fn a_comma_in_a_setting_belongs_to_its_value_unless_another_name_follows() {
        let parsed = |choice: &str| {
            let variant = other(choice, Protocol::Simple).expect("settings");
            let settings = variant.settings.into_iter();
            let settings = settings.map(|(name, value)| format!("{name}:{}", value.0));
            settings.collect::<Vec<_>>().join("|")
        };
        let prefix = "log_line_prefix=%m, x=%u, work_mem=4MB";
        assert_eq!(parsed("log_line_prefix=%m, x"), "log_line_prefix:%m, x");
        assert_eq!(parsed(prefix), "log_line_prefix:%m|work_mem:4MB|x:%u");
        let path = "search_path=a, \"b\", public, my.setting=1";
        assert_eq!(parsed(path), "my.setting:1|search_path:a, \"b\", public");
        assert_eq!(parsed("search_path=a,b,=c"), "search_path:a,b,=c");
        // Regression: `'a, b=c'` was two settings, and the quotes of a value were part of it.
        let quoted = "log_line_prefix='a, b=c', work_mem = '8MB',my.name='it''s'";
        let expected = "log_line_prefix:a, b=c|my.name:it's|work_mem:8MB";
        assert_eq!(parsed(quoted), expected);
        let libraries = "shared_preload_libraries='pg_stat_statements, auto_explain'";
        let expected = "shared_preload_libraries:pg_stat_statements, auto_explain";
        assert_eq!(parsed(libraries), expected);
        assert_eq!(parsed("my.list='a','b'"), "my.list:'a','b'");
        assert_eq!(parsed("my.name=it's, jit=off"), "jit:off|my.name:it's");
        assert_eq!(parsed("my.name=''"), "my.name:");
        let open = other("my.name='a, b=c", Protocol::Simple).expect_err("no end");
        assert!(open.to_string().contains("the quote has no end"), "{open}");
    }

    /// Regression: `--vs protocol=prepared`, as results call that variant, was taken for a setting, which no server has.
    #[test]
    fn a_protocol_is_taken_by_name_alone_or_among_settings() {
        let named = other("protocol=prepared, jit=off", Protocol::Simple).expect("a protocol");
        assert_eq!(named.protocol, Some(Protocol::Prepared));
        let settings: Vec<&str> = named.settings.keys().map(String::as_str).collect();
        assert_eq!(settings, ["jit"]);
        let alone = other("prepared", Protocol::Simple).expect("a protocol");
        assert_eq!(alone.protocol, Some(Protocol::Prepared));
        let refused = other("protocol=fast", Protocol::Simple).expect_err("no protocol");
        assert!(
            refused.to_string().contains("expected simple, extended"),
            "{refused}"
        );
    }

    /// Regression: without a space after the comma, `8MB,jit=off` was the value of `work_mem`.
    #[test]
    fn settings_are_separated_by_commas_without_spaces_too() {
        let variant = other("work_mem=8MB,jit=off", Protocol::Simple).expect("settings");
        let settings = variant.settings.iter();
        let settings: Vec<_> = settings
            .map(|(name, value)| (name.as_str(), value.0.as_str()))
            .collect();
        assert_eq!(settings, [("jit", "off"), ("work_mem", "8MB")]);
    }
}
