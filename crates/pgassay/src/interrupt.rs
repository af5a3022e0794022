//! Ctrl-C: the first stops the run after the current step, the second exits immediately.
//!
//! Either way no server is left running: each has a keeper that stops it when this process exits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use pgassay_lab::Interrupt;
use signal_hook::SigId;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXFSZ};

use crate::exit::INTERRUPTED;

/// [`watch`] has installed its handlers.
static IS_WATCHING: AtomicBool = AtomicBool::new(false);

/// Makes a file that exceeds the limit of `ulimit -f` an error, as a full disk is: the signal would end this process
/// without a message, in the middle of a run. The handler is not inherited by the programs that this process starts.
pub fn report_large_files_as_errors() {
    if !is_ignored(SIGXFSZ) {
        // If it fails, the signal ends this process, as it does by default.
        let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
    }
}

/// Installs handlers for SIGINT, SIGQUIT, SIGTERM and SIGHUP, and one for SIGCONT that only sets a flag. With `nohup`,
/// which ignores SIGHUP, the run goes on after the terminal has closed.
pub fn watch() -> Result<Interrupt> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in watched_signals() {
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
    IS_WATCHING.store(true, Ordering::Relaxed);
    let interrupt = Interrupt::of(flag);
    signal_hook::flag::register(SIGCONT, Arc::clone(interrupt.continued_flag()))
        .context("cannot install a handler for SIGCONT")?;
    Ok(interrupt)
}

/// Whether a signal has arrived since this was created.
pub struct NextSignal {
    interrupt: Interrupt,
    handlers: Vec<SigId>,
}

impl NextSignal {
    /// For the signals of [`watch`]. Without its handlers, they end the process.
    pub fn new() -> Result<Self> {
        let mut next = Self {
            interrupt: Interrupt::default(),
            handlers: Vec::new(),
        };
        if IS_WATCHING.load(Ordering::Relaxed) {
            for signal in watched_signals() {
                let flag = Arc::clone(next.interrupt.flag());
                let handler = signal_hook::flag::register(signal, flag)
                    .context("cannot install a handler for Ctrl-C")?;
                next.handlers.push(handler);
            }
        }
        Ok(next)
    }

    /// Returns an error once a signal has arrived.
    pub fn check(&self) -> Result<()> {
        self.interrupt.check()
    }
}

impl Drop for NextSignal {
    fn drop(&mut self) {
        for handler in self.handlers.drain(..) {
            signal_hook::low_level::unregister(handler);
        }
    }
}

/// Installs a handler for SIGINT that only sets the flag, however often it arrives, even if the process that started
/// this one ignores SIGINT.
pub fn watch_ctrl_c() -> Result<Interrupt> {
    let flag = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGINT, Arc::clone(&flag))
        .context("cannot install a handler for Ctrl-C")?;
    Ok(Interrupt::of(flag))
}

fn watched_signals() -> impl Iterator<Item = i32> {
    let hangup = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    [SIGINT, SIGQUIT, SIGTERM].into_iter().chain(hangup)
}

/// Whether this process ignores a signal, as a rule because the process that started it did (`SigIgn` in
/// `/proc/PID/status`, proc(5)).
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}
