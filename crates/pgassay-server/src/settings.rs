//! A server's configuration as text: `postgresql.conf`, `pg_hba.conf` and `pg_ident.conf`.
//!
//! Values follow `src/backend/utils/misc/guc-file.l`: within quotes a quote is doubled and a
//! backslash starts an escape, so both are doubled here and a value arrives as written; a value
//! cannot contain a newline.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use crate::account::OsAccount;
use crate::error::ServerError;
use crate::version::Version;

/// Settings reserved by pgassay, so that it finds the server's files and removes them.
const FILES: [&str; 3] = ["config_file", "data_directory", "external_pid_file"];
/// Directives of a configuration file: what they include could set anything, and errors quote it.
const INCLUDES: [&str; 3] = ["include", "include_dir", "include_if_exists"];
/// Settings reserved by pgassay, so that only it can reach the server.
const ACCESS: [&str; 6] = [
    "hba_file",
    "ident_file",
    "listen_addresses",
    "port",
    "unix_socket_directories",
    "unix_socket_permissions",
];

/// The lines included at the end of `postgresql.conf`, where they override earlier ones.
pub(crate) fn configuration(
    settings: &BTreeMap<String, String>,
    socket_directory: &Path,
    port: u16,
    tcp: bool,
) -> Result<String, ServerError> {
    let address = if tcp { "127.0.0.1" } else { "" };
    let mut text = String::from("\n# Set by pgassay.\n");
    // Writing into a String cannot fail.
    let _ = writeln!(text, "listen_addresses = '{address}'\nport = {port}");
    let socket_directory = quote(
        "unix_socket_directories",
        &socket_directory.to_string_lossy(),
    )?;
    let _ = writeln!(text, "unix_socket_directories = {socket_directory}");
    text.push_str("\n# Set by the study.\n");
    for (name, value) in settings {
        let _ = writeln!(text, "{} = {}", check_name(name)?, quote(name, value)?);
    }
    Ok(text)
}

/// Checks that these settings can be written to a server's configuration, before it is started.
///
/// # Errors
/// [`ServerError::Setting`]: a setting that is reserved by pgassay, or an impossible name or value.
pub fn check_settings(settings: &BTreeMap<String, String>) -> Result<(), ServerError> {
    for (name, value) in settings {
        check_name(name)?;
        quote(name, value)?;
    }
    Ok(())
}

fn check_name(name: &str) -> Result<&str, ServerError> {
    let error = |reason: &str| ServerError::Setting {
        name: name.to_owned(),
        reason: reason.to_owned(),
    };
    let part_is_fine = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '$')
    };
    if !name.split('.').all(part_is_fine) {
        return Err(error(
            "a setting's name consists of letters, digits and underscores",
        ));
    }
    let is_of = |ours: &[&str]| ours.iter().any(|ours| name.eq_ignore_ascii_case(ours));
    if is_of(&ACCESS) {
        return Err(error(
            "pgassay sets it itself, so that no other client can reach the server; remove it",
        ));
    }
    if is_of(&FILES) {
        return Err(error(
            "pgassay keeps the server's files in a temporary directory of its own; remove it",
        ));
    }
    if is_of(&INCLUDES) {
        return Err(error(
            "a study cannot include configuration files; remove it and list the settings themselves",
        ));
    }
    Ok(name)
}

fn quote(name: &str, value: &str) -> Result<String, ServerError> {
    if value.contains(['\n', '\r', '\0']) {
        let reason = "a value cannot contain a newline".to_owned();
        return Err(ServerError::Setting {
            name: name.to_owned(),
            reason,
        });
    }
    Ok(format!(
        "'{}'",
        value.replace('\\', "\\\\").replace('\'', "''")
    ))
}

/// `pg_hba.conf`: over the socket, our own user connects as the superuser without a password;
/// other users, other roles and TCP connections need a password.
pub(crate) fn host_rules(version: &Version, superuser: &str, tcp: bool) -> String {
    let method = password_method(version);
    let mut text = format!(
        "# Set by pgassay.\n\
         local all         {superuser} peer map=pgassay\n\
         local replication {superuser} peer map=pgassay\n\
         local all         all {method}\n"
    );
    if tcp {
        let _ = writeln!(text, "host  all all 127.0.0.1/32 {method}");
    }
    text
}

/// `pg_ident.conf`: maps our operating-system user to the superuser.
pub(crate) fn user_map(account: &OsAccount, superuser: &str) -> String {
    let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    format!(
        "# Set by pgassay.\npgassay {} {superuser}\n",
        quoted(&account.ourselves.name)
    )
}

/// The authentication method for passwords: SCRAM came with 10.
pub(crate) fn password_method(version: &Version) -> &'static str {
    if version.series().major() >= 10 {
        "scram-sha-256"
    } else {
        "md5"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: &str, value: &str) -> Result<String, ServerError> {
        let settings = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        configuration(&settings, Path::new("/tmp/it's"), 5432, false)
    }

    #[test]
    fn values_are_quoted_and_arrive_as_written() {
        let text = text("log_line_prefix", r"it's 100% \d").unwrap();
        assert!(
            text.ends_with("log_line_prefix = 'it''s 100% \\\\d'\n"),
            "{text}"
        );
        assert!(
            text.contains("unix_socket_directories = '/tmp/it''s'\n"),
            "{text}"
        );
        assert!(text.contains("listen_addresses = ''\n"), "{text}");
    }

    #[test]
    fn a_name_or_value_cannot_inject_a_line() {
        for name in ["", "a b", "a = 1\nb", "a.", ".a", "1a", "a'"] {
            assert!(
                matches!(text(name, "x"), Err(ServerError::Setting { .. })),
                "{name:?}"
            );
        }
        assert!(text("auto_explain.log_min_duration", "10ms").is_ok());
        assert!(text("work_mem", "1\nfsync = off").is_err());
    }

    #[test]
    fn reserved_settings_are_rejected() {
        for name in [
            "port",
            "LISTEN_ADDRESSES",
            "hba_file",
            "config_file",
            "include_dir",
        ] {
            assert!(text(name, "1").unwrap_err().to_string().contains(name));
        }
    }

    #[test]
    fn tcp_is_disabled_by_default() {
        let new = Version::parse("18.6").unwrap();
        let old = Version::parse("9.6.24").unwrap();
        assert!(!host_rules(&new, "postgres", false).contains("host "));
        assert!(
            host_rules(&new, "postgres", true).contains("host  all all 127.0.0.1/32 scram-sha-256")
        );
        assert!(host_rules(&old, "postgres", true).contains("host  all all 127.0.0.1/32 md5"));
    }
}
