//! What statements cost before they run: parsing, planning, plans that are kept, routing, JIT.
//!
//! Sources: `src/backend/tcop/postgres.c`, `utils/cache/plancache.c` (five custom plans, then the
//! choice), `executor/execPartition.c`, `executor/functions.c` (SQL functions have a plan cache
//! from 18), `jit/`.

use super::evidence::Evidence;
use super::measure::{Measure, Signature};
use super::remedy::RemedyVariant;
use crate::study::Protocol;

pub(super) const SIGNATURES: &[Signature] = &[
    Signature {
        id: "parse-and-plan",
        title: "Statements are parsed and planned each time",
        manual: "SQL Commands: PREPARE; libpq: Command Execution Functions",
        measure: parse_and_plan,
    },
    Signature {
        id: "custom-plans",
        title: "Prepared statements are planned each time",
        manual: "Server Configuration: Query Planning, plan_cache_mode",
        measure: custom_plans,
    },
    Signature {
        id: "sql-function-planned-inside",
        title: "The body of an SQL function is planned at each call of its query",
        manual: "Extending SQL: Query Language (SQL) Functions",
        measure: sql_function,
    },
    Signature {
        id: "cached-plan-locks",
        title: "A kept plan locks all of its tables before it runs",
        manual: "Table Partitioning: Partition Pruning; plan_cache_mode",
        measure: cached_plan_locks,
    },
    Signature {
        id: "partition-routing",
        title: "Each insert sets up the routing to all partitions",
        manual: "Data Definition: Table Partitioning",
        measure: partition_routing,
    },
    Signature {
        id: "jit",
        title: "Just-in-time compilation of short queries",
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
        title: "Tables are created or dropped all the time",
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

/// Phases in which text becomes a plan.
const BEFORE_EXECUTION: [&str; 4] = ["parse", "analyze", "rewrite", "plan"];

/// CPU time that statements take by themselves. What receiving and sending cost beside it depends on
/// how deeply the machine sleeps between them: half of a look-up's CPU time where it is idle.
fn of_statement(e: &Evidence) -> f64 {
    e.cpu_us - e.phases(&["network"])
}

fn parse_and_plan(e: &Evidence) -> Measure {
    let us = e.phases(&BEFORE_EXECUTION);
    let protocol = match e.protocol {
        Some(Protocol::Simple) => "each statement is sent as text (simple protocol)",
        _ => "each statement is parsed anew (extended protocol without a name)",
    };
    Measure::of(us)
        .when(us >= 0.3 * of_statement(e) && e.protocol != Some(Protocol::Prepared))
        .stacks("parse", e.phases(&["parse"]))
        .stacks("analyse and rewrite", e.phases(&["analyze", "rewrite"]))
        .stacks("plan", e.phases(&["plan"]))
        .condition(e.protocol.is_some(), protocol)
        .remedy(
            "Prepare statements once and execute them many times; a pooler between must support \
             prepared statements (PgBouncer does from 1.21). From 12 on, plan_cache_mode tells \
             whether a general plan is good enough.",
        )
        .variant(
            e.protocol
                .map(|_| RemedyVariant::protocol(Protocol::Prepared)),
        )
}

fn custom_plans(e: &Evidence) -> Measure {
    let us = e.phases(&["plan"]);
    let inside = e.path(&[&["GetCachedPlan"], &["pg_plan_queries", "BuildCachedPlan"]]);
    let forced = e.setting("plan_cache_mode") == Some("force_generic_plan");
    Measure::of(us)
        .when(us >= 0.25 * of_statement(e) && e.protocol == Some(Protocol::Prepared))
        .stacks("planning of prepared statements", us)
        .stacks("of it inside GetCachedPlan", inside)
        .condition(true, "statements are prepared once")
        .against(
            forced,
            "plan_cache_mode=force_generic_plan is set: plans may be invalidated instead",
        )
        .remedy(
            "The planner thinks a plan for these very values so much cheaper that it plans each \
             time. Where the general plan is as good, plan_cache_mode=force_generic_plan (12 and \
             later) keeps it; where it is not, planning is the price of a good plan.",
        )
        .variant(
            (e.since(12) && !forced)
                .then(|| RemedyVariant::session(&[("plan_cache_mode", "force_generic_plan")])),
        )
}

fn sql_function(e: &Evidence) -> Measure {
    let planned: &[&str] = &[
        "pg_plan_query",
        "pg_parse_query",
        "raw_parser",
        "pg_analyze_and_rewrite_params",
        "pg_analyze_and_rewrite_withcb",
        "standard_planner",
    ];
    let us = e.path(&[&["fmgr_sql", "init_sql_fcache"], planned]);
    Measure::of(us)
        .when(e.of_cpu(us) >= 0.1 && e.until(17))
        .stacks("parsing and planning inside an SQL function", us)
        .condition(e.until(17), "SQL functions keep no plan before 18")
        .remedy(
            "Before 18 an SQL function that is not inlined is parsed and planned at each call of \
             the query it stands in. Declare it STABLE or IMMUTABLE and call it in FROM, so that \
             it is inlined; or write it in PL/pgSQL, which keeps plans; or upgrade to 18.",
        )
        .variant(Some(RemedyVariant::version("18")))
}

fn cached_plan_locks(e: &Evidence) -> Measure {
    let us = e.with(&["AcquireExecutorLocks"]);
    let waited = e.blocked(&["LWLock LockManager", "LWLock lock_manager"]);
    Measure::of(us)
        .when(e.of_cpu(us) >= 0.15)
        .stacks("AcquireExecutorLocks", us)
        .waits("LWLock LockManager", waited)
        .condition(
            e.protocol == Some(Protocol::Prepared),
            "statements are prepared",
        )
        .remedy(
            "A general plan over a partitioned table locks every partition before it prunes any. \
             Name the partition key as a literal, or let it be planned each time with \
             plan_cache_mode=force_custom_plan (12 and later); fewer partitions help as well.",
        )
        .variant(
            e.since(12)
                .then(|| RemedyVariant::session(&[("plan_cache_mode", "force_custom_plan")])),
        )
}

fn partition_routing(e: &Evidence) -> Measure {
    let setup = e.with(&["ExecSetupPartitionTupleRouting", "find_all_inheritors"]);
    let find = e.with(&["ExecFindPartition"]);
    let is_old = e.until(11);
    let us = if is_old {
        setup.max(find)
    } else {
        find.max(setup)
    };
    let remedy = if is_old {
        "10 opens and locks every partition for each row, 11 still locks all of them; 12 and later \
         touch only the one that takes the row. Upgrade; until then insert into the leaf, put many \
         rows into one statement, or have fewer partitions."
    } else {
        "The routing itself is cheap since 12: see whether the partition key is an expensive \
         expression, or insert into the leaf."
    };
    Measure::of(us)
        .when(e.of_cpu(us) >= if is_old { 0.15 } else { 0.25 })
        .stacks(
            "ExecSetupPartitionTupleRouting",
            e.with(&["ExecSetupPartitionTupleRouting"]),
        )
        .stacks("find_all_inheritors", e.with(&["find_all_inheritors"]))
        .stacks("ExecFindPartition", find)
        .context(|it| {
            let waited = e.blocked(&["LWLock LockManager", "LWLock lock_manager"]);
            it.waits("LWLock LockManager", waited)
        })
        .condition(
            is_old,
            "all partitions are opened or locked for each insert up to 11",
        )
        .remedy(remedy)
        .variant(is_old.then(|| RemedyVariant::version("18")))
}

fn jit(e: &Evidence) -> Measure {
    let us = e.with(&[
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
    // In a long query compiling is paid once, and what is compiled runs for all the rest of it.
    let is_long = e.response_us > 1e6;
    let enough = if is_long { 0.25 } else { 0.05 };
    Measure::of(us)
        .when(e.of_cpu(us) >= enough)
        .stacks("compiling and optimizing with LLVM", us)
        .condition(e.since(12), "jit is on by default since 12")
        .against(
            is_long,
            "the queries are long: the compiled code may pay for itself",
        )
        .remedy(
            "A cost estimate above jit_above_cost starts the compiler, which takes tens to \
             hundreds of milliseconds. Set jit=off for this load, or raise jit_above_cost; see \
             whether the estimates are far too high.",
        )
        .variant(Some(RemedyVariant::session(&[("jit", "off")])))
}

/// What a worker takes to be forked, to attach and to end, on a slow machine: 2.5 to 3.0 ms of CPU time
/// were measured in a virtual machine, for workers that found a table of one page already read.
const WORKER_START_US: f64 = 4000.0;
/// The default of `max_parallel_workers_per_gather`; how many were started is counted from 18 on.
const DEFAULT_WORKERS: f64 = 2.0;

fn parallel_start(e: &Evidence) -> Measure {
    let us = e.with(&[
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
    // In these the leader waits for rows: for as long as a worker computes, that is no start-up.
    let gathered = e.blocked(&["IPC ExecuteGather", "IPC MessageQueueReceive"]);
    // The workers' CPU time beyond that of being started is work which the leader need not do.
    let workers = started.unwrap_or(DEFAULT_WORKERS).max(1.0);
    let useful_us = (workers_us - workers * WORKER_START_US).max(0.0);
    let waited = waited + (gathered - workers_us / workers).max(0.0);
    let us = us + waited;
    Measure::of(us)
        .when(us > useful_us && e.of_response(us) >= 0.1 && e.response_us < 100_000.0)
        .stacks("starting and ending parallel workers", us - waited)
        .waits("waiting for parallel workers to start and to end", waited)
        .counter("parallel workers started", started)
        .context(|it| {
            it.micros("CPU of parallel workers", Some(workers_us))
                .waits("waiting for rows of parallel workers", gathered)
        })
        .remedy(
            "Set max_parallel_workers_per_gather=0 for short queries, or raise \
             parallel_setup_cost and min_parallel_table_scan_size: each parallel query forks its \
             workers, which takes about a millisecond of CPU time each.",
        )
        .variant(Some(RemedyVariant::session(&[(
            "max_parallel_workers_per_gather",
            "0",
        )])))
}

fn catalog_churn(e: &Evidence) -> Measure {
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
    let (made, missed) = (e.with(ddl), e.with(rebuilt));
    let us = e.with(&[ddl, rebuilt].concat());
    let temporary = e.scripts.contains("create temp") || e.scripts.contains("create table");
    Measure::of(us)
        .when(e.of_cpu(us) >= 0.15 && e.of_cpu(made) >= 0.02)
        .stacks("creating and dropping tables", made)
        .stacks(
            "caches of the catalog that are invalidated and filled again",
            missed,
        )
        .condition(temporary, "the script creates tables")
        .context(|it| {
            it.counter(
                "rows inserted, the catalog's included",
                e.counter("pg_stat_database.tup_inserted"),
            )
        })
        .remedy(
            "Every CREATE and DROP writes a dozen catalog rows and makes all sessions throw \
             cached descriptions away. Create a temporary table once per session with ON COMMIT \
             DELETE ROWS, or use a CTE, an array or an unlogged table with a key instead; vacuum \
             pg_attribute and pg_class often.",
        )
}

fn foreign_keys(e: &Evidence) -> Measure {
    let us = e.with(&[
        "RI_FKey_check_ins",
        "RI_FKey_check_upd",
        "RI_FKey_check",
        "RI_FKey_noaction_del",
        "RI_FKey_noaction_upd",
        "ri_restrict",
        "ri_PerformCheck",
    ]);
    Measure::of(us)
        .when(e.of_cpu(us) >= 0.15)
        .stacks("checks of foreign keys", us)
        .remedy(
            "Each row looks its parent up and locks it (FOR KEY SHARE). Index the referencing \
             columns; put more rows into one statement; where loading in bulk, add the constraint \
             afterwards. Many sessions under one parent also share its MultiXact.",
        )
}
