//! psql's options for a connection, for commands where `-h` prints help.

use clap::Args;
use pgassay_wire::conninfo::{ConninfoError, Request};

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
    pub fn conninfo(&self, database: &str) -> Result<String, ConninfoError> {
        let given = [
            ("host", &self.host),
            ("port", &self.port),
            ("user", &self.username),
        ];
        let mut request = Request::new();
        if !database.is_empty() {
            request = request.database(database)?;
        }
        for (name, value) in given {
            request = request.option(name, value.as_deref().unwrap_or_default())?;
        }
        Ok(request.keyword_string())
    }
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
            ("", "host='/run/a b' port=6500 user='o\\'hara'"),
            (
                "shop",
                "dbname=shop host='/run/a b' port=6500 user='o\\'hara'",
            ),
            (
                "dbname=shop host=x",
                "dbname=shop host='/run/a b' port=6500 user='o\\'hara'",
            ),
            (
                "postgresql:///shop",
                "dbname=shop host='/run/a b' port=6500 user='o\\'hara'",
            ),
        ] {
            assert_eq!(options.conninfo(database).unwrap(), expected);
        }
        let none = PsqlOptions::default();
        assert_eq!(none.conninfo("shop").unwrap(), "dbname=shop");
        assert_eq!(none.conninfo("").unwrap(), "");
    }
}
