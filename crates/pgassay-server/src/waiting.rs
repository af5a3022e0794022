//! Waits for a condition with a time limit.

use std::thread::sleep;
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(10);

/// Polls `done` every few milliseconds; returns whether it became true within `timeout`.
pub(crate) fn wait_until(timeout: Duration, mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if done() {
            return true;
        }
        if start.elapsed() >= timeout {
            return false;
        }
        sleep(POLL);
    }
}
