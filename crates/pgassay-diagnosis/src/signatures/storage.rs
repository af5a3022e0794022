//! Blocks and files: reads, evictions, extensions, disk sorts, checksums, vacuuming.
//!
//! Sources: `src/backend/storage/buffer/`, `access/heap/hio.c` (extension by many blocks; better
//! since 16), `storage/file/buffile.c`, `storage/page/checksum.c` (on by default since 18).

use pgassay_record::finding::Source;
use pgassay_record::remedy::RemedyVariant;

use crate::evaluation::{Evaluation, Signature};
use crate::evidence::Evidence;
use crate::setting_size::setting_size;

use super::raising::{BLOCK, MIB};

pub(super) const SIGNATURES: &[Signature] = &[
    Signature {
        id: "data-reads",
        title: "Blocks are read because they are not in shared buffers",
        manual: "Server Configuration: Resource Consumption, shared_buffers",
        measure: data_reads,
    },
    Signature {
        id: "buffer-mapping",
        title: "Contention on the buffer mapping table",
        manual: "Monitoring: Wait Events of Type LWLock (BufferMapping)",
        measure: buffer_mapping,
    },
    Signature {
        id: "backend-writes",
        title: "Backends write dirty buffers themselves",
        manual: "Server Configuration: Resource Consumption, Background Writer",
        measure: backend_writes,
    },
    Signature {
        id: "relation-extension",
        title: "Tables are extended block by block under a lock",
        manual: "Populating a Database; Monitoring: Wait Events of Type Lock (extend)",
        measure: relation_extension,
    },
    Signature {
        id: "temporary-files",
        title: "Sorts, hash tables or stored results spill to temporary files",
        manual: "Server Configuration: Resource Consumption, work_mem",
        measure: temporary_files,
    },
    Signature {
        id: "checksums",
        title: "Page checksums take CPU time",
        manual: "initdb: --data-checksums (the default since PostgreSQL 18)",
        measure: checksums,
    },
    Signature {
        id: "pruning",
        title: "Pruning dead row versions takes CPU time",
        manual: "Database Physical Storage: Heap-Only Tuples (HOT)",
        measure: pruning,
    },
    Signature {
        id: "autovacuum",
        title: "Autovacuum competes with the load for CPU time",
        manual: "Routine Vacuuming: The Autovacuum Daemon",
        measure: autovacuum,
    },
];

/// Functions that read a block from the kernel; 18 reads through `storage/aio`.
const READS: [&str; 10] = [
    "mdread",
    "mdreadv",
    "mdstartreadv",
    "FileRead",
    "FileReadV",
    "FileStartReadV",
    "pgaio_io_start_readv",
    "pgaio_io_perform_synchronously",
    "pgaio_wref_wait",
    "WaitReadBuffers",
];

/// Four times the study's `shared_buffers` (128 MB by default), up to 1 GB.
fn larger_shared_buffers(e: &Evidence) -> Option<RemedyVariant> {
    let now_mb = match e.setting("shared_buffers") {
        None => 128,
        Some(value) => (setting_size(value, BLOCK)? / MIB) as u64,
    };
    // Whether to use more than 1 GB is the user's decision.
    let wanted_mb = (now_mb * 4).min(1024);
    let wanted = format!("{wanted_mb}MB");
    (wanted_mb > now_mb).then(|| RemedyVariant::settings(&[("shared_buffers", &wanted)]))
}

/// Of the blocks read, the share that took the place of others below which shared buffers were not full.
const COLD_MAX: f64 = 0.1;

/// Blocks that others took the place of, per transaction, in shared buffers or in the ring of a large scan; `None` if the
/// version does not count them. Counters that are 0 are not recorded.
fn evicted(e: &Evidence) -> Option<f64> {
    let counted = |name: &str| e.counter(&format!("pg_stat_io(client backend, relation).{name}"));
    counted("reads")?;
    Some(counted("evictions").unwrap_or(0.0) + counted("reuses").unwrap_or(0.0))
}

fn data_reads(e: &Evidence) -> Evaluation {
    let waited = e.blocked(&[
        "data file read",
        "IO DataFileRead",
        "IO DataFilePrefetch",
        "IO AioIoCompletion",
        "LWLock BufferIO",
        "IPC BufferIO",
    ]);
    let us = e.in_functions(&READS);
    let read = e.counter("pg_stat_database.blks_read");
    let hit = e.counter("pg_stat_database.blks_hit").unwrap_or(0.0);
    let missed = read.map(|read| read / (read + hit).max(f64::MIN_POSITIVE));
    let is_cold =
        read.is_some_and(|read| evicted(e).is_some_and(|evicted| evicted < COLD_MAX * read));
    let often = read.is_some_and(|count| count >= 0.2) && missed.is_some_and(|share| share >= 0.05);
    Evaluation::of(waited + us)
        .when(often && (e.of_response(waited) >= 0.1 || e.of_cpu(us) >= 0.05))
        .waits("DataFileRead", waited)
        .stacks("reading blocks", us)
        .counter("blocks read", read)
        .share(
            Source::Counters,
            "of block lookups missed shared buffers",
            missed,
        )
        .bytes(
            "read from disk, not found in the kernel's page cache",
            e.counter("backends.read_bytes"),
        )
        .against(
            is_cold,
            "hardly any block was removed from shared buffers for them: these are first reads after the server start",
        )
        .remedy(if is_cold {
            "Shared buffers were not full, so raising shared_buffers gains nothing. To measure the server with \
             its data in memory, read the tables and indexes after each server start (pg_prewarm, or \
             shared_preload_libraries=pg_prewarm), or use longer trials (--length)."
        } else {
            "Raise shared_buffers to a quarter of the memory or to the size of the hot data: the \
             working set does not fit. Add an index so that queries read fewer blocks. From PostgreSQL 18 \
             on, io_method and effective_io_concurrency control read-ahead."
        })
        .variant(larger_shared_buffers(e).filter(|_| !is_cold))
}

fn buffer_mapping(e: &Evidence) -> Evaluation {
    let waited = e.blocked(&[
        "LWLock BufferMapping",
        "LWLock buffer_mapping",
        "LWLock BufMapping",
    ]);
    Evaluation::of(waited)
        .queueing(waited)
        .when(e.of_response(waited) >= 0.05)
        .waits("LWLock BufferMapping", waited)
        .context(|it| {
            it.counter("blocks read", e.counter("pg_stat_database.blks_read"))
                .stacks("BufferAlloc", e.in_functions(&["BufferAlloc"]))
        })
        .remedy(
            "Raise shared_buffers, or add an index so that queries need fewer blocks. Blocks enter \
             and leave shared buffers under the locks of 128 partitions of the mapping table.",
        )
        .variant(larger_shared_buffers(e))
}

/// Commands that write rows into a ring of buffers: COPY, CREATE TABLE AS, REFRESH MATERIALIZED VIEW, and ALTER TABLE
/// that rewrites its table.
const BULK_WRITERS: [&str; 6] = [
    "CopyFrom",
    "DoCopy",
    "intorel_receive",
    "transientrel_receive",
    "ATRewriteTable",
    "ATRewriteTables",
];
/// Where they get a page for a row. Their indexes and their TOAST tables are in ordinary buffers.
const PAGES_FOR_ROWS: [&str; 2] = ["RelationGetBufferForTuple", "ReadBufferBI"];
const TOASTING: [&str; 2] = ["toast_save_datum", "heap_toast_insert_or_update"];
/// Commands of which all blocks are in a ring.
const RING_COMMANDS: [&str; 3] = ["heap_vacuum_rel", "lazy_scan_heap", "analyze_rel"];
const WRITING: [&str; 2] = ["FlushBuffer", "FlushUnlockedBuffer"];

/// The share of the written buffers that had to make room for others, 0 to 1. The rest was written to reuse a buffer of
/// a ring, which leaves shared buffers to others, and which larger ones do not avoid.
fn share_written_for_room(e: &Evidence, writes: Option<f64>) -> f64 {
    let all = e.in_functions(&WRITING);
    let of_rows = e.in_nested_functions(&[&BULK_WRITERS, &PAGES_FOR_ROWS, &WRITING])
        - e.in_nested_functions(&[&BULK_WRITERS, &TOASTING, &PAGES_FOR_ROWS, &WRITING]);
    let of_rings = of_rows + e.in_nested_functions(&[&RING_COMMANDS, &WRITING]);
    let by_stacks = if all > 0.0 { 1.0 - of_rings / all } else { 1.0 };
    // Each write for room is an eviction, from 16 on. Counters that are 0 are not recorded.
    let name = "pg_stat_io(client backend, relation).evictions";
    let evictions = e.counter(name).unwrap_or(0.0);
    let by_counters = writes.map_or(1.0, |writes| evictions / writes.max(f64::MIN_POSITIVE));
    by_stacks.min(by_counters).clamp(0.0, 1.0)
}

fn backend_writes(e: &Evidence) -> Evaluation {
    let by_context = e.counter("pg_stat_io(client backend, relation).writes");
    // Up to 15, buffers_backend also counts the blocks by which relations were extended.
    let written = by_context.or_else(|| e.counter("pg_stat_bgwriter.buffers_backend"));
    let for_room = share_written_for_room(e, by_context);
    let waited = for_room * e.blocked(&["data file write", "IO DataFileWrite", "IO DataFileFlush"]);
    let us = for_room * e.in_functions(&WRITING);
    Evaluation::of(waited + us)
        .when(e.of_cpu(us) >= 0.05 || e.of_response(waited) >= 0.1)
        .waits("DataFileWrite", waited)
        .stacks("FlushBuffer", us)
        .context_unless(for_room >= 0.5, |it| {
            it.counter("buffers written by backends", written)
        })
        .remedy(
            "Raise shared_buffers: a backend that needs a buffer finds it dirty and must write it \
             first. Raise bgwriter_lru_maxpages and lower bgwriter_delay so that the background \
             writer cleans more buffers; spread checkpoints with checkpoint_completion_target.",
        )
        .variant(larger_shared_buffers(e))
}

const EXTENDING: [&str; 7] = [
    "RelationAddExtraBlocks",
    "RelationAddBlocks",
    "ExtendBufferedRelBy",
    "ExtendBufferedRel",
    "ExtendBufferedRelCommon",
    "mdextend",
    "mdzeroextend",
];

fn relation_extension(e: &Evidence) -> Evaluation {
    let locked = e.blocked(&["Lock extend", "LWLock RelationMapping"]);
    let written = e.blocked(&["data file extension", "IO DataFileExtend"]);
    let waited = locked + written;
    // A temporary table is extended without a lock.
    let local = e.in_nested_functions(&[&EXTENDING, &["ExtendBufferedRelLocal"]]);
    let us = e.in_functions(&EXTENDING) - local;
    let extended = e.counter("pg_stat_io(client backend, relation).extends");
    let is_shared = locked > 0.0 || e.clients >= 2.0;
    let larger_steps =
        "Use COPY, which extends the table by many blocks at a time from 16 on; INSERT does not";
    let partitions = if locked > 0.0 {
        ", or partition it: each partition has its own extension lock."
    } else {
        "."
    };
    let upgrade = if e.until(15) {
        " Upgrade to PostgreSQL 16 or later, which extends by many blocks at a time and holds the lock for \
         less time."
    } else {
        ""
    };
    Evaluation::of(waited + us)
        .queueing(locked)
        .when(is_shared && (e.of_response(waited) >= 0.05 || e.of_cpu(us) >= 0.1))
        .waits("Lock extend", locked)
        .waits("DataFileExtend", written)
        .stacks("extending tables", us)
        .counter("extensions", extended)
        .condition(
            e.until(15),
            "up to PostgreSQL 15, a table is extended by few blocks at a time under one lock",
        )
        .against(
            locked <= 0.0 && !e.blocked.is_empty(),
            "no session waits for the extension lock",
        )
        .remedy(format!("{larger_steps}{partitions}{upgrade}"))
        .variant(e.until(15).then(|| RemedyVariant::version("18")))
}

fn temporary_files(e: &Evidence) -> Evaluation {
    let bytes = e.counter("pg_stat_database.temp_bytes");
    let files = e.counter("pg_stat_database.temp_files");
    let us = e.in_functions(&[
        "BufFileWrite",
        "BufFileRead",
        "BufFileReadExact",
        "BufFileReadMaybeEOF",
        "BufFileDumpBuffer",
        "BufFileLoadBuffer",
        "LogicalTapeWrite",
        "LogicalTapeRead",
        "ExecHashJoinSaveTuple",
        "BufFileCreateTemp",
    ]);
    let waited = e.blocked(&[
        "temporary file",
        "IO BufFileRead",
        "IO BufFileWrite",
        "IO BuffileRead",
        "IO BuffileWrite",
    ]);
    let spilled = bytes.is_some_and(|count| count >= 8192.0);
    // Data takes more room in memory than in a file.
    let files_or_one = files.filter(|it| *it > 0.0).unwrap_or(1.0);
    let largest = bytes.unwrap_or(0.0) / files_or_one;
    let wanted_mb = (largest * 4.0 / 1e6).clamp(64.0, 512.0) as u64;
    Evaluation::of(us + waited)
        .when(spilled || e.of_cpu(us) >= 0.05 || e.of_response(waited) >= 0.05)
        .bytes("temporary file bytes", bytes)
        .counter("temporary files", files)
        .stacks("writing and reading temporary files", us)
        .waits("BufFileRead and BufFileWrite", waited)
        .remedy(
            "Increase work_mem for this query or role: a sort, a hash table or a stored result, such as \
             that of a materialized CTE, spilled to disk. It applies per plan node and per worker; \
             hash tables may use hash_mem_multiplier times as much (PostgreSQL 13 and later). An index \
             that provides the order avoids a sort.",
        )
        .variant(larger_work_mem(e, wanted_mb))
}

/// At least this many megabytes; twice what the study has if that is as much already, up to 1 GB.
fn larger_work_mem(e: &Evidence, wanted_mb: u64) -> Option<RemedyVariant> {
    let now = e
        .setting("work_mem")
        .map(|value| setting_size(value, 1024.0));
    let now_mb = now.map_or(Some(4.0), |it| it.map(|bytes| bytes / MIB))?;
    let wanted_mb = wanted_mb.max((2.0 * now_mb) as u64);
    let wanted = format!("{wanted_mb}MB");
    (wanted_mb <= 1024).then(|| RemedyVariant::session(&[("work_mem", &wanted)]))
}

fn checksums(e: &Evidence) -> Evaluation {
    let us = e.in_functions(&[
        "pg_checksum_page",
        "pg_checksum_block",
        "PageSetChecksumCopy",
        "PageIsVerified",
        "PageIsVerifiedExtended",
    ]);
    Evaluation::of(us)
        .when(e.of_cpu(us) >= 0.03)
        .stacks("verifying and setting page checksums", us)
        .condition(e.since(18), "initdb enables checksums by default since PostgreSQL 18")
        .context(|it| it.counter("blocks read", e.counter("pg_stat_database.blks_read")))
        .remedy(
            "Raise shared_buffers: each block read or written needs its checksum computed. Compare \
             versions with the same setting: initdb enables checksums by default since PostgreSQL 18 \
             (--no-data-checksums disables them).",
        )
        .variant(larger_shared_buffers(e))
}

/// Whether the updates add little to indexes, as HOT updates do: they prune their page, which keeps it usable for the
/// next one, and nothing remains to be done. One that is not HOT spends more on its indexes than on its row.
fn are_updates_hot(e: &Evidence) -> bool {
    let entries = ["ExecInsertIndexTuples"];
    let of_inserts = e.in_nested_functions(&[&["ExecInsert"], &entries])
        - e.in_nested_functions(&[&["ExecOnConflictUpdate"], &entries]);
    let rows_us = e.in_functions(&["heap_update"]);
    rows_us > 0.0 && e.in_functions(&entries) - of_inserts < rows_us
}

fn pruning(e: &Evidence) -> Evaluation {
    // By itself, `heap_page_prune_opt` only asks whether there is something to do. A scan reads the header of each page
    // there first, which may take a tenth of its CPU time. VACUUM prunes, too.
    let by_statement = ["heap_page_prune_opt"];
    let pruned = ["heap_page_prune", "heap_page_prune_and_freeze"];
    // The WAL record of pruning may be the first of its page since a checkpoint: that cost is of full-page images.
    let logged = e.in_nested_functions(&[&by_statement, &pruned, &["XLogInsert"]]);
    let us = e.in_nested_functions(&[&by_statement, &pruned]) - logged;
    let updated = e.counter("pg_stat_database.tup_updated");
    Evaluation::of(us)
        .when(e.of_cpu(us) >= 0.12 && !are_updates_hot(e))
        .stacks("pruning pages, without its WAL", us)
        .context(|it| it.counter("rows updated", updated))
        .remedy(
            "End old transactions and idle snapshots, which keep dead row versions alive, and \
             vacuum more often. Make updates HOT: lower fillfactor to leave room on pages, and do \
             not index columns that are updated.",
        )
}

/// The CPUs that the backends of a live server use at least, if there is a load that others can compete with.
const LOADED_CPUS_MIN: f64 = 0.05;

fn autovacuum(e: &Evidence) -> Evaluation {
    let us = e
        .counter("background(autovacuum worker).cpu_us")
        .unwrap_or(0.0);
    // On a live server that does next to nothing, anything is a large share of it.
    let is_load = !e.is_live || e.cpu_us * e.tps >= LOADED_CPUS_MIN * 1e6;
    Evaluation::of(us)
        .when(is_load && e.of_cpu(us) >= 0.1)
        .micros("CPU time of autovacuum workers", Some(us))
        .condition(e.is_on("autovacuum") != Some(false), "autovacuum is on")
        .remedy(if e.is_live {
            "Keep autovacuum on. Let it run more often on less work (a lower autovacuum_vacuum_scale_factor), and \
             throttle it (a lower autovacuum_vacuum_cost_limit) only as long as it keeps up."
        } else {
            "In a benchmark, run VACUUM between trials and set autovacuum=off. In production, keep \
             autovacuum on. Let it run more often on less work (a lower autovacuum_vacuum_scale_factor), and \
             throttle it (a lower autovacuum_vacuum_cost_limit) only as long as it keeps up."
        })
        .variant(Some(RemedyVariant::settings(&[("autovacuum", "off")])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_postgresql_writes_them() {
        let sizes = ["128MB", "1GB", "16384", "65536kB", "many", "-1"];
        let sizes = sizes.map(|it| setting_size(it, BLOCK).map(|bytes| bytes / MIB));
        let expected = [
            Some(128.0),
            Some(1024.0),
            Some(128.0),
            Some(64.0),
            None,
            None,
        ];
        assert_eq!(sizes, expected);
        let with = |value: &str| Evidence {
            settings: [("shared_buffers".to_owned(), value.to_owned())].into(),
            ..Evidence::default()
        };
        let wanted = larger_shared_buffers(&with("16MB")).unwrap();
        assert_eq!(wanted.name, "shared_buffers=64MB");
        assert_eq!(larger_shared_buffers(&with("2GB")), None);
    }

    #[test]
    fn a_fix_never_lowers_work_mem() {
        let name = |value: &str| {
            let evidence = Evidence {
                settings: [("work_mem".to_owned(), value.to_owned())].into(),
                ..Evidence::default()
            };
            larger_work_mem(&evidence, 64).map(|it| it.name)
        };
        let unset = larger_work_mem(&Evidence::default(), 64).map(|it| it.name);
        assert_eq!(unset.as_deref(), Some("work_mem=64MB"));
        assert_eq!(name("1MB").as_deref(), Some("work_mem=64MB"));
        assert_eq!(name("65536").as_deref(), Some("work_mem=128MB"));
        assert_eq!(name("512MB").as_deref(), Some("work_mem=1024MB"));
        assert_eq!(name("1GB"), None);
    }
}
