//! WAL, storage, and the machine.

use super::super::evidence::Evidence;
use super::{Case, case, counted, load, stacks, waits, with_settings};

pub(super) fn of_wal() -> Vec<Case> {
    let synced = || load(&[("issue_xlog_fsync", 3)], &[("WAL sync", 500.0)], &[]);
    let images = |bytes: f64, records: f64| {
        let counters = [
            ("pg_stat_wal.wal_fpi", 0.2),
            ("pg_stat_wal.wal_records", records),
            ("wal.insert_bytes", bytes),
        ];
        load(&[("XLogInsert", 30)], &[], &counters)
    };
    let full = |count: f64| {
        let counters = [("pg_stat_wal.wal_buffers_full", count)];
        load(&[("AdvanceXLInsertBuffer", 5)], &[], &counters)
    };
    vec![
        case(
            "commit-sync",
            "synchronous_commit=off, where a backend writes WAL only when its buffers are full",
            synced(),
            with_settings(synced(), &[("synchronous_commit", "off")]),
        ),
        case(
            "full-page-images",
            "inserts of large rows, which fill the WAL with few full-page images",
            images(2000.0, 3.0),
            images(20_000.0, 10.0),
        ),
        case(
            "wal-insertion",
            "a load that writes much WAL without waiting for insertion locks",
            waits(&[("LWLock WALInsert", 100.0)]),
            load(
                &[("XLogInsert;WALInsertLockAcquire", 2)],
                &[],
                &[("wal.insert_bytes", 1e5)],
            ),
        ),
        case(
            "wal-buffers",
            "a bulk load that finds the WAL buffers full once in a hundred transactions",
            full(1.0),
            full(0.01),
        ),
        case(
            "synchronous-replication",
            "commits that wait for the local disk, with an asynchronous standby",
            waits(&[("IPC SyncRep", 300.0)]),
            waits(&[("WAL sync", 300.0)]),
        ),
    ]
}

pub(super) fn of_storage() -> Vec<Case> {
    let reads = |read: f64, hit: f64| {
        let counters = [
            ("pg_stat_database.blks_read", read),
            ("pg_stat_database.blks_hit", hit),
        ];
        load(
            &[("WaitReadBuffers;mdreadv", 10)],
            &[("data file read", 100.0)],
            &counters,
        )
    };
    let sort = |stacks: &[(&str, u32)], bytes: f64| {
        load(stacks, &[], &[("pg_stat_database.temp_bytes", bytes)])
    };
    let vacuum = |us: f64| counted(&[("background(autovacuum worker).cpu_us", us)]);
    vec![
        case(
            "data-reads",
            "an occasional cold block in a cache that holds the rest",
            reads(5.0, 5.0),
            reads(0.1, 9.9),
        ),
        case(
            "buffer-mapping",
            "reads from disk without waits for the buffer mapping table",
            waits(&[("LWLock BufferMapping", 100.0)]),
            waits(&[("data file read", 100.0)]),
        ),
        case(
            "temporary-files",
            "a large sort that fits into work_mem",
            sort(&[("tuplesort_performsort;BufFileWrite", 20)], 1e6),
            sort(&[("tuplesort_performsort;qsort_tuple", 60)], 0.0),
        ),
        case(
            "checksums",
            "checksums on blocks that stay in shared buffers",
            stacks(&[("WaitReadBuffers;PageIsVerified;pg_checksum_page", 10)]),
            stacks(&[("WaitReadBuffers;PageIsVerified;pg_checksum_page", 1)]),
        ),
        case(
            "autovacuum",
            "autovacuum that keeps up with 5% of the backends' CPU time",
            vacuum(40.0),
            vacuum(5.0),
        ),
    ]
}

pub(super) fn of_writes() -> Vec<Case> {
    let flushed = "ReadBuffer_common;GetVictimBuffer;FlushBuffer;mdwritev";
    let index = format!("DoCopy;CopyFrom;ExecInsertIndexTuples;btinsert;{flushed}");
    let rows = format!("DoCopy;CopyFrom;heap_multi_insert;RelationGetBufferForTuple;{flushed}");
    let written = [("IO DataFileWrite", 60.0)];
    let in_context = |evictions: f64| {
        [
            ("pg_stat_io(client backend, relation).writes", 50.0),
            ("pg_stat_io(client backend, relation).evictions", evictions),
        ]
    };
    vec![
        case(
            "backend-writes",
            "a bulk load, which extends its table and evicts nothing",
            stacks(&[("GetVictimBuffer;FlushBuffer;mdwrite", 20)]),
            stacks(&[("ExtendBufferedRelBy;mdzeroextend", 8)]),
        ),
        // Regression: larger shared buffers were suggested for bulk loads, which write the buffers of a ring.
        case(
            "backend-writes",
            "COPY and CREATE TABLE AS, which write the buffers of a ring",
            load(&[(index.as_str(), 15), (rows.as_str(), 15)], &written, &[]),
            load(&[(rows.as_str(), 30)], &written, &[]),
        ),
        case(
            "backend-writes",
            "COPY and CREATE TABLE AS, which write the buffers of a ring",
            load(&[(flushed, 30)], &written, &in_context(50.0)),
            load(&[(flushed, 30)], &written, &in_context(1.0)),
        ),
    ]
}

pub(super) fn of_pruning() -> Vec<Case> {
    let updates = |of_indexes: u32| {
        stacks(&[
            (
                "heapam_index_fetch_tuple;heap_page_prune_opt;heap_page_prune_and_freeze",
                14,
            ),
            ("ExecUpdate;heapam_tuple_update;heap_update", 6),
            ("ExecUpdate;ExecInsertIndexTuples;btinsert", of_indexes),
        ])
    };
    vec![
        case(
            "pruning",
            "HOT updates, which prune their own page as they should",
            stacks(&[("heap_page_prune_opt;heap_page_prune_and_freeze", 30)]),
            stacks(&[("heap_page_prune_opt;heap_page_prune_and_freeze", 6)]),
        ),
        // Regression: HOT updates with one index were to be made HOT.
        case(
            "pruning",
            "HOT updates, which prune their own page as they should",
            updates(16),
            updates(1),
        ),
        // Regression: with compressed images, pruning was 45% of the difference, of which it was a tenth.
        case(
            "pruning",
            "pruning that is the first change of its pages since a checkpoint, and writes their images",
            stacks(&[("heap_page_prune_opt;heap_page_prune_and_freeze", 30)]),
            stacks(&[
                ("heap_page_prune_opt;heap_page_prune_and_freeze", 6),
                (
                    "heap_page_prune_opt;heap_page_prune_and_freeze;XLogInsert",
                    50,
                ),
            ]),
        ),
        case(
            "pruning",
            "scans of large tables without dead rows, and VACUUM",
            stacks(&[("heapgetpage;heap_page_prune_opt;heap_page_prune", 30)]),
            stacks(&[
                ("heapgetpage;heap_page_prune_opt", 30),
                ("lazy_scan_prune;heap_page_prune", 30),
            ]),
        ),
    ]
}

pub(super) fn of_extension() -> Vec<Case> {
    vec![
        case(
            "relation-extension",
            "COPY on 16 or later, which extends by many blocks at a time",
            stacks(&[("RelationAddBlocks;ExtendBufferedRelBy;mdzeroextend", 30)]),
            stacks(&[("RelationAddBlocks;ExtendBufferedRelBy;mdzeroextend", 5)]),
        ),
        case(
            "relation-extension",
            "one client, or temporary tables, which are extended without a lock",
            stacks(&[("ExtendBufferedRelCommon;ExtendBufferedRelShared", 30)]),
            stacks(&[("ExtendBufferedRelCommon;ExtendBufferedRelLocal", 30)]),
        ),
        case(
            "relation-extension",
            "one client, or temporary tables, which are extended without a lock",
            waits(&[("Lock extend", 50.0), ("IO DataFileExtend", 50.0)]),
            Evidence {
                clients: 1.0,
                ..load(&[("mdextend", 30)], &[("IO DataFileExtend", 50.0)], &[])
            },
        ),
    ]
}

pub(super) fn of_machine() -> Vec<Case> {
    let queued = |busy_us: f64| Evidence {
        response_us: 200.0,
        run_queue_us: 60.0,
        ..counted(&[
            ("machine.busy_us", busy_us),
            ("machine.idle_us", 400.0 - busy_us),
        ])
    };
    let raised = |lines: f64| {
        load(
            &[("errfinish;EmitErrorReport", 20)],
            &[],
            &[("log.lines", lines)],
        )
    };
    let clock = |source: &str| Evidence {
        clock_source: source.to_owned(),
        ..stacks(&[("InstrStartNode;clock_gettime", 20)])
    };
    let faults = |stack: &str| load(&[(stack, 30)], &[], &[("backends.minor_faults", 50.0)]);
    let stolen = |us: f64| counted(&[("machine.busy_us", 200.0 - us), ("machine.steal_us", us)]);
    vec![
        case(
            "cpu-saturation",
            "short run-queue waits, as after each wake-up, on CPUs that are half idle",
            queued(396.0),
            queued(200.0),
        ),
        case(
            "logging",
            "errors that PL/pgSQL catches and that are not logged",
            raised(1.0),
            raised(0.0),
        ),
        case(
            "slow-clock",
            "EXPLAIN ANALYZE with tsc: many clock reads, each of them cheap",
            clock("hpet"),
            clock("tsc"),
        ),
        case(
            "statistics",
            "pg_stat_statements around a CPU-intensive query: its hooks contain the query itself",
            stacks(&[("pgss_ExecutorEnd;pgss_store", 10)]),
            stacks(&[("pgss_ExecutorRun;standard_ExecutorRun", 60)]),
        ),
        case(
            "page-faults",
            "a sort that gets fresh memory from the system each time",
            faults("ReadBuffer_common;PinBuffer;asm_exc_page_fault;do_shared_fault"),
            faults("ExecSort;tuplesort_puttupleslot;asm_exc_page_fault;do_anonymous_page"),
        ),
        case("throttled", "CPU steal of 1%", stolen(40.0), stolen(2.0)),
    ]
}
