//! psql's options for a connection, and for help, whose short form is `-?`.

use clap::Args;
use pgassay_wire::conninfo::{ConninfoError, Request};

/// The place of what all commands have in the help of one: after its options.
pub const AFTER_ALL: usize = 900;

/// Where to connect to, besides a database name or a connection string. For commands with
/// `disable_help_flag`.
#[derive(Debug, Default, Args)]
pub struct PsqlOptions {
    /// Host name, address, or directory of the server's socket, as for psql.
    #[arg(short = 'h', long, value_name = "HOSTNAME")]
    host: Option<String>,

    /// Port of the server, as for psql.
    #[arg(short, long, value_name = "PORT")]
    port: Option<String>,

    /// User name, as for psql.
    #[arg(short = 'U', long, value_name = "USERNAME")]
    username: Option<String>,

    /// Same as the argument DBNAME, as for psql.
    #[arg(
        short,
        long,
        visible_alias = "dsn",
        value_name = "DBNAME",
        conflicts_with = "database"
    )]
    dbname: Option<String>,

    /// Print help.
    #[arg(short = '?', long, action = clap::ArgAction::Help, display_order = AFTER_ALL)]
    help: Option<bool>,
}

impl PsqlOptions {
    /// Whether an option names the database, even if by an empty string.
    pub fn names_database(&self) -> bool {
        self.dbname.is_some()
    }

    /// The connection string for a database name, a URI or a connection string, which may be empty unless it is an
    /// option. What a connection string says overrides the options, as for psql (startup.c, whose options come before
    /// `dbname`; fe-connect.c, `conninfo_array_parse`).
    pub fn conninfo(&self, database: &str) -> Result<String, ConninfoError> {
        let given = [
            ("host", &self.host),
            ("port", &self.port),
            ("user", &self.username),
        ];
        let database = self.dbname.as_deref().unwrap_or(database);
        let mut request = Request::new();
        for (name, value) in given {
            request = request.option(name, value.as_deref().unwrap_or_default())?;
        }
        if !database.is_empty() {
            request = request.database(database)?;
        }
        Ok(request.keyword_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: `-h replica "host=primary"` connected to the replica, and psql's to the primary.
    #[test]
    fn options_are_overridden_by_a_connection_string_as_for_psql() {
        let options = PsqlOptions {
            host: Some("/run/a b".to_owned()),
            port: Some("6500".to_owned()),
            username: Some("o'hara".to_owned()),
            ..PsqlOptions::default()
        };
        for (database, expected) in [
            ("", "host='/run/a b' port=6500 user='o\\'hara'"),
            (
                "shop",
                "host='/run/a b' port=6500 user='o\\'hara' dbname=shop",
            ),
            (
                "dbname=shop host=x",
                "port=6500 user='o\\'hara' dbname=shop host=x",
            ),
            (
                "postgresql:///shop",
                "host='/run/a b' port=6500 user='o\\'hara' dbname=shop",
            ),
            (
                "postgresql://web@x:7000/shop",
                "user=web host=x port=7000 dbname=shop",
            ),
        ] {
            assert_eq!(options.conninfo(database).unwrap(), expected);
        }
        let named = PsqlOptions {
            dbname: Some("dbname=shop".to_owned()),
            ..PsqlOptions::default()
        };
        assert_eq!(named.conninfo("").unwrap(), "dbname=shop");
        let none = PsqlOptions::default();
        assert_eq!(none.conninfo("shop").unwrap(), "dbname=shop");
        assert_eq!(none.conninfo("").unwrap(), "");
    }
}
