//! The connection of the catalog watch: every statement is a read, limited in time, and its failure
//! is data.
//!
//! Each reading is a transaction that is read only and begins with its own settings: behind a pooler
//! that assigns connections by transaction, settings of the session would reach other clients. Within
//! it, each query runs in a savepoint, so that one that is refused does not end the reading.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pgassay_model::check::Check;
use pgassay_record::activity::Activity;
use pgassay_server::TimedStream;
use pgassay_wire::{Exchange, ExchangeError, ServerMessage};

use super::super::own_transactions::OwnTransactions;
use super::reconnecting::ReconnectPause;
use super::row::CatalogRow;
use super::silence::SilenceLog;

/// What ends a reading.
pub(super) const OWN_COMMIT: &str = "commit";
/// Limit on an answer on this side: a server that hangs must not hang its observer. The server's own
/// limit for a query is 2 s.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// The subject of refusals that are about the connection.
const CONNECTION: &str = "connection";
/// The oldest supported version.
const VERSION_MIN: u32 = 90_600;

/// What server, database and role this is; and when the server started, in microseconds since 1970.
const SERVER: &str = "select current_setting('server_version_num'), pg_backend_pid(), d.datname, d.oid, \
     pg_is_in_recovery(), current_user, extract(epoch from pg_postmaster_start_time()) * 1e6 \
     from pg_catalog.pg_database d where d.datname = current_database()";

/// What could not be read, by subject.
type Refusals = BTreeMap<&'static str, RefusedReading>;

/// What of a subject could not be read, and the server's message.
#[derive(Debug)]
struct RefusedReading {
    check: Check,
    /// It can be read again.
    is_over: bool,
}

/// A connection that only reads.
pub(super) struct CatalogReader {
    /// `None` while the connection is lost.
    exchange: Option<Exchange<TimedStream>>,
    pause: ReconnectPause,
    silence: SilenceLog,
    /// For how long the connection was lost, until it was opened again.
    lost: Duration,
    /// `server_version_num`.
    pub version: u32,
    /// The PID of the backend that served the connection's first reading.
    pub own_pid: u32,
    /// When the server started, as it says.
    started: String,
    /// The connection's database.
    pub database: String,
    /// Its OID.
    pub database_oid: u32,
    /// The server is a standby.
    pub is_standby: bool,
    /// The connection's user.
    pub user: String,
    /// `SQL_ASCII`, without conversion, once a text could not be converted to UTF-8.
    encoding: &'static str,
    /// Statements sent so far.
    pub sent: u64,
    /// Readings so far, each a transaction.
    pub transactions: u64,
    /// The same as the server counts them, with those of opening the connection.
    pub own: OwnTransactions,
    refusals: Refusals,
}

impl CatalogReader {
    /// Learns what server this is.
    pub fn open(exchange: Exchange<TimedStream>) -> Result<Self> {
        exchange.stream().set_limit(Some(ANSWER_LIMIT))?;
        let own = OwnTransactions::of(&exchange);
        own.connect(Instant::now());
        let mut reader = Self {
            exchange: Some(exchange),
            pause: ReconnectPause::new(Instant::now()),
            silence: SilenceLog::default(),
            lost: Duration::ZERO,
            version: 0,
            own_pid: 0,
            started: String::new(),
            database: String::new(),
            database_oid: 0,
            is_standby: false,
            user: String::new(),
            encoding: "UTF8",
            sent: 0,
            transactions: 0,
            own,
            refusals: Refusals::new(),
        };
        let row = reader.server_row()?;
        reader.version = row
            .count(0)
            .try_into()
            .context("the server reports no version")?;
        if reader.version < VERSION_MIN {
            bail!("PostgreSQL 9.6 or later is required");
        }
        reader.set_own_pid(&row);
        reader.database = row.text(2);
        reader.database_oid = row.number(3) as u32;
        reader.is_standby = row.is_true(4);
        reader.user = row.text(5);
        reader.started = row.text(6);
        reader.check_privileges();
        Ok(reader)
    }

    /// The answer to [`SERVER`].
    fn server_row(&mut self) -> Result<CatalogRow> {
        self.begin();
        let rows = self.rows("server", SERVER);
        self.end();
        if let Some(row) = rows.and_then(|rows| rows.into_iter().next()) {
            return Ok(row);
        }
        // A pooler that assigns sessions by statement ends the connection at the first one.
        let why = self.refusals.remove("server");
        let why = why.or_else(|| self.refusals.remove(CONNECTION));
        bail!(
            "cannot read the server's catalog: {}",
            why.and_then(|it| it.check.limitation).unwrap_or_default()
        )
    }

    /// Opens the connection again with `connect`, if it is lost and its pause is over. Returns whether it did.
    pub fn reconnect(
        &mut self,
        connect: &mut dyn FnMut() -> Result<Exchange<TimedStream>>,
    ) -> bool {
        if !self.pause.is_due(Instant::now()) {
            return false;
        }
        if let Err(error) = self.open_again(connect) {
            tracing::debug!("cannot read the server's views again: {error:#}");
            self.exchange = None;
            self.pause.refuse(Instant::now());
            self.note_lost(&format!("; it cannot be opened again: {error:#}"));
            return false;
        }
        self.lost += self.pause.connect(Instant::now());
        let lost_s = self.lost.as_secs_f64();
        if let Some(refusal) = self.refusals.get_mut(CONNECTION) {
            refusal.is_over = true;
            refusal.check.limitation = Some(format!(
                "the connection that reads the server's views was lost for {lost_s:.0} s, so blocking \
                 sessions and statistics of that time can be missing"
            ));
        }
        true
    }

    /// # Errors
    /// The server refuses, or it is another one: with several hosts in the connection string, and after a
    /// restart. Its counters cannot be compared with those of the first reading.
    fn open_again(
        &mut self,
        connect: &mut dyn FnMut() -> Result<Exchange<TimedStream>>,
    ) -> Result<()> {
        let exchange = connect()?;
        exchange.stream().set_limit(Some(ANSWER_LIMIT))?;
        self.own.connect(Instant::now());
        self.exchange = Some(exchange);
        let row = self.server_row()?;
        if (row.number(3) as u32, row.text(6)) != (self.database_oid, self.started.clone()) {
            bail!("it is another server, or it has been restarted");
        }
        self.set_own_pid(&row);
        Ok(())
    }

    /// Takes the PID from the answer to [`SERVER`] on a new connection.
    fn set_own_pid(&mut self, row: &CatalogRow) {
        self.own_pid = row.number(1) as u32;
        let exchange = self.exchange.as_ref();
        let named = exchange.and_then(Exchange::backend);
        if named.map(|it| it.pid.cast_unsigned()) != Some(self.own_pid) {
            self.own.correct_pooled();
        }
    }

    /// The connection still works.
    pub fn is_connected(&self) -> bool {
        self.exchange.is_some()
    }

    /// Notes what other users' sessions hide from this one.
    fn check_privileges(&mut self) {
        let sql = if self.version >= 100_000 {
            "select pg_has_role(current_user, 'pg_read_all_stats', 'usage')"
        } else {
            "select rolsuper from pg_roles where rolname = current_user"
        };
        self.begin();
        let rows = self.rows(Activity::PRIVILEGES, sql).unwrap_or_default();
        self.end();
        if rows.first().is_some_and(|row| row.is_true(0)) {
            return;
        }
        let limitation = format!(
            "in the server's views, user \"{}\" does not see states, statements and transactions of other users' \
             sessions",
            self.user
        );
        let grant = self.grant();
        self.note(
            Activity::PRIVILEGES,
            "insufficient",
            limitation,
            Some(grant),
        );
    }

    /// Begins a reading.
    pub fn begin(&mut self) {
        // Without a version yet, only settings that all versions have.
        let since = |version, sql| if self.version >= version { sql } else { "" };
        let sql = format!(
            "begin transaction isolation level read committed read only; \
             set local search_path = pg_catalog, pg_temp; \
             set local statement_timeout = '2s'; \
             set local lock_timeout = '100ms'; \
             set local idle_in_transaction_session_timeout = '10s'; \
             set local client_encoding = '{}'; \
             set local application_name = 'pgassay'; \
             set local max_parallel_workers_per_gather = 0{}{}{}{}",
            self.encoding,
            // 11: just-in-time compilation, on by default from 12.
            since(110_000, "; set local jit = off"),
            // 15: statistics in shared memory; `snapshot` would copy those of all relations.
            since(150_000, "; set local stats_fetch_consistency = cache"),
            // 17: the server's limit would end the connection, not only a query.
            since(170_000, "; set local transaction_timeout = '1min'"),
            // Otherwise our own transactions are counted up to ten seconds late, and look like others'.
            since(150_000, "; select pg_stat_force_next_flush()"),
        );
        self.transactions += 1;
        self.send(&sql);
    }

    /// Ends a reading.
    pub fn end(&mut self) {
        if self.exchange.is_some() {
            self.send(OWN_COMMIT);
            self.own.end(Instant::now());
        }
    }

    /// The rows of a query within a reading; `None` if there are none to be had, which
    /// [`Self::refusals`] explains under this subject.
    pub fn rows(&mut self, subject: &'static str, sql: &str) -> Option<Vec<CatalogRow>> {
        match self.attempt(sql) {
            Ok(rows) => {
                self.settle(subject);
                Some(rows)
            }
            // 22021, 22P05: pg_stat_activity shows texts of other databases in their encodings.
            Err(Some(error)) if is_of_encoding(&error) && self.encoding == "UTF8" => {
                self.encoding = "SQL_ASCII";
                self.send("set local client_encoding = 'SQL_ASCII'");
                match self.attempt(sql) {
                    Ok(rows) => Some(rows),
                    Err(error) => self.refuse(subject, error),
                }
            }
            Err(error) => self.refuse(subject, error),
        }
    }

    /// Notes that something is missing, unless something of this subject is.
    pub fn note(
        &mut self,
        subject: &'static str,
        value: &str,
        limitation: String,
        fix: Option<String>,
    ) {
        self.refusals.entry(subject).or_insert(RefusedReading {
            check: Check {
                name: subject.to_owned(),
                value: value.to_owned(),
                limitation: Some(limitation),
                fix,
            },
            is_over: false,
        });
    }

    /// Notes that a subject is known, although it could not be read before.
    pub fn settle(&mut self, subject: &'static str) {
        let refusal = self.refusals.get_mut(subject);
        if let Some(refusal) = refusal.filter(|it| it.check.value == Activity::NOT_READ) {
            refusal.is_over = true;
        }
    }

    /// What could not be read at any time, and why.
    pub fn refusals(&self) -> Vec<Check> {
        let check = |it: &RefusedReading| Check {
            value: if it.is_over {
                Activity::AT_TIMES.to_owned()
            } else {
                it.check.value.clone()
            },
            ..it.check.clone()
        };
        self.refusals.values().map(check).collect()
    }

    /// What cannot be read now.
    pub fn present_refusals(&self) -> Vec<Check> {
        let present = self.refusals.values().filter(|it| !it.is_over);
        present.map(|it| it.check.clone()).collect()
    }

    /// The statement that grants the right to see other sessions and statistics.
    pub fn grant(&self) -> String {
        // 10: the predefined roles. Before, only a superuser sees other users' sessions.
        if self.version >= 100_000 {
            format!("grant pg_monitor to {}", quoted_identifier(&self.user))
        } else {
            "connect as a superuser: before version 10 only they see other users' sessions"
                .to_owned()
        }
    }

    /// Runs a query in a savepoint. `Err(None)` if the connection is lost.
    fn attempt(&mut self, sql: &str) -> Result<Vec<CatalogRow>, Option<Box<ServerMessage>>> {
        let Some(exchange) = &mut self.exchange else {
            return Err(None);
        };
        self.sent += 1;
        // One message: the third of the round trips.
        let asked = Instant::now();
        let answer = exchange.query(&format!("savepoint q; {sql}; release savepoint q"));
        self.note_silence(asked, answer.as_ref().err());
        match answer {
            Ok(mut results) if results.len() == 3 => {
                let rows = std::mem::take(&mut results[1].rows);
                Ok(rows.into_iter().map(CatalogRow::new).collect())
            }
            Ok(_) => Ok(Vec::new()),
            Err(ExchangeError::Server(error)) if !is_fatal(&error) => {
                self.send("rollback to savepoint q");
                Err(Some(error))
            }
            Err(error) => {
                self.lose(&error);
                Err(None)
            }
        }
    }

    fn send(&mut self, sql: &str) {
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        self.sent += 1;
        let asked = Instant::now();
        let error = exchange.run(sql).err();
        self.note_silence(asked, error.as_ref());
        if let Some(error) = error {
            self.lose(&error);
        }
    }

    /// It is `at_us` since the window's start.
    pub fn set_moment(&mut self, at_us: f64) {
        self.silence.set_moment(at_us, Instant::now());
    }

    /// Notes that an answer took long, or did not come.
    fn note_silence(&mut self, asked: Instant, error: Option<&ExchangeError>) {
        let is_silent = match error {
            None | Some(ExchangeError::Server(_)) => {
                if !self.silence.answer(asked, Instant::now()) {
                    return;
                }
                false
            }
            Some(error) if self.silence.fail(asked, error) => true,
            Some(_) => return,
        };
        let check = Check {
            name: Activity::ANSWERS.to_owned(),
            value: Activity::NOT_READ.to_owned(),
            limitation: Some(self.silence.describe()),
            fix: None,
        };
        let refusal = RefusedReading {
            check,
            is_over: !is_silent,
        };
        self.refusals.insert(Activity::ANSWERS, refusal);
    }

    fn lose(&mut self, error: &ExchangeError) {
        self.exchange = None;
        self.pause.lose(Instant::now());
        self.note_lost(&format!(": {error}"));
    }

    fn note_lost(&mut self, why: &str) {
        // Without the number that Rust adds.
        let why = why.split(" (os error ").next().unwrap_or_default();
        let check = Check {
            name: Activity::CATALOG_CONNECTION.to_owned(),
            value: "lost".to_owned(),
            limitation: Some(format!(
                "the connection that reads the server's views was lost, so blocking sessions and \
                 statistics are missing from then on{why}"
            )),
            fix: None,
        };
        self.refusals.insert(
            CONNECTION,
            RefusedReading {
                check,
                is_over: false,
            },
        );
    }

    fn refuse<T>(&mut self, subject: &'static str, error: Option<Box<ServerMessage>>) -> Option<T> {
        let error = error?;
        let fix = match error.sqlstate.as_str() {
            // insufficient_privilege
            "42501" => Some(self.grant()),
            // object_not_in_prerequisite_state: an extension that its library does not serve.
            "55000" if error.message.contains("shared_preload_libraries") => Some(
                "add its library to shared_preload_libraries and restart the server".to_owned(),
            ),
            _ => None,
        };
        let why = match error.sqlstate.as_str() {
            // query_canceled
            "57014" => {
                "the query took longer than 2 s, because the catalog is large or the server busy"
                    .to_owned()
            }
            // lock_not_available
            "55P03" => "a lock on a system catalog is held by another session".to_owned(),
            _ => error.message.clone(),
        };
        let check = Check {
            name: subject.to_owned(),
            value: Activity::NOT_READ.to_owned(),
            limitation: Some(format!("{subject}: {why}")),
            fix,
        };
        let refusal = RefusedReading {
            check,
            is_over: false,
        };
        self.refusals.entry(subject).or_insert(refusal).is_over = false;
        None
    }
}

fn is_of_encoding(error: &ServerMessage) -> bool {
    // character_not_in_repertoire, untranslatable_character
    matches!(error.sqlstate.as_str(), "22021" | "22P05")
}

fn is_fatal(error: &ServerMessage) -> bool {
    matches!(error.severity.as_str(), "FATAL" | "PANIC")
}

/// An identifier as a statement can contain it, always in quotes.
pub(super) fn quoted_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// PIDs or OIDs as an array in a statement.
pub(super) fn array(numbers: impl IntoIterator<Item = u32>) -> String {
    let numbers: Vec<String> = numbers.into_iter().map(|it| it.to_string()).collect();
    format!("{{{}}}", numbers.join(","))
}
