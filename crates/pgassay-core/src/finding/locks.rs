//! Locks of all sizes: rows, relations, buffers, SLRUs, snapshots, spinlocks.
//!
//! Sources: `src/backend/storage/lmgr/README`, `lmgr/lock.c` (16 fast-path slots a backend until 17,
//! `max_locks_per_transaction` of them in 18), `access/transam/slru.c` (configurable from 17),
//! `storage/ipc/procarray.c` (snapshots scale since 14).

use super::evidence::Evidence;
use super::measure::{Measure, Signature};
use super::remedy::RemedyVariant;

pub(super) const SIGNATURES: &[Signature] = &[
    Signature {
        id: "hot-row",
        title: "Transactions wait for row locks",
        manual: "Concurrency Control: Row-Level Locks",
        measure: hot_row,
    },
    Signature {
        id: "sequence-page",
        title: "Contention on a sequence's page, or frequent logging of it",
        manual: "SQL Commands: CREATE SEQUENCE (CACHE)",
        measure: sequence,
    },
    Signature {
        id: "hot-page",
        title: "Contention on the content of a page",
        manual: "Monitoring: Wait Events of Type LWLock (BufferContent)",
        measure: hot_page,
    },
    Signature {
        id: "lock-manager",
        title: "Contention on the shared lock table",
        manual: "Server Configuration: Lock Management, max_locks_per_transaction",
        measure: lock_manager,
    },
    Signature {
        id: "strong-lock",
        title: "Strong locks take the fast path from everybody",
        manual: "Concurrency Control: Table-Level Locks",
        measure: strong_lock,
    },
    Signature {
        id: "relation-lock",
        title: "Sessions wait for locks on a table",
        manual: "Concurrency Control: Table-Level Locks",
        measure: relation_lock,
    },
    Signature {
        id: "snapshots",
        title: "Taking snapshots is expensive",
        manual: "Release Notes of 14 (scalability of GetSnapshotData)",
        measure: snapshots,
    },
    Signature {
        id: "subtransactions",
        title: "Subtransactions overflow what a backend publishes",
        manual: "Internals: Transactions and Identifiers, Subtransactions",
        measure: subtransactions,
    },
    Signature {
        id: "multixacts",
        title: "Rows are locked by several transactions at once",
        manual: "Routine Vacuuming: Multixacts and Wraparound",
        measure: multixacts,
    },
    Signature {
        id: "transaction-status",
        title: "The status of transactions is looked up again and again",
        manual: "Monitoring: pg_stat_slru; Resource Consumption: transaction_buffers",
        measure: transaction_status,
    },
    Signature {
        id: "buffer-pin",
        title: "Somebody waits for a page that others keep pinned",
        manual: "Monitoring: Wait Events of Type BufferPin",
        measure: buffer_pin,
    },
    Signature {
        id: "spinlocks",
        title: "Processors spin for a lock",
        manual: "Monitoring: Wait Events of Type Timeout (SpinDelay)",
        measure: spinlocks,
    },
];

/// A page of `pg_subtrans` is also looked at when a subtransaction begins, so some are harmless.
const LOOKUPS_MIN: f64 = 30.0;

/// What locks a row that is there already.
const ROW_LOCKERS: [&str; 7] = [
    "heap_update",
    "heap_delete",
    "heap_lock_tuple",
    "heap_acquire_tuplock",
    "heapam_tuple_lock",
    "heapam_tuple_update",
    "heapam_tuple_delete",
];
/// What looks whether a key is there already.
const KEY_CHECKS: [&str; 4] = [
    "_bt_doinsert",
    "_bt_check_unique",
    "check_exclusion_or_unique_constraint",
    "check_exclusion_constraint",
];
/// Waiting for another transaction to end, whatever for.
const TRANSACTION_WAITS: [&str; 4] = [
    "XactLockTableWait",
    "ConditionalXactLockTableWait",
    "SpeculativeInsertionWait",
    "MultiXactIdWait",
];

/// The share of the waits for other transactions that are waits for their rows: the event's name is
/// the same where an insert waits to learn whether another's equal key will stay. Stacks tell these
/// apart; without them, rows that were inserted and none that was changed are waits for keys.
fn share_of_rows(e: &Evidence) -> f64 {
    let rows = e.path(&[&ROW_LOCKERS, &TRANSACTION_WAITS]);
    let keys = e.path(&[&KEY_CHECKS, &TRANSACTION_WAITS]);
    if rows + keys > 0.0 {
        return rows / (rows + keys);
    }
    let counted = |name: &str| e.counter(&format!("pg_stat_database.{name}"));
    let changed = counted("tup_updated").unwrap_or(0.0) + counted("tup_deleted").unwrap_or(0.0);
    let only_inserts = counted("tup_inserted").is_some_and(|rows| rows > changed) && changed < 0.05;
    if only_inserts { 0.0 } else { 1.0 }
}

fn hot_row(e: &Evidence) -> Measure {
    let of_rows = share_of_rows(e);
    let waited = e.blocked(&["Lock tuple"]) + of_rows * e.blocked(&["Lock transactionid"]);
    let us = e.path(&[&ROW_LOCKERS, &TRANSACTION_WAITS]) + e.with(&["heap_acquire_tuplock"]);
    let spread = e.latency_p99_us / e.latency_p50_us.max(1.0);
    // Without wait events only stacks and the tail of the latencies tell.
    let unseen = e.blocked.is_empty() && e.of_cpu(us) >= 0.05 && spread >= 4.0;
    Measure::of(waited.max(us))
        .queueing(waited)
        .when(e.of_response(waited) >= 0.1 || unseen)
        .waits("Lock transactionid and Lock tuple", waited)
        .stacks("waiting for row locks", us)
        .context(|it| {
            it.clock("99th percentile of latency", e.latency_p99_us)
                .counter("deadlocks", e.counter("pg_stat_database.deadlocks"))
        })
        .remedy(
            "Shorten the transactions that update the same rows, and update these rows last. \
             Spread a counter over several rows and sum them, or insert and add up later; take \
             jobs from a queue with SELECT … FOR UPDATE SKIP LOCKED.",
        )
}

fn sequence(e: &Evidence) -> Measure {
    let us = e.with(&["nextval_internal"]);
    let logged = e.path(&[
        &["nextval_internal"],
        &[
            "XLogInsert",
            "GetTopTransactionId",
            "GetTopFullTransactionId",
        ],
    ]);
    let waited = e.blocked(&["LWLock BufferContent", "LWLock buffer_content"]);
    let is_hot = e.of_cpu(us) >= 0.05 && e.of_response(waited) >= 0.05;
    Measure::of(us + waited)
        .queueing(waited)
        .when(is_hot || e.of_cpu(us) >= 0.4)
        .stacks("nextval", us)
        .stacks("of it logging a batch of values", logged)
        .waits("LWLock BufferContent", waited)
        .against(
            waited <= 0.0,
            "nobody waits for the sequence's page here: on few processors only its CPU shows",
        )
        .remedy(
            "Without CACHE every value takes the sequence's page under an exclusive lock and 32 \
             values write a WAL record. CREATE SEQUENCE … CACHE n takes n at a time: gaps and no \
             order across sessions are the price. Several sequences, or uuidv7() (18), do \
             without the common page.",
        )
}

fn hot_page(e: &Evidence) -> Measure {
    let waited = e.blocked(&["LWLock BufferContent", "LWLock buffer_content"]);
    let index = e.with(&["_bt_doinsert", "_bt_insertonpg"]);
    Measure::of(waited)
        .queueing(waited)
        .when(e.of_response(waited) >= 0.05 && e.of_cpu(e.with(&["nextval_internal"])) < 0.05)
        .waits("LWLock BufferContent", waited)
        .stacks(
            "inserting into B-trees, whose rightmost leaf all share",
            index,
        )
        .stacks("updating rows", e.with(&["heap_update"]))
        .remedy(
            "Many write to one page: the rightmost leaf of an index on a growing key, or a small \
             hot table. Partition by hash, spread the key, lower fillfactor so that rows lie on \
             more pages, or drop indexes that nobody reads.",
        )
}

fn lock_manager(e: &Evidence) -> Measure {
    let waited = e.blocked(&["LWLock LockManager", "LWLock lock_manager"]);
    let us = e.with(&["LockAcquireExtended", "LockReleaseAll", "LockRelease"]);
    let unseen = e.blocked.is_empty() && e.of_cpu(us) >= 0.25;
    let by_setting = e.since(18);
    let remedy = if by_setting {
        "More relations are locked per transaction than the fast path has slots for; in 18 their \
         number follows max_locks_per_transaction (64 by default): raise it. Fewer partitions and \
         indexes, and statements that prune by a literal, take fewer locks."
    } else {
        "A backend has 16 fast-path slots until 17; tables, partitions and all their indexes \
         beyond that go through the shared table. Prune by a literal, keep fewer indexes and \
         partitions, prepare statements; 18 has as many slots as max_locks_per_transaction."
    };
    Measure::of(waited + us)
        .queueing(waited)
        .when(e.of_response(waited) >= 0.05 || unseen)
        .waits("LWLock LockManager", waited)
        .stacks("taking and releasing relation locks", us)
        .condition(e.until(17), "16 fast-path slots a backend until 17")
        .remedy(remedy)
        .variant(if by_setting {
            Some(RemedyVariant::settings(&[(
                "max_locks_per_transaction",
                "1024",
            )]))
        } else {
            e.until(17).then(|| RemedyVariant::version("18"))
        })
}

fn strong_lock(e: &Evidence) -> Measure {
    let us = e.with(&["FastPathTransferRelationLocks"]);
    let waited = e.blocked(&["LWLock LockFastPath", "LWLock lock_fastpath", "LWLock proc"]);
    Measure::of(us + waited)
        .queueing(waited)
        .when(e.of_cpu(us) >= 0.01)
        .stacks("FastPathTransferRelationLocks", us)
        .waits("LWLock LockFastPath", waited)
        .remedy(
            "Each LOCK TABLE, DDL statement or other lock of level SHARE and above visits every \
             backend and moves its fast-path locks to the shared table. Keep such statements out \
             of the load.",
        )
}

fn relation_lock(e: &Evidence) -> Measure {
    let waited = e.blocked(&[
        "Lock relation",
        "Lock object",
        "Lock page",
        "Lock advisory",
        "Lock userlock",
    ]);
    Measure::of(waited)
        .queueing(waited)
        .when(e.of_response(waited) >= 0.05)
        .waits("Lock relation, object or advisory", waited)
        .condition(
            [
                "lock table",
                "truncate",
                "alter ",
                "create index",
                "advisory",
            ]
            .iter()
            .any(|word| e.scripts.contains(word)),
            "the script takes such locks",
        )
        .remedy(
            "Somebody holds a lock that conflicts with everybody's: TRUNCATE, ALTER, LOCK TABLE, \
             or an advisory lock. Make that transaction short, set lock_timeout for it, and use \
             forms that lock less (CREATE INDEX CONCURRENTLY, NOT VALID).",
        )
}

fn snapshots(e: &Evidence) -> Measure {
    let us = e.with(&["GetSnapshotData"]);
    let waited = e.blocked(&["LWLock ProcArray"]);
    let enough = if e.until(13) { 0.06 } else { 0.12 };
    Measure::of(us + waited)
        .queueing(waited)
        .when(e.of_cpu(us) >= enough || e.of_response(waited) >= 0.05)
        .stacks("GetSnapshotData", us)
        .waits("LWLock ProcArray", waited)
        .condition(
            e.until(13),
            "until 13 a snapshot reads the state of every connection, idle ones included",
        )
        .remedy(
            "Until 13 each snapshot costs time for every connection, idle or not: use a pooler to \
             have fewer, or upgrade to 14 or later, where only transactions that write count.",
        )
        .variant(e.until(13).then(|| RemedyVariant::version("18")))
}

fn subtransactions(e: &Evidence) -> Measure {
    let us = e.with(&[
        "SubTransGetTopmostTransaction",
        "SubTransGetParent",
        "SubTransSetParent",
    ]);
    let lookups: f64 = ["pg_stat_slru(Subtrans)", "pg_stat_slru(subtransaction)"]
        .iter()
        .flat_map(|row| [format!("{row}.blks_hit"), format!("{row}.blks_read")])
        .filter_map(|name| e.counter(&name))
        .sum();
    let waited = e.blocked(&[
        "LWLock SubtransSLRU",
        "LWLock SubtransBuffer",
        "LWLock SubtransControl",
        "LWLock subtrans",
    ]);
    let nested = e.scripts.contains("savepoint") || e.scripts.contains("exception");
    Measure::of(us + waited)
        .queueing(waited)
        .when(e.of_cpu(us) >= 0.02 || e.of_response(waited) >= 0.05 || lookups >= LOOKUPS_MIN)
        .stacks("looking up parents of subtransactions", us)
        .counter("pages of pg_subtrans that were looked at", Some(lookups))
        .waits("LWLock Subtrans", waited)
        .condition(nested, "the script has savepoints or exceptions")
        .remedy(
            "A backend publishes 64 subtransactions; with more, every snapshot that sees it must \
             look parents up in pg_subtrans. Use fewer savepoints (a block with EXCEPTION is one), \
             not one a row, and end old snapshots; 17 can give subtransaction_buffers more room.",
        )
        .variant(
            e.since(17)
                .then(|| RemedyVariant::settings(&[("subtransaction_buffers", "8MB")])),
        )
}

fn multixacts(e: &Evidence) -> Measure {
    let us = e.with(&[
        "GetMultiXactIdMembers",
        "MultiXactIdExpand",
        "MultiXactIdCreate",
        "MultiXactIdWait",
    ]);
    let made: f64 = [
        "pg_stat_slru(MultiXactMember)",
        "pg_stat_slru(multixact_member)",
    ]
    .iter()
    .flat_map(|row| [format!("{row}.blks_hit"), format!("{row}.blks_read")])
    .filter_map(|name| e.counter(&name))
    .sum();
    let waited = e.blocked(&[
        "LWLock MultiXactMemberSLRU",
        "LWLock MultiXactOffsetSLRU",
        "LWLock MultiXactMemberControl",
        "LWLock MultiXactOffsetControl",
        "LWLock MultiXactGen",
        "LWLock MultiXactMemberBuffer",
        "LWLock MultiXactOffsetBuffer",
    ]);
    Measure::of(us + waited)
        .queueing(waited)
        .when(e.of_cpu(us) >= 0.03 || e.of_response(waited) >= 0.05)
        .stacks("making and reading MultiXacts", us)
        .counter("pages of members that were looked at", Some(made))
        .waits("LWLock MultiXact", waited)
        .remedy(
            "Several transactions lock the same rows together: SELECT … FOR SHARE, or foreign \
             keys into few parents. Lock less, shorten the transactions; 17 can give \
             multixact_member_buffers and multixact_offset_buffers more room.",
        )
}

fn transaction_status(e: &Evidence) -> Measure {
    let us = e.with(&["TransactionIdGetStatus", "TransactionLogFetch"]);
    let missed: f64 = [
        "pg_stat_slru(Xact).blks_read",
        "pg_stat_slru(transaction).blks_read",
    ]
    .iter()
    .filter_map(|name| e.counter(name))
    .sum();
    let waited = e.blocked(&[
        "LWLock XactSLRU",
        "LWLock XactBuffer",
        "LWLock CLogControl",
        "LWLock clog",
    ]);
    Measure::of(us + waited)
        .queueing(waited)
        .when(e.of_cpu(us) >= 0.08 || missed >= 0.1 || e.of_response(waited) >= 0.05)
        .stacks("reading transactions' status", us)
        .counter("pages of pg_xact read from disk", Some(missed))
        .waits("LWLock on pg_xact", waited)
        .remedy(
            "Rows without hint bits make every reader look their transaction up. VACUUM after a \
             large load sets the bits once; 17 can give transaction_buffers more room.",
        )
}

fn buffer_pin(e: &Evidence) -> Measure {
    let waited = e.blocked(&["BufferPin BufferPin", "buffer pin"]);
    Measure::of(waited)
        .queueing(waited)
        .when(e.of_response(waited) >= 0.02)
        .waits("BufferPin", waited)
        .stacks("LockBufferForCleanup", e.with(&["LockBufferForCleanup"]))
        .remedy(
            "VACUUM or recovery wants a page that a cursor keeps pinned. Fetch cursors to their \
             end, or close them.",
        )
}

fn spinlocks(e: &Evidence) -> Measure {
    let us = e.with(&["s_lock", "perform_spin_delay"]);
    let waited = e.blocked(&["Timeout SpinDelay", "spinlock delay"]);
    // Spinning is waiting, too, though it takes CPU time.
    Measure::of(us + waited)
        .queueing(us + waited)
        .when(e.of_cpu(us) >= 0.03 || e.of_response(waited) >= 0.03)
        .stacks("s_lock", us)
        .waits("Timeout SpinDelay", waited)
        .context(|it| it.counter("preemptions", e.counter("backends.involuntary_switches")))
        .remedy(
            "Backends burn CPU for locks that are held for nanoseconds, or whose holder lost its \
             CPU. Have fewer active connections than processors (a pooler), bind the server to \
             one NUMA node, and use a newer version, where fewer of these locks are left.",
        )
}
