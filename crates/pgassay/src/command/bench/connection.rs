//! The setup connection: reads tables and versions, runs vacuum. Error messages are those of libpq
//! and pgbench. Source: `doConnect`, `executeStatement` in pgbench.c.

use std::time::Duration;

use pgassay_lab::connector::{ConnectError, TimedStream, connect};
use pgassay_lab::system_env::RealSystem;
use pgassay_server::{SocketCloser, Stream as _};
use pgassay_wire::conninfo::{Address, ConninfoError, Endpoint, Environment, Request, Target};
use pgassay_wire::{BackendKey, Exchange, ExchangeError, Password, QueryResult, WireError};

use super::message::{self, Exit, fatal};
use super::settings::{ConnectionOptions, Settings};
use super::system::ask_password;

/// The connection target from options and environment.
pub fn target(settings: &Settings, application: &str) -> Result<Target, Exit> {
    let target = resolve(&settings.connection, &RealSystem, application);
    let target = target.map_err(|error| fatal(&error.to_string()))?;
    for warning in &target.warnings {
        message::warning(warning);
    }
    Ok(target)
}

fn resolve(
    given: &ConnectionOptions,
    environment: &dyn Environment,
    application: &str,
) -> Result<Target, ConninfoError> {
    let mut request = Request::new();
    for (name, value) in [
        ("host", &given.host),
        ("port", &given.port),
        ("user", &given.user),
    ] {
        if let Some(value) = value {
            request = request.option(name, value)?;
        }
    }
    let variable = |name: &str| environment.variable(name).filter(|it| !it.is_empty());
    // In pgbench the two variables take precedence over a service, and even over -U. They may be connection strings.
    let database = given.database.clone();
    if database.is_none() && environment.is_garbled("PGDATABASE") {
        return Err(ConninfoError::Value {
            option: "PGDATABASE",
            value: "…".into(),
            expected: "text in UTF-8",
        });
    }
    let database = database.or_else(|| variable("PGDATABASE").or_else(|| variable("PGUSER")));
    if let Some(database) = database {
        request = request.database(&database)?;
    } else if let Some(user) = environment.user() {
        // In pgbench the system's user, not that of -U, names the database.
        request = request.fallback_database(&user);
    }
    request
        .fallback_application_name(application)
        .resolve(environment)
}

/// The setup connection.
pub struct Setup {
    exchange: Exchange<TimedStream>,
    endpoint: Endpoint,
}

impl Setup {
    /// Connects to the first host that accepts. Prompts for a password if the server requires one that
    /// is missing, and stores it in the target.
    pub fn open(target: &mut Target) -> Result<Self, Exit> {
        let mut tried = open(target);
        if let Err(error) = &tried
            && let Some(ExchangeError::Wire(WireError::PasswordNeeded { .. })) = error.last()
            && let Ok(password) = ask_password()
        {
            for host in &mut target.hosts {
                host.password = Some(Password::new(password.clone()));
            }
            tried = open(target);
        }
        tried.map_err(|error| {
            message::error(&error.describe(|error| message::of_exchange(error, None)));
            Exit(1)
        })
    }

    /// Host or socket directory, and port of the connection.
    pub fn host_and_port(&self) -> (&str, u16) {
        match &self.endpoint.address {
            Address::Unix { directory, port } => (directory, *port),
            Address::Tcp { host, port, .. } => (host, *port),
        }
    }

    /// The address it reached.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Whether it uses TLS.
    pub fn is_protected(&self) -> bool {
        self.exchange.is_protected()
    }

    /// The key that cancels its statements.
    pub fn backend(&self) -> Option<BackendKey> {
        self.exchange.backend()
    }

    /// What closes it from another thread.
    pub fn closer(&self) -> std::io::Result<SocketCloser> {
        self.exchange.stream().closer()
    }

    /// Runs a statement and reports errors.
    pub fn execute(&mut self, sql: &str) -> Result<(), Exit> {
        let answered = self.exchange.run(sql);
        self.print_notices();
        match answered {
            Ok(()) => Ok(()),
            Err(error) => Err(failed(&error, sql)),
        }
    }

    /// Runs a query, reports errors, and returns the first value of the result.
    pub fn value(&mut self, sql: &str) -> Result<Option<String>, Exit> {
        let answer = self.query(sql).map_err(|error| failed(&error, sql))?;
        self.print_notices();
        let first = answer.rows.into_iter().next();
        Ok(first.and_then(|row| row.into_iter().next()).flatten())
    }

    /// Prints notices of the server, as libpq does by default.
    fn print_notices(&mut self) {
        for notice in self.exchange.take_notices() {
            message::write_stderr(&message::of_notice(&notice));
        }
    }

    /// Runs a statement; reports an error, but ignores it.
    pub fn try_execute(&mut self, sql: &str) {
        let answered = self.exchange.run(sql);
        self.print_notices();
        if let Err(error) = answered {
            message::error(&message::of_exchange(&error, Some(sql)));
            message::detail("(ignoring this error and continuing anyway)");
        }
    }

    /// Runs a statement and returns its result.
    pub fn query(&mut self, sql: &str) -> Result<QueryResult, ExchangeError> {
        Ok(self.exchange.query(sql)?.pop().unwrap_or_default())
    }

    /// Copies the data that `write` produces into a table.
    pub fn copy(&mut self, sql: &str, write: impl FnMut(&mut Vec<u8>) -> bool) -> Result<(), Exit> {
        match self.exchange.copy_in(sql, write) {
            Ok(_) => Ok(()),
            Err(error) => Err(failed(&error, sql)),
        }
    }

    /// The server's version as it reports it.
    pub fn server_version(&self) -> &str {
        self.exchange
            .parameter("server_version")
            .unwrap_or_default()
    }

    /// The major version; 0 if unknown.
    pub fn server_major(&self) -> u32 {
        let version = self.server_version();
        let end = version
            .find(|letter: char| !letter.is_ascii_digit())
            .unwrap_or(version.len());
        version[..end].parse().unwrap_or(0)
    }

    /// Terminates the connection.
    pub fn close(self) {
        // The server notices either way.
        self.exchange.close().ok();
    }
}

fn failed(error: &ExchangeError, sql: &str) -> Exit {
    message::error(&format!(
        "query failed: {}",
        message::of_exchange(error, Some(sql))
    ));
    message::detail(&format!("Query was: {sql}"));
    Exit(1)
}

/// The SQLSTATE of a server error.
pub fn sqlstate(error: &ExchangeError) -> Option<&str> {
    match error {
        ExchangeError::Server(error) => Some(&error.sqlstate),
        _ => None,
    }
}

fn open(target: &Target) -> Result<Setup, ConnectError> {
    let limit = target.connect_timeout_s.map(u64::from);
    let (exchange, endpoint) = connect(target, limit.map(Duration::from_secs))?;
    Ok(Setup { exchange, endpoint })
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::{Path, PathBuf};

    use pgassay_wire::conninfo::FileText;

    use super::*;

    /// Variables of the system's user `me`, and a service file.
    struct UserOfSystem(&'static [(&'static str, &'static str)]);

    impl Environment for UserOfSystem {
        fn variable(&self, name: &str) -> Option<String> {
            let found = self.0.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        }

        fn user(&self) -> Option<String> {
            Some("me".to_owned())
        }

        fn home(&self) -> Option<PathBuf> {
            Some("/home/me".into())
        }

        fn read(&self, path: &Path, _max_bytes: u64) -> io::Result<Option<FileText>> {
            let is_service = path.ends_with(".pg_service.conf");
            Ok(is_service.then(|| FileText {
                text: "[one]\ndbname=of_service\n".to_owned(),
                mode: 0o600,
                is_owned_by_root: false,
            }))
        }
    }

    /// Regression: `-U app -i` dropped and created the tables of the database `app`. pgbench takes the database of the
    /// system's user.
    #[test]
    fn the_user_of_an_option_does_not_name_the_database() {
        let given = |user: Option<&str>, database: Option<&str>| ConnectionOptions {
            user: user.map(str::to_owned),
            database: database.map(str::to_owned),
            ..ConnectionOptions::default()
        };
        let app = Some("app");
        for (user, database, variables, expected) in [
            (app, None, &[][..], "me"),
            (None, None, &[], "me"),
            (app, Some("here"), &[], "here"),
            // In a connection string, libpq takes the user.
            (app, Some("host=a"), &[], "app"),
            (app, None, &[("PGDATABASE", "db")], "db"),
            (app, None, &[("PGUSER", "peer")], "peer"),
            (app, None, &[("PGDATABASE", ""), ("PGUSER", "")], "me"),
            (app, None, &[("PGSERVICE", "one")], "of_service"),
            // Regression: `-i` dropped the tables in the database of the service.
            (
                app,
                None,
                &[("PGDATABASE", "db"), ("PGSERVICE", "one")],
                "db",
            ),
            (app, None, &[("PGDATABASE", "dbname=db service=one")], "db"),
        ] {
            let environment = UserOfSystem(variables);
            let found = resolve(&given(user, database), &environment, "test");
            let found = found.expect("the request is complete");
            assert_eq!(
                found.database, expected,
                "{user:?} {database:?} {variables:?}"
            );
            assert_eq!(found.user, user.unwrap_or("me"));
        }
    }
}
