//! Ctrl-C: the first stops the run after the current step, the second exits immediately.
//!
//! Either way no server is left running: each has a keeper that stops it when this process exits.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use pgassay_lab::Interrupt;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::exit::INTERRUPTED;

/// Installs handlers for SIGINT, SIGTERM and SIGHUP. With `nohup`, which ignores SIGHUP, the run goes on after the
/// terminal has closed.
pub fn watch() -> Result<Interrupt> {
    let flag = Arc::new(AtomicBool::new(false));
    let hangup = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    for signal in [SIGINT, SIGTERM].into_iter().chain(hangup) {
        // The order matters: the flag must still be unset when the first signal reaches the
        // first handler.
        signal_hook::flag::register_conditional_shutdown(
            signal,
            i32::from(INTERRUPTED),
            Arc::clone(&flag),
        )
        .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
        .context("cannot install a handler for Ctrl-C")?;
    }
    Ok(Interrupt::of(flag))
}

/// Installs a handler for SIGINT that only sets the flag, however often it arrives, even if the process that started
/// this one ignores SIGINT.
pub fn watch_ctrl_c() -> Result<Interrupt> {
    let flag = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGINT, Arc::clone(&flag))
        .context("cannot install a handler for Ctrl-C")?;
    Ok(Interrupt::of(flag))
}

/// Whether this process ignores a signal, as a rule because the process that started it did (`SigIgn` in
/// `/proc/PID/status`, proc(5)).
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}
