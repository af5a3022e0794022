//! Checkpoints by the amount of WAL, and others.

use pgassay_record::activity::CheckpointActivity;

use super::build::ExampleServer;
use super::of_id;

pub(super) fn checkpointed(requested: u64, timed: u64) -> ExampleServer {
    let done = CheckpointActivity {
        requested,
        timed,
        buffers_written: 4000,
        ..CheckpointActivity::default()
    };
    ExampleServer::new().catalog(|it| it.checkpoints = Some(done))
}

/// Regression: CREATE DATABASE before version 15, which requests checkpoints, called for a `max_wal_size` of 64 GB.
#[test]
fn checkpoints_with_too_little_wal_between_them_are_not_by_the_amount_of_wal() {
    let found = |requested, wal_bytes| {
        let server = checkpointed(requested, 0).catalog(|it| {
            let done = it.checkpoints.as_mut().expect("counters");
            done.wal_bytes = Some(wal_bytes);
        });
        of_id("checkpoints-requested", &server.activity).len()
    };
    // `max_wal_size` is 1 GB.
    assert_eq!(found(2, 100 << 20), 0);
    assert_eq!(found(5, 1000 << 20), 0);
    assert_eq!(found(2, 400 << 20), 1);
    assert_eq!(found(5, 2000 << 20), 1);
}

/// Regression: four times the present value was said to be enough for any interval.
#[test]
fn max_wal_size_is_enough_for_checkpoints_by_time() {
    let found = |requested, window_us: f64, size: &str| {
        let (name, size) = ("max_wal_size".to_owned(), size.to_owned());
        let server = checkpointed(requested, 0).catalog(|it| {
            it.window_us = window_us;
            it.settings.retain(|it| it.0 != name);
            it.settings.push((name, size));
        });
        of_id("checkpoints-requested", &server.activity)
    };
    let sql = |requested, window_us, size| found(requested, window_us, size).remove(0).fix_sql;
    let set = |size| Some(format!("alter system set max_wal_size = '{size}'"));
    // 1 GB in 140 s of 300 s, and a fifth more.
    assert_eq!(sql(2, 280e6, "1GB"), set("4GB"));
    assert_eq!(sql(2, 60e6, "1GB"), set("16GB"));
    assert_eq!(found(2, 320e6, "1GB"), []);
    // One each 5 s takes 72 GB.
    assert_eq!(sql(2, 10e6, "1GB"), set("64GB"));
    let fix = found(2, 10e6, "1GB").remove(0).suggested_fix;
    assert!(fix.contains("128GB would be enough"), "{fix}");
    assert_eq!(sql(2, 10e6, "64GB"), None);
}

/// Regression: on a standby, whose restartpoints follow the checkpoints of the primary, a larger `max_wal_size` was
/// suggested so that fewer pages are written to the WAL, which a standby does not write.
#[test]
fn restartpoints_of_a_standby_do_not_call_for_max_wal_size() {
    let standby = checkpointed(4, 0).catalog(|it| it.is_standby = true);
    assert_eq!(of_id("checkpoints-requested", &standby.activity), []);
}
