//! Reads all sessions from `pg_stat_activity`, if the server's memory is not readable.
//!
//! Other users' sessions are hidden except from members of `pg_monitor`. Each query takes the server
//! some tenths of a millisecond, and more with many sessions.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::Arc;

use pgassay_wire::{Exchange, ExchangeError, QueryResult};

use super::learning::{major, micros};
use super::reader::SessionSweep;
use super::reading::{SessionIdentity, SessionReading, SessionState, SessionWait};
use crate::waits::activity::NamedWait;

/// A connection for reading all sessions.
pub struct SessionQuery<S> {
    exchange: Exchange<S>,
    major: u32,
    /// Send texts as they are: another database's may be invalid in this one's encoding.
    is_raw: bool,
    own_pid: u32,
    text_bytes: usize,
    identities: HashMap<u32, Arc<SessionIdentity>>,
}

impl<S: Read + Write> SessionQuery<S> {
    /// Checks that the query works.
    ///
    /// # Errors
    /// An error of the server, as before 9.6, or of the connection.
    pub fn open(mut exchange: Exchange<S>) -> Result<Self, ExchangeError> {
        let setting = "select setting from pg_catalog.pg_settings \
                       where name operator(pg_catalog.=) 'track_activity_query_size'";
        let text_bytes = exchange
            .value_read_committed(setting)?
            .and_then(|it| it.parse().ok());
        let mut query = Self {
            major: major(&exchange),
            is_raw: false,
            own_pid: 0,
            text_bytes: text_bytes.unwrap_or(1024),
            exchange,
            identities: HashMap::new(),
        };
        query.sweep()?;
        Ok(query)
    }

    /// The PID of the backend that answered last; 0 if unknown. Behind a pooler it can change.
    pub fn own_pid(&self) -> u32 {
        self.own_pid
    }

    /// The connection, for other queries.
    pub fn exchange(&mut self) -> &mut Exchange<S> {
        &mut self.exchange
    }

    /// Reads all sessions except this connection's.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub fn sweep(&mut self) -> Result<SessionSweep, ExchangeError> {
        let answers = self.ask()?;
        let mut answers = answers.into_iter().filter(|it| !it.columns.is_empty());
        let mut rows = || answers.next().unwrap_or_default().rows;
        let own_pid = rows().into_iter().flatten().next().flatten();
        self.own_pid = own_pid.and_then(|it| it.parse().ok()).unwrap_or(0);
        let mut sweep = SessionSweep::default();
        for row in rows() {
            match self.reading(row) {
                Some(reading) if reading.state == SessionState::Idle => {
                    sweep.idle.push(reading.identity.pid);
                }
                Some(reading) => sweep.sessions.push(reading),
                None => sweep.unreadable += 1,
            }
        }
        if self.identities.len() > 4 * sweep.sessions.len() + 1024 {
            self.identities.clear();
        }
        Ok(sweep)
    }

    fn ask(&mut self) -> Result<Vec<QueryResult>, ExchangeError> {
        let error = match self.exchange.query(&sql(self.major, self.is_raw)) {
            Ok(answers) => return Ok(answers),
            Err(error) => error,
        };
        // Errors about characters that cannot be converted.
        let is_of_encoding = matches!(&error, ExchangeError::Server(it)
            if ["22021", "22P05"].contains(&it.sqlstate.as_str()));
        // The error left a transaction.
        self.exchange.run("rollback")?;
        if !is_of_encoding || self.is_raw {
            return Err(error);
        }
        self.is_raw = true;
        self.ask()
    }

    fn reading(&mut self, row: Vec<Option<String>>) -> Option<SessionReading> {
        let [
            pid,
            started,
            database,
            user,
            client,
            application,
            backend_type,
            state,
            transaction,
            activity,
            changed,
            query_id,
            text,
            kind,
            name,
        ] = <[_; 15]>::try_from(row).ok()?;
        let number = |value: Option<String>| value.and_then(|it| it.parse::<i64>().ok());
        let oid = |value: Option<String>| value.and_then(|it| it.parse().ok()).unwrap_or(0);
        let is_hidden = text.as_deref() == Some("<insufficient privilege>");
        let identity = SessionIdentity {
            pid: pid?.parse().ok()?,
            // Hidden from other users.
            started_us: number(started).unwrap_or(0),
            backend_type: backend_type.unwrap_or_else(|| "client backend".to_owned()),
            database: oid(database),
            user: oid(user),
            application: application.unwrap_or_default(),
            client: client.unwrap_or_default(),
        };
        let state = match state.as_deref() {
            _ if is_hidden => SessionState::Hidden,
            Some("idle") => SessionState::Idle,
            Some("active" | "fastpath function call") => SessionState::Active,
            Some("idle in transaction") => SessionState::IdleInTransaction,
            Some("idle in transaction (aborted)") => SessionState::IdleInAbortedTransaction,
            Some("disabled") => SessionState::Disabled,
            _ => SessionState::None,
        };
        let text = text.filter(|_| !is_hidden).unwrap_or_default().into_bytes();
        Some(SessionReading {
            identity: self.shared(identity),
            state,
            transaction_started_us: number(transaction),
            activity_started_us: number(activity).unwrap_or(0),
            state_changed_us: number(changed).unwrap_or(0),
            query_id: number(query_id).unwrap_or(0),
            // The server cuts at the end of a character, of at most four bytes.
            is_cut: text.len() + 4 >= self.text_bytes,
            text,
            wait: match kind.zip(name) {
                Some((kind, name)) => SessionWait::Named(NamedWait { kind, name }),
                None => SessionWait::None,
            },
        })
    }

    fn shared(&mut self, identity: SessionIdentity) -> Arc<SessionIdentity> {
        let known = self.identities.get(&identity.pid);
        if let Some(known) = known.filter(|known| ***known == identity) {
            return Arc::clone(known);
        }
        let identity = Arc::new(identity);
        self.identities.insert(identity.pid, Arc::clone(&identity));
        identity
    }
}

/// One transaction with its own settings: behind a pooler, other clients would inherit those of the
/// session.
fn sql(major: u32, is_raw: bool) -> String {
    let backend_type = match major {
        ..10 => "null",
        // A parallel worker has no particular type, but the snapshot of a client's session, its leader.
        10 => {
            "case when backend_type = 'background worker' and (datid, usesysid, backend_xmin::text) in \
             (select l.datid, l.usesysid, l.backend_xmin::text from pg_stat_get_activity(null) l \
             where l.backend_type = 'client backend') then 'parallel worker' else backend_type end"
        }
        _ => "backend_type",
    };
    let query_id = if major >= 14 { "query_id" } else { "null" };
    let encoding = if is_raw {
        "set local client_encoding = 'SQL_ASCII'; "
    } else {
        ""
    };
    // From 15 on, transactions that access no table stay uncounted until one does, so that the server's count would
    // lack an unknown part of these. Sessions are read from a function.
    let counting = match major {
        ..15 => "",
        _ => ", pg_stat_force_next_flush() from pg_tablespace limit 1",
    };
    let [started, transaction, activity, changed] =
        ["backend_start", "xact_start", "query_start", "state_change"].map(micros);
    // The text of an idle session is not needed.
    format!(
        "begin transaction isolation level read committed read only; set local search_path = pg_catalog, pg_temp; \
         set local statement_timeout = '5s'; set local lock_timeout = '100ms'; {encoding}\
         select pg_backend_pid(){counting}; select pid, {started}, datid, usesysid, \
         coalesce(host(client_addr), case when client_port = -1 then 'local' end), \
         application_name, {backend_type}, state, {transaction}, {activity}, {changed}, {query_id}, \
         case when state = 'idle' then '' else query end, wait_event_type, wait_event \
         from pg_stat_get_activity(null) where pid <> pg_backend_pid(); commit"
    )
}

#[cfg(test)]
mod tests {
    use super::sql;

    /// Regression: of 20 transactions per second, `top` showed 12 where it reads `pg_stat_activity`: it subtracted its
    /// own, which the server had not counted.
    #[test]
    fn the_server_counts_each_reading_as_a_transaction() {
        assert!(sql(15, false).contains("pg_stat_force_next_flush() from pg_tablespace"));
        assert!(!sql(14, false).contains("pg_stat_force_next_flush"));
    }
}
