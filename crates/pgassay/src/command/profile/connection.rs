//! Connects to the server to be profiled, locates its processes, counts its transactions.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use pgassay_lab::connector::{ConnectError, TimedStream, connect, limit_statements};
use pgassay_lab::local_server;
use pgassay_lab::system_env::RealSystem;
use pgassay_lab::watch::catalog::{ENDED_TRANSACTIONS, counted_at, without_autovacuum};
use pgassay_lab::watch::{OwnTransactions, is_delayed, reported};
use pgassay_lab::{Interrupt, Patience};
use pgassay_model::check::Check;
use pgassay_profile::LiveServer;
use pgassay_record::activity::Activity;
use pgassay_record::observation::Observation;
use pgassay_wire::conninfo::Request;
use pgassay_wire::{Exchange, ExchangeError, WireError};

use crate::exit::text_of;

/// Timeout for connecting and for each query; all queries sent here are cheap.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// A connection to a server on this machine.
pub struct LocalConnection {
    pub exchange: Exchange<TimedStream>,
    pub counter: TransactionCounter,
    pub server: LiveServer,
    /// The backend that serves this connection.
    pub own_pid: u32,
    /// The connection goes through a pooler, which gives the backend to others, too.
    pub is_pooled: bool,
}

/// A connection to a server whose processes are not visible from here.
pub struct RemoteServer {
    pub exchange: Exchange<TimedStream>,
    /// The server's address.
    pub place: String,
    /// Why its processes are not visible.
    pub why: anyhow::Error,
}

/// The server that a connection string leads to.
pub enum Reached {
    /// A server on this machine.
    Here(LocalConnection),
    /// A server on another machine or in another container.
    RemoteServer(RemoteServer),
}

impl Reached {
    /// Connects, and finds the server's processes on this machine.
    pub fn open(conninfo: &str) -> Result<Self> {
        let (mut exchange, place) = exchange(conninfo)?;
        Ok(match local_server::find(&mut exchange) {
            Ok((server, own_pid)) => {
                let named = exchange.backend().map(|it| it.pid.cast_unsigned());
                let is_pooled = named != Some(own_pid);
                let counter = TransactionCounter::of(&exchange);
                if is_pooled {
                    counter.own.correct_pooled();
                }
                Self::Here(LocalConnection {
                    exchange,
                    counter,
                    server,
                    own_pid,
                    is_pooled,
                })
            }
            Err(why) => Self::RemoteServer(RemoteServer {
                exchange,
                place,
                why,
            }),
        })
    }

    /// Lets an interrupt end the waits on the connection.
    pub fn end_waits(&self, patience: &Patience) {
        patience.apply_to(match self {
            Self::Here(connection) => connection.exchange.stream(),
            Self::RemoteServer(server) => server.exchange.stream(),
        });
    }
}

impl RemoteServer {
    /// The backend that serves this connection, as the server numbers it.
    pub fn own_pid(&self) -> Option<u32> {
        self.exchange.backend().map(|it| it.pid.cast_unsigned())
    }
}

/// Transactions that ended in all databases up to a moment.
#[derive(Debug, Clone, Copy)]
pub struct EndedTransactions {
    ended: u64,
    /// Those of pgassay among them.
    own: u64,
}

impl EndedTransactions {
    /// Transactions of others until a later moment. Whatever a server answers, it is a number.
    pub const fn others_until(self, later: Self) -> u64 {
        let own = later.own.saturating_sub(self.own);
        later.ended.saturating_sub(self.ended).saturating_sub(own)
    }
}

/// Counts the server's transactions over a connection of pgassay.
pub struct TransactionCounter {
    /// Those on the connection.
    pub own: OwnTransactions,
}

impl TransactionCounter {
    /// For a new connection.
    pub fn of(exchange: &Exchange<TimedStream>) -> Self {
        let own = OwnTransactions::of(exchange);
        own.connect(Instant::now());
        Self { own }
    }

    /// Before 15, waits until the server has counted the transactions on connections that were closed, and lets the
    /// others report theirs with `report`: a session keeps what it has not reported until its next transaction. Fails
    /// only if it is interrupted.
    pub fn settle(
        &self,
        exchange: &mut Exchange<TimedStream>,
        interrupt: &Interrupt,
        report: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if !is_delayed(exchange) {
            return Ok(());
        }
        let until = Instant::now() + OwnTransactions::SETTLING;
        while Instant::now() < until {
            interrupt.check()?;
            thread::sleep(Duration::from_millis(20));
        }
        // A reading that fails here leaves the count less exact; it does not end the profile.
        if let Err(error) = report() {
            tracing::debug!("cannot report transactions: {error:#}");
        }
        if let Err(error) = self.first(exchange, "select pg_backend_pid()") {
            tracing::debug!("cannot report transactions: {error:#}");
        }
        Ok(())
    }

    /// Transactions that have ended so far. Backends report theirs about once per second; this one at once, if the server
    /// can (from 15). `own` are pgassay's on other connections.
    pub fn read(
        &self,
        exchange: &mut Exchange<TimedStream>,
        own: &[OwnTransactions],
    ) -> Result<EndedTransactions> {
        let reports = "select 1 from pg_proc where proname = 'pg_stat_force_next_flush'";
        if !self.first(exchange, reports)?.is_empty() {
            // It reads a table: a session reports its transactions late if they access none.
            self.first(
                exchange,
                "select pg_stat_force_next_flush() from pg_tablespace limit 1",
            )?;
        }
        let row = self.first(exchange, ENDED_TRANSACTIONS)?;
        let answered = Instant::now();
        let mut values = row.into_iter().map(Option::unwrap_or_default);
        let counted = values.next().unwrap_or_default();
        let ended: f64 = counted
            .parse()
            .with_context(|| format!("unexpected number of transactions {counted:?}"))?;
        let age_s = values.next().and_then(|it| it.parse().ok());
        let own = own.iter().chain([&self.own]);
        Ok(EndedTransactions {
            ended: ended as u64,
            own: reported(own, counted_at(age_s, answered)),
        })
    }

    /// The first row of a query whose functions and operators are the catalog's, whatever the user's `search_path`
    /// finds before them: a profile must not execute what someone else has created. It does not queue for long behind
    /// who locks the catalog, also behind a pooler. The session keeps its settings, because a pooler may give it to
    /// others.
    fn first(
        &self,
        exchange: &mut Exchange<TimedStream>,
        sql: &str,
    ) -> Result<Vec<Option<String>>> {
        let rows = exchange.rows_read_committed(sql);
        self.own.end(Instant::now());
        let first = rows.map(|rows| rows.into_iter().next());
        Ok(first
            .context("cannot count transactions")?
            .unwrap_or_default())
    }
}

/// The value of a limitation if something that worked at first failed later.
pub const INCOMPLETE: &str = "incomplete";

/// The connection failed before the end.
pub fn lost_connection(error: &anyhow::Error) -> Check {
    Check {
        name: Activity::TRANSACTIONS.to_owned(),
        value: INCOMPLETE.to_owned(),
        limitation: Some(format!(
            "the connection was lost, so transactions were not counted: {}",
            text_of(error)
        )),
        fix: None,
    }
}

/// Discards the server's number of transactions if it is too small for those that were seen.
pub fn discard_incomplete_count(observation: &mut Observation) {
    let (Some(counted), Some(activity)) = (observation.transactions, &observation.activity) else {
        return;
    };
    if activity.is_transaction_count(counted as f64) {
        return;
    }
    observation.transactions = None;
    let called = activity.transactions_min_per_s() * activity.window_us / 1e6;
    let ended = activity.transactions_seen.max(called as u64);
    observation.limitations.push(Check {
        name: Activity::TRANSACTIONS.to_owned(),
        value: "not all counted".to_owned(),
        limitation: Some(format!(
            "the server's statistics have {counted} transactions, but at least {ended} ended: sessions report \
             them up to a second late, and one whose transactions use no table, such as SELECT 1, only when it \
             uses one or ends; the count of a database that was dropped is lost"
        )),
        fix: None,
    });
}

/// Leaves autovacuum's transactions out, or says that they count.
pub fn leave_out_autovacuum(observation: &mut Observation) {
    if let Some(ended) = observation.transactions {
        let (transactions, limitation) = of_clients(ended, observation.activity.as_ref());
        observation.transactions = transactions;
        observation.limitations.extend(limitation);
    }
}

/// Of transactions that ended, those of clients, if they are known; and what is not.
fn of_clients(ended: u64, activity: Option<&Activity>) -> (Option<u64>, Option<Check>) {
    let limited = |value: &str, limitation| Check {
        name: Activity::TRANSACTIONS.to_owned(),
        value: value.to_owned(),
        limitation: Some(limitation),
        fix: None,
    };
    let known = activity.and_then(|it| {
        it.autovacuum_transactions
            .map(|autovacuum| (it, autovacuum))
    });
    let Some((activity, autovacuum)) = known else {
        let limitation = "how many of the transactions are autovacuum's is not known, so figures per transaction can \
                          be too low";
        let value = "with those of autovacuum";
        return (Some(ended), Some(limited(value, limitation.to_owned())));
    };
    let clients = without_autovacuum(ended as f64, autovacuum);
    let per_s = |it: f64| it * 1e6 / activity.window_us.max(f64::MIN_POSITIVE);
    if let Some(clients) = clients.filter(|it| activity.is_transaction_rate(per_s(*it))) {
        return (Some(clients.round() as u64), None);
    }
    let limitation = format!(
        "of {ended} transactions, about {autovacuum:.0} were autovacuum's, estimated by the tables that it processed, \
         which is too many for the rest to be clients'"
    );
    (None, Some(limited("not known", limitation)))
}

/// Says that the number of transactions contains those of parallel workers, if it does: before 18, the server does not
/// count the workers.
pub fn note_workers(observation: &mut Observation) {
    let major = observation.subject.major.as_deref();
    let major = major.and_then(|it| it.split('.').next()?.parse::<u32>().ok());
    let is_counted = major.is_some_and(|it| it >= 18);
    let mut sessions = observation.activity.iter().flat_map(|it| &it.sessions);
    if observation.transactions.is_none()
        || is_counted
        || !sessions.any(|it| it.backend_type == "parallel worker")
    {
        return;
    }
    observation.limitations.push(Check {
        name: Activity::TRANSACTIONS.to_owned(),
        value: "with those of parallel workers".to_owned(),
        limitation: Some(
            "the number of transactions contains two for each parallel worker that ended, so figures per \
             transaction are too low; from 18 on they are left out"
                .to_owned(),
        ),
        fix: None,
    });
}

/// As [`exchange`]; an interrupt ends connecting and the waits on the connection.
pub fn patient_exchange(conninfo: &str, patience: &Patience) -> Result<Exchange<TimedStream>> {
    let conninfo = conninfo.to_owned();
    let (exchange, _) = patience.wait_for(move || exchange(&conninfo))?;
    patience.apply_to(exchange.stream());
    Ok(exchange)
}

/// Connects to the server that `conninfo` names, or the environment if it is empty. Returns the connection and the server's address.
pub fn exchange(conninfo: &str) -> Result<(Exchange<TimedStream>, String)> {
    let request = if conninfo.is_empty() {
        Request::new()
    } else {
        Request::new().database(conninfo)?
    };
    let request = request.fallback_application_name("pgassay");
    let target = request.resolve(&RealSystem)?;
    let asked = target.connect_timeout_s.map(u64::from);
    let limit = asked.map_or(ANSWER_LIMIT, Duration::from_secs);
    let connected = connect(&target, Some(limit));
    let (mut exchange, endpoint) = connected.map_err(|error| explained(error, &target.warnings))?;
    exchange.stream().set_limit(Some(ANSWER_LIMIT))?;
    limit_statements(&mut exchange)?;
    Ok((exchange, endpoint.address.to_string()))
}

/// If a password is missing, why its file is ignored.
fn explained(error: ConnectError, warnings: &[String]) -> anyhow::Error {
    let last = error.last();
    let is_password = matches!(
        last,
        Some(ExchangeError::Wire(WireError::PasswordNeeded { .. }))
    );
    match warnings.first().filter(|_| is_password) {
        Some(warning) => anyhow!("{error}; {warning}"),
        None => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use pgassay_record::activity::ActivityStatement;
    use pgassay_wire::conninfo::Address;

    use super::*;

    /// Regression test: a server that answered with a number of a million digits ended `profile` with a panic.
    #[test]
    fn a_number_of_transactions_beyond_any_server_does_not_panic() {
        let others = |from: (u64, u64), to: (u64, u64)| {
            let ended = |(ended, own)| EndedTransactions { ended, own };
            ended(from).others_until(ended(to))
        };
        assert_eq!(others((u64::MAX, 0), (u64::MAX, 7)), 0);
        assert_eq!(others((0, 0), (10, u64::MAX)), 0);
        assert_eq!(others((100, 3), (110, 8)), 5);
    }

    /// Regression: with a password file that others may read, it said only to add a line to it.
    #[test]
    fn a_missing_password_names_the_file_that_is_ignored() {
        let address = Address::Unix {
            directory: "/run".to_owned(),
            port: 5432,
        };
        let tried = |error: WireError| ConnectError::Tried(vec![(address.clone(), error.into())]);
        let ignored = ["password file \"x\" is ignored".to_owned()];
        let user = "pw".to_owned();
        let text = explained(tried(WireError::PasswordNeeded { user }), &ignored).to_string();
        assert!(text.contains("none was given"), "{text}");
        assert!(text.ends_with("; password file \"x\" is ignored"), "{text}");
        let other = WireError::Malformed {
            tag: 'R',
            what: "x",
        };
        assert!(
            !explained(tried(other), &ignored)
                .to_string()
                .contains("file")
        );
    }

    /// Regression: of 120 transactions per second, 85 were autovacuum's, and figures per transaction were divided by
    /// all.
    #[test]
    fn transactions_of_autovacuum_do_not_make_figures_per_transaction_too_low() {
        let of_clients = |autovacuum_transactions, transactions_min| {
            let activity = Activity {
                window_us: 10e6,
                autovacuum_transactions,
                statements: vec![ActivityStatement {
                    transactions_min,
                    ..ActivityStatement::default()
                }],
                ..Activity::default()
            };
            let (transactions, limitation) = of_clients(1200, Some(&activity));
            (transactions, limitation.map(|it| it.value))
        };
        assert_eq!(of_clients(Some(850.0), 300), (Some(350), None));
        let unknown = Some("not known".to_owned());
        assert_eq!(of_clients(Some(1500.0), 0), (None, unknown.clone()));
        // Statements show that clients had more.
        assert_eq!(of_clients(Some(850.0), 1000), (None, unknown));
        let all = Some("with those of autovacuum".to_owned());
        assert_eq!(of_clients(None, 0), (Some(1200), all.clone()));
        assert_eq!(super::of_clients(7, None).1.map(|it| it.value), all);
    }

    /// Regression: of 285 transactions per second, the server's statistics had 185, and figures per transaction were
    /// divided by them. What `pg_stat_statements` counted says that there were more.
    #[test]
    fn fewer_transactions_than_calls_of_whole_transactions_are_discarded() {
        let statement = |transactions_min| ActivityStatement {
            transactions_min,
            ..ActivityStatement::default()
        };
        let activity = Activity {
            window_us: 10e6,
            counters_us: Some(20e6),
            statements: vec![statement(4000), statement(1000), statement(0)],
            ..Activity::default()
        };
        assert!(activity.is_transaction_count(2200.0));
        assert!(!activity.is_transaction_count(2100.0));
        assert!(activity.is_transaction_rate(220.0) && !activity.is_transaction_rate(210.0));
    }
}
