//! Assigns stacks to phases of statement processing, by their outermost anchor function.
//!
//! Some anchors are containers (`Anchor::Room`): functions that run several phases.
//! `exec_simple_query` runs them all, `exec_bind_message` can plan and starts the executor,
//! `pg_analyze_and_rewrite` analyzes and rewrites.
//! Inside a container, the next anchor decides, and the container's own phase is the default; otherwise
//! the first anchor decides. So planning the body of a function while its query runs is *execute*, but
//! planning at Bind is *plan*: phases describe work, not messages, so that the simple and the extended
//! protocol are comparable.
//!
//! Source: `src/backend/tcop/postgres.c`. 9.6 to 14 have `parse_analyze` and `pg_analyze_and_rewrite`, 15
//! and later their variants with `_fixedparams`, `_varparams` and `_withcb`; 17 added
//! `CommitTransactionCommandInternal`. Stripped servers lack the static functions (`exec_…_message`,
//! `finish_xact_command`), so the exported functions that those call are anchors, too.
//!
//! Invariant: every stack has a phase; without an anchor it is [`Phase::Other`].

use std::fmt;

use super::attribution::FrameName;
use super::symbols::stem;

/// A phase of statement processing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Parsing text into a raw parse tree.
    Parse,
    /// Parse analysis of the raw parse tree: names, types, permissions.
    Analyze,
    /// Rules and views.
    Rewrite,
    /// Planning.
    Plan,
    /// Parameters, portals, and choosing a saved plan.
    Bind,
    /// Running the plan, including executor startup and shutdown.
    Execute,
    /// Ending the transaction.
    Commit,
    /// Formatting and writing log entries, between the other phases.
    Log,
    /// Communication with the client, between the other phases.
    Network,
    /// Waiting for the client.
    Idle,
    /// None of these.
    Other,
}

/// How an anchor determines the phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Anchor {
    /// This phase, regardless of the frames inside.
    Is(Phase),
    /// This phase, unless an anchor inside determines another one.
    Container(Phase),
}

impl Phase {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Parse => "parse",
            Self::Analyze => "analyze",
            Self::Rewrite => "rewrite",
            Self::Plan => "plan",
            Self::Bind => "bind",
            Self::Execute => "execute",
            Self::Commit => "commit",
            Self::Log => "log",
            Self::Network => "network",
            Self::Idle => "idle",
            Self::Other => "other",
        }
    }

    /// The phase of an on-CPU stack, outermost frame first.
    ///
    /// CPU time to go to sleep and wake up for the client's next message is [`Self::Network`].
    pub fn of(frames: &[FrameName<'_>]) -> Self {
        let mut default = Self::Other;
        for frame in frames.iter().filter(|frame| !frame.kernel) {
            match frame.symbol.and_then(|symbol| anchor(stem(symbol))) {
                Some(Anchor::Is(phase)) => return phase,
                Some(Anchor::Container(phase)) => default = phase,
                None => {}
            }
        }
        default
    }

    /// The phase of a blocked stack. Waiting for the client's next message is [`Self::Idle`].
    pub fn of_blocked(frames: &[FrameName<'_>]) -> Self {
        let reads = |frame: &FrameName<'_>| {
            frame
                .symbol
                .is_some_and(|symbol| matches!(stem(symbol), "secure_read" | "pq_recvbuf"))
        };
        match Self::of(frames) {
            Self::Network if frames.iter().any(reads) => Self::Idle,
            phase => phase,
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// The anchors, by their function names in 9.6 to 18.
#[rustfmt::skip]
const ANCHORS: &[(Anchor, &[&str])] = &[
    (Anchor::Container(Phase::Other), &["exec_simple_query"]),
    (Anchor::Container(Phase::Parse), &["exec_parse_message", "StorePreparedStatement", "CreateCachedPlan",
        "CompleteCachedPlan", "SaveCachedPlan"]),
    // GetCachedPlan analyzes and plans again if a cached plan is no longer valid. The other functions
    // identify code that the compiler inlined into PostgresMain.
    (Anchor::Container(Phase::Bind), &["exec_bind_message", "exec_describe_statement_message",
        "exec_describe_portal_message", "GetCachedPlan", "CreatePortal", "PortalDefineQuery",
        "FetchPreparedStatement", "OidInputFunctionCall", "OidReceiveFunctionCall", "getTypeInputInfo",
        "getTypeBinaryInputInfo", "SendRowDescriptionMessage"]),
    (Anchor::Container(Phase::Execute), &["exec_execute_message"]),
    (Anchor::Container(Phase::Analyze), &["pg_analyze_and_rewrite", "pg_analyze_and_rewrite_params",
        "pg_analyze_and_rewrite_fixedparams", "pg_analyze_and_rewrite_varparams",
        "pg_analyze_and_rewrite_withcb"]),
    (Anchor::Is(Phase::Parse), &["pg_parse_query", "raw_parser"]),
    (Anchor::Is(Phase::Analyze), &["parse_analyze", "parse_analyze_fixedparams",
        "parse_analyze_varparams", "parse_analyze_withcb"]),
    (Anchor::Is(Phase::Rewrite), &["pg_rewrite_query", "QueryRewrite"]),
    (Anchor::Is(Phase::Plan), &["pg_plan_queries", "pg_plan_query", "planner", "standard_planner"]),
    (Anchor::Is(Phase::Execute), &["PortalStart", "PortalRun", "PortalDrop", "HandleFunctionRequest"]),
    // What parallel workers do for a query, an index and a vacuum.
    (Anchor::Is(Phase::Execute), &["ParallelQueryMain", "_bt_parallel_build_main",
        "_brin_parallel_build_main", "_gin_parallel_build_main", "parallel_vacuum_main"]),
    (Anchor::Is(Phase::Commit), &["finish_xact_command", "CommitTransactionCommand",
        "CommitTransactionCommandInternal", "CommitTransaction", "AbortCurrentTransaction",
        "AbortCurrentTransactionInternal", "AbortTransaction"]),
    // Errors while a plan runs are part of execution.
    (Anchor::Is(Phase::Log), &["check_log_statement", "check_log_duration", "errstart", "errfinish",
        "errmsg", "errdetail", "errhidestmt", "errdetail_execute", "errdetail_params",
        "EmitErrorReport"]),
    (Anchor::Is(Phase::Network), &["ReadCommand", "SocketBackend", "pq_getbyte", "pq_startmsgread",
        "pq_getmessage", "pq_recvbuf", "pq_getmsgint", "pq_getmsgstring", "pq_getmsgbytes",
        "pq_getmsgend", "pq_putemptymessage", "secure_read", "secure_write", "socket_flush",
        "socket_flush_if_writable", "socket_putmessage", "socket_putmessage_noblock",
        "internal_flush", "internal_flush_buffer", "internal_putbytes", "ReadyForQuery",
        "BeginCommand", "EndCommand", "NullCommand"]),
    // Bookkeeping belongs to no phase; otherwise its phase would depend on inlining.
    (Anchor::Is(Phase::Other), &["start_xact_command", "StartTransactionCommand",
        "GetTransactionSnapshot", "SetCurrentStatementStartTimestamp", "set_ps_display",
        "set_ps_display_with_len", "pgstat_report_activity", "pgstat_report_stat"]),
];

fn anchor(symbol: &str) -> Option<Anchor> {
    ANCHORS
        .iter()
        .find(|(_, names)| names.contains(&symbol))
        .map(|(anchor, _)| *anchor)
}

#[cfg(test)]
mod tests {
    use super::super::Symbols;
    use super::*;

    fn stack(frames: &str) -> Vec<FrameName<'_>> {
        let frame = |symbol| FrameName {
            symbol: Some(symbol),
            object: "postgres",
            kernel: false,
        };
        frames.split(';').map(frame).collect()
    }

    const SERVER: &str = "_start;main;PostmasterMain;ServerLoop;BackendRun;PostgresMain";

    #[test]
    fn the_outermost_anchor_determines_the_phase() {
        for (frames, phase) in [
            (
                "exec_simple_query;pg_parse_query;raw_parser;base_yyparse;core_yylex",
                Phase::Parse,
            ),
            (
                "exec_simple_query;pg_analyze_and_rewrite_fixedparams;parse_analyze_fixedparams;transformTopLevelStmt",
                Phase::Analyze,
            ),
            (
                "exec_simple_query;pg_analyze_and_rewrite;parse_analyze;transformStmt",
                Phase::Analyze,
            ),
            (
                "exec_simple_query;pg_analyze_and_rewrite_fixedparams;pg_rewrite_query;QueryRewrite",
                Phase::Rewrite,
            ),
            (
                "exec_simple_query;pg_analyze_and_rewrite_fixedparams",
                Phase::Analyze,
            ),
            (
                "exec_simple_query;pg_plan_queries;pg_plan_query;planner;standard_planner;eval_const_expressions",
                Phase::Plan,
            ),
            (
                "exec_simple_query;PortalRun;PortalRunSelect;ExecutorRun;printtup;internal_putbytes",
                Phase::Execute,
            ),
            (
                "exec_simple_query;finish_xact_command;CommitTransactionCommand;CommitTransaction",
                Phase::Commit,
            ),
            ("exec_simple_query;GetTransactionSnapshot", Phase::Other),
            ("exec_parse_message;pg_parse_query;raw_parser", Phase::Parse),
            ("exec_parse_message;CreateCachedPlan", Phase::Parse),
            (
                "exec_parse_message;pg_analyze_and_rewrite_varparams;parse_analyze_varparams",
                Phase::Analyze,
            ),
            (
                "exec_bind_message;GetCachedPlan;AcquireExecutorLocks;LockRelationOid",
                Phase::Bind,
            ),
            (
                "exec_bind_message;GetCachedPlan;BuildCachedPlan;pg_plan_queries",
                Phase::Plan,
            ),
            (
                "exec_bind_message;GetCachedPlan;RevalidateCachedQuery;pg_analyze_and_rewrite_withcb;parse_analyze_withcb",
                Phase::Analyze,
            ),
            (
                "exec_bind_message;PortalStart;ExecutorStart;InitPlan",
                Phase::Execute,
            ),
            ("exec_bind_message;OidInputFunctionCall;int4in", Phase::Bind),
            ("exec_execute_message;PortalRun;ExecutorRun", Phase::Execute),
            ("exec_execute_message;CreateDestReceiver", Phase::Execute),
            (
                "ReadCommand;SocketBackend;pq_getbyte;pq_recvbuf;secure_read;WaitEventSetWait",
                Phase::Network,
            ),
            (
                "ReadyForQuery;socket_flush;internal_flush;secure_write",
                Phase::Network,
            ),
            (
                "finish_xact_command;CommitTransactionCommandInternal;CommitTransaction;XLogFlush",
                Phase::Commit,
            ),
            ("pgstat_report_activity", Phase::Other),
            (
                "exec_execute_message;errfinish;EmitErrorReport;write_csvlog;write_pipe_chunks",
                Phase::Log,
            ),
            (
                "exec_execute_message;check_log_duration;GetCurrentTimestamp",
                Phase::Log,
            ),
            (
                "exec_execute_message;PortalRun;ExecutorRun;errfinish;EmitErrorReport",
                Phase::Execute,
            ),
        ] {
            let frames = format!("{SERVER};{frames}");
            assert_eq!(Phase::of(&stack(&frames)), phase, "{frames}");
        }
    }

    #[test]
    fn inlining_does_not_change_the_phase() {
        for (callee, phase) in [
            ("OidInputFunctionCall;int4in", Phase::Bind),
            (
                "getTypeInputInfo;SearchSysCache1;SearchCatCacheInternal",
                Phase::Bind,
            ),
            ("pq_getmsgint", Phase::Network),
            (
                "GetTransactionSnapshot;GetSnapshotData;LWLockAcquire",
                Phase::Other,
            ),
            ("pgstat_report_activity;GetCurrentTimestamp", Phase::Other),
            ("GetCachedPlan;choose_custom_plan", Phase::Bind),
            ("errfinish;EmitErrorReport;write_csvlog", Phase::Log),
            ("PortalStart;standard_ExecutorStart", Phase::Execute),
        ] {
            for caller in ["PostgresMain", "PostgresMain;exec_bind_message"] {
                let frames = format!("main;{caller};{callee}");
                assert_eq!(Phase::of(&stack(&frames)), phase, "{frames}");
            }
        }
    }

    #[test]
    fn a_function_body_that_is_planned_while_it_runs_is_execution() {
        let frames = format!(
            "{SERVER};exec_execute_message;PortalRun;ExecutorRun;fmgr_sql;init_execution_state;pg_plan_query;planner"
        );
        assert_eq!(Phase::of(&stack(&frames)), Phase::Execute);
    }

    /// Regression: all CPU time of parallel workers was in no phase.
    #[test]
    fn parallel_workers_execute() {
        for work in [
            "ParallelQueryMain;ExecutorRun;standard_ExecutorRun;ExecSeqScan",
            "_bt_parallel_build_main;_bt_parallel_scan_and_sort;tuplesort_performsort",
            "parallel_vacuum_main;parallel_vacuum_process_safe_indexes",
        ] {
            let worker = "main;PostmasterMain;BackgroundWorkerMain;ParallelWorkerMain";
            let phase = |work: &str| Phase::of(&stack(&format!("{worker};{work}")));
            assert_eq!(phase(work), Phase::Execute, "{work}");
            assert_eq!(phase("CommitTransactionCommand"), Phase::Commit);
            assert_eq!(phase("RestoreGUCState"), Phase::Other);
        }
    }

    #[test]
    fn exported_functions_are_anchors_on_stripped_servers() {
        for (frames, phase) in [
            ("pg_plan_queries;standard_planner", Phase::Plan),
            ("CommitTransactionCommand;CommitTransaction", Phase::Commit),
            ("GetCachedPlan;AcquireExecutorLocks", Phase::Bind),
            ("pq_getbyte;secure_read", Phase::Network),
        ] {
            assert_eq!(
                Phase::of(&stack(&format!("main;PostgresMain;{frames}"))),
                phase,
                "{frames}"
            );
        }
    }

    #[test]
    fn waiting_for_the_client_is_idle_and_waiting_to_write_is_not() {
        let idle = format!(
            "{SERVER};ReadCommand;SocketBackend;pq_getbyte;pq_recvbuf;secure_read;WaitEventSetWait"
        );
        assert_eq!(Phase::of_blocked(&stack(&idle)), Phase::Idle);
        let full = format!(
            "{SERVER};ReadyForQuery;socket_flush;internal_flush;secure_write;WaitEventSetWait"
        );
        assert_eq!(Phase::of_blocked(&stack(&full)), Phase::Network);
        let lock = format!("{SERVER};exec_execute_message;PortalRun;LockAcquire;ProcSleep");
        assert_eq!(Phase::of_blocked(&stack(&lock)), Phase::Execute);
        assert_eq!(Phase::of(&[]), Phase::Other);
    }

    #[test]
    fn every_anchor_is_a_function_of_some_version() {
        for name in ANCHORS.iter().flat_map(|(_, names)| *names) {
            let known = ["9.6", "12", "14", "15", "18"]
                .iter()
                .any(|major| Symbols::for_major(major).path(name, None).is_some());
            assert!(known, "{name} is not a function of any version");
        }
    }
}
