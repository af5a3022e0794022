//! The service file and the password file.
//!
//! Source: `parseServiceFile` and `passwordFromFile` in `fe-connect.c`.

use super::ConninfoError;
use super::keywords;

/// The options of a service, in their order; `None` where the file does not define it.
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
            return fail("looking services up in LDAP is not supported".into());
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

/// What a line of the password file is compared with.
pub(super) struct Entry<'a> {
    pub host: &'a str,
    pub port: &'a str,
    pub database: &'a str,
    pub user: &'a str,
}

/// The password of the first line that matches.
pub(super) fn password(text: &str, wanted: &Entry<'_>) -> Option<String> {
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
            // An empty password is no password.
            Some(unescape(rest)).filter(|password| !password.is_empty())
        })
}

/// Splits off a field at the first colon that is not escaped.
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
        // A backslash at the very end stands for itself.
        plain.push(if character == '\\' {
            characters.next().unwrap_or('\\')
        } else {
            character
        });
    }
    plain
}
