//! WAL: inserting, writing and syncing it, and waiting for standbys.
//!
//! Sources: `src/backend/access/transam/xlog.c` (8 insertion locks; full-page images after a
//! checkpoint), `replication/syncrep.c`. Names: `WALWriteLock` until 12, `WALWrite` since 13.

use pgassay_record::finding::Source;
use pgassay_record::remedy::RemedyVariant;

use crate::evaluation::{Evaluation, Signature};
use crate::evidence::Evidence;

use super::raising::{BLOCK, raised};

pub(super) const SIGNATURES: &[Signature] = &[
    Signature {
        id: "commit-sync",
        title: "Each commit waits for the disk",
        manual: "Reliability and the Write-Ahead Log: Asynchronous Commit; WAL Configuration (commit_delay)",
        measure: commit_sync,
    },
    Signature {
        id: "full-page-images",
        title: "Full-page images make up much of the WAL",
        manual: "Reliability and the Write-Ahead Log: WAL Configuration",
        measure: full_page_images,
    },
    Signature {
        id: "wal-insertion",
        title: "Contention on WAL insertion locks",
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
        title: "Commits wait for a synchronous standby",
        manual: "High Availability: Synchronous Replication",
        measure: synchronous_replication,
    },
];

/// The default of `commit_siblings`: with fewer other open transactions, `commit_delay` has no effect.
const COMMIT_SIBLINGS: f64 = 5.0;

/// All clients may commit in one sync. With fewer syncs per transaction than this, times the number of clients, most
/// transactions wait for none, and a few slow ones may make up all of the time.
const SYNCS_MIN: f64 = 0.5;

fn commit_sync(e: &Evidence) -> Evaluation {
    let synced = e.blocked(&["WAL sync", "IO WALSync", "IO WalSync"]);
    let waited = e.blocked(&["LWLock WALWrite", "WAL write", "IO WALWrite", "IO WalWrite"]);
    let us = e.in_functions(&["issue_xlog_fsync"]);
    let is_off = e.setting("synchronous_commit") == Some("off");
    let syncs = e.first_counter(&[
        "pg_stat_wal.wal_sync",
        "pg_stat_io(client backend, wal).fsyncs",
        "disk.flushes",
    ]);
    // 9.6 has no wait event for WAL sync; its CPU time and the remaining response time show it.
    let unseen = e.blocked.is_empty()
        && us > 0.0
        && e.of_response(e.response_us - e.cpu_us - e.run_queue_us) >= 0.5;
    // Waiting for another backend's WAL write is waiting for the same disk: service, not queueing.
    let weight_us = synced + waited + us;
    Evaluation::of(weight_us)
        .when((e.of_response(synced + waited) >= 0.2 || unseen) && !is_off)
        .waits("WAL sync", synced)
        .waits("waiting for another backend's WAL write", waited)
        .stacks("CPU time of WAL sync", us)
        .context_unless(
            syncs.is_some_and(|count| count * e.clients.max(1.0) >= SYNCS_MIN),
            |it| it.counter("WAL syncs", syncs),
        )
        .remedy(format!(
            "Group more changes into one transaction{}. If you can lose the most recent commits in \
             a crash (consistency is never at risk), set synchronous_commit=off; with synchronous standbys, \
             commits then do not wait for these either, and a failover may lose some. A disk with a \
             power-loss-protected write cache flushes in tens of microseconds.",
            if e.clients > COMMIT_SIBLINGS {
                ", or set commit_delay so that concurrent commits share one WAL flush"
            } else {
                ""
            }
        ))
        .variant(Some(RemedyVariant::session(&[(
            "synchronous_commit",
            "off",
        )])))
}

/// Size of a block: the upper bound of a full-page image.
const BLOCK_BYTES: f64 = 8192.0;
/// Upper bound of a WAL record without an image and without a large row.
const RECORD_BYTES: f64 = 256.0;

/// The share of the WAL that is full-page images. It is exact where PostgreSQL counts their bytes;
/// otherwise it is the smaller of whole blocks and of what records of ordinary size leave.
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

fn full_page_images(e: &Evidence) -> Evaluation {
    let images = e.counter("pg_stat_wal.wal_fpi");
    let records = e.counter("pg_stat_wal.wal_records");
    let bytes = e.counter("wal.insert_bytes");
    let measured = e.counter("pg_stat_wal.wal_fpi_bytes");
    let of_images = images_share(images, records, bytes, measured);
    let us = e.in_functions(&["XLogInsert", "XLogRecordAssemble", "XLogInsertRecord"]);
    // With full_page_writes=off new pages still write images, but checkpoints do not cause them.
    let is_off = matches!(
        e.setting("full_page_writes"),
        Some("off" | "false" | "no" | "0")
    );
    Evaluation::of(us)
        .when(!is_off && images.is_some_and(|count| count >= 0.05) && of_images >= 0.4)
        .counter("full-page images", images)
        .bytes("full-page images", measured)
        .counter("WAL records", records)
        .bytes("WAL written", bytes)
        .context(|it| it.stacks("assembling and inserting WAL records", us))
        .against(
            measured.is_none(),
            "image size is an estimate: PostgreSQL before 19 counts images but not their bytes",
        )
        .condition(
            e.setting("checkpoint_timeout").is_some() || e.setting("max_wal_size").is_some(),
            "the study sets checkpoint_timeout or max_wal_size",
        )
        .remedy(
            "Raise max_wal_size and checkpoint_timeout: after a checkpoint, the first change to a \
             page writes the whole page to the WAL. Compress the images with wal_compression (lz4 \
             or zstd from PostgreSQL 15 on). In a benchmark, have a checkpoint in every trial or in none.",
        )
        .variant(Some(RemedyVariant::session(&[("wal_compression", "on")])))
}

fn wal_insertion(e: &Evidence) -> Evaluation {
    let waited = e.blocked(&["LWLock WALInsert", "LWLock wal_insert"]);
    let us = e.in_functions(&["WALInsertLockAcquire", "WaitXLogInsertionsToFinish"]);
    Evaluation::of(waited + us)
        .queueing(waited)
        .when(e.of_response(waited) >= 0.05 || e.of_cpu(us) >= 0.05)
        .waits("LWLock WALInsert", waited)
        .stacks("CPU time of WAL insertion locks", us)
        .context(|it| it.bytes("WAL written", e.counter("wal.insert_bytes")))
        .remedy(
            "Write less WAL: drop unused indexes, make updates HOT, use larger transactions or \
             COPY. All backends share eight WAL insertion locks; PostgreSQL 17 made waiting for them cheaper.",
        )
}

fn wal_buffers(e: &Evidence) -> Evaluation {
    let waited = e.blocked(&["LWLock WALBufMapping", "LWLock WALBufMappingLock"]);
    let full = e.counter("pg_stat_wal.wal_buffers_full");
    let us = e.in_functions(&["AdvanceXLInsertBuffer"]);
    Evaluation::of(waited + us)
        .queueing(waited)
        .when(e.of_response(waited) >= 0.03 || full.is_some_and(|count| count >= 0.05))
        .waits("LWLock WALBufMapping", waited)
        .counter("WAL writes because WAL buffers were full", full)
        .stacks("AdvanceXLInsertBuffer", us)
        .remedy(
            "Raise wal_buffers: a backend that finds the WAL buffers full must write WAL itself \
             before it can continue. The default is 1/32 of shared_buffers, at most 16 MB.",
        )
        .variant(raised(e, "wal_buffers", "64MB", BLOCK))
}

fn synchronous_replication(e: &Evidence) -> Evaluation {
    let waited = e.blocked(&["IPC SyncRep", "synchronous replication", "IPC SYNC_REP"]);
    Evaluation::of(waited)
        .when(e.of_response(waited) >= 0.05)
        .waits("SyncRep", waited)
        .share(
            Source::Waits,
            "of the response time",
            Some(e.of_response(waited)),
        )
        .remedy(
            "Set synchronous_commit=remote_write or local to wait for less. Use a standby with \
             lower latency, or ANY 1 of several standbys in synchronous_standby_names, to wait for \
             a shorter time.",
        )
}
