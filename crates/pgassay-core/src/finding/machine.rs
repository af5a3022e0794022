//! The machine, its clock, the log, and what watching costs.
//!
//! Sources: `src/backend/utils/error/elog.c` and `postmaster/syslogger.c` (one pipe for all),
//! `portability/instr_time.h`, `utils/activity/`.

use super::Source;
use super::evidence::Evidence;
use super::measure::{Measure, Signature};
use super::remedy::RemedyVariant;

pub(super) const SIGNATURES: &[Signature] = &[
    Signature {
        id: "cpu-saturation",
        title: "The processors are full",
        manual: "Server Configuration: Connections and Authentication, max_connections",
        measure: cpu_saturation,
    },
    Signature {
        id: "logging",
        title: "Writing the log",
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
        title: "Keeping statistics",
        manual: "Monitoring: The Cumulative Statistics System; pg_stat_statements",
        measure: statistics,
    },
    Signature {
        id: "page-faults",
        title: "Processes touch shared memory for the first time",
        manual: "Server Setup and Operation: Linux Huge Pages",
        measure: page_faults,
    },
    Signature {
        id: "throttled",
        title: "CPU steal or a CPU quota takes processor time away",
        manual: "Server Setup and Operation: Managing Kernel Resources",
        measure: throttled,
    },
];

/// Processors are called full from here on.
const FULL: f64 = 0.9;
/// Other programs' share of the machine from which on they may be the cause.
const FOREIGN: f64 = 0.1;

fn cpu_saturation(e: &Evidence) -> Measure {
    let busy = e.busy();
    let is_full = busy.map_or(e.of_response(e.run_queue_us) >= 0.3, |share| share >= FULL);
    Measure::of(e.run_queue_us)
        .queueing(e.run_queue_us)
        .when(is_full && e.of_response(e.run_queue_us) >= 0.15)
        .clock("backends wait in the run queue", e.run_queue_us)
        .share(Source::Counters, "of the machine's processors in use", busy)
        .context(|it| {
            let switches = e.counter("backends.involuntary_switches");
            it.counter(
                "times that a processor was taken away (preemptions)",
                switches,
            )
        })
        .against(
            e.foreign >= FOREIGN,
            "other programs used a good part of the machine meanwhile",
        )
        .remedy(
            "Reduce active connections to about the number of processors, with a pooler in \
             transaction mode: more of them only queue. Beyond that, only less work per \
             transaction or more processors help.",
        )
}

fn logging(e: &Evidence) -> Measure {
    let us = e.with(&[
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
    // The logger is one process: at this rate of transactions it has used so much of a processor.
    let logger_busy = logger_us.map(|us| us * e.tps / 1e6);
    let csv = e.with(&["write_csvlog", "appendCSVLiteral"]);
    let json = e.with(&["write_jsonlog", "escape_json"]);
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
    Measure::of(us + waited + logger_us.unwrap_or(0.0))
        .when(
            lines.is_none_or(|count| count >= 0.1)
                && (e.of_cpu(us) >= 0.08 || e.of_response(waited) >= 0.05),
        )
        .stacks("formatting and writing log messages", us)
        .stacks("of it CSV", csv)
        .stacks("of it JSON", json)
        .waits("the pipe to the logger is full", waited)
        .counter("log lines", lines)
        .bytes("log written", e.counter("log.bytes"))
        .share(
            Source::Clocks,
            "of a processor used by the logger, which is one process",
            logger_busy,
        )
        .remedy(
            "The price is lines × (formatting + writing + waking the logger), through one pipe for \
             all. Log less: log_min_duration_statement, a sample (log_transaction_sample_rate from \
             12, log_min_duration_sample from 13), pg_stat_statements instead of every statement; \
             csvlog or stderr rather than jsonlog under load.",
        )
        .variant((!asked.is_empty()).then(|| RemedyVariant::session(&asked)))
}

fn slow_clock(e: &Evidence) -> Measure {
    let us = e.with(&["read_hpet", "acpi_pm_read", "hpet_readl"]);
    let slow = ["hpet", "acpi_pm"]
        .iter()
        .any(|name| e.clock_source.contains(name));
    let asked = e.with(&[
        "clock_gettime",
        "__vdso_clock_gettime",
        "GetCurrentTimestamp",
        "InstrStartNode",
        "InstrStopNode",
    ]);
    Measure::of(us.max(asked))
        .when(e.of_cpu(us) >= 0.02 || (slow && e.of_cpu(asked) >= 0.03))
        .stacks("reading a slow clock", us)
        .stacks("asking for the time", asked)
        .condition(
            slow,
            "the clock source is hpet or acpi_pm, which take about a microsecond",
        )
        .remedy(
            "Let the kernel use tsc (clocksource=tsc, if it keeps even time on this machine); \
             until then leave track_io_timing, log_duration and EXPLAIN ANALYZE's timing off. \
             pgassay timing measures what a reading costs.",
        )
}

fn statistics(e: &Evidence) -> Measure {
    let statements = e.with(&[
        "pgss_store",
        "pgss_planner",
        "pgss_ExecutorEnd",
        "pgss_ExecutorRun",
        "pgss_post_parse_analyze",
        "pgss_ProcessUtility",
    ]);
    // What stands inside these is the query itself.
    let own = e.with(&["pgss_store"]);
    let reports = e.with(&[
        "pgstat_report_stat",
        "pgstat_report_activity",
        "pgstat_send_tabstat",
        "pgstat_report_tabstat",
        "pgstat_init_function_usage",
        "pgstat_end_function_usage",
    ]);
    let us = own + reports;
    let with_statements = statements > 0.0;
    Measure::of(us)
        .when(e.of_cpu(own) >= 0.03 || e.of_cpu(us) >= 0.12)
        .stacks("pg_stat_statements", own)
        .stacks("reporting activity and counters", reports)
        .condition(with_statements, "pg_stat_statements is loaded")
        .remedy(
            "Measure with and without: pg_stat_statements.track=none, track_activities, \
             track_counts and track_io_timing off in a control variant. On a server they are \
             usually worth their price.",
        )
        .variant(
            with_statements
                .then(|| RemedyVariant::session(&[("pg_stat_statements.track", "none")])),
        )
}

/// Where the kernel begins with a page fault.
const FAULTS: [&str; 5] = [
    "asm_exc_page_fault",
    "exc_page_fault",
    "do_user_addr_fault",
    "handle_mm_fault",
    "do_page_fault",
];
/// A process's own memory, as the kernel gives it: new and zeroed.
const ANONYMOUS: [&str; 5] = [
    "do_anonymous_page",
    "alloc_anon_folio",
    "vma_alloc_zeroed_movable_folio",
    "do_huge_pmd_anonymous_page",
    "alloc_zeroed_user_highpage_movable",
];
/// What fills a process's own memory: allocators, sorts and hash tables. None of these calls what
/// touches shared buffers.
#[rustfmt::skip]
const OWN_MEMORY: [&str; 30] = [
    "AllocSetAlloc", "AllocSetAllocFromNewBlock", "AllocSetAllocLarge", "AllocSetRealloc",
    "AllocSetContextCreateInternal", "GenerationAlloc", "BumpAlloc", "SlabAlloc",
    "palloc", "palloc0", "repalloc", "MemoryContextAlloc", "MemoryContextAllocHuge",
    "MemoryContextAllocExtended", "malloc", "__libc_malloc", "_int_malloc", "realloc", "sysmalloc",
    "tuplesort_begin_common", "tuplesort_puttuple_common", "tuplesort_puttupleslot",
    "tuplesort_putdatum", "tuplesort_performsort", "tuplesort_gettupleslot", "grow_memtuples",
    "ExecHashTableInsert", "ExecHashTableCreate", "tuplestore_puttuple_common",
    "LookupTupleHashEntry",
];

fn page_faults(e: &Evidence) -> Measure {
    let all = e.with(&FAULTS);
    // Huge pages serve the shared memory; a sort's memory comes back as faults with them, too.
    let own = e
        .path(&[&FAULTS, &ANONYMOUS])
        .max(e.path(&[&OWN_MEMORY, &FAULTS]));
    let us = (all - own).max(0.0);
    let faults = e.counter("backends.minor_faults");
    Measure::of(us)
        .when(e.of_cpu(us) >= 0.08 && faults.is_none_or(|count| count >= 0.5))
        .stacks("page faults on shared memory and files", us)
        .context(|it| it.stacks("page faults on memory of the process's own", own))
        .counter("page faults", faults)
        .counter(
            "page faults that read from disk",
            e.counter("backends.major_faults"),
        )
        .remedy(
            "Keep connections open: each process maps the shared buffers page by page as it first \
             touches them. Set huge_pages=try with pages reserved (vm.nr_hugepages), and warm up \
             longer.",
        )
}

fn throttled(e: &Evidence) -> Measure {
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
    Measure::of(steal + quota)
        .when(stolen >= 0.05 || e.of_response(quota) >= 0.05)
        .share(
            Source::Counters,
            "of the machine's time was CPU steal",
            Some(stolen),
        )
        .micros("kept off the processor by a quota (cgroup)", Some(quota))
        .context(|it| it.clock("backends wait in the run queue", e.run_queue_us))
        .remedy(
            "What is measured here is the neighbours, too. Raise the quota (cpu.max), or take a \
             machine with processors of its own; believe only ratios of interleaved trials.",
        )
}
