//! Locks on rows, relations, buffers and SLRUs; snapshots and spinlocks.
//!
//! Sources: `src/backend/storage/lmgr/README`, `lmgr/lock.c` (16 fast-path slots per backend up to 17,
//! `max_locks_per_transaction` of them in 18), `access/transam/slru.c` (configurable from 17),
//! `storage/ipc/procarray.c` (snapshots scale since 14).

use pgassay_record::remedy::RemedyVariant;

use crate::evaluation::{Evaluation, Signature};
use crate::evidence::Evidence;

use super::raising::{BLOCK, raised};

pub(super) const SIGNATURES: &[Signature] = &[
    Signature {
        id: "hot-row",
        title: "Transactions wait for row locks",
        manual: "Concurrency Control: Row-Level Locks",
        measure: hot_row,
    },
    Signature {
        id: "sequence-page",
        title: "Contention on a sequence's page, or frequent WAL logging of it",
        manual: "SQL Commands: CREATE SEQUENCE (CACHE)",
        measure: sequence,
    },
    Signature {
        id: "hot-page",
        title: "Contention on the content lock of a page",
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
        title: "Strong locks push fast-path locks into the shared lock table",
        manual: "Concurrency Control: Table-Level Locks",
        measure: strong_lock,
    },
    Signature {
        id: "relation-lock",
        title: "Sessions wait for table-level or advisory locks",
        manual: "Concurrency Control: Table-Level Locks",
        measure: relation_lock,
    },
    Signature {
        id: "snapshots",
        title: "Taking snapshots is expensive",
        manual: "Release Notes: PostgreSQL 14 (scalability with many connections)",
        measure: snapshots,
    },
    Signature {
        id: "subtransactions",
        title: "Subtransactions overflow the cache that each backend publishes",
        manual: "Internals: Transaction Processing, Subtransactions",
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
        title: "Transaction status is looked up in pg_xact repeatedly",
        manual: "Monitoring: pg_stat_slru; Resource Consumption: transaction_buffers",
        measure: transaction_status,
    },
    Signature {
        id: "buffer-pin",
        title: "A process waits for a pinned buffer",
        manual: "Monitoring: Wait Events of Type BufferPin (from 19 on Buffer)",
        measure: buffer_pin,
    },
    Signature {
        id: "spinlocks",
        title: "Contention on spinlocks",
        manual: "Monitoring: Wait Events of Type Timeout (SpinDelay)",
        measure: spinlocks,
    },
];

/// Starting a subtransaction also accesses a page of `pg_subtrans`, so some accesses are harmless.
const LOOKUPS_MIN: f64 = 30.0;

/// Functions that lock an existing row.
const ROW_LOCKERS: [&str; 7] = [
    "heap_update",
    "heap_delete",
    "heap_lock_tuple",
    "heap_acquire_tuplock",
    "heapam_tuple_lock",
    "heapam_tuple_update",
    "heapam_tuple_delete",
];
/// Functions that check whether a key exists already.
const KEY_CHECKS: [&str; 4] = [
    "_bt_doinsert",
    "_bt_check_unique",
    "check_exclusion_or_unique_constraint",
    "check_exclusion_constraint",
];
/// Functions that wait for another transaction to end, for any reason.
const TRANSACTION_WAITS: [&str; 4] = [
    "XactLockTableWait",
    "ConditionalXactLockTableWait",
    "SpeculativeInsertionWait",
    "MultiXactIdWait",
];

/// The share of the waits for other transactions that are waits for row locks. An insert that waits
/// to learn whether an equal key stays has the same wait event. Stacks distinguish the two; without
/// stacks, the waits of a load that only inserts are taken as waits for keys.
fn share_of_rows(e: &Evidence) -> f64 {
    let rows = e.in_nested_functions(&[&ROW_LOCKERS, &TRANSACTION_WAITS]);
    let keys = e.in_nested_functions(&[&KEY_CHECKS, &TRANSACTION_WAITS]);
    if rows + keys > 0.0 {
        return rows / (rows + keys);
    }
    let counted = |name: &str| e.counter(&format!("pg_stat_database.{name}"));
    let changed = counted("tup_updated").unwrap_or(0.0) + counted("tup_deleted").unwrap_or(0.0);
    let only_inserts = counted("tup_inserted").is_some_and(|rows| rows > changed) && changed < 0.05;
    if only_inserts { 0.0 } else { 1.0 }
}

/// Deadlocks are the cause of waits for rows if they account for this share of them directly: others wait behind them.
const DEADLOCKS_MIN: f64 = 0.2;
/// PostgreSQL's default `deadlock_timeout`.
const DEADLOCK_TIMEOUT_US: f64 = 1e6;

fn hot_row(e: &Evidence) -> Evaluation {
    let of_rows = share_of_rows(e);
    let waited = e.blocked(&["Lock tuple"]) + of_rows * e.blocked(&["Lock transactionid"]);
    let us = e.in_nested_functions(&[&ROW_LOCKERS, &TRANSACTION_WAITS])
        + e.in_functions(&["heap_acquire_tuplock"]);
    let deadlocks = e.counter("pg_stat_database.deadlocks");
    // A deadlock stops at least two sessions.
    let deadlocked_us = 2.0 * DEADLOCK_TIMEOUT_US * deadlocks.unwrap_or(0.0);
    let spread = e.latency_p99_us / e.latency_p50_us.max(1.0);
    // Without wait events, only stacks and the latency tail show it.
    let unseen = e.blocked.is_empty() && e.of_cpu(us) >= 0.05 && spread >= 4.0;
    Evaluation::of(waited.max(us))
        .queueing(waited)
        .when(e.of_response(waited) >= 0.1 || unseen)
        .waits("Lock transactionid and Lock tuple", waited)
        .stacks("CPU time of waiting for row locks", us)
        .context(|it| {
            it.clock("99th percentile latency", e.latency_p99_us)
                .counter("deadlocks", deadlocks)
        })
        .remedy(if deadlocked_us >= DEADLOCKS_MIN * waited.max(us) {
            "Avoid the deadlocks: update or lock rows in the same order in every transaction, such as by \
             primary key, and repeat transactions that fail with a deadlock. Each deadlock stops its sessions, \
             and all that wait for them, for deadlock_timeout (1 s by default)."
        } else {
            "Shorten the transactions that update the same rows, and update these rows last. \
             Spread a counter over several rows and sum them, or insert rows and aggregate them \
             later; take jobs from a queue with SELECT … FOR UPDATE SKIP LOCKED."
        })
}

fn sequence(e: &Evidence) -> Evaluation {
    let us = e.in_functions(&["nextval_internal"]);
    let logged = e.in_nested_functions(&[
        &["nextval_internal"],
        &[
            "XLogInsert",
            "GetTopTransactionId",
            "GetTopFullTransactionId",
        ],
    ]);
    let waited = e.blocked(&["LWLock BufferContent", "LWLock buffer_content"]);
    let is_hot = e.of_cpu(us) >= 0.05 && e.of_response(waited) >= 0.05;
    Evaluation::of(us + waited)
        .queueing(waited)
        .when(is_hot || e.of_cpu(us) >= 0.4)
        .stacks("nextval", us)
        .stacks("of which WAL-logging a batch of values", logged)
        .waits("LWLock BufferContent", waited)
        .against(
            waited <= 0.0,
            "no backend waits for the sequence's page: with few CPUs, only CPU time shows it",
        )
        .remedy(
            "Let each session fetch n values at a time with ALTER SEQUENCE … CACHE n: without it, \
             each value locks the sequence's page exclusively, and every 32 values write a WAL \
             record. The drawbacks are gaps, and values out of order across sessions. Several \
             sequences, or uuidv7() (PostgreSQL 18), avoid the shared page.",
        )
}

fn hot_page(e: &Evidence) -> Evaluation {
    let waited = e.blocked(&["LWLock BufferContent", "LWLock buffer_content"]);
    let index = e.in_functions(&["_bt_doinsert", "_bt_insertonpg"]);
    Evaluation::of(waited)
        .queueing(waited)
        .when(
            e.of_response(waited) >= 0.05 && e.of_cpu(e.in_functions(&["nextval_internal"])) < 0.05,
        )
        .waits("LWLock BufferContent", waited)
        .context(|it| {
            it.stacks("inserting into B-tree indexes", index)
                .stacks("updating rows", e.in_functions(&["heap_update"]))
        })
        .remedy(
            "Partition by hash, spread the key, lower fillfactor so that rows lie on more pages, \
             or drop unused indexes. Many backends write to one page: the rightmost leaf of an \
             index on an increasing key, or a page of a small hot table.",
        )
}

/// Any load takes relation locks; from this share of its CPU time on, they are many.
const LOCKING_MIN: f64 = 0.1;

fn lock_manager(e: &Evidence) -> Evaluation {
    let waited = e.blocked(&["LWLock LockManager", "LWLock lock_manager"]);
    let us = e.in_functions(&["LockAcquireExtended", "LockReleaseAll", "LockRelease"]);
    let unseen = e.blocked.is_empty() && e.of_cpu(us) >= 0.25;
    // Sessions that queue for one row or object meet here whenever the lock passes to the next.
    let queued: f64 = e
        .blocked
        .iter()
        .filter(|(reason, _)| reason.starts_with("Lock "))
        .map(|(_, us)| us)
        .sum();
    let is_queue = waited > 0.0 && queued >= waited;
    let by_setting = e.since(18) && !is_queue;
    let remedy = if is_queue {
        "Shorten the queue for the row, table or advisory lock that sessions wait for, or let fewer sessions wait \
         for it: whenever it passes to the next, they meet in one part of the shared lock table. More fast-path \
         slots do not help."
    } else if by_setting {
        "Raise max_locks_per_transaction (64 by default), which in PostgreSQL 18 also sets the \
         number of fast-path slots: transactions lock more relations than there are slots. Lock fewer \
         relations: prune partitions with literals, and keep fewer partitions and indexes."
    } else {
        "Lock fewer relations: prune partitions with literals, keep fewer partitions and indexes, \
         and prepare statements. Up to PostgreSQL 17, a backend has 16 fast-path slots; locks on \
         further tables, partitions and indexes use the shared lock table. From 18 on, a backend \
         has as many slots as max_locks_per_transaction."
    };
    Evaluation::of(waited + us)
        .queueing(waited)
        .when(e.of_response(waited) >= 0.05 || unseen)
        .waits("LWLock LockManager", waited)
        .context_unless(e.of_cpu(us) >= LOCKING_MIN, |it| {
            it.stacks("taking and releasing relation locks", us)
        })
        .condition(
            e.until(17) && !is_queue,
            "up to PostgreSQL 17, a backend has 16 fast-path slots",
        )
        .remedy(remedy)
        .variant(if by_setting {
            raised(e, "max_locks_per_transaction", "1024", 1.0)
        } else {
            (e.until(17) && !is_queue).then(|| RemedyVariant::version("18"))
        })
}

fn strong_lock(e: &Evidence) -> Evaluation {
    let us = e.in_functions(&["FastPathTransferRelationLocks"]);
    let waited = e.blocked(&["LWLock LockFastPath", "LWLock lock_fastpath", "LWLock proc"]);
    Evaluation::of(us + waited)
        .queueing(waited)
        .when(e.of_cpu(us) >= 0.01)
        .stacks("FastPathTransferRelationLocks", us)
        .waits("LWLock LockFastPath", waited)
        .remedy(
            "Keep LOCK TABLE, DDL and other statements that take a SHARE or stronger lock out of \
             the load. Each of them visits every backend and moves its fast-path locks to the \
             shared lock table.",
        )
}

fn relation_lock(e: &Evidence) -> Evaluation {
    let waited = e.blocked(&[
        "Lock relation",
        "Lock object",
        "Lock page",
        "Lock advisory",
        "Lock userlock",
    ]);
    Evaluation::of(waited)
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
            "Shorten the transaction that holds the conflicting lock (TRUNCATE, ALTER TABLE, LOCK \
             TABLE or an advisory lock), and set lock_timeout for it. Use commands that lock less, \
             such as CREATE INDEX CONCURRENTLY or ADD CONSTRAINT … NOT VALID.",
        )
}

fn snapshots(e: &Evidence) -> Evaluation {
    let us = e.in_functions(&["GetSnapshotData"]);
    let waited = e.blocked(&["LWLock ProcArray", "IPC ProcarrayGroupUpdate"]);
    let enough = if e.until(13) { 0.06 } else { 0.12 };
    let fix = if e.until(13) {
        "Use a connection pooler to have fewer connections, or upgrade to PostgreSQL 14 or later. Up to 13, \
         each snapshot reads the state of every connection, idle or not; from 14 on, an idle connection costs \
         almost nothing, and most of the cost is for transactions that have a transaction ID."
    } else {
        "Use a connection pooler, so that fewer transactions run at the same time: each snapshot \
         lists every transaction that has a transaction ID."
    };
    Evaluation::of(us + waited)
        .queueing(waited)
        .when(e.of_cpu(us) >= enough || e.of_response(waited) >= 0.05)
        .stacks("GetSnapshotData", us)
        .waits("LWLock ProcArray", waited)
        .condition(
            e.until(13),
            "up to PostgreSQL 13, a snapshot reads the state of every connection, including idle ones",
        )
        .remedy(fix)
        .variant(e.until(13).then(|| RemedyVariant::version("18")))
}

fn subtransactions(e: &Evidence) -> Evaluation {
    let us = e.in_functions(&[
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
    Evaluation::of(us + waited)
        .queueing(waited)
        .when(e.of_cpu(us) >= 0.02 || e.of_response(waited) >= 0.05 || lookups >= LOOKUPS_MIN)
        .stacks("looking up parents of subtransactions", us)
        .counter("pg_subtrans page accesses", Some(lookups))
        .waits("LWLock Subtrans", waited)
        .condition(nested, "the script uses savepoints or exceptions")
        .remedy(
            "Use fewer savepoints (a PL/pgSQL block with EXCEPTION is one), not one per row, and \
             end old snapshots. A backend publishes 64 subtransactions; with more, every snapshot \
             that sees them must look up parents in pg_subtrans. From PostgreSQL 17 on, raise \
             subtransaction_buffers.",
        )
        .variant(raised(e, "subtransaction_buffers", "8MB", BLOCK).filter(|_| e.since(17)))
}

fn multixacts(e: &Evidence) -> Evaluation {
    let us = e.in_functions(&[
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
    Evaluation::of(us + waited)
        .queueing(waited)
        .when(e.of_cpu(us) >= 0.03 || e.of_response(waited) >= 0.05)
        .stacks("creating and reading MultiXacts", us)
        .counter("MultiXact member page accesses", Some(made))
        .waits("LWLock MultiXact", waited)
        .remedy(
            "Avoid locking the same rows from many transactions, whether with SELECT … FOR SHARE or through \
             foreign keys to a few parent rows, and shorten the transactions that do. From PostgreSQL 17 on, raise \
             multixact_member_buffers and multixact_offset_buffers.",
        )
}

fn transaction_status(e: &Evidence) -> Evaluation {
    let us = e.in_functions(&["TransactionIdGetStatus", "TransactionLogFetch"]);
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
        "IPC XactGroupUpdate",
    ]);
    Evaluation::of(us + waited)
        .queueing(waited)
        .when(e.of_cpu(us) >= 0.08 || missed >= 0.1 || e.of_response(waited) >= 0.05)
        .stacks("looking up transaction status", us)
        .counter("pages of pg_xact read from disk", Some(missed))
        .waits("LWLock on pg_xact", waited)
        .remedy(
            "Run VACUUM after a large load: it sets hint bits, without which every reader must \
             look up the transaction of each row. From PostgreSQL 17 on, raise transaction_buffers.",
        )
}

fn buffer_pin(e: &Evidence) -> Evaluation {
    let waited = e.blocked(&["BufferPin BufferPin", "buffer pin"]);
    Evaluation::of(waited)
        .queueing(waited)
        .when(e.of_response(waited) >= 0.02)
        .waits("BufferPin", waited)
        .stacks(
            "LockBufferForCleanup",
            e.in_functions(&["LockBufferForCleanup"]),
        )
        .remedy(
            "Fetch cursors to the end, or close them: VACUUM or recovery waits for a page that a \
             cursor keeps pinned.",
        )
}

fn spinlocks(e: &Evidence) -> Evaluation {
    let us = e.in_functions(&["s_lock", "perform_spin_delay"]);
    let waited = e.blocked(&["Timeout SpinDelay", "spinlock delay"]);
    // Spinning takes CPU time, but it is waiting.
    Evaluation::of(us + waited)
        .queueing(us + waited)
        .when(e.of_cpu(us) >= 0.03 || e.of_response(waited) >= 0.03)
        .stacks("s_lock", us)
        .waits("Timeout SpinDelay", waited)
        .context(|it| it.counter("preemptions", e.counter("backends.involuntary_switches")))
        .remedy(
            "Keep fewer active connections than CPUs (with a pooler), bind the server to one NUMA \
             node, and upgrade: newer versions have fewer spinlocks. Backends burn CPU time while \
             they wait for locks that are held for nanoseconds, or whose holder lost its CPU.",
        )
}
