//! Tests each signature with an affected load and with a healthy look-alike: it must be found in the
//! first and not in the second. A signature without a look-alike fails the test. docs/findings.md
//! lists all look-alikes.
//!
//! A load is 100 µs of CPU time per transaction plus its waits. Its stacks are given in percent of
//! the CPU time; the remainder is execution.

mod client;
mod system;

use std::collections::BTreeMap;

use pgassay_model::study::Protocol;
use pgassay_record::finding::Finding;

use super::diagnosis::findings_of_point;
use super::evidence::Evidence;
use super::signatures::signatures;
use super::stacks::{Stacks, tests::profile};

struct Case {
    id: &'static str,
    /// Describes the healthy load, in the words of docs/findings.md.
    lookalike: &'static str,
    affected: Evidence,
    healthy: Evidence,
}

pub(super) fn load(
    stacks: &[(&str, u32)],
    waits: &[(&str, f64)],
    counters: &[(&str, f64)],
) -> Evidence {
    let named: u32 = stacks.iter().map(|(_, percent)| percent).sum();
    let executing = ("PostgresMain;PortalRun;ExecutePlan", 100 - named);
    let stacks = [stacks, &[executing]].concat();
    let owned = |pairs: &[(&str, f64)]| -> BTreeMap<String, f64> {
        let pairs = pairs.iter().map(|(name, us)| ((*name).to_owned(), *us));
        pairs.collect()
    };
    let waited: f64 = waits.iter().map(|(_, us)| us).sum();
    Evidence {
        major: 18,
        clients: 8.0,
        protocol: Some(Protocol::Prepared),
        response_us: 100.0 + waited,
        cpu_us: 100.0,
        tps: 1000.0,
        stacks: Stacks::new(&profile(&stacks), 100.0),
        blocked: owned(waits),
        counters: owned(counters),
        ..Evidence::default()
    }
}

pub(super) fn stacks(stacks: &[(&str, u32)]) -> Evidence {
    load(stacks, &[], &[])
}

fn waits(waits: &[(&str, f64)]) -> Evidence {
    load(&[], waits, &[])
}

pub(super) fn counted(counters: &[(&str, f64)]) -> Evidence {
    load(&[], &[], counters)
}

/// A load with parallel workers that use this much CPU time.
fn workers(useful: f64) -> Evidence {
    let wait = useful / 2.0;
    load(
        &[("ExecGather;LaunchParallelWorkers", 30)],
        &[("IPC BgworkerShutdown", 200.0), ("IPC ExecuteGather", wait)],
        &[
            ("pg_stat_database.parallel_workers_launched", 2.0),
            ("background(ended processes).cpu_us", useful),
        ],
    )
}

fn with_settings(evidence: Evidence, settings: &[(&str, &str)]) -> Evidence {
    let settings = settings.iter();
    Evidence {
        settings: settings
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        ..evidence
    }
}

pub(super) fn at_major(major: u32, evidence: Evidence) -> Evidence {
    Evidence { major, ..evidence }
}

fn case(id: &'static str, lookalike: &'static str, sick: Evidence, healthy: Evidence) -> Case {
    Case {
        id,
        lookalike,
        affected: sick,
        healthy,
    }
}

const PLAN: &str = "PostgresMain;exec_simple_query;pg_plan_query;standard_planner";
const PARSE: &str = "PostgresMain;exec_simple_query;pg_parse_query;raw_parser";

fn of_statements() -> Vec<Case> {
    let simple = |evidence| Evidence {
        protocol: Some(Protocol::Simple),
        ..evidence
    };
    let in_function = [("fmgr_sql;init_sql_fcache;pg_plan_query", 30)];
    let jit = [("ExecInitExpr;jit_compile_expr;llvm_compile_expr", 10)];
    let long = |evidence| Evidence {
        response_us: 2e6,
        cpu_us: 2e6,
        stacks: Stacks::new(
            &profile(&[
                ("jit_compile_expr;llvm_compile_expr", 10),
                ("ExecutePlan", 90),
            ]),
            2e6,
        ),
        ..evidence
    };
    vec![
        case(
            "parse-and-plan",
            "an analytical query sent as text, whose planning is a tenth of its execution",
            simple(stacks(&[(PARSE, 20), (PLAN, 30)])),
            simple(stacks(&[(PARSE, 2), (PLAN, 8)])),
        ),
        case(
            "custom-plans",
            "a prepared statement that is planned for its first five executions only",
            stacks(&[(PLAN, 40)]),
            stacks(&[(PLAN, 5)]),
        ),
        case(
            "sql-function-planned-inside",
            "an SQL function on 18, whose plans are cached",
            at_major(17, stacks(&in_function)),
            stacks(&in_function),
        ),
        case(
            "cached-plan-locks",
            "a table with many partitions that is pruned at plan time: the plan locks one of them",
            stacks(&[("GetCachedPlan;AcquireExecutorLocks;LockRelationOid", 40)]),
            stacks(&[("GetCachedPlan;AcquireExecutorLocks;LockRelationOid", 3)]),
        ),
        case(
            "partition-routing",
            "inserts into many partitions on 12 or later, where only the target is opened",
            at_major(
                10,
                stacks(&[("ExecSetupPartitionTupleRouting;find_all_inheritors", 60)]),
            ),
            stacks(&[("ExecInsert;ExecFindPartition", 10)]),
        ),
        case(
            "jit",
            "compilation in a query that takes seconds, a tenth of its time",
            stacks(&jit),
            long(stacks(&[])),
        ),
        case(
            "parallel-start",
            "a parallel query whose workers compute while the leader waits for their rows",
            workers(3000.0),
            workers(60_000.0),
        ),
        case(
            "catalog-churn",
            "catalog caches that are refilled after a reset, without DDL in the load",
            stacks(&[("DefineRelation", 20), ("RelationBuildDesc", 20)]),
            stacks(&[
                ("PreCommit_on_commit_actions", 1),
                ("RelationBuildDesc", 40),
            ]),
        ),
        case(
            "catalog-churn",
            "indexes that are built on large tables",
            stacks(&[
                ("DefineIndex;index_create;index_build", 60),
                ("DefineRelation", 20),
            ]),
            stacks(&[
                ("DefineIndex;index_create;index_build", 60),
                ("DefineIndex;index_concurrently_build;index_build", 20),
                ("DefineIndex;validate_index", 10),
            ]),
        ),
        case(
            "foreign-key-checks",
            "inserts with a foreign key, whose check is a small part of the statement",
            stacks(&[("AfterTriggerExecute;RI_FKey_check_ins;ri_PerformCheck", 40)]),
            stacks(&[("AfterTriggerExecute;RI_FKey_check_ins;ri_PerformCheck", 8)]),
        ),
    ]
}

/// A load that waits for other transactions in these functions.
fn conflict(function: &str, counter: &str) -> Evidence {
    let stack = format!("ExecModifyTable;{function};XactLockTableWait;LockAcquire");
    load(
        &[(stack.as_str(), 10)],
        &[("Lock transactionid", 900.0)],
        &[(counter, 1.0)],
    )
}

fn of_row_and_table_locks() -> Vec<Case> {
    let content = |nextval: u32| {
        let stack = [("nextval_internal;LWLockAcquire", nextval)];
        load(&stack, &[("LWLock BufferContent", 100.0)], &[])
    };
    vec![
        case(
            "hot-row",
            "inserts of equal keys, which wait for each other's transaction to learn whether the \
             key is taken",
            conflict("heap_update", "pg_stat_database.tup_updated"),
            conflict(
                "_bt_doinsert;_bt_check_unique",
                "pg_stat_database.tup_inserted",
            ),
        ),
        case(
            "sequence-page",
            "an identity column: nextval for each row, without waits for the sequence's page",
            content(30),
            stacks(&[("nextval_internal", 10)]),
        ),
        case(
            "hot-page",
            "waits for the page of a sequence, which has its own signature",
            content(0),
            content(30),
        ),
        case(
            "lock-manager",
            "many fast-path relation locks, without waits",
            waits(&[("LWLock LockManager", 100.0)]),
            load(&[("LockAcquireExtended", 30)], &[("client", 50.0)], &[]),
        ),
        case(
            "strong-lock",
            "fast-path relation locks, without strong locks",
            stacks(&[("LockAcquireExtended;FastPathTransferRelationLocks", 5)]),
            stacks(&[("LockAcquireExtended;FastPathGrantRelationLock", 5)]),
        ),
        case(
            "relation-lock",
            "waits for row locks, which are waits for transactions, not for tables",
            waits(&[("Lock relation", 300.0)]),
            waits(&[("Lock transactionid", 300.0)]),
        ),
        case(
            "buffer-pin",
            "VACUUM that occasionally waits for a pin",
            waits(&[("BufferPin BufferPin", 50.0)]),
            waits(&[("BufferPin BufferPin", 1.0)]),
        ),
    ]
}

fn of_shared_structures() -> Vec<Case> {
    let lookups = |count: f64| {
        let name = "pg_stat_slru(subtransaction).blks_hit";
        load(
            &[("SubTransGetTopmostTransaction", 5)],
            &[],
            &[(name, count)],
        )
    };
    vec![
        case(
            "snapshots",
            "short queries on 14 or later that spend a tenth of their CPU time on snapshots",
            at_major(
                13,
                stacks(&[("GetTransactionSnapshot;GetSnapshotData", 10)]),
            ),
            stacks(&[("GetTransactionSnapshot;GetSnapshotData", 10)]),
        ),
        case(
            "subtransactions",
            "one savepoint per transaction, which does not overflow the cache",
            lookups(200.0),
            counted(&[("pg_stat_slru(subtransaction).blks_hit", 2.0)]),
        ),
        case(
            "multixacts",
            "foreign-key parents that one transaction at a time locks",
            stacks(&[(
                "heap_lock_tuple;MultiXactIdExpand;GetMultiXactIdMembers",
                10,
            )]),
            stacks(&[("heap_lock_tuple;GetMultiXactIdMembers", 1)]),
        ),
        case(
            "transaction-status",
            "rows that are read once after a load and get their hint bits then",
            stacks(&[("HeapTupleSatisfiesMVCC;TransactionIdGetStatus", 20)]),
            stacks(&[("HeapTupleSatisfiesMVCC;TransactionIdGetStatus", 3)]),
        ),
        case(
            "spinlocks",
            "a saturated machine that preempts backends, none of which spins",
            stacks(&[("LWLockAcquire;s_lock;perform_spin_delay", 10)]),
            counted(&[("backends.involuntary_switches", 2.0)]),
        ),
    ]
}

fn cases() -> Vec<Case> {
    [
        of_statements(),
        client::of_client(),
        client::of_tls(),
        of_row_and_table_locks(),
        of_shared_structures(),
        system::of_wal(),
        system::of_storage(),
        system::of_writes(),
        system::of_pruning(),
        system::of_extension(),
        system::of_machine(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

pub(super) fn is_found(id: &str, evidence: &Evidence) -> bool {
    let found = findings_of_point(evidence, (None, None));
    found.iter().any(|finding| finding.id == id)
}

#[test]
fn every_signature_is_absent_from_its_healthy_look_alike() {
    let cases = cases();
    let mut wrong = Vec::new();
    for signature in signatures() {
        let of_it: Vec<&Case> = cases.iter().filter(|it| it.id == signature.id).collect();
        if of_it.is_empty() {
            wrong.push(format!("{}: no look-alike", signature.id));
        }
        for case in of_it {
            if !is_found(case.id, &case.affected) {
                wrong.push(format!("{}: not found in the affected load", case.id));
            }
            if is_found(case.id, &case.healthy) {
                wrong.push(format!("{}: found in {}", case.id, case.lookalike));
            }
        }
    }
    for case in &cases {
        if !signatures().any(|it| it.id == case.id) {
            wrong.push(format!("{}: not a signature", case.id));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Regression: queries of 300 ms were short ones on a live server that counts the transactions of their workers.
#[test]
fn workers_do_not_make_long_queries_short() {
    let short = |major, is_live, response_us| {
        let load = workers(3000.0);
        let live = Evidence {
            major,
            is_live,
            response_us,
            blocked: [("IPC BgworkerShutdown".to_owned(), response_us / 2.0)].into(),
            ..load
        };
        is_found("parallel-start", &live)
    };
    assert!(short(17, true, 15_000.0));
    assert!(!short(17, true, 60_000.0));
    assert!(short(18, true, 60_000.0) && short(17, false, 60_000.0));
}

/// Regression: more fast-path slots were suggested, and tried, for clients that queue for a row.
#[test]
fn the_lock_table_in_a_queue_for_a_row_is_not_for_want_of_fast_path_slots() {
    for (major, of_setting) in [
        (18, "max_locks_per_transaction"),
        (14, "Up to PostgreSQL 17"),
    ] {
        let found = |row_us| {
            let load = waits(&[
                ("LWLock LockManager", 100.0),
                ("Lock transactionid", row_us),
            ]);
            let load = Evidence { major, ..load };
            let mut found = findings_of_point(&load, (None, None));
            found.retain(|it| it.id == "lock-manager");
            found.remove(0)
        };
        let (queue, alone) = (found(900.0), found(50.0));
        let says = |it: &Finding| {
            format!("{} {:?}", it.suggested_fix, it.fix_variants).contains(of_setting)
        };
        assert!(!says(&queue), "{queue:?}");
        assert!(queue.fix_variants.is_empty(), "{queue:?}");
        assert!(says(&alone), "{alone:?}");
    }
}

/// Regression: `waiting for row locks 16 µs` followed the wait for these locks, which was 10,000 times as long.
#[test]
fn waits_for_locks_had_two_durations() {
    let update = conflict("heap_update", "pg_stat_database.tup_updated");
    let found = findings_of_point(&update, (None, None));
    let rows = found.iter().find(|it| it.id == "hot-row").unwrap();
    let facts: Vec<&str> = rows.evidence.iter().map(|it| it.what.as_str()).collect();
    let both = [
        "Lock transactionid and Lock tuple",
        "CPU time of waiting for row locks",
    ];
    assert_eq!(facts[..2], both);
}

#[test]
fn findings_md_lists_every_signature_and_its_look_alike() {
    let page = include_str!("../../../../docs/findings.md");
    let mut missing = Vec::new();
    for case in cases() {
        let mut rows = page.lines();
        let row = rows.find(|line| line.starts_with(&format!("| `{}` | ", case.id)));
        if !row.is_some_and(|row| row.contains(case.lookalike)) {
            missing.push((case.id, case.lookalike));
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}
