//! Who blocks whom, over time: each transaction that blocks others is an episode.

use std::collections::{BTreeMap, BTreeSet};

use pgassay_record::activity::{
    BlockedSession, BlockingEpisode, EndingSignal, IdleLockHolder, LockTarget, RelationName,
    RootBlocker, SessionHold,
};

use super::lock_mode::strength;
use super::lock_tree::{LockOwner, LockTree, TreePlace, trees};
use super::locks::{BLOCKING_SUBJECT, LockReading, LockSession};
use super::other_waiters::OtherWaiters;
use super::reader::CatalogReader;
use super::session_texts::SessionTexts;

/// Ended episodes that are kept: those with the longest waits. A busy server has several per second.
const ENDED_MAX: usize = 200;
/// Idle lock holders that are listed.
const IDLE_HOLDERS_MAX: usize = 50;

/// The episodes of a watch.
#[derive(Debug)]
pub(super) struct BlockingWatch {
    texts: SessionTexts,
    episodes: BTreeMap<EpisodeKey, OpenEpisode>,
    ended: Vec<BlockingEpisode>,
    /// What each session waits for and since when, by our own readings.
    waits_since: BTreeMap<u32, (String, f64)>,
    /// By the last reading.
    awaited: Vec<AwaitedRelation>,
}

/// A session that waits for a lock on a relation, or on a row of it.
#[derive(Debug)]
pub(in crate::watch) struct AwaitedRelation {
    pub pid: u32,
    /// When its statement started, in microseconds since 1970; `None` if hidden.
    pub statement_started_us: Option<i64>,
    pub relation: RelationName,
}

/// A root and its transaction's start.
pub(super) type EpisodeKey = (LockOwner, Option<i64>);

#[derive(Debug)]
struct OpenEpisode {
    /// With the sessions of the last reading.
    episode: BlockingEpisode,
    /// Those of the reading with the most of them.
    most_blocked: Vec<BlockedSession>,
    /// Until when the waits of each session are in the sum.
    summed_until_us: BTreeMap<u32, f64>,
}

impl OpenEpisode {
    fn new(at_us: f64) -> Self {
        Self {
            episode: BlockingEpisode {
                root: RootBlocker::default(),
                blocked: Vec::new(),
                first_seen_us: at_us,
                last_seen_us: at_us,
                is_lasting: true,
                waited_us: 0.0,
                ended_by: String::new(),
            },
            most_blocked: Vec::new(),
            summed_until_us: BTreeMap::new(),
        }
    }

    /// Takes what a reading found.
    fn update(&mut self, at_us: f64, blocked: Vec<BlockedSession>) {
        for session in &blocked {
            let began = (at_us - session.waited_us).max(0.0);
            let summed = self.summed_until_us.insert(session.pid, at_us);
            self.episode.waited_us += at_us - began.max(summed.unwrap_or(0.0)).min(at_us);
        }
        self.episode.last_seen_us = at_us;
        if blocked.len() >= self.most_blocked.len() {
            self.most_blocked.clone_from(&blocked);
        }
        self.episode.blocked = blocked;
    }

    /// The whole episode, with the most sessions.
    fn whole(&self) -> BlockingEpisode {
        BlockingEpisode {
            blocked: self.most_blocked.clone(),
            ..self.episode.clone()
        }
    }
}

impl BlockingWatch {
    pub fn new(keeps_text: bool) -> Self {
        Self {
            texts: SessionTexts::new(keeps_text),
            episodes: BTreeMap::new(),
            ended: Vec::new(),
            waits_since: BTreeMap::new(),
            awaited: Vec::new(),
        }
    }

    /// The relations that sessions waited for at the last reading; empty if they were taken before.
    pub fn take_awaited(&mut self) -> Vec<AwaitedRelation> {
        std::mem::take(&mut self.awaited)
    }

    /// Reads who blocks these sessions. Returns how many wait, and a description of the largest tree.
    /// `None` if that could not be read: then nothing is known to have ended, and all stays as it was.
    pub fn read(
        &mut self,
        reader: &mut CatalogReader,
        at_us: f64,
        (lock_waiters, others): (&[u32], &OtherWaiters),
    ) -> Option<(usize, String)> {
        let reading = if lock_waiters.is_empty() && others.is_empty() {
            reader.settle(BLOCKING_SUBJECT);
            LockReading::default()
        } else {
            reader.begin();
            let reading = LockReading::of_waiters(reader, lock_waiters, others);
            if let Some(reading) = &reading {
                self.texts.read(reader, &reading.sessions);
            }
            reader.end();
            reading?
        };
        self.note_waits(&reading, at_us);
        let waited = |owner| self.waited_us(&reading, owner, at_us);
        let trees = trees(&reading.graph, waited);
        let mut keys = BTreeSet::new();
        let is_there = |tree: &&LockTree| match tree.root {
            LockOwner::Session(pid) => reading.sessions.contains_key(&pid),
            LockOwner::Prepared(xid) => reading.prepared.contains_key(&xid),
        };
        for tree in trees.iter().filter(is_there) {
            keys.insert(self.add(reader, &reading, tree, at_us));
        }
        self.end_all_but(&keys);
        self.awaited = self.awaited(&reading);
        let largest = self
            .episodes
            .values()
            .max_by_key(|open| open.episode.blocked.len());
        let behind = largest.map_or_else(String::new, |open| describe(&open.episode.root));
        Some((reading.graph.len(), behind))
    }

    /// All episodes, longest total wait first; of those that last, the sessions that wait now.
    pub fn present(&self) -> Vec<BlockingEpisode> {
        self.all(|open| open.episode.clone())
    }

    /// All episodes, longest total wait first, each with the sessions of the reading with the most of them.
    pub fn whole(&self) -> Vec<BlockingEpisode> {
        self.all(OpenEpisode::whole)
    }

    fn all(&self, describe: impl Fn(&OpenEpisode) -> BlockingEpisode) -> Vec<BlockingEpisode> {
        let open = self.episodes.values().map(describe);
        let mut all: Vec<BlockingEpisode> = self.ended.iter().cloned().chain(open).collect();
        all.sort_by(|a, b| {
            b.waited_us
                .total_cmp(&a.waited_us)
                .then(b.blocked.len().cmp(&a.blocked.len()))
        });
        all
    }

    /// Transactions that are idle, or prepared, hold locks on rows or stronger ones, and do not block
    /// others yet. Within a reading of `reader`.
    pub fn idle_holders(&mut self, reader: &mut CatalogReader) -> Vec<IdleLockHolder> {
        let sql = "select pid from pg_stat_activity where state like 'idle in transaction%' \
                   and pid <> pg_backend_pid() and clock_timestamp() - state_change > '1 s' \
                   union all (select 0 from pg_prepared_xacts limit 1)";
        let idle = reader.rows(BLOCKING_SUBJECT, sql).unwrap_or_default();
        let pids: BTreeSet<u32> = idle.iter().map(|row| row.number(0) as u32).collect();
        if pids.is_empty() {
            return Vec::new();
        }
        let Some(reading) = LockReading::of_pids(reader, &pids) else {
            return Vec::new();
        };
        self.texts.read(reader, &reading.sessions);
        let blocking: BTreeSet<LockOwner> = self.episodes.keys().map(|it| it.0).collect();
        let nothing = BTreeSet::new();
        let mut found: Vec<IdleLockHolder> = reading
            .held
            .keys()
            .filter(|owner| !blocking.contains(owner))
            .map(|&owner| {
                let holder = self.root(&reading, owner, &nothing);
                let ended_by = ended_by(reader, &reading, owner, &holder, &[]);
                IdleLockHolder { holder, ended_by }
            })
            .filter(|it| {
                let hold = it.holder.holds.as_ref();
                hold.is_some_and(|hold| strength(&hold.mode) >= strength("RowShareLock"))
            })
            .collect();
        found.sort_by(|a, b| {
            let age = |it: &IdleLockHolder| it.holder.transaction_age_us.unwrap_or(0.0);
            age(b).total_cmp(&age(a))
        });
        found.truncate(IDLE_HOLDERS_MAX);
        found
    }

    /// Remembers since when each session waits.
    fn note_waits(&mut self, reading: &LockReading, at_us: f64) {
        let mut since = BTreeMap::new();
        for (owner, lock) in &reading.awaited {
            let first = match self.waits_since.get(&owner.pid()) {
                Some((known, first)) if *known == lock.tag => *first,
                _ => at_us,
            };
            since.insert(owner.pid(), (lock.tag.clone(), first));
        }
        self.waits_since = since;
    }

    /// By the server from version 14, else since our first reading of it.
    fn waited_us(&self, reading: &LockReading, owner: LockOwner, at_us: f64) -> f64 {
        let by_server = reading.awaited.get(&owner).and_then(|lock| lock.waited_us);
        let by_us = || self.waits_since.get(&owner.pid()).map(|it| at_us - it.1);
        by_server.or_else(by_us).unwrap_or(0.0)
    }

    /// What the sessions of a reading wait for, now that it is in the episodes.
    fn awaited(&self, reading: &LockReading) -> Vec<AwaitedRelation> {
        let open = self.episodes.values();
        let blocked = open.flat_map(|open| &open.episode.blocked);
        let awaited = blocked.filter_map(|it| {
            let started = reading.sessions.get(&it.pid)?.statement_started.as_ref();
            Some(AwaitedRelation {
                pid: it.pid,
                statement_started_us: started.and_then(|it| it.parse().ok()),
                relation: it.waits_for.relation.clone()?,
            })
        });
        awaited.collect()
    }

    fn add(
        &mut self,
        reader: &CatalogReader,
        reading: &LockReading,
        tree: &LockTree,
        at_us: f64,
    ) -> EpisodeKey {
        let blocked: Vec<BlockedSession> = tree
            .behind
            .iter()
            .map(|place| self.blocked(reading, place, at_us))
            .collect();
        let awaited = blocked
            .iter()
            .filter_map(|it| it.waits_for.relation.clone())
            .collect();
        let session = reading.sessions.get(&tree.root.pid());
        let key = (tree.root, session.and_then(|it| it.transaction_started_us));
        let mut root = self.root(reading, tree.root, &awaited);
        root.is_deadlocked = tree.is_cycle;
        if root.is_recovery() {
            // The server does not say since when; at least for as long as others wait.
            let waits = blocked.iter().map(|it| it.waited_us);
            root.state_age_us = waits.fold(0.0, f64::max);
        } else if root.is_unknown() && root.transaction_age_us.is_none() {
            root.state_age_us = self.blocked_for_us(key, &blocked, at_us);
        }
        let ended_by = ended_by(reader, reading, tree.root, &root, &blocked);
        let open = self.episodes.entry(key);
        let open = open.or_insert_with(|| OpenEpisode::new(at_us));
        open.episode.root = root;
        open.episode.ended_by = ended_by;
        open.update(at_us, blocked);
        key
    }

    /// For how long at least a session has blocked others of which nothing else is known. What belongs to a
    /// transaction, it has had since they wait. Another lock may have passed to it from session to session.
    fn blocked_for_us(&self, key: EpisodeKey, blocked: &[BlockedSession], at_us: f64) -> f64 {
        let open = self.episodes.get(&key);
        let seen_us = open.map_or(0.0, |it| at_us - it.episode.first_seen_us);
        let kinds = ["transactionid", "virtualxid", LockTarget::SAFE_SNAPSHOT];
        let directly = blocked.iter().filter(|it| it.depth == 1);
        let waits = directly.map(|it| {
            let is_its = kinds.contains(&&*it.waits_for.kind);
            let most_us = if is_its { f64::INFINITY } else { seen_us };
            it.waited_us.min(most_us)
        });
        waits.fold(0.0, f64::max)
    }

    /// Whether a session blocked others at the last reading.
    pub fn has_open(&self) -> bool {
        !self.episodes.is_empty()
    }

    /// Those that are not among these have ended.
    pub fn end_all_but(&mut self, keys: &BTreeSet<EpisodeKey>) {
        let is_over = |key: &EpisodeKey| !keys.contains(key);
        let over: Vec<EpisodeKey> = self.episodes.keys().copied().filter(is_over).collect();
        for key in over {
            if let Some(open) = self.episodes.remove(&key) {
                self.ended.push(BlockingEpisode {
                    is_lasting: false,
                    ..open.whole()
                });
            }
        }
        if self.ended.len() > ENDED_MAX {
            self.ended
                .sort_by(|a, b| b.waited_us.total_cmp(&a.waited_us));
            self.ended.truncate(ENDED_MAX);
        }
    }

    fn root(
        &self,
        reading: &LockReading,
        owner: LockOwner,
        awaited: &BTreeSet<RelationName>,
    ) -> RootBlocker {
        let hold = reading.strongest_hold(owner, awaited);
        let holds = hold.and_then(|lock| {
            Some(SessionHold {
                mode: lock.mode.clone(),
                relation: lock.relation.clone()?,
            })
        });
        let pid = match owner {
            LockOwner::Session(pid) => pid,
            LockOwner::Prepared(xid) => {
                let prepared = reading.prepared.get(&xid).cloned().unwrap_or_default();
                return RootBlocker {
                    gid: Some(prepared.gid),
                    database: prepared.database,
                    user: prepared.user,
                    state: "prepared transaction".to_owned(),
                    state_age_us: prepared.age_us,
                    transaction_age_us: Some(prepared.age_us),
                    holds,
                    ..RootBlocker::default()
                };
            }
        };
        let session = reading.sessions.get(&pid).cloned().unwrap_or_default();
        let text = self.texts.get(pid, &session);
        RootBlocker {
            pid: Some(pid),
            gid: None,
            state: state(&session),
            database: session.database,
            user: session.user,
            application: session.application,
            client: session.client,
            state_age_us: session.state_age_us,
            wait: session.wait,
            transaction_age_us: session.transaction_age_us,
            statement: text.statement,
            fingerprint: text.fingerprint,
            holds,
            prevents_wraparound: text.prevents_wraparound,
            is_deadlocked: false,
        }
    }

    fn blocked(&self, reading: &LockReading, place: &TreePlace, at_us: f64) -> BlockedSession {
        let pid = place.owner.pid();
        let session = reading.sessions.get(&pid).cloned().unwrap_or_default();
        let text = self.texts.get(pid, &session);
        let lock = reading.awaited.get(&place.owner);
        BlockedSession {
            pid,
            blocked_by: place.blocked_by.pid(),
            depth: place.depth,
            is_recovery: session.is_recovery(),
            user: session.user,
            application: session.application,
            statement: text.statement,
            fingerprint: text.fingerprint,
            waits_for: LockTarget {
                kind: lock.map_or_else(String::new, |it| it.kind.clone()),
                mode: lock.map_or_else(String::new, |it| it.mode.clone()),
                relation: reading.relation_of(place.owner, place.blocked_by),
            },
            waited_us: self.waited_us(reading, place.owner, at_us),
        }
    }
}

/// The statement that would end a root, or a comment if none should.
fn ended_by(
    reader: &CatalogReader,
    reading: &LockReading,
    owner: LockOwner,
    root: &RootBlocker,
    blocked: &[BlockedSession],
) -> String {
    let xid = match owner {
        LockOwner::Session(pid) => return session_ended_by(pid, root, blocked),
        LockOwner::Prepared(xid) => xid,
    };
    let prepared = reading.prepared.get(&xid).cloned().unwrap_or_default();
    let sql = format!("rollback prepared {};", prepared.gid_literal);
    if prepared.database == reader.database {
        return sql;
    }
    // A comment with a hostile name could end it and go on with a statement.
    let is_plain = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    if prepared.database.chars().all(is_plain) {
        format!("{sql} -- in database {}", prepared.database)
    } else {
        format!("{sql} -- in its own database")
    }
}

/// The statement that would end a session, or a comment if none should.
pub fn session_ended_by(pid: u32, root: &RootBlocker, blocked: &[BlockedSession]) -> String {
    if root.prevents_wraparound {
        "-- let it finish: it prevents wraparound, and begins again if it is canceled".to_owned()
    } else if root.gives_way() {
        "-- an autovacuum gives way by itself after deadlock_timeout".to_owned()
    } else if root.is_recovery() {
        "-- end the transaction on the primary that holds the lock: recovery cannot be canceled"
            .to_owned()
    } else {
        ended_by_signal(pid, root.ending_signal_for(blocked))
    }
}

fn ended_by_signal(pid: u32, signal: EndingSignal) -> String {
    match signal {
        EndingSignal::Cancel => format!("select pg_cancel_backend({pid});"),
        EndingSignal::CancelIfBusy => format!(
            "select pg_cancel_backend({pid}); -- without effect if it is idle: its state is unknown"
        ),
        EndingSignal::CancelAtAdvisory => format!(
            "select pg_cancel_backend({pid}); -- does not release a lock of pg_advisory_lock: pg_terminate_backend does"
        ),
        EndingSignal::Terminate | EndingSignal::TerminateAtClient => {
            format!("select pg_terminate_backend({pid});")
        }
        EndingSignal::WritingWal => {
            "-- find out why the disk of pg_wal stalls: until the write is done, a signal has no effect".to_owned()
        }
        EndingSignal::Replicating => {
            "-- let it end: a worker of logical replication starts again with the same transaction if it is canceled"
                .to_owned()
        }
        EndingSignal::Committed => {
            "-- bring the synchronous standby back: it has committed, and a cancel would only end its wait, \
             committed without replication"
                .to_owned()
        }
    }
}

/// `state`, or what the process is.
fn state(session: &LockSession) -> String {
    if session.is_recovery() {
        return RootBlocker::RECOVERY.to_owned();
    }
    // Its state is `active` for as long as it works.
    let kind = &session.backend_type;
    if kind == RootBlocker::AUTOVACUUM || kind.starts_with(RootBlocker::REPLICATION) {
        return kind.clone();
    }
    let known = [&session.state, &session.backend_type];
    let known = known.into_iter().find(|it| !it.is_empty());
    known.map_or_else(|| RootBlocker::UNKNOWN.to_owned(), Clone::clone)
}

/// A root in a few words.
fn describe(root: &RootBlocker) -> String {
    let name = match (&root.pid, &root.gid) {
        (Some(pid), _) => format!("PID {pid}"),
        (None, Some(gid)) => format!("prepared transaction {gid}"),
        (None, None) => "an unknown session".to_owned(),
    };
    let is_known = root.pid.is_some() && !root.is_unknown();
    let state = if is_known {
        format!(" ({})", root.state)
    } else {
        String::new()
    };
    format!("{name}{state}")
}

/// With the waits of a window: the last reading of the locks is a little after the last one of the sessions.
pub fn waits_within(episodes: Vec<BlockingEpisode>, window_us: f64) -> Vec<BlockingEpisode> {
    let within = |it: BlockingEpisode| BlockingEpisode {
        waited_us: it.waited_us.min(it.blocked.len() as f64 * window_us),
        ..it
    };
    episodes.into_iter().map(within).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: `top` listed 8 sessions behind a blocker, with the waits of that moment, although 6 had their lock.
    #[test]
    fn sessions_that_got_their_lock_are_no_longer_behind_a_blocker_that_lasts() {
        let waiting = |count, waited_us| {
            let session = |pid| BlockedSession {
                pid,
                waited_us,
                ..BlockedSession::default()
            };
            (0..count).map(session).collect::<Vec<_>>()
        };
        let mut open = OpenEpisode::new(1e6);
        open.update(1e6, waiting(8, 0.5e6));
        open.update(3e6, waiting(2, 2.5e6));
        let mut watch = BlockingWatch::new(true);
        watch
            .episodes
            .insert((LockOwner::Session(4711), None), open);
        let present = watch.present();
        assert_eq!(present[0].blocked, waiting(2, 2.5e6));
        assert!((present[0].waited_us - 8e6).abs() < 1.0);
        let whole = watch.whole();
        assert_eq!(whole[0].blocked, waiting(8, 0.5e6));
        watch.end_all_but(&BTreeSet::new());
        let ended = BlockingEpisode {
            is_lasting: false,
            ..whole[0].clone()
        };
        assert_eq!(watch.present(), watch.whole());
        assert_eq!(watch.whole(), [ended]);
    }

    /// Regression: the last of a queue waited 5 s for an advisory lock that each session held for 50 ms; the holder,
    /// whose state was hidden, "had blocked others for 5 s".
    #[test]
    fn a_lock_that_passes_from_session_to_session_was_not_held_for_the_whole_wait() {
        let mut watch = BlockingWatch::new(true);
        let key = (LockOwner::Session(4711), None);
        let behind = |kind: &str| {
            let mut waiting = BlockedSession {
                pid: 1,
                waited_us: 5e6,
                depth: 1,
                ..BlockedSession::default()
            };
            waiting.waits_for.kind = kind.to_owned();
            [waiting]
        };
        let seconds = |watch: &BlockingWatch, kind: &str| {
            (watch.blocked_for_us(key, &behind(kind), 9e6) / 1e5).round() / 10.0
        };
        assert!(seconds(&watch, "advisory") < 0.1);
        assert!(seconds(&watch, "transactionid") > 4.9);
        watch.episodes.insert(key, OpenEpisode::new(7e6));
        assert!((seconds(&watch, "relation") - 2.0).abs() < 0.1);
    }

    /// Regression: "average sessions waiting for it 2.03; most sessions waiting at once 2".
    #[test]
    fn no_more_sessions_wait_on_average_than_at_once() {
        let episode = |waited_us| BlockingEpisode {
            root: RootBlocker::default(),
            blocked: vec![BlockedSession::default(); 2],
            first_seen_us: 0.0,
            last_seen_us: 3e6,
            is_lasting: true,
            waited_us,
            ended_by: String::new(),
        };
        let within = waits_within(vec![episode(6.09e6), episode(4e6)], 3e6);
        let waited_s = within.iter().map(|it| format!("{:.2}", it.waited_us / 1e6));
        assert_eq!(waited_s.collect::<Vec<_>>(), ["6.00", "4.00"]);
    }
}
