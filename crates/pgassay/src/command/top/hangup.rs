//! Ends the program when its terminal is gone: its window was closed, or the ssh connection ended.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

/// How soon it is noticed.
const CHECK_EVERY_MS: i32 = 500;
/// Time for the loop to end by itself and to close its connection.
const END_LIMIT: Duration = Duration::from_secs(1);

/// Watches the terminal on standard input from now on. The loop that reads keys cannot: once the terminal is gone,
/// crossterm (0.29, `event/source/unix/mio.rs`) reads its end again and again, and does not return.
pub fn exit_on_hangup() -> Result<()> {
    let watch = || {
        while !is_hung_up(CHECK_EVERY_MS) {}
        thread::sleep(END_LIMIT);
        std::process::exit(1);
    };
    let watching = thread::Builder::new().spawn(watch);
    watching.map(drop).context("cannot start a thread")
}

/// Waits up to this long for the terminal's end.
fn is_hung_up(limit_ms: i32) -> bool {
    let mut input = libc::pollfd {
        fd: libc::STDIN_FILENO,
        events: 0,
        revents: 0,
    };
    // SAFETY: it is one structure of our own.
    let found = unsafe { libc::poll(&raw mut input, 1, limit_ms) };
    found > 0 && input.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0
}
