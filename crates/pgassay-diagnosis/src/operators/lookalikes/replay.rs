//! A standby whose replay is paused, and one that has nothing to replay.

use pgassay_record::activity::ReplayState;

use super::build::ExampleServer;
use super::catalog::first;
use super::{Edge, LiveCase, case, edge};

fn standby(is_paused: bool) -> ExampleServer {
    ExampleServer::new().catalog(|it| {
        it.is_standby = true;
        it.replay = Some(ReplayState {
            is_paused,
            waiting_bytes: Some(if is_paused { 48 << 20 } else { 0 }),
            behind_us: Some(3600e6),
        });
    })
}

pub(super) fn cases() -> Vec<LiveCase> {
    vec![case(
        "paused-replay",
        "server",
        "a standby of an idle primary: the last transaction that it replayed ended an hour ago",
        standby(true),
        standby(false),
    )]
}

pub(super) fn edges() -> Vec<Edge> {
    vec![edge(
        "paused-replay",
        |paused| standby(paused > 0.0),
        1.0,
        0.0,
    )]
}

#[test]
fn the_fix_of_paused_replay_is_run_on_the_standby() {
    let found = first("paused-replay", &standby(true));
    assert_eq!(
        found.fix_sql.as_deref(),
        Some("select pg_wal_replay_resume()")
    );
}
