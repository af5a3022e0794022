//! The service file and the password file.
//!
//! Source: `parseServiceFile` and `passwordFromFile` in `fe-connect.c`.

use super::ConninfoError;
use super::keywords;

/// Returns the options of a service, in order; `None` if the file does not define it.
pub(super) fn service(
    path: &str,
    text: &str,
    name: &str,
) -> Result<Option<Vec<(String, String)>>, ConninfoError> {
    let mut found: Option<Vec<(String, String)>> = None;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let fail = |what: String| {
            Err(ConninfoError::ServiceFile {
                path: path.into(),
                line: index + 1,
                what,
            })
        };
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(section) = line.strip_prefix('[') {
            if found.is_some() {
                break;
            }
            if section.strip_suffix(']') == Some(name) {
                found = Some(Vec::new());
            }
            continue;
        }
        let Some(options) = &mut found else { continue };
        if line.starts_with("ldap") {
            return fail("service lookup in LDAP is not supported".into());
        }
        let Some((option, value)) = line.split_once('=') else {
            return fail("expected keyword=value".into());
        };
        if matches!(option, "service" | "servicefile") {
            return fail(format!("nested \"{option}\" is not supported"));
        }
        if keywords::find(option).is_none() {
            return fail(format!("invalid connection option \"{option}\""));
        }
        options.push((option.into(), value.into()));
    }
    Ok(found)
}

/// The fields that a line of the password file must match.
pub(super) struct PasswordLine<'a> {
    pub host: &'a str,
    pub port: &'a str,
    pub database: &'a str,
    pub user: &'a str,
}

/// Returns the password of the first matching line.
pub(super) fn password(text: &str, wanted: &PasswordLine<'_>) -> Option<String> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .find_map(|line| {
            let mut rest = line.strip_suffix('\r').unwrap_or(line);
            for field in [wanted.host, wanted.port, wanted.database, wanted.user] {
                let (given, after) = field_of(rest)?;
                if given != "*" && unescape(given) != field {
                    return None;
                }
                rest = after;
            }
            // An empty password counts as none.
            Some(unescape(rest)).filter(|password| !password.is_empty())
        })
}

/// Splits off a field at the first unescaped colon.
fn field_of(line: &str) -> Option<(&str, &str)> {
    let mut escaped = false;
    let end = line.find(|character| {
        let ends = character == ':' && !escaped;
        escaped = character == '\\' && !escaped;
        ends
    })?;
    Some((&line[..end], &line[end + 1..]))
}

fn unescape(text: &str) -> String {
    let mut characters = text.chars();
    let mut plain = String::with_capacity(text.len());
    while let Some(character) = characters.next() {
        // A backslash at the very end is literal.
        plain.push(if character == '\\' {
            characters.next().unwrap_or('\\')
        } else {
            character
        });
    }
    plain
}
