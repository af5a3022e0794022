//! Reads all sessions from `pg_stat_activity`, if the server's memory is not readable.
//!
//! Other users' sessions are hidden except from members of `pg_monitor`. Each query takes the server
//! some tenths of a millisecond, and more with many sessions.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::Arc;

use pgassay_wire::{Exchange, ExchangeError};

use super::learning::{major, micros};
use super::reader::SessionSweep;
use super::reading::{SessionIdentity, SessionReading, SessionState, SessionWait};
use crate::waits::activity::NamedWait;

/// A connection for reading all sessions.
pub struct SessionQuery<S> {
    exchange: Exchange<S>,
    sql: String,
    text_bytes: usize,
    identities: HashMap<u32, Arc<SessionIdentity>>,
}

impl<S: Read + Write> SessionQuery<S> {
    /// Checks that the query works.
    ///
    /// # Errors
    /// An error of the server, as before 9.6, or of the connection.
    pub fn open(mut exchange: Exchange<S>) -> Result<Self, ExchangeError> {
        let setting = "select setting from pg_settings where name = 'track_activity_query_size'";
        let text_bytes = exchange.value(setting)?.and_then(|it| it.parse().ok());
        let mut query = Self {
            sql: sql(major(&exchange)),
            text_bytes: text_bytes.unwrap_or(1024),
            exchange,
            identities: HashMap::new(),
        };
        query.sweep()?;
        Ok(query)
    }

    /// The PID of this connection's backend; 0 if unknown.
    pub fn own_pid(&self) -> u32 {
        self.exchange
            .backend()
            .map_or(0, |it| it.pid.cast_unsigned())
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
        let answer = self.exchange.query(&self.sql)?.pop().unwrap_or_default();
        let mut sweep = SessionSweep::default();
        for row in answer.rows {
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

fn sql(major: u32) -> String {
    let backend_type = if major >= 10 { "backend_type" } else { "null" };
    let query_id = if major >= 14 { "query_id" } else { "null" };
    let [started, transaction, activity, changed] =
        ["backend_start", "xact_start", "query_start", "state_change"].map(micros);
    // The text of an idle session is not needed.
    format!(
        "select pid, {started}, datid, usesysid, \
         coalesce(host(client_addr), case when client_port = -1 then 'local' end), \
         application_name, {backend_type}, state, {transaction}, {activity}, {changed}, {query_id}, \
         case when state = 'idle' then '' else query end, wait_event_type, wait_event \
         from pg_stat_get_activity(null) where pid <> pg_backend_pid()"
    )
}
