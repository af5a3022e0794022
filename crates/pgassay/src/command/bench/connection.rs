//! The setup connection: reads tables and versions, runs vacuum. Error messages are those of libpq
//! and pgbench. Source: `doConnect`, `executeStatement` in pgbench.c.

use std::time::Duration;

use pgassay_lab::connector::{ConnectError, TimedStream, connect};
use pgassay_lab::system_env::RealSystem;
use pgassay_server::{SocketCloser, Stream as _};
use pgassay_wire::conninfo::{Address, Endpoint, Request, Target};
use pgassay_wire::{BackendKey, Exchange, ExchangeError, Password, QueryResult, WireError};

use super::message::{self, Exit, fatal};
use super::settings::Settings;
use super::system::ask_password;

/// The connection target from options and environment.
pub fn target(settings: &Settings, application: &str) -> Result<Target, Exit> {
    let refused = |error: pgassay_wire::conninfo::ConninfoError| fatal(&error.to_string());
    let given = &settings.connection;
    let mut request = Request::new();
    for (name, value) in [
        ("host", &given.host),
        ("port", &given.port),
        ("user", &given.user),
    ] {
        if let Some(value) = value {
            request = request.option(name, value).map_err(refused)?;
        }
    }
    if let Some(database) = &given.database {
        request = request.database(database).map_err(refused)?;
    } else if std::env::var_os("PGDATABASE").is_none_or(|value| value.is_empty())
        && let Ok(user) = std::env::var("PGUSER")
        && !user.is_empty()
    {
        // In pgbench these two variables take precedence, even over -U.
        request = request.option("dbname", &user).map_err(refused)?;
    }
    let target = request
        .fallback_application_name(application)
        .resolve(&RealSystem)
        .map_err(refused)?;
    for warning in &target.warnings {
        message::warning(warning);
    }
    Ok(target)
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
