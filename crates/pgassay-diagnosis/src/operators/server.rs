//! What concerns the server as a whole: failed transactions, commits, checkpoints and buffers.

use pgassay_record::activity::{CheckpointActivity, DatabaseActivity, LoadMarkKind};
use pgassay_record::finding::{FactUnit, ObjectKind};

use super::detection::Detection;
use super::live_view::{LiveView, StatementLoad, statement_name};
use super::names;
use super::session_settings::RoleInDatabase;
use super::signature::OperatorSignature;
use super::sql_text;

/// Of the transactions that end …
const ROLLED_BACK_MIN: f64 = 0.1;
/// … and per second: monitoring rolls back about once a second.
const ROLLBACKS_MIN: f64 = 5.0;
/// Errors in the log per transaction that was rolled back: fewer do not explain most of them.
const LOGGED_MIN: f64 = 0.5;
/// Checkpoints should be at least this part of `checkpoint_timeout` apart.
const INTERVAL_MIN: f64 = 0.5;
/// `max_wal_size` for this multiple of the WAL between two checkpoints: a busier moment still fits.
const WAL_RESERVE: f64 = 1.2;
/// A checkpoint by the amount of WAL begins after this part of `max_wal_size`, the least of all versions, …
const WAL_PER_CHECKPOINT_MIN: f64 = 1.0 / 3.0;
/// … or up to two segments of WAL earlier, because it begins at the end of one.
const WAL_PER_CHECKPOINT_SLACK: f64 = 33_554_432.0;
/// Few disks for WAL have room for more, and a window of seconds overrates a burst.
const WAL_SIZE_MAX: f64 = 68_719_476_736.0;
/// Waits for the WAL's disk per commit: an SSD needs a tenth of it.
const SLOW_SYNC_US: f64 = 20_000.0;
/// Waits for the WAL's disk, as a share of the load. Durable commits cost something on any disk.
const SYNC_SHARE_MIN: f64 = 0.2;

/// The signatures of this family.
pub(super) const SIGNATURES: &[OperatorSignature] = &[
    OperatorSignature {
        id: "rollbacks",
        title: "Many transactions are rolled back",
        manual: "Monitoring Database Activity: pg_stat_database",
        detect: rollbacks,
    },
    OperatorSignature {
        id: "synchronous-standby",
        title: "Commits wait for a synchronous standby",
        manual: "High Availability: Synchronous Replication",
        detect: synchronous_standby,
    },
    OperatorSignature {
        id: "slow-wal-sync",
        title: "Commits wait for a slow disk",
        manual: "Reliability and the Write-Ahead Log: WAL Configuration",
        detect: slow_wal_sync,
    },
    OperatorSignature {
        id: "checkpoints-requested",
        title: "The amount of WAL forces checkpoints too often",
        manual: "Write Ahead Log: max_wal_size",
        detect: checkpoints,
    },
    OperatorSignature {
        id: "buffers-written-by-backends",
        title: "Sessions must write buffers before they can read",
        manual: "Resource Consumption: shared_buffers",
        detect: written_by_backends,
    },
    OperatorSignature {
        id: "recovery-conflicts",
        title: "Recovery cancels queries on this standby",
        manual: "High Availability: Handling Query Conflicts",
        detect: recovery_conflicts,
    },
];

fn rollbacks(view: &LiveView<'_>) -> Vec<Detection> {
    // Those that recovery cancels have another finding.
    let failed = |it: &DatabaseActivity| it.rolled_back.saturating_sub(it.conflicts) as f64;
    let fails = |it: &&DatabaseActivity| {
        let all = (it.committed + it.rolled_back) as f64;
        failed(it) >= ROLLED_BACK_MIN * all && failed(it) / view.window_s >= ROLLBACKS_MIN
    };
    let marks = view.activity.marks.iter();
    let logged: Vec<_> = marks
        .filter(|it| it.kind == LoadMarkKind::LogError)
        .collect();
    let errors = logged.iter().map(|it| it.count.unwrap_or(1));
    let errors = errors.fold(0, u64::saturating_add);
    // A few errors say nothing about thousands of transactions.
    let is_failing = |it: &DatabaseActivity| errors as f64 >= LOGGED_MIN * it.rolled_back as f64;
    let databases = view.catalog.databases.iter().filter(fails);
    databases
        .map(|it| {
            let all = (it.committed + it.rolled_back) as f64;
            Detection::of(ObjectKind::Database, names::identifier(&it.name))
                .urgent(4)
                .extent(it.rolled_back as f64)
                .counter(
                    "of its transactions are rolled back",
                    it.rolled_back as f64 / all,
                    FactUnit::Share,
                )
                .counter(
                    "rolled back",
                    it.rolled_back as f64 / view.window_s,
                    FactUnit::PerSecond,
                )
                .with(logged.first().filter(|_| is_failing(it)), |it, error| {
                    it.state(format!("the server's log has errors, such as: {}", error.text))
                })
                .against(
                    !is_failing(it),
                    "an application may also end transactions that only read with ROLLBACK",
                )
                .fix(
                    "Find the errors in the server's log (log_min_error_statement = error, the default, logs \
                     their statements), or in the application. For expected ones, such as duplicate keys, \
                     use INSERT … ON CONFLICT instead of catching the error.",
                )
                .risk("No change on the server, only in the application.")
        })
        .collect()
}

fn is_wait_for_standby(kind: &str, name: &str) -> bool {
    kind == "IPC" && name == "SyncRep"
}

fn synchronous_standby(view: &LiveView<'_>) -> Vec<Detection> {
    let waiting = view.waiting(is_wait_for_standby);
    if waiting.is_chance() {
        return Vec::new();
    }
    let statement = waiting
        .statement
        .and_then(|index| view.activity.statements.get(index));
    let standbys = view.setting("synchronous_standby_names");
    let detection = Detection::of(ObjectKind::Setting, "synchronous_standby_names")
        .statement(statement)
        .saved(waiting.load)
        .load("average sessions that wait for a standby to confirm", waiting.load)
        .with(standbys, |it, names| {
            it.state(format!("synchronous_standby_names is {}", names::literal(names)))
        })
        .with(statement, |it, statement| {
            it.context(format!("mostly in: {}", statement_name(statement)))
        })
        .fix(
            "Check that the standby is connected and keeps up (pg_stat_replication): without it, commits \
             wait forever. Otherwise use a nearer standby, a weaker synchronous_commit for unimportant \
             transactions, or fewer commits. With synchronous_commit = remote_apply, commits also wait for recovery \
             on the standby, which may be paused, or wait for a query there. As a last resort, empty synchronous_standby_names and reload: a \
             failover may then lose the latest commits.",
        )
        .sql(if view.major >= 10 {
            "select application_name, state, sync_state, sent_lsn, flush_lsn, replay_lsn from pg_stat_replication"
        } else {
            "select application_name, state, sync_state, sent_location, flush_location, replay_location \
             from pg_stat_replication"
        })
        .risk("None; it only reads.");
    vec![detection]
}

fn is_wait_for_disk(kind: &str, name: &str) -> bool {
    match kind {
        "IO" => name.eq_ignore_ascii_case("WALSync") || name.eq_ignore_ascii_case("WALWrite"),
        _ => kind.starts_with("LWLock") && matches!(name, "WALWrite" | "WALWriteLock"),
    }
}

fn slow_wal_sync(view: &LiveView<'_>) -> Vec<Detection> {
    let waiting = view.waiting(is_wait_for_disk);
    let committed = view.transactions().0 as f64;
    let each_us = waiting.load * view.activity.window_us / committed.max(1.0);
    let enough = waiting.load >= SYNC_SHARE_MIN * view.active && each_us >= SLOW_SYNC_US;
    if waiting.is_chance() || !enough || view.activity.catalog.is_none() {
        return Vec::new();
    }
    let statement = waiting.statement;
    let load = statement.and_then(|index| view.statements.get(index));
    let role = load
        .map(StatementLoad::role_in_database)
        .unwrap_or_default();
    let detection = Detection::of(ObjectKind::Server, "")
        .statement(statement.and_then(|index| view.activity.statements.get(index)))
        .saved(waiting.load)
        .load(
            "average sessions that wait for WAL to be written",
            waiting.load,
        )
        .counter("waiting per commit", each_us, FactUnit::Micros)
        .counter("commits", committed / view.window_s, FactUnit::PerSecond);
    vec![with_faster_commits(view, detection, role)]
}

/// What makes commits wait less for the disk. Without `synchronous_commit`, they do not wait for a synchronous standby
/// either.
fn with_faster_commits(
    view: &LiveView<'_>,
    detection: Detection,
    role: RoleInDatabase<'_>,
) -> Detection {
    let names = view.setting("synchronous_standby_names");
    let standbys = names.filter(|it| !it.trim().is_empty());
    if let Some(standbys) = standbys {
        return detection
            .state(format!("synchronous_standby_names is {}", names::literal(standbys)))
            .fix(
                "Commit more rows per transaction, or put pg_wal on a faster disk (pg_test_fsync measures it), \
                 here and on the synchronous standbys.",
            )
            .risk(
                "None. Do not turn synchronous_commit off: commits would not wait for the synchronous standbys \
                 either, and a failover could lose transactions that were confirmed to clients.",
            );
    }
    let sql = role.command(view, "synchronous_commit", "off");
    detection
        .fix(
            "Commit more rows per transaction, put pg_wal on a faster disk (pg_test_fsync measures it), or \
             give up durability of the last moments where that is acceptable.",
        )
        .risk(format!(
            "{} After a crash, transactions of the last moments (up to three times wal_writer_delay) may be \
             lost, without inconsistency.",
            names::reach_of(&sql)
        ))
        .sql(sql)
}

fn checkpoints(view: &LiveView<'_>) -> Vec<Detection> {
    // A restartpoint of a standby follows a checkpoint of the primary, and writes no page to the WAL.
    let on_primary = !view.catalog.is_standby;
    let Some(done) = view.catalog.checkpoints.filter(|_| on_primary) else {
        return Vec::new();
    };
    let interval_s = view.window_s / done.requested.max(1) as f64;
    let timeout_us = view.setting("checkpoint_timeout").and_then(names::micros);
    let timeout_s = timeout_us.unwrap_or(300e6) / 1e6;
    // One may be by hand, or for a backup.
    let is_rare = interval_s >= INTERVAL_MIN * timeout_s;
    if done.requested < 2 || done.requested <= done.timed || is_rare || !is_by_wal(view, &done) {
        return Vec::new();
    }
    vec![frequent(view, &done, interval_s, timeout_s)]
}

/// Whether the WAL of the window suffices for these checkpoints. CHECKPOINT, a base backup and, before version 15,
/// CREATE DATABASE and DROP DATABASE request them too, whatever the amount of WAL.
fn is_by_wal(view: &LiveView<'_>, done: &CheckpointActivity) -> bool {
    let between = done.requested.saturating_sub(1) as f64;
    let least = (view.max_wal_size() * WAL_PER_CHECKPOINT_MIN - WAL_PER_CHECKPOINT_SLACK).max(0.0);
    done.wal_bytes.is_none_or(|it| it as f64 >= between * least)
}

fn frequent(
    view: &LiveView<'_>,
    done: &CheckpointActivity,
    interval_s: f64,
    timeout_s: f64,
) -> Detection {
    let now = view.max_wal_size();
    let wanted = now * WAL_RESERVE * timeout_s / interval_s;
    let detection = Detection::of(ObjectKind::Setting, "max_wal_size")
        .urgent(5)
        .counter(
            "checkpoints by the amount of WAL or by request",
            done.requested as f64,
            FactUnit::Count,
        )
        .counter("checkpoints by time", done.timed as f64, FactUnit::Count)
        .counter("time between them", interval_s * 1e6, FactUnit::Micros)
        .counter(
            "buffers written",
            done.buffers_written as f64 / view.window_s,
            FactUnit::PerSecond,
        )
        .state(format!("max_wal_size is {}", names::memory(now)));
    if now >= WAL_SIZE_MAX {
        return detection
            .fix(
                "Write less WAL (fewer indexes, wal_compression, COPY), or increase max_wal_size further if the disk \
                 has the space: after each checkpoint, the first change of a page writes the whole page to the WAL.",
            )
            .risk("With more WAL, pg_wal may grow, and recovery after a crash takes longer.");
    }
    let words = if wanted > WAL_SIZE_MAX {
        format!(
            "Increase max_wal_size. At the rate of this window, {} would be enough for checkpoints to be started by \
             checkpoint_timeout; 64GB makes them fewer. Watch for longer before you decide on more",
            names::memory(wanted)
        )
    } else {
        "Increase max_wal_size, so that checkpoints are started by checkpoint_timeout, if WAL is always written at \
         the rate of this window"
            .to_owned()
    };
    detection
        .fix(format!(
            "{words}: after each checkpoint, the first change of a page writes the whole page to the WAL."
        ))
        .sql(format!(
            "alter system set max_wal_size = '{}'",
            names::memory(wanted.min(WAL_SIZE_MAX))
        ))
        .risk(
            "It takes effect after pg_reload_conf(); pg_wal may grow to this size, and recovery after a \
             crash takes longer.",
        )
}

fn written_by_backends(view: &LiveView<'_>) -> Vec<Detection> {
    let Some(checkpoints) = view.catalog.checkpoints else {
        return Vec::new();
    };
    let is_write = |kind: &str, name: &str| kind == "IO" && name == "DataFileWrite";
    let waiting = view.waiting_of(is_write, |it| !sql_text::is_bulk(&it.tokens));
    if waiting.is_chance() || checkpoints.buffers_by_backends == 0 {
        return Vec::new();
    }
    let statement = waiting
        .statement
        .and_then(|index| view.activity.statements.get(index));
    // Only writes for free buffers are fewer with more of them: a ring buffer is as small in a large
    // buffer cache, and any statement that scans a large table has one.
    let by_backends = checkpoints.buffers_by_backends as f64;
    let rings = checkpoints.buffers_through_rings.map(|it| it as f64);
    let saved = rings.map_or(waiting.load, |rings| {
        let all = view.waiting(is_write).load;
        waiting.load.min(all * by_backends / (by_backends + rings))
    });
    let now = view.setting("shared_buffers").and_then(names::bytes);
    let detection = Detection::of(ObjectKind::Setting, "shared_buffers")
        .statement(statement)
        .saved(saved)
        .load("average sessions that write a buffer to get a free one", saved)
        .counter(
            "buffers written by backends",
            by_backends / view.window_s,
            FactUnit::PerSecond,
        )
        .counter(
            "buffers written by checkpoints",
            checkpoints.buffers_written as f64 / view.window_s,
            FactUnit::PerSecond,
        )
        .with(now, |it, bytes| it.figure("shared_buffers", bytes, FactUnit::Bytes))
        .against(
            rings.is_none(),
            "before version 16 the counter includes extending tables and the ring buffers of bulk \
             commands and large scans, which write whatever the size of shared_buffers",
        )
        .fix(
            "Increase shared_buffers, up to a quarter of the memory, and let the background writer clean \
             more: raise bgwriter_lru_maxpages and bgwriter_lru_multiplier.",
        )
        .risk(
            "It takes effect at a restart, and leaves less memory to sessions and the page cache. With more \
             than the machine has, the server does not start.",
        );
    vec![detection]
}

fn more_time_for_queries(view: &LiveView<'_>) -> &'static str {
    if view.setting("hot_standby_feedback") == Some("on") {
        return "Give queries more time before recovery cancels them. hot_standby_feedback is on, so the reasons are \
                probably locks, which pg_stat_database_conflicts shows: those of DDL on the primary, or of a VACUUM \
                that truncates a table, which vacuum_truncate = off prevents.";
    }
    "Give queries more time before recovery cancels them, or set hot_standby_feedback = on, which keeps their rows on \
     the primary."
}

fn recovery_conflicts(view: &LiveView<'_>) -> Vec<Detection> {
    if !view.catalog.is_standby {
        return Vec::new();
    }
    let databases = view.catalog.databases.iter().filter(|it| it.conflicts > 0);
    databases
        .map(|it| {
            let detection = Detection::of(ObjectKind::Database, names::identifier(&it.name))
                .urgent(5)
                .extent(it.conflicts as f64)
                .counter("queries canceled by recovery", it.conflicts as f64, FactUnit::Count)
                .state("the server is a standby")
                .fix(more_time_for_queries(view))
                .risk(
                    "It takes effect after pg_reload_conf(); the standby may fall behind by this time.",
                );
            if view.is_less("max_standby_streaming_delay", "5min") {
                detection.sql("alter system set max_standby_streaming_delay = '5min'")
            } else {
                detection
            }
        })
        .collect()
}
