//! What contention for a lightweight lock, or for a heavyweight lock that is not about rows or tables,
//! means, and what to do about it.
//!
//! Names as of version 13 and later, with those of 9.6 to 12 (`src/backend/storage/lmgr/lwlock.c`; the
//! names of those versions end with `Lock` if the lock is not one of a group).

/// A group of wait events with one cause.
pub(super) struct WaitMeaning {
    /// `wait_event_type`; `LWLockNamed` and `LWLockTranche` of 9.6 count as `LWLock`.
    pub kind: &'static str,
    /// `wait_event`; the first one names the group.
    pub names: &'static [&'static str],
    /// What it means.
    pub meaning: &'static str,
    /// The suggested fix.
    pub fix: &'static str,
    /// The fix as a larger value of a setting: the first version that has it, its name, and the value.
    pub larger: Option<(u32, &'static str, &'static str)>,
    /// The risk of the fix.
    pub risk: &'static str,
}

impl WaitMeaning {
    /// The title of the finding if the lock is not one of the server's own.
    pub fn title(&self) -> Option<&'static str> {
        let is_application = self.kind == "Lock" && self.names.contains(&"advisory");
        is_application.then_some("Sessions wait for the application's advisory locks")
    }

    /// Whether it is about this wait event.
    pub fn is_of(&self, kind: &str, name: &str) -> bool {
        let (kind, name) = match (kind, name) {
            // Since 19, such a lock is no lightweight lock.
            (
                "Buffer" | "BufferPin",
                "BufferShared" | "BufferShareExclusive" | "BufferExclusive",
            ) => ("LWLock", "BufferContent"),
            _ if kind.starts_with("LWLock") => ("LWLock", name),
            _ => (kind, name),
        };
        let bare = name.strip_suffix("Lock").filter(|bare| !bare.is_empty());
        kind == self.kind && self.names.iter().any(|it| *it == name || Some(*it) == bare)
    }
}

const RESTART: &str = "It takes effect at a restart, on standbys first (a standby with a lower value of some settings \
                       stops replaying), and uses more shared memory.";
const APPLICATION: &str = "It requires a change of the application or the schema.";

/// All groups. `WALWrite` is missing: waiting for another session's commit is a commit wait.
pub(super) const MEANINGS: &[WaitMeaning] = &[
    WaitMeaning {
        kind: "LWLock",
        names: &["LockManager", "lock_manager"],
        meaning: "statements lock more relations than fit into the fast path, and meet in the shared \
                  lock table",
        fix: "Lock fewer relations: prune partitions with constants, keep fewer partitions and \
              indexes, and prepare statements. From PostgreSQL 18 on, raise \
              max_locks_per_transaction, which also sets the number of fast-path slots.",
        larger: Some((18, "max_locks_per_transaction", "1024")),
        risk: RESTART,
    },
    WaitMeaning {
        kind: "LWLock",
        names: &["BufferContent", "buffer_content"],
        meaning: "sessions write to the same page: the last page of an index on an increasing key, or \
                  a small table that all update",
        fix: "Spread the writes: partition by hash, lower the fillfactor of a small hot table, or drop \
              unused indexes.",
        larger: None,
        risk: APPLICATION,
    },
    WaitMeaning {
        kind: "LWLock",
        names: &["BufferMapping", "buffer_mapping"],
        meaning: "sessions replace buffers faster than the buffer table can be changed",
        fix: "Raise shared_buffers, or add indexes so that statements read fewer pages.",
        larger: None,
        risk: RESTART,
    },
    WaitMeaning {
        kind: "LWLock",
        names: &["WALInsert", "wal_insert"],
        meaning: "sessions wait to insert into the WAL",
        fix: "Write less WAL: fewer indexes, wal_compression, larger checkpoint intervals, COPY \
              instead of single inserts.",
        larger: None,
        risk: APPLICATION,
    },
    WaitMeaning {
        kind: "LWLock",
        names: &["WALBufMapping"],
        meaning: "the WAL buffers are full, and sessions write them out themselves",
        fix: "Raise wal_buffers.",
        larger: Some((9, "wal_buffers", "64MB")),
        risk: RESTART,
    },
    WaitMeaning {
        kind: "LWLock",
        names: &["ProcArray"],
        meaning: "snapshots and ends of transactions wait for each other",
        fix: "Run fewer transactions at the same time, with a pooler, and more statements per \
              transaction.",
        larger: None,
        risk: APPLICATION,
    },
    WaitMeaning {
        kind: "LWLock",
        names: &["XactSLRU", "XactBuffer", "CLogControl", "clog"],
        meaning: "sessions look up the state of transactions in pg_xact",
        fix: "Run VACUUM after large loads, so that rows have their hint bits, and end long \
              transactions. From PostgreSQL 17 on, raise transaction_buffers.",
        larger: Some((17, "transaction_buffers", "16MB")),
        risk: RESTART,
    },
    WaitMeaning {
        kind: "LWLock",
        names: &[
            "SubtransSLRU",
            "SubtransBuffer",
            "SubtransControl",
            "subtrans",
        ],
        meaning: "snapshots have more than 64 subtransactions, and every reader looks up parents in \
                  pg_subtrans",
        fix: "Use fewer savepoints (a PL/pgSQL block with EXCEPTION is one), not one per row, and end \
              long transactions. From PostgreSQL 17 on, raise subtransaction_buffers.",
        larger: Some((17, "subtransaction_buffers", "8MB")),
        risk: RESTART,
    },
    WaitMeaning {
        kind: "LWLock",
        names: &[
            "MultiXactMemberSLRU",
            "MultiXactOffsetSLRU",
            "MultiXactMemberBuffer",
            "MultiXactOffsetBuffer",
            "MultiXactMemberControl",
            "MultiXactOffsetControl",
            "MultiXactGen",
        ],
        meaning: "many transactions share-lock the same rows, often parents of foreign keys",
        fix: "Avoid SELECT … FOR SHARE on rows that many transactions lock, avoid foreign keys to very \
              few parent rows, and shorten the transactions. From PostgreSQL 17 on, raise multixact_member_buffers \
              and multixact_offset_buffers.",
        larger: Some((17, "multixact_member_buffers", "2MB")),
        risk: RESTART,
    },
    WaitMeaning {
        kind: "LWLock",
        names: &["LockFastPath", "lock_fastpath", "FastPath", "proc"],
        meaning: "LOCK TABLE or DDL visits every session to move its fast-path locks",
        fix: "Keep LOCK TABLE and DDL out of the load.",
        larger: None,
        risk: APPLICATION,
    },
    WaitMeaning {
        kind: "LWLock",
        names: &[
            "PredicateLockManager",
            "predicate_lock_manager",
            "SerializableXactHash",
            "SerializablePredicateList",
            "SerializableFinishedList",
        ],
        meaning: "serializable transactions track what they read",
        fix: "Declare transactions READ ONLY where they are, keep them short, and use indexes, so that \
              they lock less.",
        larger: None,
        risk: APPLICATION,
    },
    WaitMeaning {
        kind: "Lock",
        names: &["extend"],
        meaning: "sessions that insert wait to extend the same table or index",
        fix: "Insert with COPY or many rows per statement, or partition the table by hash. Version 16 and \
              later extend a table by many blocks at a time.",
        larger: None,
        risk: APPLICATION,
    },
    WaitMeaning {
        kind: "Lock",
        names: &["object"],
        meaning: "sessions wait for the lock of a database object: NOTIFY at commit, or DDL",
        fix: "Send fewer notifications, one per batch instead of one per row, and keep DDL out of the \
              load.",
        larger: None,
        risk: APPLICATION,
    },
    WaitMeaning {
        kind: "Lock",
        names: &["advisory", "userlock"],
        meaning: "the application's own advisory locks make sessions wait",
        fix: "Hold advisory locks for a shorter time, spread their keys, or take work from a queue \
              with FOR UPDATE SKIP LOCKED.",
        larger: None,
        risk: APPLICATION,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    fn group(kind: &str, name: &str) -> Option<&'static str> {
        let mut all = MEANINGS.iter().filter(|it| it.is_of(kind, name));
        let first = all.next();
        assert!(all.next().is_none(), "{name} is in two groups");
        first.map(|it| it.names[0])
    }

    #[test]
    fn each_event_has_one_meaning_in_every_version() {
        assert_eq!(group("LWLock", "LockManager"), Some("LockManager"));
        assert_eq!(group("LWLockTranche", "lock_manager"), Some("LockManager"));
        assert_eq!(group("LWLockNamed", "ProcArrayLock"), Some("ProcArray"));
        assert_eq!(group("LWLock", "CLogControlLock"), Some("XactSLRU"));
        assert_eq!(group("Lock", "extend"), Some("extend"));
        assert_eq!(group("Buffer", "BufferExclusive"), Some("BufferContent"));
        for (kind, name) in [
            ("LWLock", "WALWrite"),
            ("Lock", "transactionid"),
            ("Lock", "relation"),
            ("IO", "extend"),
            ("Buffer", "BufferCleanup"),
            ("LWLock", "Lock"),
            ("", ""),
        ] {
            assert_eq!(group(kind, name), None, "{kind} {name}");
        }
        for meaning in MEANINGS {
            for name in meaning.names {
                assert!(group(meaning.kind, name).is_some());
            }
            assert!(meaning.fix.ends_with('.') && meaning.risk.ends_with('.'));
            assert!(!meaning.meaning.ends_with('.'));
        }
    }
}
