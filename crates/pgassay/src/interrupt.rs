//! Ctrl-C: the first stops the run after the current step, the second exits immediately.
//!
//! Either way no server is left running: each has a keeper that stops it when this process exits.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use pgassay_lab::Interrupt;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::exit::INTERRUPTED;

/// Installs handlers for SIGINT, SIGTERM and SIGHUP.
pub fn watch() -> Result<Interrupt> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
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
