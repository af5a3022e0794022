//! WAL that is not archived.

use pgassay_record::activity::ArchiverState;
use pgassay_record::finding::{FactUnit, ObjectKind};

use super::detection::Detection;
use super::live_view::LiveView;
use super::signature::OperatorSignature;

/// The archiver tries a file three times, a second apart, and then once more each minute
/// (`pgarch_ArchiverCopyLoop`, postmaster/pgarch.c): what fails for longer failed in two rounds.
const FAILING_MIN_US: f64 = 60e6;

/// The signatures of this family.
pub(super) const SIGNATURES: &[OperatorSignature] = &[OperatorSignature {
    id: "wal-archiving",
    title: "Archiving of WAL falls behind",
    manual: "Backup and Restore: Continuous Archiving and Point-in-Time Recovery (PITR)",
    detect: wal_archiving,
}];

fn wal_archiving(view: &LiveView<'_>) -> Vec<Detection> {
    let Some(archiver) = &view.catalog.archiver else {
        return Vec::new();
    };
    let since = archiver.archived_ago_us.unwrap_or(0.0);
    let failed = archiver.failed_wal.as_ref();
    let failed = failed.filter(|_| since >= FAILING_MIN_US);
    let own = view.max_wal_size();
    let waiting = archiver.backlog_bytes.unwrap_or(0) as f64;
    if failed.is_none() && waiting <= own {
        return Vec::new();
    }
    vec![match failed {
        Some(file) => failing(archiver, file),
        None => behind(archiver).figure("max_wal_size", own, FactUnit::Bytes),
    }]
}

/// WAL that waits, and since when.
fn behind(archiver: &ArchiverState) -> Detection {
    Detection::of(ObjectKind::Server, "")
        .urgent(7)
        .with(archiver.backlog_bytes, |it, bytes| {
            it.extent(bytes as f64)
                .figure("WAL after the last archived file", bytes as f64, FactUnit::Bytes)
        })
        .with(archiver.archived_ago_us, |it, us| {
            it.figure("time without an archived file", us, FactUnit::Micros)
        })
        .fix(
            "Find out why archive_command (or archive_library) is slow or does not return: the network, \
             the archive's disk, or compression. Until it catches up, pg_wal grows and fills the disk.",
        )
        .risk(RISK)
}

fn failing(archiver: &ArchiverState, file: &str) -> Detection {
    behind(archiver)
        .title(Some("WAL cannot be archived"))
        .urgent(8)
        .state(format!("the latest attempt to archive {file} failed"))
        .figure("failed attempts", archiver.failures as f64, FactUnit::Count)
        .fix(
            "Look into the server's log: it has the exit status of archive_command, and its messages. Until \
             it succeeds, pg_wal grows and fills the disk, and there is no recovery to a point in time after \
             the last archived file.",
        )
}

const RISK: &str = "None. Do not remove files from pg_wal, and do not replace archive_command by one that \
                    only succeeds, such as /bin/true: either makes the archive useless from there on, until \
                    the next base backup.";
