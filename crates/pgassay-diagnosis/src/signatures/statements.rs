//! Statement overhead: parsing, planning, cached plans, partition routing, JIT compilation.
//!
//! Sources: `src/backend/tcop/postgres.c`, `utils/cache/plancache.c` (five custom plans, then the
//! choice), `executor/execPartition.c`, `executor/functions.c` (SQL functions have a plan cache
//! from 18), `jit/`.

use pgassay_model::study::Protocol;
use pgassay_record::remedy::RemedyVariant;

use crate::evaluation::{Evaluation, Signature};
use crate::evidence::Evidence;

pub(super) const SIGNATURES: &[Signature] = &[
    Signature {
        id: "parse-and-plan",
        title: "Statements are parsed and planned at every execution",
        manual: "SQL Commands: PREPARE; libpq: Command Execution Functions",
        measure: parse_and_plan,
    },
    Signature {
        id: "custom-plans",
        title: "Prepared statements are planned again at every execution",
        manual: "Server Configuration: Query Planning, plan_cache_mode",
        measure: custom_plans,
    },
    Signature {
        id: "sql-function-planned-inside",
        title: "An SQL function is planned again by every query that calls it",
        manual: "Extending SQL: Query Language (SQL) Functions",
        measure: sql_function,
    },
    Signature {
        id: "cached-plan-locks",
        title: "A cached plan locks all of its tables before it runs",
        manual: "Data Definition: Partition Pruning; Query Planning: plan_cache_mode",
        measure: cached_plan_locks,
    },
    Signature {
        id: "partition-routing",
        title: "Routing inserted rows to partitions is expensive",
        manual: "Data Definition: Table Partitioning",
        measure: partition_routing,
    },
    Signature {
        id: "jit",
        title: "JIT compilation takes much of the CPU time",
        manual: "Just-in-Time Compilation: When to JIT?",
        measure: jit,
    },
    Signature {
        id: "parallel-start",
        title: "Short queries start parallel workers",
        manual: "Parallel Query: When Can Parallel Query Be Used?",
        measure: parallel_start,
    },
    Signature {
        id: "catalog-churn",
        title: "The load creates and drops tables continually",
        manual: "SQL Commands: CREATE TABLE (temporary tables); Routine Vacuuming",
        measure: catalog_churn,
    },
    Signature {
        id: "foreign-key-checks",
        title: "Foreign keys are checked row by row",
        manual: "Data Definition: Constraints, Foreign Keys",
        measure: foreign_keys,
    },
];

/// Phases from statement text to plan.
const BEFORE_EXECUTION: [&str; 4] = ["parse", "analyze", "rewrite", "plan"];

/// CPU time of statements without the network phase. The cost of receiving and sending depends on
/// how deeply the CPU sleeps in between: on an idle machine it is half of a lookup's CPU time.
fn of_statement(e: &Evidence) -> f64 {
    e.cpu_us - e.phases(&["network"])
}

fn parse_and_plan(e: &Evidence) -> Evaluation {
    let us = e.phases(&BEFORE_EXECUTION);
    let protocol = match e.protocol {
        Some(Protocol::Simple) => "each statement is sent as text (simple protocol)",
        _ => "each statement is parsed again (extended protocol, unnamed statement)",
    };
    Evaluation::of(us)
        .when(us > 0.3 * of_statement(e) && e.protocol != Some(Protocol::Prepared))
        .stacks("parse", e.phases(&["parse"]))
        .stacks("analyze and rewrite", e.phases(&["analyze", "rewrite"]))
        .stacks("plan", e.phases(&["plan"]))
        .condition(e.protocol.is_some(), protocol)
        .remedy(
            "Prepare statements once and execute them many times. A connection pooler must support \
             prepared statements (PgBouncer does from 1.21 on). From PostgreSQL 12 on, use plan_cache_mode \
             to test whether a generic plan is good enough.",
        )
        .variant(
            e.protocol
                .map(|_| RemedyVariant::protocol(Protocol::Prepared)),
        )
}

fn custom_plans(e: &Evidence) -> Evaluation {
    let us = e.phases(&["plan"]);
    let inside =
        e.in_nested_functions(&[&["GetCachedPlan"], &["pg_plan_queries", "BuildCachedPlan"]]);
    let forced = e.setting("plan_cache_mode") == Some("force_generic_plan");
    Evaluation::of(us)
        .when(us > 0.25 * of_statement(e) && e.protocol == Some(Protocol::Prepared))
        .stacks("planning of prepared statements", us)
        .stacks("of which inside GetCachedPlan", inside)
        .condition(true, "statements are prepared once")
        .against(
            forced,
            "plan_cache_mode=force_generic_plan is set: invalidated plans may be the cause",
        )
        .remedy(
            "Set plan_cache_mode=force_generic_plan (PostgreSQL 12 and later) if the generic plan is as good: \
             the planner estimates custom plans to be so much cheaper that it plans every time. If \
             the generic plan is worse, planning is the price of a good plan.",
        )
        .variant(
            (e.since(12) && !forced)
                .then(|| RemedyVariant::session(&[("plan_cache_mode", "force_generic_plan")])),
        )
}

fn sql_function(e: &Evidence) -> Evaluation {
    let planned: &[&str] = &[
        "pg_plan_query",
        "pg_parse_query",
        "raw_parser",
        "pg_analyze_and_rewrite_params",
        "pg_analyze_and_rewrite_withcb",
        "standard_planner",
    ];
    let us = e.in_nested_functions(&[&["fmgr_sql", "init_sql_fcache"], planned]);
    Evaluation::of(us)
        .when(e.of_cpu(us) >= 0.1 && e.until(17))
        .stacks("parsing and planning inside an SQL function", us)
        .condition(e.until(17), "before PostgreSQL 18, SQL functions do not cache plans")
        .remedy(
            "So that the planner can inline it, declare the function RETURNS SETOF or TABLE, STABLE or IMMUTABLE, \
             and not STRICT, SECURITY DEFINER or with SET, and call it in FROM; or write it in PL/pgSQL, which \
             caches plans; or upgrade to PostgreSQL 18. Before 18, every query \
             that calls an SQL function that is not inlined parses and plans it again.",
        )
        .variant(Some(RemedyVariant::version("18")))
}

fn cached_plan_locks(e: &Evidence) -> Evaluation {
    let us = e.in_functions(&["AcquireExecutorLocks"]);
    let waited = e.blocked(&["LWLock LockManager", "LWLock lock_manager"]);
    Evaluation::of(us)
        .when(e.of_cpu(us) >= 0.15)
        .stacks("AcquireExecutorLocks", us)
        .waits("LWLock LockManager", waited)
        .condition(
            e.protocol == Some(Protocol::Prepared),
            "statements are prepared",
        )
        .remedy(
            "Write the partition key as a literal, or set plan_cache_mode=force_custom_plan \
             (PostgreSQL 12 and later) to plan at every execution: a generic plan over a partitioned table locks \
             every partition before it prunes any. Fewer partitions also help.",
        )
        .variant(
            e.since(12)
                .then(|| RemedyVariant::session(&[("plan_cache_mode", "force_custom_plan")])),
        )
}

fn partition_routing(e: &Evidence) -> Evaluation {
    let setup = e.in_functions(&["ExecSetupPartitionTupleRouting", "find_all_inheritors"]);
    let find = e.in_functions(&["ExecFindPartition"]);
    let is_old = e.until(11);
    let us = if is_old {
        setup.max(find)
    } else {
        find.max(setup)
    };
    let remedy = if is_old {
        "Upgrade to PostgreSQL 12 or later, which opens and locks only the partition that takes the \
         row: for each INSERT, PostgreSQL 10 opens and locks every partition, and 11 locks them all. Until \
         then, insert into the leaf partition, put many rows into one statement, or use fewer \
         partitions."
    } else {
        "Check whether the partition key is an expensive expression, or insert into the leaf \
         partition. Routing itself is cheap since PostgreSQL 12."
    };
    Evaluation::of(us)
        .when(e.of_cpu(us) >= if is_old { 0.15 } else { 0.25 })
        .stacks(
            "ExecSetupPartitionTupleRouting",
            e.in_functions(&["ExecSetupPartitionTupleRouting"]),
        )
        .stacks(
            "find_all_inheritors",
            e.in_functions(&["find_all_inheritors"]),
        )
        .stacks("ExecFindPartition", find)
        .context(|it| {
            let waited = e.blocked(&["LWLock LockManager", "LWLock lock_manager"]);
            it.waits("LWLock LockManager", waited)
        })
        .condition(
            is_old,
            "up to PostgreSQL 11, each INSERT opens or locks all partitions",
        )
        .remedy(remedy)
        .variant(is_old.then(|| RemedyVariant::version("18")))
}

fn jit(e: &Evidence) -> Evaluation {
    let us = e.in_functions(&[
        "llvmjit",
        "libLLVM",
        "libLLVM-14",
        "libLLVM-15",
        "libLLVM-16",
        "libLLVM-17",
        "llvm_compile_expr",
        "llvm_compile_module",
        "llvm_get_function",
        "jit_compile_expr",
        "llvm_release_context",
    ]);
    // A long query compiles once and runs the compiled code for all the rest.
    let is_long = e.response_us > 1e6;
    let enough = if is_long { 0.25 } else { 0.05 };
    Evaluation::of(us)
        .when(e.of_cpu(us) >= enough)
        .stacks("compiling and optimizing with LLVM", us)
        .condition(e.since(12), "jit is on by default since PostgreSQL 12")
        .against(is_long, "the queries are long, so compilation may pay off")
        .remedy(
            "Set jit=off for this load, or raise jit_above_cost: a plan with a higher estimated \
             cost is compiled, which takes tens to hundreds of milliseconds. Check whether the \
             estimates are far too high.",
        )
        .variant(Some(RemedyVariant::session(&[("jit", "off")])))
}

/// CPU time to fork, attach and end a worker, on a slow machine: 2.5 to 3.0 ms were measured in a
/// virtual machine, for workers that found a table of one page already read.
const WORKER_START_US: f64 = 4000.0;
/// The default of `max_parallel_workers_per_gather`; launched workers are counted from 18 on.
const DEFAULT_WORKERS: f64 = 2.0;

fn parallel_start(e: &Evidence) -> Evaluation {
    let us = e.in_functions(&[
        "LaunchParallelWorkers",
        "InitializeParallelDSM",
        "ReinitializeParallelDSM",
        "DestroyParallelContext",
        "WaitForParallelWorkersToExit",
    ]);
    let started = e.counter("pg_stat_database.parallel_workers_launched");
    let used = |role| {
        e.counter(&format!("background({role}).cpu_us"))
            .unwrap_or(0.0)
    };
    let workers_us = used("parallel worker") + used("ended processes");
    let waited = e.blocked(&[
        "IPC BgworkerStartup",
        "IPC BgWorkerStartup",
        "IPC ParallelFinish",
        "IPC BgworkerShutdown",
        "IPC BgWorkerShutdown",
    ]);
    // Here the leader waits for rows. While a worker computes, that is not the cost of starting it.
    let gathered = e.blocked(&["IPC ExecuteGather", "IPC MessageQueueReceive"]);
    // The workers' CPU time beyond their start is work that the leader is spared.
    let workers = started.unwrap_or(DEFAULT_WORKERS).max(1.0);
    let useful_us = (workers_us - workers * WORKER_START_US).max(0.0);
    let waited = waited + (gathered - workers_us / workers).max(0.0);
    let us = us + waited;
    // Up to 17, a live server counts two transactions more for each worker: queries take that many times longer.
    let transactions = if e.is_live && e.until(17) {
        1.0 + 2.0 * DEFAULT_WORKERS
    } else {
        1.0
    };
    let query_us = e.response_us * transactions;
    Evaluation::of(us)
        .when(us > useful_us && e.of_response(us) >= 0.1 && query_us < 100_000.0)
        .stacks("starting and ending parallel workers", us - waited)
        .waits("waiting for parallel workers to start and end", waited)
        .counter("parallel workers launched", started)
        .context(|it| {
            it.micros("CPU time of parallel workers", Some(workers_us))
                .waits("waiting for rows from parallel workers", gathered)
        })
        .remedy(
            "Set max_parallel_workers_per_gather=0 for short queries, or raise \
             parallel_setup_cost and min_parallel_table_scan_size: each parallel query forks its \
             workers, at about 1 ms of CPU time each.",
        )
        .variant(Some(RemedyVariant::session(&[(
            "max_parallel_workers_per_gather",
            "0",
        )])))
}

fn catalog_churn(e: &Evidence) -> Evaluation {
    let ddl: &[&str] = &[
        "DefineRelation",
        "DefineIndex",
        "RemoveRelations",
        "performDeletion",
        "performMultipleDeletions",
        "heap_drop_with_catalog",
        "ExecuteTruncateGuts",
        "ExecuteTruncate",
        "RemoveTempRelations",
        "PreCommit_on_commit_actions",
    ];
    let rebuilt: &[&str] = &[
        "RelationBuildDesc",
        "RelationClearRelation",
        "LocalExecuteInvalidationMessage",
        "InvalidateSystemCaches",
        "SIGetDataEntries",
    ];
    // Sorting a table's rows for a new index takes time because of the rows, not of the catalogs.
    let built = e.in_nested_functions(&[ddl, &["index_build", "validate_index"]]);
    let (made, missed) = (e.in_functions(ddl) - built, e.in_functions(rebuilt));
    let us = e.in_functions(&[ddl, rebuilt].concat()) - built;
    let temporary = e.scripts.contains("create temp") || e.scripts.contains("create table");
    Evaluation::of(us)
        .when(e.of_cpu(us) >= 0.15 && e.of_cpu(made) >= 0.02)
        .stacks("creating and dropping tables", made)
        .stacks("invalidating and refilling catalog caches", missed)
        .condition(temporary, "the script creates tables")
        .context(|it| {
            it.counter(
                "rows inserted, including catalog rows",
                e.counter("pg_stat_database.tup_inserted"),
            )
        })
        .remedy(
            "Create a temporary table once per session with ON COMMIT DELETE ROWS, or use a CTE, \
             an array or an unlogged table with a key instead. Vacuum pg_attribute and pg_class \
             often: each CREATE and DROP writes a dozen catalog rows and invalidates the catalog \
             caches of all sessions.",
        )
}

/// Checks that a row of the referencing table has a parent.
const PARENT_LOOKUPS: [&str; 6] = [
    "RI_FKey_check_ins",
    "RI_FKey_check_upd",
    "RI_FKey_check",
    "ri_FastPathCheck",
    "ri_FastPathBatchFlush",
    "ri_FastPathEndBatch",
];
/// Checks and actions for rows that refer to a deleted or updated row of the referenced table.
const CHILD_LOOKUPS: [&str; 11] = [
    "RI_FKey_noaction_del",
    "RI_FKey_noaction_upd",
    "RI_FKey_restrict_del",
    "RI_FKey_restrict_upd",
    "RI_FKey_cascade_del",
    "RI_FKey_cascade_upd",
    "RI_FKey_setnull_del",
    "RI_FKey_setnull_upd",
    "RI_FKey_setdefault_del",
    "RI_FKey_setdefault_upd",
    "ri_restrict",
];
/// A side with this share of the time determines the advice.
const MOST: f64 = 0.9;

fn foreign_keys(e: &Evidence) -> Evaluation {
    let us = e.in_functions(&[&PARENT_LOOKUPS[..], &CHILD_LOOKUPS, &["ri_PerformCheck"]].concat());
    let (parents, children) = (
        e.in_functions(&PARENT_LOOKUPS),
        e.in_functions(&CHILD_LOOKUPS),
    );
    Evaluation::of(us)
        .when(e.of_cpu(us) >= 0.15)
        .stacks("foreign key checks", us)
        .stacks("of which looking up the referenced row", parents)
        .stacks("of which searching for referencing rows", children)
        .remedy(if parents >= MOST * us {
            "Add the constraint after a bulk load, and do not update referencing columns that do not change. Each \
             row looks up its parent in the referenced key's index and locks it (FOR KEY SHARE), so an index on \
             the referencing columns does not help; many sessions with the same parent also share its MultiXact."
        } else if children >= MOST * us {
            "Index the referencing columns. Each row that is deleted from the referenced table, or whose key is \
             updated, searches for rows that refer to it: without an index, it reads the whole referencing table."
        } else {
            "If rows are deleted from the referenced table or their keys updated, index the referencing columns: \
             without an index, each of these rows reads the whole referencing table. If rows are inserted into \
             the referencing table, add the constraint after a bulk load: each of them looks up its parent and \
             locks it (FOR KEY SHARE)."
        })
}
