//! The machine, its clock, the server log, and the cost of statistics.
//!
//! Sources: `src/backend/utils/error/elog.c` and `postmaster/syslogger.c` (one pipe for all backends),
//! `portability/instr_time.h`, `utils/activity/`.

use pgassay_record::finding::Source;
use pgassay_record::remedy::RemedyVariant;

use crate::evaluation::{Evaluation, Signature};
use crate::evidence::Evidence;

pub(super) const SIGNATURES: &[Signature] = &[
    Signature {
        id: "cpu-saturation",
        title: "The CPUs are saturated",
        manual: "Server Configuration: Connections and Authentication, max_connections",
        measure: cpu_saturation,
    },
    Signature {
        id: "logging",
        title: "Writing the server log takes time",
        manual: "Server Configuration: Error Reporting and Logging",
        measure: logging,
    },
    Signature {
        id: "slow-clock",
        title: "Reading the clock is slow",
        manual: "pg_test_timing",
        measure: slow_clock,
    },
    Signature {
        id: "statistics",
        title: "Collecting statistics takes CPU time",
        manual: "Monitoring: The Cumulative Statistics System; pg_stat_statements",
        measure: statistics,
    },
    Signature {
        id: "page-faults",
        title: "Backends take page faults on shared memory",
        manual: "Server Setup and Operation: Linux Huge Pages",
        measure: page_faults,
    },
    Signature {
        id: "throttled",
        title: "CPU steal or a CPU quota limits the server",
        manual: "Server Setup and Operation: Managing Kernel Resources",
        measure: throttled,
    },
];

/// CPUs count as saturated from this utilization on.
const SATURATED: f64 = 0.9;
/// On a live server, fewer sessions that wait for a CPU are those that have just been woken.
const WAITING_SESSIONS_MIN: f64 = 0.5;
/// Other programs may be the cause from this share of the machine on.
const OTHER_PROGRAMS_MIN: f64 = 0.1;

fn cpu_saturation(e: &Evidence) -> Evaluation {
    let busy = e.cpu_utilization();
    let is_full = busy.map_or(e.of_response(e.run_queue_us) >= 0.3, |share| {
        share >= SATURATED
    });
    // How long backends that have ended waited is not known.
    let is_unknown = !e.is_live || e.ended_cpu_us > e.cpu_us;
    let is_queue = is_unknown || e.run_queue_us * e.tps >= WAITING_SESSIONS_MIN * 1e6;
    let own = share_of_live_backends(e);
    Evaluation::of(e.run_queue_us)
        .queueing(e.run_queue_us)
        .when(is_full && is_queue && e.of_response(e.run_queue_us) >= 0.15)
        .clock("run-queue wait of backends", e.run_queue_us)
        .share(Source::Counters, "of CPU capacity in use", busy)
        .context(|it| {
            let switches = e.counter("backends.involuntary_switches");
            it.counter("preemptions (involuntary context switches)", switches)
                .share(
                    Source::Clocks,
                    "of CPU capacity used by the server's backends",
                    own.and_then(|it| it.used),
                )
        })
        .against(
            e.other_programs >= OTHER_PROGRAMS_MIN,
            &format!(
                "other programs used {:.0}% of the machine's CPU time meanwhile",
                100.0 * e.other_programs
            ),
        )
        .against(
            own.is_some_and(|it| it.leaves_the_cpus_to_others),
            "the server's backends alone would not fill the CPUs",
        )
        .remedy(saturation_remedy(
            e,
            own.is_some_and(|it| it.leaves_the_cpus_to_others),
        ))
}

fn saturation_remedy(e: &Evidence, leaves_the_cpus_to_others: bool) -> &'static str {
    if leaves_the_cpus_to_others {
        "Stop the other programs, which include clients on the same machine, move them to another machine, or \
             reserve CPUs for the server (cpuset.cpus): its backends alone would not fill the CPUs. Fewer \
             connections will not help much."
    } else if e
        .cpu_utilization()
        .is_some_and(|share| e.other_programs > share / 2.0)
    {
        "Other programs use more than half of the CPU time that is in use. Stop them, move them to another machine, \
             or reserve CPUs for the server (cpuset.cpus). Fewer connections will not help much."
    } else if !e.is_live && e.clients <= (e.cpu_capacity_us() * e.tps / 1e6).round().max(1.0) {
        "Reduce the work per transaction or add CPUs. There are no more clients than CPUs, so fewer connections would \
             not help: what fills the CPUs besides the clients' backends are the load generator, parallel workers \
             (max_parallel_workers_per_gather), background processes, and other programs."
    } else if e.is_live {
        "With a connection pooler in transaction mode, limit active connections to about the number of CPUs: \
             additional ones only queue. Beyond that, reduce the work per \
             transaction or add CPUs."
    } else {
        "With a connection pooler in transaction mode, limit active connections to about the number of CPUs: \
             additional ones only queue. Beyond that, reduce the work per \
             transaction or add CPUs. In this run, the load generator uses the same CPUs."
    }
}

/// How much of the machine the backends of a live server use.
#[derive(Clone, Copy)]
struct ShareOfBackends {
    /// Share of the CPU capacity; `None` if the number of CPUs is unknown.
    used: Option<f64>,
    /// Whether the backends run, or wait to run, on no more CPUs than there are, or get less than half of them.
    leaves_the_cpus_to_others: bool,
}

/// A live server's machine is not watched: that other programs use it follows from what the backends do not use.
fn share_of_live_backends(e: &Evidence) -> Option<ShareOfBackends> {
    let cpus = |us: f64| us * e.tps / 1e6;
    // There is at least one CPU.
    let processors = e.processors.unwrap_or(1.0);
    // Backends that last a moment are gone before their time is read.
    let used = cpus(e.cpu_us + e.ended_cpu_us);
    // How long they waited for a CPU is not known.
    let is_known = e.ended_cpu_us <= e.cpu_us;
    let is_few = is_known && used + cpus(e.run_queue_us) <= processors;
    let is_little = e.processors.is_some_and(|all| used < all / 2.0);
    e.is_live.then_some(ShareOfBackends {
        used: e.processors.map(|all| used / all),
        leaves_the_cpus_to_others: is_few || is_little,
    })
}

fn logging(e: &Evidence) -> Evaluation {
    let us = e.in_functions(&[
        "EmitErrorReport",
        "write_pipe_chunks",
        "send_message_to_server_log",
        "errfinish",
        "write_csvlog",
        "write_jsonlog",
    ]);
    let waited = e.blocked(&["logging pipe"]);
    let lines = e.counter("log.lines");
    let logger_us = e.counter("background(logger).cpu_us");
    // The logger is one process: its share of one CPU at this transaction rate.
    let logger_busy = logger_us.map(|us| us * e.tps / 1e6);
    let csv = e.in_functions(&["write_csvlog", "appendCSVLiteral"]);
    let json = e.in_functions(&["write_jsonlog", "escape_json"]);
    let asked: Vec<(&str, &str)> = [
        ("log_statement", "none"),
        ("log_duration", "off"),
        ("log_min_duration_statement", "-1"),
        ("log_connections", "off"),
        ("log_lock_waits", "off"),
        ("log_min_messages", "warning"),
    ]
    .into_iter()
    .filter(|(name, off)| e.setting(name).is_some_and(|value| value != *off))
    .collect();
    Evaluation::of(us + waited + logger_us.unwrap_or(0.0))
        .when(
            lines.is_none_or(|count| count >= 0.1)
                && (e.of_cpu(us) >= 0.08 || e.of_response(waited) >= 0.05),
        )
        .stacks("formatting and writing log messages", us)
        .stacks("of which CSV", csv)
        .stacks("of which JSON", json)
        .waits("pipe to the logger full", waited)
        .counter("log lines", lines)
        .bytes("log written", e.counter("log.bytes"))
        .share(
            Source::Clocks,
            "of one CPU used by the logger, a single process",
            logger_busy,
        )
        .remedy(
            "Log less: set log_min_duration_statement, sample with log_transaction_sample_rate \
             (PostgreSQL 12 and later) or log_min_duration_sample (13 and later), or use pg_stat_statements \
             instead of logging every statement. Under load, prefer stderr or csvlog to jsonlog. \
             Each line is formatted, written through one pipe that all backends share, and wakes \
             the logger.",
        )
        .variant((!asked.is_empty()).then(|| RemedyVariant::session(&asked)))
}

fn slow_clock(e: &Evidence) -> Evaluation {
    let us = e.in_functions(&["read_hpet", "acpi_pm_read", "hpet_readl"]);
    let slow = ["hpet", "acpi_pm"]
        .iter()
        .any(|name| e.clock_source.contains(name));
    let asked = e.in_functions(&[
        "clock_gettime",
        "__vdso_clock_gettime",
        "GetCurrentTimestamp",
        "InstrStartNode",
        "InstrStopNode",
    ]);
    Evaluation::of(us.max(asked))
        .when(e.of_cpu(us) >= 0.02 || (slow && e.of_cpu(asked) >= 0.03))
        .stacks("reading a slow clock", us)
        .stacks("reading the time", asked)
        .condition(
            slow,
            "the clock source is hpet or acpi_pm, which take about 1 µs per read",
        )
        .remedy(
            "Switch the kernel to the tsc clock source (clocksource=tsc) if tsc is stable on this \
             machine. Until then, turn off track_io_timing, log_duration and the TIMING option of \
             EXPLAIN ANALYZE. pgassay timing measures the cost of a clock read.",
        )
}

fn statistics(e: &Evidence) -> Evaluation {
    let statements = e.in_functions(&[
        "pgss_store",
        "pgss_planner",
        "pgss_ExecutorEnd",
        "pgss_ExecutorRun",
        "pgss_post_parse_analyze",
        "pgss_ProcessUtility",
    ]);
    // The other hooks contain the query itself.
    let own = e.in_functions(&["pgss_store"]);
    let reports = e.in_functions(&[
        "pgstat_report_stat",
        "pgstat_report_activity",
        "pgstat_send_tabstat",
        "pgstat_report_tabstat",
        "pgstat_init_function_usage",
        "pgstat_end_function_usage",
    ]);
    let us = own + reports;
    let with_statements = statements > 0.0;
    Evaluation::of(us)
        .when(e.of_cpu(own) >= 0.03 || e.of_cpu(us) >= 0.12)
        .stacks("pg_stat_statements", own)
        .stacks("reporting activity and counters", reports)
        .condition(with_statements, "pg_stat_statements is loaded")
        .remedy(
            "Compare with a control variant that sets pg_stat_statements.track=none and turns off \
             track_activities, track_counts and track_io_timing. In production, these statistics \
             are usually worth their cost.",
        )
        .variant(
            with_statements
                .then(|| RemedyVariant::session(&[("pg_stat_statements.track", "none")])),
        )
}

/// Kernel entry points of a page fault.
const FAULTS: [&str; 5] = [
    "asm_exc_page_fault",
    "exc_page_fault",
    "do_user_addr_fault",
    "handle_mm_fault",
    "do_page_fault",
];
/// Kernel functions for faults on shared memory and files. The last ones are called through pointers, so that
/// no compiler puts them into their callers.
const SHARED: [&str; 10] = [
    "do_shared_fault",
    "do_read_fault",
    "do_cow_fault",
    "do_fault",
    "__do_fault",
    "hugetlb_fault",
    "shmem_fault",
    "filemap_fault",
    "filemap_map_pages",
    "xfs_filemap_map_pages",
];

/// In a benchmark, a smaller share may be due to its new connections.
const FAULTS_RESPONSE_MIN: f64 = 0.05;

fn page_faults(e: &Evidence) -> Evaluation {
    let all = e.in_functions(&FAULTS);
    // Huge pages help shared memory only. Private memory, such as that of a sort or of a long list of constants,
    // still faults, and may be filled by any function, so only what the kernel did tells.
    let us = e.in_nested_functions(&[&FAULTS, &SHARED]);
    let faults = e.counter("backends.minor_faults");
    Evaluation::of(us)
        .when(e.of_cpu(us) >= 0.08 && faults.is_none_or(|count| count >= 0.5))
        .stacks("page faults on shared memory and files", us)
        .context(|it| {
            it.stacks(
                "other page faults, most on private memory",
                (all - us).max(0.0),
            )
        })
        .counter("minor page faults", faults)
        .counter(
            "major page faults (read from disk)",
            e.counter("backends.major_faults"),
        )
        .against(
            !e.is_live && e.of_response(us) < FAULTS_RESPONSE_MIN,
            "new connections in each block cause page faults, and page faults are less than 5% of the response time",
        )
        .remedy(if e.is_live {
            "Keep connections open: each new process maps the shared buffers page by page as it \
             first touches them. Reserve huge pages (vm.nr_hugepages), which huge_pages=try, \
             the default, then uses."
        } else {
            "Use a longer --length: pgassay opens new connections in each block, and each new process maps the \
             shared buffers page by page as it first touches them. In production, keep connections open, and \
             reserve huge pages (vm.nr_hugepages), which huge_pages=try, the default, then uses."
        })
}

fn throttled(e: &Evidence) -> Evaluation {
    let all: f64 = [
        "machine.busy_us",
        "machine.idle_us",
        "machine.io_wait_us",
        "machine.steal_us",
    ]
    .iter()
    .filter_map(|name| e.counter(name))
    .sum();
    let steal = e.counter("machine.steal_us").unwrap_or(0.0);
    let quota = e.counter("cgroup.throttled_us").unwrap_or(0.0);
    let stolen = if all > 0.0 { steal / all } else { 0.0 };
    Evaluation::of(steal + quota)
        .when(stolen >= 0.05 || e.of_response(quota) >= 0.05)
        .share(Source::Counters, "CPU steal", Some(stolen))
        .micros("throttled by the CPU quota (cgroup)", Some(quota))
        .context(|it| it.clock("run-queue wait of backends", e.run_queue_us))
        .remedy(
            "Raise the CPU quota (cpu.max), or use a machine with dedicated CPUs. Trust only \
             ratios of interleaved trials: absolute figures depend on the load of other tenants.",
        )
}
