//! The connection for what comes before a run: tables, versions, vacuum. Its errors are told as
//! libpq and pgbench tell them. Source: `doConnect`, `executeStatement` in pgbench.c.

use std::time::Duration;

use pgassay_wire::conninfo::{Address, Request, Target};
use pgassay_wire::{Answer, Exchange, ExchangeError, Password, WireError};

use super::message::{self, Exit, fatal};
use super::settings::Settings;
use crate::connector::{ConnectError, Stream, connect};
use crate::surroundings::{Real, ask_password};

/// Where and as whom options and surroundings say to connect.
pub fn target(settings: &Settings, application: &str) -> Result<Target, Exit> {
    let told = |error: pgassay_wire::conninfo::ConninfoError| fatal(&error.to_string());
    let given = &settings.connection;
    let mut request = Request::new();
    for (name, value) in [
        ("host", &given.host),
        ("port", &given.port),
        ("user", &given.user),
    ] {
        if let Some(value) = value {
            request = request.option(name, value).map_err(told)?;
        }
    }
    if let Some(database) = &given.database {
        request = request.database(database).map_err(told)?;
    } else if std::env::var_os("PGDATABASE").is_none_or(|value| value.is_empty())
        && let Ok(user) = std::env::var("PGUSER")
        && !user.is_empty()
    {
        // pgbench looks at these two before anything else, even before -U.
        request = request.option("dbname", &user).map_err(told)?;
    }
    let target = request
        .fallback_application_name(application)
        .resolve(&Real)
        .map_err(told)?;
    for warning in &target.warnings {
        message::warning(warning);
    }
    Ok(target)
}

/// The connection.
pub struct Setup {
    exchange: Exchange<Stream>,
    address: Address,
}

impl Setup {
    /// Connects to the first host that answers; asks for a password if the server wants one that
    /// nobody gave, and keeps it in the target.
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
            message::error(&error.words(|error| message::of_exchange(error, None)));
            Exit(1)
        })
    }

    /// The host, or the socket's directory, and the port that it is connected to.
    pub fn host_and_port(&self) -> (&str, u16) {
        match &self.address {
            Address::Unix { directory, port } => (directory, *port),
            Address::Tcp { host, port, .. } => (host, *port),
        }
    }

    /// Runs a statement, or tells what is wrong.
    pub fn execute(&mut self, sql: &str) -> Result<(), Exit> {
        let answered = self.exchange.query(sql);
        self.tell_notices();
        match answered {
            Ok(_) => Ok(()),
            Err(error) => Err(failed(&error, sql)),
        }
    }

    /// Runs a query, or tells what is wrong; the first value of its answer.
    pub fn value(&mut self, sql: &str) -> Result<Option<String>, Exit> {
        let answer = self.query(sql).map_err(|error| failed(&error, sql))?;
        self.tell_notices();
        let first = answer.rows.into_iter().next();
        Ok(first.and_then(|row| row.into_iter().next()).flatten())
    }

    /// Tells what the server noted, as libpq does on its own.
    fn tell_notices(&mut self) {
        for notice in self.exchange.take_notices() {
            message::say(&message::of_server(&notice, None));
        }
    }

    /// Runs a statement whose failure is told and no more.
    pub fn try_execute(&mut self, sql: &str) {
        let answered = self.exchange.query(sql);
        self.tell_notices();
        if let Err(error) = answered {
            message::error(&message::of_exchange(&error, Some(sql)));
            message::detail("(ignoring this error and continuing anyway)");
        }
    }

    /// A statement's answer, or the server's error.
    pub fn query(&mut self, sql: &str) -> Result<Answer, ExchangeError> {
        Ok(self.exchange.query(sql)?.pop().unwrap_or_default())
    }

    /// Copies what `write` gives into a table.
    pub fn copy(&mut self, sql: &str, write: impl FnMut(&mut Vec<u8>) -> bool) -> Result<(), Exit> {
        match self.exchange.copy_in(sql, write) {
            Ok(_) => Ok(()),
            Err(error) => Err(failed(&error, sql)),
        }
    }

    /// The server's version, in its own words.
    pub fn server_version(&self) -> &str {
        self.exchange
            .parameter("server_version")
            .unwrap_or_default()
    }

    /// The major version; 0 where the server does not say.
    pub fn server_major(&self) -> u32 {
        let version = self.server_version();
        let end = version
            .find(|letter: char| !letter.is_ascii_digit())
            .unwrap_or(version.len());
        version[..end].parse().unwrap_or(0)
    }

    /// Says goodbye.
    pub fn close(self) {
        // The server will notice either way.
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

/// The SQLSTATE of an error, where the server gave one.
pub fn sqlstate(error: &ExchangeError) -> Option<&str> {
    match error {
        ExchangeError::Server(error) => Some(&error.sqlstate),
        _ => None,
    }
}

fn open(target: &Target) -> Result<Setup, ConnectError> {
    let limit = target.connect_timeout_s.map(u64::from);
    let (exchange, endpoint) = connect(target, limit.map(Duration::from_secs))?;
    Ok(Setup {
        exchange,
        address: endpoint.address,
    })
}
