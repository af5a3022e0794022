//! One reading of who waits for which lock and who holds what.
//!
//! `pg_blocking_pids` and `pg_locks` take all partitions of the lock table in shared mode, so they are
//! read only for sessions that wait, or that may wait without showing it. PostgreSQL's
//! `src/backend/storage/lmgr/lock.c`,
//! `GetBlockerStatusData` and `GetLockStatusData`.

use std::collections::{BTreeMap, BTreeSet};

use pgassay_record::activity::{Activity, ActivityWait, LockTarget, RelationName};

use super::lock_mode::{LOCK_MODES, conflicts, strength};
use super::lock_tree::{LockOwner, WaitGraph};
use super::other_waiters::OtherWaiters;
use super::reader::{CatalogReader, array};
use super::row::CatalogRow;

/// The server is asked for the blockers of at most so many waiters at once: in a queue, their number
/// grows with its square. Those beyond have the blockers of another waiter for the same lock.
const ASKED_MAX: usize = 100;
/// Blockers that may wait themselves are asked about too, so many times.
const ROUNDS_MAX: u32 = 4;
/// Locks on relations read per session: those that others wait for, then the strongest.
const HOLDS_MAX: usize = 20;

/// The subject of all queries about who blocks whom: a reading without one of them is none.
pub(super) const BLOCKING_SUBJECT: &str = Activity::BLOCKING;

/// A lock in `pg_locks`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SeenLock {
    is_granted: bool,
    /// `locktype`.
    pub kind: String,
    pub mode: String,
    /// The identity of what is locked.
    pub tag: String,
    pub relation: Option<RelationName>,
    /// `relkind`; empty if the relation is of another database.
    relation_kind: String,
    /// How long its owner has waited for it, in microseconds; `None` before version 14.
    pub waited_us: Option<f64>,
}

impl SeenLock {
    /// What a deferrable transaction waits for, which is no lock.
    fn safe_snapshot(pid: u32) -> Self {
        Self {
            is_granted: false,
            kind: LockTarget::SAFE_SNAPSHOT.to_owned(),
            mode: String::new(),
            tag: format!("{}/{pid}", LockTarget::SAFE_SNAPSHOT),
            relation: None,
            relation_kind: String::new(),
            waited_us: None,
        }
    }

    /// On a standby, only the startup process takes this lock (manual, "Hot Standby Overview").
    fn is_replayed(&self) -> bool {
        self.kind == "relation" && self.mode == "AccessExclusiveLock"
    }
}

/// The `backend_type` of the process that replays WAL.
const STARTUP: &str = "startup";

/// A session of a reading.
#[derive(Debug, Clone, Default)]
pub(super) struct LockSession {
    pub database: String,
    pub user: String,
    pub application: String,
    pub client: String,
    /// Empty if hidden, or for a process without a state.
    pub state: String,
    /// Empty if hidden; before version 10 known only of autovacuum workers and the startup process.
    pub backend_type: String,
    pub state_age_us: f64,
    /// What it waits for; `None` if nothing, hidden, or only the next statement.
    pub wait: Option<ActivityWait>,
    pub transaction_age_us: Option<f64>,
    /// When its transaction started, in microseconds since 1970.
    pub transaction_started_us: Option<i64>,
    /// When its statement started, likewise; null if hidden.
    pub statement_started: Option<String>,
    /// The leader of a parallel worker (from version 13).
    pub leader_pid: Option<u32>,
}

/// A prepared transaction of a reading.
#[derive(Debug, Clone, Default)]
pub(super) struct PreparedTransaction {
    pub gid: String,
    /// The same as a literal.
    pub gid_literal: String,
    pub age_us: f64,
    pub user: String,
    pub database: String,
}

/// What one reading of locks found.
#[derive(Debug, Default)]
pub(super) struct LockReading {
    /// Who waits for whom; parallel workers are folded into their leaders.
    pub graph: WaitGraph,
    /// What each waiter waits for.
    pub awaited: BTreeMap<LockOwner, SeenLock>,
    /// What they all hold: relations, and locks on rows.
    pub held: BTreeMap<LockOwner, Vec<SeenLock>>,
    pub sessions: BTreeMap<u32, LockSession>,
    /// By transaction ID.
    pub prepared: BTreeMap<u32, PreparedTransaction>,
}

impl LockSession {
    pub fn is_recovery(&self) -> bool {
        self.backend_type == STARTUP
    }
}

impl LockReading {
    /// Reads who blocks these sessions; empty if they are no longer blocked, `None` if that could not be
    /// read.
    pub fn of_waiters(
        reader: &mut CatalogReader,
        lock_waiters: &[u32],
        others: &OtherWaiters,
    ) -> Option<Self> {
        let mut waiters = lock_waiters.to_vec();
        waiters.extend(others.untracked_at_locks(reader)?);
        let at_snapshots = others.snapshot_blockers(reader)?;
        if waiters.is_empty() && at_snapshots.is_empty() {
            return Some(Self::default());
        }
        let deferred: Vec<u32> = at_snapshots.keys().copied().collect();
        let blockers = blockers(reader, &waiters, at_snapshots)?;
        if blockers.is_empty() {
            return Some(Self::default());
        }
        let pids: BTreeSet<u32> = waiters
            .iter()
            .chain(blockers.keys())
            .chain(blockers.values().flatten())
            .copied()
            .filter(|&pid| pid != 0)
            .collect();
        let mut reading = Self::of_pids(reader, &pids)?;
        for pid in deferred {
            let owner = reading.leader_of(LockOwner::Session(pid));
            let awaited = || SeenLock::safe_snapshot(pid);
            reading.awaited.entry(owner).or_insert_with(awaited);
        }
        reading.connect(blockers);
        // The two queries are not of one moment: a session may have got its lock in between.
        let LockReading { graph, awaited, .. } = &mut reading;
        graph.retain(|owner, _| awaited.contains_key(owner));
        Some(reading)
    }

    /// Reads what these sessions, and all prepared transactions, hold.
    pub fn of_pids(reader: &mut CatalogReader, pids: &BTreeSet<u32>) -> Option<Self> {
        let mut reading = Self {
            sessions: sessions(reader, pids)?,
            ..Self::default()
        };
        let mut locks: BTreeMap<OwnerKey, Vec<SeenLock>> = BTreeMap::new();
        for row in reader.rows(BLOCKING_SUBJECT, &locks_sql(reader, pids))? {
            let (owner, lock) = parse_lock(&row);
            locks.entry(owner).or_default().push(lock);
        }
        if locks.keys().any(|(pid, _)| *pid == 0) {
            reading.prepared = prepared(reader)?;
        }
        for ((pid, _), locks) in locks {
            if reader.is_standby && locks.iter().any(SeenLock::is_replayed) {
                // Before version 10 it is not in pg_stat_activity.
                let startup = reading.sessions.entry(pid).or_default();
                STARTUP.clone_into(&mut startup.backend_type);
            }
            let Some(owner) = owner(pid, &locks) else {
                continue;
            };
            let owner = reading.leader_of(owner);
            let (held, awaited) = locks.into_iter().partition(|lock| lock.is_granted);
            let held: Vec<SeenLock> = held;
            let awaited: Vec<SeenLock> = awaited;
            reading.held.entry(owner).or_default().extend(held);
            reading
                .awaited
                .extend(awaited.into_iter().map(|lock| (owner, lock)));
        }
        Some(reading)
    }

    fn leader_of(&self, owner: LockOwner) -> LockOwner {
        let LockOwner::Session(pid) = owner else {
            return owner;
        };
        let leader = self.sessions.get(&pid).and_then(|it| it.leader_pid);
        LockOwner::Session(leader.unwrap_or(pid))
    }

    /// Builds the graph from what `pg_blocking_pids` returned.
    fn connect(&mut self, blockers: BTreeMap<u32, BTreeSet<u32>>) {
        let mut of_lock: BTreeMap<(String, String), BTreeSet<u32>> = BTreeMap::new();
        for (&waiter, by) in &blockers {
            let owner = self.leader_of(LockOwner::Session(waiter));
            if let Some(awaited) = self.awaited.get(&owner) {
                let lock = (awaited.tag.clone(), awaited.mode.clone());
                // The fewest are those of the first in the queue; the others wait behind it.
                let known = of_lock.entry(lock).or_insert_with(|| by.clone());
                if by.len() < known.len() {
                    known.clone_from(by);
                }
            }
        }
        let asked: BTreeSet<LockOwner> = blockers
            .keys()
            .map(|&pid| self.leader_of(LockOwner::Session(pid)))
            .collect();
        let asked_blockers: Vec<(LockOwner, BTreeSet<u32>)> = blockers
            .into_iter()
            .map(|(pid, by)| (self.leader_of(LockOwner::Session(pid)), by))
            .collect();
        let unasked: Vec<LockOwner> = self
            .awaited
            .keys()
            .copied()
            .filter(|owner| !asked.contains(owner))
            .collect();
        for (owner, by) in asked_blockers {
            self.add_edges(owner, &by);
        }
        for owner in unasked {
            let awaited = &self.awaited[&owner];
            let lock = (awaited.tag.clone(), awaited.mode.clone());
            if let Some(by) = of_lock.get(&lock) {
                self.add_edges(owner, by);
            } else {
                let by = self.holders(owner, |it| it != owner);
                self.graph.entry(owner).or_default().extend(by);
            }
        }
    }

    fn add_edges(&mut self, owner: LockOwner, by: &BTreeSet<u32>) {
        let by: Vec<LockOwner> = by
            .iter()
            .flat_map(|&pid| match pid {
                0 => self.holders(owner, |it| it.pid() == 0),
                pid => vec![self.leader_of(LockOwner::Session(pid))],
            })
            .filter(|&blocker| blocker != owner)
            .collect();
        self.graph.entry(owner).or_default().extend(by);
    }

    /// Those of some owners that hold what a session waits for.
    fn holders(&self, waiter: LockOwner, is_of: impl Fn(LockOwner) -> bool) -> Vec<LockOwner> {
        let Some(awaited) = self.awaited.get(&waiter) else {
            return Vec::new();
        };
        let holds =
            |lock: &SeenLock| lock.tag == awaited.tag && conflicts(&lock.mode, &awaited.mode);
        self.held
            .iter()
            .filter(|(owner, held)| is_of(**owner) && held.iter().any(holds))
            .map(|(&owner, _)| owner)
            .collect()
    }

    /// The relation that a waiter waits in. For a row it is the one of the row's own lock, which the
    /// first waiter in the queue holds, or else the only table in which both have row locks.
    pub fn relation_of(&self, waiter: LockOwner, blocker: LockOwner) -> Option<RelationName> {
        let awaited = self.awaited.get(&waiter)?;
        if awaited.relation.is_some() || awaited.kind != "transactionid" {
            return awaited.relation.clone();
        }
        let held = |owner| self.held.get(&owner).map_or(&[][..], Vec::as_slice);
        if let Some(row) = held(waiter).iter().find(|lock| lock.kind == "tuple") {
            return row.relation.clone();
        }
        let with_rows = |owner| -> BTreeSet<&RelationName> {
            let tables = held(owner).iter().filter(|lock| {
                lock.relation_kind == "r"
                    && matches!(lock.mode.as_str(), "RowShareLock" | "RowExclusiveLock")
            });
            tables.filter_map(|lock| lock.relation.as_ref()).collect()
        };
        if [waiter, blocker]
            .iter()
            .any(|&it| held(it).len() >= HOLDS_MAX)
        {
            return None;
        }
        let (of_blocker, of_waiter) = (with_rows(blocker), with_rows(waiter));
        let mut both = of_blocker.intersection(&of_waiter);
        match (both.next(), both.next()) {
            (Some(&only), None) => Some(only.clone()),
            _ => None,
        }
    }

    /// The strongest granted lock on one of these relations, or else on any table.
    pub fn strongest_hold(
        &self,
        owner: LockOwner,
        awaited: &BTreeSet<RelationName>,
    ) -> Option<&SeenLock> {
        let locks = self.held.get(&owner)?.iter();
        let locks = locks.filter(|lock| lock.kind == "relation" && lock.relation.is_some());
        locks.max_by_key(|lock| {
            let relation = lock.relation.as_ref();
            // Catalogs, which every statement locks, are the least interesting.
            let is_users = relation.is_some_and(|it| it.oid >= FIRST_USER_OID);
            let is_awaited = relation.is_some_and(|it| awaited.contains(it));
            (is_awaited, is_users, strength(&lock.mode))
        })
    }
}

/// PostgreSQL's `src/include/access/transam.h`, `FirstNormalObjectId`.
pub(super) const FIRST_USER_OID: u32 = 16_384;

/// Those in the way of the startup process, of which `pg_blocking_pids` knows nothing. What it waits for
/// conflicts with every lock.
const IN_THE_WAY_OF_RECOVERY: &str = "with l as (select * from pg_locks where locktype = 'relation') \
     select w.pid, h.pid from l w join l h on h.granted and h.pid <> w.pid \
       and (h.database, h.relation) = (w.database, w.relation) \
     where w.mode = 'AccessExclusiveLock' and not w.granted";

/// Who blocks whom, by PID; 0 is a prepared transaction. Only those that are blocked. Of some it is known already,
/// because they wait for no lock.
fn blockers(
    reader: &mut CatalogReader,
    waiters: &[u32],
    known: BTreeMap<u32, BTreeSet<u32>>,
) -> Option<BTreeMap<u32, BTreeSet<u32>>> {
    let mut asked: BTreeSet<u32> = known.keys().copied().collect();
    let mut found = known;
    let waiting: BTreeSet<u32> = waiters.iter().copied().collect();
    let mut next: Vec<u32> = waiters.iter().copied().take(ASKED_MAX).collect();
    if reader.is_standby {
        for row in reader.rows(BLOCKING_SUBJECT, IN_THE_WAY_OF_RECOVERY)? {
            let (startup, by) = (row.number(0) as u32, row.number(1) as u32);
            found.entry(startup).or_default().insert(by);
        }
        asked.extend(found.keys());
    }
    for _ in 0..ROUNDS_MAX {
        asked.extend(&next);
        let sql = format!(
            "select w.pid, to_json(pg_blocking_pids(w.pid)) from unnest('{}'::int[]) w (pid) \
             where w.pid <> pg_backend_pid()",
            array(next.iter().copied())
        );
        for row in reader.rows(BLOCKING_SUBJECT, &sql)? {
            let by: Vec<u32> = serde_json::from_str(row.get(1).unwrap_or("[]")).unwrap_or_default();
            if !by.is_empty() {
                found.insert(row.number(0) as u32, by.into_iter().collect());
            }
        }
        let mut named: BTreeMap<u32, usize> = BTreeMap::new();
        for pid in found.values().flatten() {
            *named.entry(*pid).or_default() += 1;
        }
        let unknown = named
            .into_iter()
            .filter(|(pid, _)| *pid != 0 && !asked.contains(pid));
        let mut unknown: Vec<(u32, usize)> = unknown.collect();
        // First those who may be roots, then those who hold what most wait for.
        unknown.sort_by_key(|&(pid, times)| (waiting.contains(&pid), std::cmp::Reverse(times)));
        next = unknown.into_iter().take(ASKED_MAX).map(|it| it.0).collect();
        if next.is_empty() {
            break;
        }
    }
    Some(found)
}

/// Whose locks these are. A prepared transaction has no PID; it holds its own transaction ID.
fn owner(pid: u32, locks: &[SeenLock]) -> Option<LockOwner> {
    if pid != 0 {
        return Some(LockOwner::Session(pid));
    }
    let own = locks.iter().find(|lock| lock.kind == "transactionid")?;
    let xid = own.tag.strip_prefix("transactionid/")?.parse().ok()?;
    Some(LockOwner::Prepared(xid))
}

fn locks_sql(reader: &CatalogReader, pids: &BTreeSet<u32>) -> String {
    // 14: waitstart.
    let waited = if reader.version >= 140_000 {
        "extract(epoch from clock_timestamp() - l.waitstart) * 1e6"
    } else {
        "null"
    };
    let modes = LOCK_MODES.join(",");
    let (database, pids) = (reader.database_oid, array(pids.iter().copied()));
    // Indexes and parents of partitions are locked with their tables and would only hide them. What a serializable
    // transaction has read (SIReadLock) blocks nothing.
    format!(
        "with l as (select * from pg_locks where mode <> 'SIReadLock'), \
         awaited as (select distinct database, relation from l \
           where relation is not null and (not granted or locktype = 'tuple')), \
         named as (select l.*, c.oid as known, c.relname, n.nspname, c.relkind, \
             row_number() over (partition by l.pid, l.virtualtransaction, l.granted, \
               l.locktype = 'relation' \
               order by (l.database, l.relation) in (select a.database, a.relation from awaited a) \
                 desc nulls last, array_position('{{{modes}}}', l.mode) desc nulls last) as place \
           from l left join pg_class c on c.oid = l.relation and l.database in (0, {database}) \
           left join pg_namespace n on n.oid = c.relnamespace \
           where (l.pid = any ('{pids}'::int[]) or l.pid is null) \
             and (not l.granted or l.pid is null or l.locktype in ('relation', 'tuple', 'transactionid')) \
             and (l.locktype <> 'relation' or not l.granted or c.relkind is null \
               or c.relkind in ('r', 'm', 'p', 'f') \
               or (l.database, l.relation) in (select a.database, a.relation from awaited a))) \
         select l.pid, l.virtualtransaction, l.granted, l.locktype, l.mode, \
           concat_ws('/', l.locktype, l.database, l.relation, l.page, l.tuple, l.virtualxid, \
             l.transactionid, l.classid, l.objid, l.objsubid), \
           l.relation, l.nspname, l.relname, l.relkind, coalesce(d.datname, ''), {waited} \
         from named l left join pg_database d on d.oid = l.database \
         where l.place <= {HOLDS_MAX}"
    )
}

/// Type and name of a session's wait in `pg_stat_activity a`, for [`CatalogRow::wait`]. That of an idle
/// session, for the next statement, is its state and no other wait.
pub(super) const OTHER_WAIT: [&str; 2] = [
    "case when a.state not like 'idle%' then a.wait_event_type end",
    "case when a.state not like 'idle%' then a.wait_event end",
];

/// A PID; and for a prepared transaction, whose PID is 0, its virtual transaction.
type OwnerKey = (u32, String);

fn parse_lock(row: &CatalogRow) -> (OwnerKey, SeenLock) {
    let pid = row.number(0) as u32;
    let transaction = if pid == 0 { row.text(1) } else { String::new() };
    let has_relation = row.get(6).is_some();
    let lock = SeenLock {
        is_granted: row.is_true(2),
        kind: row.text(3),
        mode: row.text(4),
        tag: row.text(5),
        relation: has_relation.then(|| row.relation(6, row.get(10).unwrap_or_default())),
        relation_kind: row.text(9),
        waited_us: row.duration(11),
    };
    ((pid, transaction), lock)
}

fn sessions(
    reader: &mut CatalogReader,
    pids: &BTreeSet<u32>,
) -> Option<BTreeMap<u32, LockSession>> {
    // 10: the type; 13: the leader.
    let backend_type = if reader.version >= 100_000 {
        "a.backend_type"
    } else {
        "case when a.client_port is null and a.query like 'autovacuum: %' then 'autovacuum worker' end"
    };
    let leader = if reader.version >= 130_000 {
        "a.leader_pid"
    } else {
        "null"
    };
    let [wait_kind, wait_name] = OTHER_WAIT;
    let sql = format!(
        "select a.pid, a.datname, a.usename, a.application_name, \
         case when a.client_addr is not null then host(a.client_addr) \
           when a.client_port = -1 then 'local' end, \
         a.state, {backend_type}, extract(epoch from clock_timestamp() - a.state_change) * 1e6, \
         extract(epoch from clock_timestamp() - a.xact_start) * 1e6, \
         (extract(epoch from a.xact_start) * 1e6)::bigint, \
         (extract(epoch from a.query_start) * 1e6)::bigint, {leader}, {wait_kind}, {wait_name} \
         from pg_stat_activity a where a.pid = any ('{}'::int[])",
        array(pids.iter().copied())
    );
    let rows = reader.rows(BLOCKING_SUBJECT, &sql)?;
    let session = |row: &CatalogRow| LockSession {
        database: row.text(1),
        user: row.text(2),
        application: row.text(3),
        client: row.text(4),
        state: row.text(5),
        backend_type: row.text(6),
        state_age_us: row.duration(7).unwrap_or(0.0),
        transaction_age_us: row.duration(8),
        transaction_started_us: row.get(9).map(|_| row.number(9)),
        statement_started: row.get(10).map(str::to_owned),
        leader_pid: row.get(11).map(|_| row.number(11) as u32),
        wait: row.wait(12),
    };
    let sessions = rows.iter().map(|row| (row.number(0) as u32, session(row)));
    Some(sessions.collect())
}

fn prepared(reader: &mut CatalogReader) -> Option<BTreeMap<u32, PreparedTransaction>> {
    let sql = "select transaction, gid, quote_literal(gid), \
               extract(epoch from clock_timestamp() - prepared) * 1e6, owner, database \
               from pg_prepared_xacts";
    let rows = reader.rows(BLOCKING_SUBJECT, sql)?;
    let transaction = |row: &CatalogRow| PreparedTransaction {
        gid: row.text(1),
        gid_literal: row.text(2).trim_start().to_owned(),
        age_us: row.duration(3).unwrap_or(0.0),
        user: row.text(4),
        database: row.text(5),
    };
    let found = rows.iter();
    Some(
        found
            .map(|row| (row.number(0) as u32, transaction(row)))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::LockOwner::{Prepared, Session};
    use super::*;

    fn lock(tag: &str, mode: &str, is_granted: bool) -> SeenLock {
        SeenLock {
            is_granted,
            kind: "transactionid".to_owned(),
            mode: mode.to_owned(),
            tag: tag.to_owned(),
            relation: None,
            relation_kind: String::new(),
            waited_us: None,
        }
    }

    #[test]
    fn waiters_beyond_those_asked_about_have_the_blockers_of_their_lock() {
        let mut reading = LockReading::default();
        for (pid, tag) in [(2, "a"), (3, "a"), (4, "a"), (5, "b"), (6, "c")] {
            let awaited = lock(tag, "ShareLock", false);
            reading.awaited.insert(Session(pid), awaited);
        }
        for (owner, tag) in [(Session(1), "b"), (Prepared(9), "c"), (Session(6), "c")] {
            reading
                .held
                .insert(owner, vec![lock(tag, "ExclusiveLock", true)]);
        }
        // The server was asked about 2 and 3: 3 is behind 2 in the queue.
        reading.connect([(2, [1].into()), (3, [1, 2].into())].into());
        let expected = [
            (Session(2), [Session(1)].into()),
            (Session(3), [Session(1), Session(2)].into()),
            (Session(4), [Session(1)].into()),
            (Session(5), [Session(1)].into()),
            (Session(6), [Prepared(9)].into()),
        ];
        assert_eq!(reading.graph, expected.into());
    }

    #[test]
    fn workers_wait_and_block_as_their_leaders() {
        let mut reading = LockReading::default();
        for (pid, leader_pid) in [(1, None), (2, None), (3, Some(2))] {
            let session = LockSession {
                leader_pid,
                ..LockSession::default()
            };
            reading.sessions.insert(pid, session);
        }
        reading.connect([(3, [1, 2].into())].into());
        assert_eq!(reading.graph, [(Session(2), [Session(1)].into())].into());
    }
}
