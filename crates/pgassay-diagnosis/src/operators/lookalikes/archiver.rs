//! WAL that is archived, late, or not at all.

use pgassay_record::activity::ArchiverState;

use super::build::ExampleServer;
use super::catalog::first;
use super::{Edge, LiveCase, case, edge};

/// A server whose latest attempt to archive failed, and that archived a file so long ago.
fn failing(archived_ago_us: f64) -> ExampleServer {
    archiving(ArchiverState {
        failed_wal: Some("00000001000000000000001B".to_owned()),
        failures: 6,
        archived_ago_us: Some(archived_ago_us),
        backlog_bytes: Some(48 << 20),
    })
}

fn behind(backlog: u64) -> ExampleServer {
    archiving(ArchiverState {
        archived_ago_us: Some(5e6),
        backlog_bytes: Some(backlog),
        ..ArchiverState::default()
    })
}

fn archiving(state: ArchiverState) -> ExampleServer {
    ExampleServer::new().catalog(|it| it.archiver = Some(state))
}

pub(super) fn cases() -> Vec<LiveCase> {
    vec![case(
        "wal-archiving",
        "server",
        "an archive that was unreachable for a minute: the latest attempt succeeded",
        failing(3600e6),
        archiving(ArchiverState {
            failures: 6,
            archived_ago_us: Some(600e6),
            backlog_bytes: Some(16 << 20),
            ..ArchiverState::default()
        }),
    )]
}

pub(super) fn edges() -> Vec<Edge> {
    vec![
        edge("wal-archiving", failing, 60e6, 59e6),
        edge(
            "wal-archiving",
            |bytes| behind(bytes as u64),
            1_073_741_825.0,
            1_073_741_824.0,
        ),
    ]
}

#[test]
fn an_archive_command_that_fails_and_one_that_is_slow_have_titles_of_their_own() {
    assert_eq!(
        first("wal-archiving", &failing(60e6)).title,
        "WAL cannot be archived"
    );
    let slow = first("wal-archiving", &behind(2 << 30));
    assert_eq!(slow.title, "Archiving of WAL falls behind");
}
