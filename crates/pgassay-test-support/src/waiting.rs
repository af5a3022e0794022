//! Waiting for a condition, with a limit that only a hang exceeds.

use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(10);
/// Long enough for any step of a test on a busy machine.
const LIMIT: Duration = Duration::from_mins(2);

/// Waits until a condition holds.
///
/// # Panics
/// If it does not hold within two minutes.
pub fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    wait_within(what, LIMIT, holds);
}

/// Waits until a condition holds, where `limit` is part of what the test asserts.
///
/// # Panics
/// If it does not hold within `limit`.
pub fn wait_within(what: &str, limit: Duration, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        sleep(PAUSE);
    }
}

/// Waits until a program ends, and returns its exit code; `None` if a signal ended it.
///
/// # Panics
/// If it does not end within `limit`; then it is killed.
pub fn wait_for_exit(child: &mut Child, limit: Duration) -> Option<i32> {
    let until = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return status.code();
        }
        if Instant::now() > until {
            // Killing it lets its keeper clean up before the test fails.
            let _ = child.kill();
            let _ = child.wait();
            panic!("the program did not end within {limit:?}");
        }
        sleep(PAUSE);
    }
}
