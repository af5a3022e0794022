//! Turns readings of sessions into sums, and sums into an [`Activity`].

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pgassay_knowledge::wait_event;
use pgassay_profile::{
    NamedWait, SessionIdentity, SessionReading, SessionState, SessionSweep, SessionWait,
};
use pgassay_record::activity::{
    Activity, ActivitySession, ActivityWait, LoadCell, RelationName, RootBlocker, SessionStatus,
};

use super::attribution::{LoadAttribution, LoadSums, REST, SessionActivity, Sighting, limited};
use super::catalog::AwaitedRelation;
use super::names::ObjectNames;
use super::reading_log::ReadingLog;
use super::session_status::status;
use super::statements::{JoinedCounters, StatementBook};
use super::unseen_sessions::UnseenSessions;
use brief_sessions::BriefSessions;
pub use present::PresentSession;

/// The `application_name` of pgassay's transactions.
const OWN_APPLICATION: &str = "pgassay";

/// All that was read so far.
pub(super) struct Collector {
    /// The server's major version, which wait event numbers depend on.
    major: String,
    /// Backends that serve pgassay.
    pub own_pids: BTreeSet<u32>,
    /// The connections go through a pooler: a backend serves pgassay now, and another client next.
    pub is_pooled: bool,
    /// Sessions are read from memory, so that their times are of this machine's clock.
    pub reads_memory: bool,
    sessions: Vec<Arc<SessionIdentity>>,
    session_index: HashMap<(u32, i64), u32>,
    waits: WaitBook,
    /// Those whose locks were waited for.
    relations: Vec<RelationName>,
    pub statements: StatementBook,
    pub attribution: LoadAttribution,
    idle: IdleSessions,
    /// Sums up to the last [`Collector::take`].
    pub total: LoadSums,
    pub readings: Option<ReadingLog>,
    /// The PIDs and waits of sessions with `track_activities` off at the last reading.
    untracked: Vec<(u32, u32)>,
    brief: BriefSessions,
    /// At the last reading.
    pub unseen: UnseenSessions,
    /// The largest numbers at any reading.
    pub unseen_max: UnseenSessions,
    /// The largest number at one reading: client backends, except pgassay's.
    pub others: u32,
    /// Sessions that could not be read consistently, over all readings.
    pub unreadable: u64,
}

/// Relations with an index at most.
const RELATIONS_MAX: usize = 1000;
/// Ended sessions that are remembered at most.
const ENDED_MAX: usize = 10_000;

/// Sessions that are idle outside a transaction.
#[derive(Debug, Default)]
struct IdleSessions {
    began_us: Option<f64>,
    /// The last reading, with its idle sessions.
    at_us: f64,
    pids: Vec<u32>,
    /// When each session was last seen at work, or in a transaction.
    last_busy_us: HashMap<u32, f64>,
}

impl IdleSessions {
    fn add(&mut self, at_us: f64, pids: Vec<u32>, busy: &[Sighting]) {
        self.began_us.get_or_insert(at_us);
        (self.at_us, self.pids) = (at_us, pids);
        let busy = busy.iter().map(|it| (it.pid, at_us));
        self.last_busy_us.extend(busy);
        if self.last_busy_us.len() > 2 * self.pids.len() + ENDED_MAX {
            // Sessions that have ended must not fill memory.
            let idle: HashSet<u32> = self.pids.iter().copied().collect();
            self.last_busy_us
                .retain(|pid, since_us| *since_us >= at_us || idle.contains(pid));
        }
    }

    /// For how long a session has been seen to be idle; `None` if it is not.
    fn age_us(&self, pid: u32) -> Option<f64> {
        let since_us = self.last_busy_us.get(&pid).copied().or(self.began_us)?;
        self.pids.contains(&pid).then_some(self.at_us - since_us)
    }
}

/// Locks a collector and ignores poisoning: a panic leaves at worst a reading uncounted.
pub(super) fn locked(collector: &Mutex<Collector>) -> MutexGuard<'_, Collector> {
    collector.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Collector {
    pub fn new(major: &str, own_pids: BTreeSet<u32>, readings: Option<ReadingLog>) -> Self {
        Self {
            major: major.to_owned(),
            own_pids,
            is_pooled: false,
            reads_memory: false,
            sessions: Vec::new(),
            session_index: HashMap::new(),
            waits: WaitBook::default(),
            relations: Vec::new(),
            statements: StatementBook::default(),
            attribution: LoadAttribution::default(),
            idle: IdleSessions::default(),
            total: LoadSums::default(),
            readings,
            untracked: Vec::new(),
            brief: BriefSessions::default(),
            unseen: UnseenSessions::default(),
            unseen_max: UnseenSessions::default(),
            others: 0,
            unreadable: 0,
        }
    }

    /// Leaves out a backend that serves pgassay, unless a pooler gives it to others, too.
    pub fn leave_out(&mut self, pid: u32) {
        if !self.is_pooled {
            self.own_pids.insert(pid);
        }
    }

    /// Whether it serves pgassay. Behind a pooler, each of its transactions sets the application's name.
    fn is_own(&self, session: &SessionIdentity) -> bool {
        self.own_pids.contains(&session.pid)
            || (self.is_pooled && session.application == OWN_APPLICATION)
    }

    /// Adds a reading of all sessions at a time in microseconds.
    pub fn add(&mut self, at_us: f64, sweep: SessionSweep) {
        let idle = sweep.idle.iter().filter(|pid| !self.own_pids.contains(pid));
        let mut others = idle.count() as u32;
        let mut unseen = UnseenSessions::default();
        let mut clients = Vec::new();
        self.untracked.clear();
        self.unreadable += u64::from(sweep.unreadable);
        let mut sightings = Vec::with_capacity(sweep.sessions.len());
        for reading in sweep.sessions {
            if self.is_own(&reading.identity) {
                continue;
            }
            match reading.state {
                // Those without a database are the server's own processes.
                SessionState::Hidden if reading.identity.database != 0 => unseen.hidden += 1,
                SessionState::Disabled => {
                    unseen.disabled += 1;
                    let (wait, _) = self.waits.index(&reading.wait, &self.major);
                    self.untracked.push((reading.identity.pid, wait));
                }
                _ => {}
            }
            if reading.identity.backend_type == "client backend" {
                others += 1;
                // The type of a worker may be hidden. It has no client.
                if !reading.identity.client.is_empty() {
                    clients.push((reading.identity.pid, reading.identity.started_us));
                }
            }
            if let Some(sighting) = self.sighting(&reading) {
                sightings.push(sighting);
                if let Some(log) = &mut self.readings {
                    log.add(reading.identity.pid, at_us, &sighting);
                }
            }
        }
        if let Some(log) = &mut self.readings {
            log.end_sweep();
        }
        self.unseen = unseen;
        self.unseen_max.hidden = self.unseen_max.hidden.max(unseen.hidden);
        self.unseen_max.disabled = self.unseen_max.disabled.max(unseen.disabled);
        self.others = self.others.max(others);
        self.note_brief((at_us, sweep.unreadable), &sweep.idle, &clients);
        self.idle.add(at_us, sweep.idle, &sightings);
        self.attribution.add(at_us, sightings);
    }

    /// `None` if the session is idle, or waits for work.
    fn sighting(&mut self, reading: &SessionReading) -> Option<Sighting> {
        let (wait, wait_kind) = self.waits.index(&reading.wait, &self.major);
        let kind = self.waits.kinds[wait_kind as usize].as_str();
        let state = status(reading, kind, &self.major)?;
        // From 14 on, a worker has the ID of the statement that its client sent, but the text of the one that it
        // executes: if that is within a function, it is another.
        let is_worker = reading.identity.backend_type == "parallel worker";
        let query_id = if is_worker { 0 } else { reading.query_id };
        let statement = self
            .statements
            .index(&reading.text, reading.is_cut, query_id);
        // An idle session waits for its client; that is its state, not another wait.
        let (wait, wait_kind) = match state {
            SessionStatus::Active if wait == 0 && self.may_pause(&reading.identity) => {
                self.waits.pause_or_cpu()
            }
            SessionStatus::Active => (wait, wait_kind),
            _ => (0, 0),
        };
        Some(Sighting {
            session: self.session(&reading.identity),
            pid: reading.identity.pid,
            is_worker,
            activity: SessionActivity {
                statement,
                state,
                wait,
                wait_kind,
                relation: None,
            },
            lock: self.waits.locks[wait as usize],
            activity_started_us: reading.activity_started_us,
            transaction_started_us: reading.transaction_started_us.unwrap_or(0),
            state_changed_us: reading.state_changed_us,
        })
    }

    /// Whether it is a worker of autovacuum that has no wait event while it pauses, as before 13.
    fn may_pause(&self, identity: &SessionIdentity) -> bool {
        let has_no_event = matches!(&*self.major, "9.6" | "10" | "11" | "12");
        has_no_event && identity.backend_type == RootBlocker::AUTOVACUUM
    }

    /// Whether the server is of a version that does not count sessions, and has no wait events of those with
    /// `track_activities` off.
    fn is_before_14(&self) -> bool {
        matches!(&*self.major, "9.6" | "10" | "11" | "12" | "13")
    }

    fn session(&mut self, identity: &Arc<SessionIdentity>) -> u32 {
        let key = (identity.pid, identity.started_us);
        if let Some(&index) = self.session_index.get(&key) {
            if let Some(known) = self.sessions.get_mut(index as usize)
                && known.pid == identity.pid
                && !Arc::ptr_eq(known, identity)
            {
                *known = Arc::clone(identity);
            }
            return index;
        }
        let index = limited(self.sessions.len());
        if index == REST {
            return index;
        }
        self.sessions.push(Arc::clone(identity));
        self.session_index.insert(key, index);
        index
    }

    /// Takes the relations that a reading of the locks showed.
    pub fn name_locks(&mut self, awaited: Vec<AwaitedRelation>) {
        for it in awaited {
            let known = self
                .relations
                .iter()
                .position(|known| *known == it.relation);
            let index = known.unwrap_or(self.relations.len());
            if index == self.relations.len() {
                if index == RELATIONS_MAX {
                    continue;
                }
                self.relations.push(it.relation);
            }
            let started_us = it.statement_started_us;
            self.attribution.name_lock(it.pid, started_us, index as u32);
        }
    }

    /// The first reading, in microseconds; `None` before it.
    pub fn start_us(&self) -> Option<f64> {
        let window = self.total.window_us.or(self.attribution.sums.window_us);
        window.map(|(start_us, _)| start_us)
    }

    /// When these sums begin, in microseconds since the first reading.
    pub fn began_us(&self, sums: &LoadSums) -> f64 {
        let began_us = sums.window_us.map(|(began_us, _)| began_us);
        let both = began_us.zip(self.start_us());
        both.map_or(0.0, |(began_us, start_us)| began_us - start_us)
    }

    /// The sums since the last call.
    pub fn take(&mut self) -> LoadSums {
        let sums = self.attribution.take();
        self.total.add(&sums);
        sums
    }

    /// Databases and users of sessions in these sums.
    pub fn oids(&self, sums: &LoadSums) -> BTreeSet<(u32, u32)> {
        let sessions = sums
            .cells
            .keys()
            .map(|(session, _)| self.identity(*session));
        sessions.map(|it| (it.database, it.user)).collect()
    }

    /// A session with this index; beyond the known ones, the rest.
    fn identity(&self, session: u32) -> Arc<SessionIdentity> {
        let known = self.sessions.get(session as usize).cloned();
        known.unwrap_or_else(|| Arc::new(the_rest()))
    }

    /// The sums as data: sessions, statements, waits, cells and timeline. Also returns the collector's
    /// index of each statement.
    pub fn describe(
        &self,
        sums: &LoadSums,
        keeps_text: bool,
        names: &ObjectNames,
        counters: &JoinedCounters,
    ) -> (Activity, Vec<u32>) {
        let mut sessions = Renumbering::default();
        let mut statements = Renumbering::default();
        let mut waits = Renumbering::default();
        let mut relations = Renumbering::default();
        waits.number(0);
        let is_own = |session: u32| self.is_own(&self.identity(session));
        // Readings may see a backend of ours before its PID is known.
        let cells = sums
            .cells
            .iter()
            .filter(|((session, _), _)| !is_own(*session));
        let mut cells: Vec<_> = cells.collect();
        // In the order of their first appearance, so that the result is reproducible.
        cells.sort_by_key(|((session, activity), _)| {
            let SessionActivity { wait, relation, .. } = *activity;
            (*session, activity.statement, wait, activity.state, relation)
        });
        let cells = cells
            .into_iter()
            .map(|((session, activity), (time_us, samples))| LoadCell {
                session: sessions.number(*session),
                statement: activity.statement.map(|it| statements.number(it)),
                state: activity.state,
                wait: waits.number(activity.wait),
                relation: activity.relation.map(|it| relations.number(it)),
                time_us: *time_us,
                samples: *samples,
            });
        let cells: Vec<LoadCell> = cells.collect();
        let described = |index: &u32| {
            let seen = sums.executions.get(index).copied().unwrap_or_default();
            let mut statement = self.statements.describe(*index, keeps_text, counters);
            statement.executions_seen = seen.count;
            statement.executions_seen_in_transaction_max = seen.in_transaction_max;
            statement.transactions_min = self.statements.transactions_min(*index, seen, &statement);
            statement
        };
        let activity = Activity {
            sweeps: sums.sweeps,
            window_us: sums.length_us(),
            counters_us: counters.window_us,
            transactions_seen: sums
                .transactions
                .saturating_sub(self.attribution.open_transactions()),
            sessions: sessions
                .order
                .iter()
                .map(|&at| described_session(&self.identity(at), names))
                .collect(),
            statements: statements.order.iter().map(described).collect(),
            waits: waits.of(&self.waits.waits),
            relations: relations.of(&self.relations),
            cells,
            timeline: sums.timeline(|kind| self.waits.kinds[kind as usize].clone()),
            ..Activity::default()
        };
        (activity, statements.order)
    }
}

/// Gives numbers in the order of first use.
#[derive(Default)]
struct Renumbering {
    order: Vec<u32>,
    numbers: HashMap<u32, u32>,
}

impl Renumbering {
    fn number(&mut self, index: u32) -> u32 {
        let next = self.order.len() as u32;
        let number = *self.numbers.entry(index).or_insert(next);
        if number == next {
            self.order.push(index);
        }
        number
    }

    /// Those that have numbers, in their order.
    fn of<T: Clone>(&self, all: &[T]) -> Vec<T> {
        self.order
            .iter()
            .map(|&at| all[at as usize].clone())
            .collect()
    }
}

fn the_rest() -> SessionIdentity {
    SessionIdentity {
        pid: 0,
        started_us: 0,
        backend_type: String::new(),
        database: 0,
        user: 0,
        application: String::new(),
        client: String::new(),
    }
}

fn described_session(identity: &SessionIdentity, names: &ObjectNames) -> ActivitySession {
    ActivitySession {
        pid: identity.pid,
        started_us: identity.started_us,
        backend_type: identity.backend_type.clone(),
        database: names.database(identity.database),
        user: names.user(identity.user),
        application: identity.application.clone(),
        client: identity.client.clone(),
    }
}

/// Of [`WaitBook::locks`]: a row.
const ROW_LOCK: u32 = u32::MAX;

/// The wait events that were seen.
struct WaitBook {
    waits: Vec<ActivityWait>,
    /// The class of each wait: index into `kinds`.
    kind_of: Vec<u32>,
    kinds: Vec<String>,
    /// The kind of lock that each wait is for.
    locks: Vec<Option<u32>>,
    by_number: HashMap<u32, u32>,
    by_name: HashMap<NamedWait, u32>,
}

impl Default for WaitBook {
    fn default() -> Self {
        Self {
            waits: vec![ActivityWait::default()],
            kind_of: vec![0],
            kinds: vec![String::new()],
            locks: vec![None],
            by_number: HashMap::new(),
            by_name: HashMap::new(),
        }
    }
}

impl WaitBook {
    /// The index of a wait, and that of its class.
    fn index(&mut self, wait: &SessionWait, major: &str) -> (u32, u32) {
        let index = match wait {
            SessionWait::None => 0,
            SessionWait::Number(number) => self.number(*number, major),
            SessionWait::Named(name) => self.add(name.clone()),
        };
        (index, self.kind_of[index as usize])
    }

    /// The wait of a worker of autovacuum that computes, or pauses for `autovacuum_vacuum_cost_delay`.
    fn pause_or_cpu(&mut self) -> (u32, u32) {
        let index = self.add(NamedWait {
            kind: "Timeout".to_owned(),
            name: "VacuumDelay or CPU".to_owned(),
        });
        (index, self.kind_of[index as usize])
    }

    fn number(&mut self, number: u32, major: &str) -> u32 {
        if let Some(&index) = self.by_number.get(&number) {
            return index;
        }
        let index = self.add(named(major, number));
        self.by_number.insert(number, index);
        index
    }

    fn add(&mut self, name: NamedWait) -> u32 {
        if let Some(&index) = self.by_name.get(&name) {
            return index;
        }
        let known = self.kinds.iter().position(|it| *it == name.kind);
        let kind = known.unwrap_or_else(|| {
            self.kinds.push(name.kind.clone());
            self.kinds.len() - 1
        });
        let index = self.waits.len() as u32;
        self.waits.push(ActivityWait {
            kind: name.kind.clone(),
            name: name.name.clone(),
        });
        self.kind_of.push(kind as u32);
        let lock = match name.name.as_str() {
            // A row is waited for in two steps.
            "tuple" | "transactionid" => ROW_LOCK,
            _ => index,
        };
        self.locks.push((name.kind == "Lock").then_some(lock));
        self.by_name.insert(name, index);
        index
    }
}

/// The name of a wait event number, or the number.
fn named(major: &str, number: u32) -> NamedWait {
    let (kind, name) = match wait_event(major, number) {
        Some(wait) => (wait.kind.to_owned(), wait.name.to_owned()),
        None => ("not known".to_owned(), format!("{number:#010x}")),
    };
    NamedWait { kind, name }
}

mod brief_sessions;
mod hidden_blockers;
mod present;
#[cfg(test)]
mod tests;
mod waiters;
