//! Sessions and connections: idle lock holders, connections that come too often or are too many, and
//! clients that read slowly.

use pgassay_record::activity::{ActivitySession, ActivityStatement, RootBlocker, SessionStatus};
use pgassay_record::finding::{FactUnit, ObjectKind};

use super::detection::Detection;
use super::live_view::{LiveView, statement_name};
use super::locks;
use super::names;
use super::signature::OperatorSignature;
use std::collections::BTreeMap;

/// Idle for less, a transaction is between two statements of a program.
const IDLE_US: f64 = 1e6;
/// A lock that conflicts with few others, such as that of an UPDATE, matters after this time.
const IDLE_LONG_US: f64 = 60e6;
/// Connections per second below which starting them costs no noticeable part of one processor: a
/// start costs one to three milliseconds.
const STARTS_MIN: f64 = 10.0;
/// Connections per transaction; with a pool there is one in thousands.
const STARTS_PER_TRANSACTION_MIN: f64 = 0.1;
/// Readings see few of the sessions that last for milliseconds.
const BRIEF_PER_TRANSACTION_MIN: f64 = 0.005;
/// Of the connections that clients may have.
const CONNECTIONS_MAX: f64 = 0.9;

/// The signatures of this family.
pub(super) const SIGNATURES: &[OperatorSignature] = &[
    OperatorSignature {
        id: "idle-lock-holder",
        title: "A session that is idle in a transaction holds a lock",
        manual: "Client Connection Defaults: idle_in_transaction_session_timeout",
        detect: idle_lock_holder,
    },
    OperatorSignature {
        id: "connection-storm",
        title: "Clients connect anew for only a few statements",
        manual: "Server Configuration: Connections and Authentication",
        detect: connection_storm,
    },
    OperatorSignature {
        id: "connections-exhausted",
        title: "Almost all connections are in use",
        manual: "Server Configuration: max_connections",
        detect: connections_exhausted,
    },
    OperatorSignature {
        id: "slow-client",
        title: "The server waits for a client to read its result",
        manual: "Monitoring Database Activity: Wait Events of Type Client",
        detect: slow_client,
    },
];

fn idle_lock_holder(view: &LiveView<'_>) -> Vec<Detection> {
    let blocking = locks::root_pids(view);
    let holders = view.activity.idle_lock_holders.iter().map(|it| &it.holder);
    let holders = holders.filter(|it| {
        let hold_us = match &it.holds {
            Some(hold) if locks::is_strong(&hold.mode) => IDLE_US,
            Some(hold) if hold.mode == "RowExclusiveLock" => IDLE_LONG_US,
            _ => f64::INFINITY,
        };
        // A session that blocks others already has a finding.
        let blocks = it.pid.is_some_and(|pid| blocking.contains(&pid));
        !blocks && locks::is_idle_in_transaction(&it.state) && it.state_age_us >= hold_us
    });
    holders.map(|it| idle_holder(view, it)).collect()
}

fn idle_holder(view: &LiveView<'_>, holder: &RootBlocker) -> Detection {
    let pid = holder.pid.unwrap_or(0);
    let limit = locks::limit_idle_transactions(view, holder);
    let limit = locks::words_of_limit(limit.as_deref());
    let strong = holder
        .holds
        .as_ref()
        .is_some_and(|it| locks::is_strong(&it.mode));
    Detection::of(ObjectKind::Session, pid.to_string())
        .fingerprint(holder.fingerprint.as_deref())
        .urgent(if strong { 8 } else { 4 })
        .extent(holder.state_age_us)
        .figure(
            &format!("{} for", holder.state),
            holder.state_age_us,
            FactUnit::Micros,
        )
        .with(holder.holds.as_ref(), |it, hold| {
            let relation = names::relation(&hold.relation);
            it.state(format!("holds {} on {relation}", hold.mode))
        })
        .state("no session waits for it now")
        .context(locks::origin(holder))
        .with(holder.statement.as_ref(), |it, statement| {
            it.context(format!("its last statement: {statement}"))
        })
        .fix(format!(
            "End the session before others wait for it, and limit pauses in transactions: {limit}."
        ))
        .sql(format!("select pg_terminate_backend({pid})"))
        .risk(
            "Its transaction is rolled back, and its application gets an error at its next statement.",
        )
}

fn connection_storm(view: &LiveView<'_>) -> Vec<Detection> {
    let databases = view.catalog.databases.iter();
    let mut counted = databases.map(|it| it.sessions);
    let counted = counted.try_fold(0_u64, |sum, it| Some(sum.saturating_add(it?)));
    let seen = view.catalog.connections.map_or(0, |it| it.started_seen);
    // A counter from version 14 on; before, readings show only those that live long enough.
    let seen = match counted {
        Some(_) => seen,
        None => seen.max(started_at_work(view).min(seen.saturating_add(ended(view)))),
    };
    let started = counted.unwrap_or(seen).max(seen) as f64;
    let (committed, rolled_back) = view.transactions();
    let transactions = (committed + rolled_back) as f64;
    let rate = started / view.window_s;
    let each = started / transactions.max(1.0);
    // Most sessions of a few milliseconds are between two readings, so those seen are few per transaction.
    let brief = view.catalog.connections.and_then(|it| it.brief_seen);
    let brief = brief.filter(|_| counted.is_none());
    let brief_rate = brief.map_or(0.0, |it| it as f64 / view.window_s);
    let is_frequent = rate >= STARTS_MIN && each >= STARTS_PER_TRANSACTION_MIN;
    let brief_each = brief.map_or(0.0, |it| it as f64) / transactions.max(1.0);
    if !is_frequent && (brief_rate < STARTS_MIN || brief_each < BRIEF_PER_TRANSACTION_MIN) {
        return Vec::new();
    }
    let (client, load) = busiest_client(view);
    let detection = Detection::of(ObjectKind::Client, client)
        .urgent(5)
        .extent(rate.max(brief_rate))
        .with(Some(rate).filter(|_| is_frequent), |it, rate| {
            it.counter("sessions established", rate, FactUnit::PerSecond)
        })
        .with(Some(brief_rate).filter(|it| *it > 0.0), |it, rate| {
            let what = "sessions of less than 0.25 s, at least";
            it.sampled(what, rate, FactUnit::PerSecond)
        })
        .counter(
            "transactions",
            transactions / view.window_s,
            FactUnit::PerSecond,
        )
        .sampled(
            "new backends seen",
            seen as f64 / view.window_s,
            FactUnit::PerSecond,
        )
        .load("average active sessions of this client", load)
        .fix(
            "Keep connections open: a pool in the application, or a pooler such as PgBouncer in \
             transaction mode. Each new connection starts a process, authenticates, and fills its \
             catalog caches again.",
        )
        .risk("In transaction mode, session state such as SET, LISTEN and advisory locks is lost.");
    vec![detection]
}

/// The least number of sessions that were at work at a reading and ended in the window: all others are still connected,
/// such as those of a pool that opened them at once before the window.
fn ended(view: &LiveView<'_>) -> u64 {
    let connected = view.catalog.connections.map_or(0, |it| it.used);
    clients_at_work(view)
        .count()
        .saturating_sub(connected as usize) as u64
}

fn clients_at_work<'a>(view: &LiveView<'a>) -> impl Iterator<Item = &'a ActivitySession> + Clone {
    let clients = view.activity.sessions.iter();
    clients.filter(|it| matches!(&*it.backend_type, "client backend" | ""))
}

/// Sessions that were at work at a reading and had started within a window's length before the youngest.
fn started_at_work(view: &LiveView<'_>) -> u64 {
    let clients = clients_at_work(view);
    let youngest = clients.clone().map(|it| it.started_us).max();
    let window_us = view.activity.window_us as i64;
    let since = youngest.unwrap_or(0).saturating_sub(window_us);
    clients.filter(|it| it.started_us > since.max(0)).count() as u64
}

/// The application and address with most short sessions, or with most load.
fn busiest_client(view: &LiveView<'_>) -> (String, f64) {
    let mut clients: BTreeMap<(&str, &str), (f64, u64)> = BTreeMap::new();
    let mut seen = std::collections::BTreeSet::new();
    for cell in &view.activity.cells {
        let Some(session) = view.session(cell) else {
            continue;
        };
        let key = (session.application.as_str(), session.client.as_str());
        let client = clients.entry(key).or_default();
        if cell.state == SessionStatus::Active {
            client.0 += cell.time_us / view.activity.window_us.max(1.0);
        }
        client.1 += u64::from(seen.insert(cell.session));
    }
    let most = clients
        .into_iter()
        .max_by_key(|(_, (_, sessions))| *sessions);
    most.map_or(
        (String::new(), 0.0),
        |((application, client), (load, _))| {
            let names: Vec<&str> = [application, client]
                .into_iter()
                .filter(|it| !it.is_empty())
                .collect();
            (names.join(", "), load)
        },
    )
}

fn connections_exhausted(view: &LiveView<'_>) -> Vec<Detection> {
    let Some(connections) = view.catalog.connections else {
        return Vec::new();
    };
    let (used, available) = (
        f64::from(connections.used),
        f64::from(connections.available),
    );
    let refused = refused(view);
    if available <= 0.0 || (used < CONNECTIONS_MAX * available && refused == 0) {
        return Vec::new();
    }
    let idle = connections.idle.map(f64::from);
    // Superusers and other privileged roles also use the reserved ones.
    let in_use = (used / available).min(1.0);
    let detection = Detection::of(ObjectKind::Server, "")
        .urgent(8)
        .extent(used / available)
        .figure("of the connections for clients are in use", in_use, FactUnit::Share)
        .figure("connections", used, FactUnit::Count)
        .figure("connections for clients (max_connections less reserved ones)", available, FactUnit::Count)
        .with(idle, |it, idle| it.figure("of them idle", idle, FactUnit::Count))
        .with(Some(refused).filter(|it| *it > 0), |it, refused| {
            it.counter("refused connections in the server's log", refused as f64, FactUnit::Count)
        })
        .fix(
            "Let clients share connections: a smaller pool per application instance, or a pooler such \
             as PgBouncer. New clients are refused when none is left. As a stopgap, raise \
             max_connections: at a restart, on standbys first.",
        )
        .risk("More active sessions than CPUs make all of them slower.");
    vec![detection]
}

/// Connections that the server refused in the window because it had no free one, by its log.
fn refused(view: &LiveView<'_>) -> u64 {
    let marks = view.activity.marks.iter();
    let refusals = marks.filter(|it| it.is_refusal());
    refusals.fold(0, |sum, it| u64::saturating_add(sum, it.count.unwrap_or(1)))
}

fn slow_client(view: &LiveView<'_>) -> Vec<Detection> {
    let waiting = view.waiting(|kind, name| kind == "Client" && name == "ClientWrite");
    if waiting.is_chance() {
        return Vec::new();
    }
    let mut clients: BTreeMap<String, SlowClient> = BTreeMap::new();
    for cell in &view.activity.cells {
        let is_it =
            cell.state == SessionStatus::Active && view.wait(cell) == ("Client", "ClientWrite");
        if let Some(session) = view.session(cell).filter(|_| is_it) {
            let names = [session.application.as_str(), session.client.as_str()];
            let name: Vec<&str> = names.into_iter().filter(|it| !it.is_empty()).collect();
            let load = cell.time_us / view.activity.window_us.max(1.0);
            let client = clients.entry(name.join(", ")).or_default();
            client.load += load;
            if let Some(statement) = cell.statement {
                *client.statements.entry(statement).or_default() += load;
            }
        }
    }
    clients
        .into_iter()
        .map(|(name, client)| {
            let statement = client.statement(view);
            let load = client.load;
            Detection::of(ObjectKind::Client, name)
                .statement(statement)
                .saved(load)
                .load("average sessions that wait for the client to read", load)
                .with(statement, |it, statement| {
                    it.context(format!("mostly in: {}", statement_name(statement)))
                })
                .with(rows_per_call(statement), |it, rows| {
                    it.counter("rows per execution", rows, FactUnit::Count)
                })
                .fix(
                    "Fetch fewer rows and columns: filter and add up in the statement, or use LIMIT or \
                     a cursor. Otherwise read the result before working on it. The statement keeps its \
                     snapshot and locks until the client has read all.",
                )
                .risk("No change on the server, only in the application.")
        })
        .collect()
}

/// The waits for one client to read, by statement.
#[derive(Default)]
struct SlowClient {
    load: f64,
    statements: BTreeMap<u32, f64>,
}

impl SlowClient {
    /// The statement with most of its waits.
    fn statement<'a>(&self, view: &LiveView<'a>) -> Option<&'a ActivityStatement> {
        let most = self.statements.iter().max_by(|a, b| a.1.total_cmp(b.1))?;
        view.activity.statements.get(*most.0 as usize)
    }
}

fn rows_per_call(statement: Option<&ActivityStatement>) -> Option<f64> {
    let counters = statement?.counters.filter(|it| it.calls > 0)?;
    Some(counters.rows as f64 / counters.calls as f64)
}
