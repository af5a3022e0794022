//! The log of changes: inserting into it, writing it, waiting for the disk and for standbys.
//!
//! Sources: `src/backend/access/transam/xlog.c` (8 insertion locks; full-page images after a
//! checkpoint), `replication/syncrep.c`. Names: `WALWriteLock` until 12, `WALWrite` since 13.

use super::Source;
use super::evidence::Evidence;
use super::measure::{Measure, Signature};
use super::remedy::RemedyVariant;

pub(super) const SIGNATURES: &[Signature] = &[
    Signature {
        id: "commit-sync",
        title: "Each commit waits for the disk",
        manual: "Reliability and the Write-Ahead Log: Asynchronous Commit; WAL Configuration (commit_delay)",
        measure: commit_sync,
    },
    Signature {
        id: "full-page-images",
        title: "Full-page images fill the WAL",
        manual: "Reliability and the Write-Ahead Log: WAL Configuration",
        measure: full_page_images,
    },
    Signature {
        id: "wal-insertion",
        title: "Backends wait to insert into the WAL",
        manual: "Reliability and the Write-Ahead Log: WAL Internals",
        measure: wal_insertion,
    },
    Signature {
        id: "wal-buffers",
        title: "WAL buffers are full",
        manual: "Server Configuration: Write Ahead Log, wal_buffers",
        measure: wal_buffers,
    },
    Signature {
        id: "synchronous-replication",
        title: "Commits wait for a standby",
        manual: "High Availability: Synchronous Replication",
        measure: synchronous_replication,
    },
];

fn commit_sync(e: &Evidence) -> Measure {
    let synced = e.blocked(&["WAL sync", "IO WALSync", "IO WalSync"]);
    let waited = e.blocked(&["LWLock WALWrite", "WAL write", "IO WALWrite", "IO WalWrite"]);
    let us = e.with(&["issue_xlog_fsync"]);
    let is_off = e.setting("synchronous_commit") == Some("off");
    let syncs = e.either(&[
        "pg_stat_wal.wal_sync",
        "pg_stat_io(client backend, wal).fsyncs",
        "disk.flushes",
    ]);
    // Before 10 nobody tells of the sync itself; its CPU and the rest of the response time do.
    let unseen = e.blocked.is_empty()
        && us > 0.0
        && e.of_response(e.response_us - e.cpu_us - e.run_queue_us) >= 0.5;
    // Who waits for another's write waits for the same disk: no queue of its own cause.
    let weight_us = synced + waited + us;
    Measure::of(weight_us)
        .when((e.of_response(synced + waited) >= 0.2 || unseen) && !is_off)
        .waits("WAL sync", synced)
        .waits("waiting for another's WAL write", waited)
        .stacks("CPU of syncing", us)
        .counter("WAL syncs", syncs)
        .remedy(
            "A commit returns when its WAL is on the disk. Put more into one transaction; \
             commit_delay lets several commits share a sync; synchronous_commit=off answers \
             before the sync and risks the last moments' commits after a crash, never \
             consistency; a disk with a protected cache syncs in tens of microseconds.",
        )
        .variant(Some(RemedyVariant::session(&[(
            "synchronous_commit",
            "off",
        )])))
}

/// A block, which an image is at most.
const BLOCK_BYTES: f64 = 8192.0;
/// More than a WAL record without an image and without a large row takes.
const RECORD_BYTES: f64 = 256.0;

/// The share of the WAL that is full-page images: by their bytes where the version counts them, else
/// no more than whole blocks, and no more than what records of ordinary size leave.
fn images_share(
    images: Option<f64>,
    records: Option<f64>,
    bytes: Option<f64>,
    measured: Option<f64>,
) -> f64 {
    let bytes = bytes.unwrap_or(0.0).max(1.0);
    let whole_blocks = images.unwrap_or(0.0) * BLOCK_BYTES;
    let beyond_records = (bytes - records.unwrap_or(0.0) * RECORD_BYTES).max(0.0);
    measured.unwrap_or(whole_blocks.min(beyond_records)) / bytes
}

fn full_page_images(e: &Evidence) -> Measure {
    let images = e.counter("pg_stat_wal.wal_fpi");
    let records = e.counter("pg_stat_wal.wal_records");
    let bytes = e.counter("wal.insert_bytes");
    let measured = e.counter("pg_stat_wal.wal_fpi_bytes");
    let of_images = images_share(images, records, bytes, measured);
    let us = e.with(&["XLogInsert", "XLogRecordAssemble", "XLogInsertRecord"]);
    // Where they are off, there are those of new pages still, which no checkpoint brings.
    let is_off = matches!(
        e.setting("full_page_writes"),
        Some("off" | "false" | "no" | "0")
    );
    Measure::of(us)
        .when(!is_off && images.is_some_and(|count| count >= 0.05) && of_images >= 0.4)
        .counter("full-page images", images)
        .bytes("full-page images", measured)
        .counter("WAL records", records)
        .bytes("WAL written", bytes)
        .context(|it| it.stacks("assembling and inserting WAL", us))
        .against(
            measured.is_none(),
            "the size of the images is an estimate: before 19 PostgreSQL counts them, not their bytes",
        )
        .condition(
            e.setting("checkpoint_timeout").is_some() || e.setting("max_wal_size").is_some(),
            "the study sets how often checkpoints come",
        )
        .remedy(
            "Raise max_wal_size and checkpoint_timeout: the first change of a page after a \
             checkpoint writes the whole page to the WAL. Compress the images (wal_compression; \
             lz4 or zstd from 15). In a benchmark have a checkpoint in every trial or in none.",
        )
        .variant(Some(RemedyVariant::session(&[("wal_compression", "on")])))
}

fn wal_insertion(e: &Evidence) -> Measure {
    let waited = e.blocked(&["LWLock WALInsert", "LWLock wal_insert"]);
    let us = e.with(&["WALInsertLockAcquire", "WaitXLogInsertionsToFinish"]);
    Measure::of(waited + us)
        .queueing(waited)
        .when(e.of_response(waited) >= 0.05 || e.of_cpu(us) >= 0.05)
        .waits("LWLock WALInsert", waited)
        .stacks("WAL insertion locks", us)
        .context(|it| it.bytes("WAL written", e.counter("wal.insert_bytes")))
        .remedy(
            "Eight locks guard the insertion of WAL. Write less of it: fewer indexes, HOT \
             updates, larger transactions, COPY; 17 made the waiting cheaper.",
        )
}

fn wal_buffers(e: &Evidence) -> Measure {
    let waited = e.blocked(&["LWLock WALBufMapping", "LWLock WALBufMappingLock"]);
    let full = e.counter("pg_stat_wal.wal_buffers_full");
    let us = e.with(&["AdvanceXLInsertBuffer"]);
    Measure::of(waited + us)
        .queueing(waited)
        .when(e.of_response(waited) >= 0.03 || full.is_some_and(|count| count >= 0.05))
        .waits("LWLock WALBufMapping", waited)
        .counter("times that WAL had to be written for room", full)
        .stacks("AdvanceXLInsertBuffer", us)
        .remedy(
            "A backend that finds the WAL buffers full writes WAL itself, in the middle of its \
             work. Raise wal_buffers; its default is a 32nd of shared_buffers, at most 16 MB.",
        )
        .variant(Some(RemedyVariant::settings(&[("wal_buffers", "64MB")])))
}

fn synchronous_replication(e: &Evidence) -> Measure {
    let waited = e.blocked(&["IPC SyncRep", "synchronous replication", "IPC SYNC_REP"]);
    Measure::of(waited)
        .when(e.of_response(waited) >= 0.05)
        .waits("SyncRep", waited)
        .share(
            Source::Waits,
            "of the response time",
            Some(e.of_response(waited)),
        )
        .remedy(
            "A commit waits for the standby's answer. synchronous_commit=remote_write or local \
             waits for less; a nearer standby, or ANY 1 of several, for a shorter time.",
        )
}
