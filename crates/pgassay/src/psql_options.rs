//! psql's options for a connection, of commands whose `-h` prints help.

use std::fmt::Write;

use clap::Args;

/// Where to connect to, besides a database name or a connection string.
#[derive(Debug, Default, Args)]
pub struct PsqlOptions {
    /// Host name, address, or directory of the server's socket, as psql's -h.
    #[arg(long, value_name = "HOSTNAME")]
    host: Option<String>,

    /// Port, as for psql.
    #[arg(short, long, value_name = "PORT")]
    port: Option<String>,

    /// User name, as for psql.
    #[arg(short = 'U', long, value_name = "USERNAME")]
    username: Option<String>,
}

impl PsqlOptions {
    /// The connection string for a database name, a URI or a connection string, which may be empty.
    pub fn conninfo(&self, database: &str) -> String {
        let given = [
            ("host", &self.host),
            ("port", &self.port),
            ("user", &self.username),
        ];
        let given: Vec<(&str, &str)> = given
            .into_iter()
            .filter_map(|(key, value)| Some((key, value.as_deref()?)))
            .collect();
        if given.is_empty() {
            return database.to_owned();
        }
        let mut conninfo = database.to_owned();
        if is_uri(database) {
            for (key, value) in given {
                let separator = if conninfo.contains('?') { '&' } else { '?' };
                _ = write!(conninfo, "{separator}{key}={}", encoded(value));
            }
            return conninfo;
        }
        if !database.is_empty() && !database.contains('=') {
            conninfo = format!("dbname={}", quoted(database));
        }
        for (key, value) in given {
            _ = write!(conninfo, " {key}={}", quoted(value));
        }
        conninfo.trim_start().to_owned()
    }
}

fn is_uri(database: &str) -> bool {
    ["postgresql://", "postgres://"]
        .iter()
        .any(|it| database.starts_with(it))
}

/// A value of a connection string.
fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// A value of a URI, percent-encoded.
fn encoded(value: &str) -> String {
    let mut out = String::new();
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_join_a_name_a_connection_string_and_a_uri() {
        let options = PsqlOptions {
            host: Some("/run/a b".to_owned()),
            port: Some("6500".to_owned()),
            username: Some("o'hara".to_owned()),
        };
        for (database, expected) in [
            ("", "host='/run/a b' port='6500' user='o\\'hara'"),
            (
                "shop",
                "dbname='shop' host='/run/a b' port='6500' user='o\\'hara'",
            ),
            (
                "dbname=shop host=x",
                "dbname=shop host=x host='/run/a b' port='6500' user='o\\'hara'",
            ),
            (
                "postgresql:///shop",
                "postgresql:///shop?host=%2Frun%2Fa%20b&port=6500&user=o%27hara",
            ),
        ] {
            assert_eq!(options.conninfo(database), expected);
        }
        assert_eq!(PsqlOptions::default().conninfo("shop"), "shop");
    }
}
