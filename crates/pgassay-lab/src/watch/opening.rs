//! Opens what a watch reads from.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pgassay_model::check::Check;
use pgassay_profile::{LiveServer, SessionQuery, SessionReader, SessionsError};
use pgassay_record::activity::Activity;
use pgassay_wire::Exchange;

use super::catalog::{CatalogOptions, CatalogWatch};
use super::log_watch::{LOG_SETTINGS, LogWatch};
use super::names::ObjectNames;
use super::options::{Connect, WatchOptions, WatchedServer};
use super::own_transactions::OwnTransactions;
use super::sampling::SessionSource;
use crate::connector::TimedStream;
use crate::major_version::major_of;
use crate::observe::waits::{refusal, wait_reader};

/// Limit of each answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);

/// What [`super::LiveWatch`] consists of.
pub(super) struct Opened {
    pub source: SessionSource,
    pub names: ObjectNames,
    pub catalog: Option<CatalogWatch>,
    pub log: Option<LogWatch>,
    pub major: String,
    /// Backends that serve pgassay; none behind a pooler, where each serves others, too.
    pub own_pids: BTreeSet<u32>,
    pub is_pooled: bool,
    pub unavailable: Vec<Check>,
    pub statements_sent: u64,
}

/// A connection for readings that are transactions with their own settings. It sets nothing for the
/// session: behind a pooler, other clients would inherit it.
pub(super) fn connect(connect: &mut Connect) -> Result<Exchange<TimedStream>> {
    let exchange = connect()?;
    exchange.stream().set_limit(Some(ANSWER_LIMIT))?;
    Ok(exchange)
}

/// A connection for learning: it cannot write, and ends afterward.
fn connect_to_learn(connect: &mut Connect) -> Result<Exchange<TimedStream>> {
    let mut exchange = self::connect(connect)?;
    let answering = exchange.value_read_committed("select pg_catalog.pg_backend_pid()")?;
    let pid = exchange.backend().map(|it| it.pid.to_string());
    if answering != pid {
        bail!("the connection goes through a pooler, so the server's memory cannot be read");
    }
    // Learning where waits are takes a wait for a lock of our own, of some milliseconds.
    exchange.run(
        "set default_transaction_read_only = on; set default_transaction_isolation = 'read committed'; \
         set statement_timeout = '10s'; \
         set lock_timeout = '5s'; set search_path = pg_catalog, pg_temp; \
         set application_name = 'pgassay'",
    )?;
    Ok(exchange)
}

pub(super) fn open(server: &mut WatchedServer, options: &WatchOptions) -> Result<Opened> {
    let mut exchange = connect(&mut server.connect)?;
    let version = exchange.parameter("server_version").map(major_of);
    let names =
        ObjectNames::read(&mut exchange).context("cannot read the names of databases and users")?;
    let named = exchange.backend().map(|it| it.pid.cast_unsigned());
    let is_pooled = named != names.own_pid;
    let log_settings = match server.live {
        Some(_) => exchange.value_read_committed(LOG_SETTINGS).ok().flatten(),
        None => None,
    };
    let mut own_pids = options.own_pids.clone();
    own_pids.extend(names.own_pid);
    let mut unavailable = Vec::new();
    let live = server.live.clone();
    let learned = live.map(|live| learn(&live, &mut server.connect));
    let source = match learned {
        Some(Ok(reader)) => {
            let own = OwnTransactions::of(&exchange);
            // Its session reports its transactions when it ends.
            drop(exchange);
            SessionSource::Memory(Box::new(reader), own)
        }
        failed => {
            if let Some(Err(why)) = failed {
                unavailable.push(not_in_memory(&why));
            }
            queried(exchange, is_pooled)?
        }
    };
    let catalog = match catalog(&mut server.connect, options.keeps_text) {
        Ok(mut catalog) => {
            own_pids.insert(catalog.own_pid());
            catalog.leave_out_transactions(source.own().clone());
            Some(catalog)
        }
        Err(error) => {
            unavailable.push(without_views(&error));
            None
        }
    };
    if is_pooled {
        own_pids.clear();
    }
    // From here on: learning may have led to errors.
    let readable = server.live.as_ref().zip(log_settings);
    let log =
        readable.and_then(|(live, settings)| LogWatch::open(live, &settings, options.keeps_text));
    if server.live.is_some() && log.is_none() {
        unavailable.push(without_log());
    }
    Ok(Opened {
        log,
        source,
        names,
        catalog,
        major: version.unwrap_or_default(),
        own_pids,
        is_pooled,
        unavailable,
        statements_sent: ObjectNames::STATEMENTS + LEARNING_STATEMENTS,
    })
}

/// Reads names on a connection that is closed afterward.
pub(super) fn read_names(connect: &mut Connect, own: &OwnTransactions) -> Result<ObjectNames> {
    let mut exchange = self::connect(connect)?;
    own.connect(Instant::now());
    let names = ObjectNames::read(&mut exchange);
    own.end(Instant::now());
    drop(exchange);
    own.close(Instant::now());
    Ok(names?)
}

/// Sessions that are read with queries.
fn queried(exchange: Exchange<TimedStream>, is_pooled: bool) -> Result<SessionSource> {
    let own = OwnTransactions::of(&exchange);
    own.connect(Instant::now());
    if is_pooled {
        own.correct_pooled();
    }
    let query = SessionQuery::open(exchange)?;
    (0..QUERIES_BEFORE).for_each(|_| own.end(Instant::now()));
    Ok(SessionSource::Query(Box::new(query), own))
}

/// Why nothing is known of the server's views.
fn without_views(error: &anyhow::Error) -> Check {
    Check {
        name: Activity::VIEWS.to_owned(),
        value: "none".to_owned(),
        limitation: Some(format!(
            "the server's views cannot be read, so blocking, tables and indexes are unknown: {error:#}"
        )),
        fix: None,
    }
}

fn catalog(connect: &mut Connect, keeps_text: bool) -> Result<CatalogWatch> {
    let exchange = self::connect(connect)?;
    CatalogWatch::open(exchange, &CatalogOptions { keeps_text })
}

/// Transactions of a connection that reads `pg_stat_activity`, before its first reading: for names, and two settings;
/// and that reading.
const QUERIES_BEFORE: u64 = 4;

/// About as many statements as learning takes.
const LEARNING_STATEMENTS: u64 = 15;

/// Learns where sessions are in memory, on connections that are closed afterward.
fn learn(live: &LiveServer, connect: &mut Connect) -> Result<SessionReader> {
    let mut open = || connect_to_learn(connect);
    let mut observer = open()?;
    let waits = wait_reader(live, Some(&mut open))?;
    let mut subject = open()?;
    Ok(SessionReader::learn(
        live,
        waits,
        &mut subject,
        &mut observer,
    )?)
}

/// Why sessions are not read from memory.
fn not_in_memory(why: &anyhow::Error) -> Check {
    let (why, fix) = match why.downcast_ref::<SessionsError>() {
        Some(SessionsError::NotPermitted(refusal)) => (
            format!("{}: {}", refusal.what, refusal.why),
            Some(refusal.commands.join("  or  ")),
        ),
        _ => refusal(why),
    };
    Check {
        name: "sessions in memory".to_owned(),
        value: "pg_stat_activity".to_owned(),
        limitation: Some(format!(
            "{why}; pgassay queries pg_stat_activity instead, which costs the server more and shows less \
             of short statements"
        )),
        fix,
    }
}

/// Why errors of the log are not marked.
fn without_log() -> Check {
    Check {
        name: "log".to_owned(),
        value: "none".to_owned(),
        limitation: Some(
            "the server's log is not a file in English that pgassay can read, so its errors are not marked"
                .to_owned(),
        ),
        fix: None,
    }
}
