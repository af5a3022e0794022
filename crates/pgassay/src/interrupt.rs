//! Ctrl-C: the first stops the run after the current step, the second exits immediately.
//!
//! Either way no server is left running: each has a keeper that stops it when this process exits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::exit::{INTERRUPTED, Interrupted};

/// Whether the user requested a stop.
#[derive(Debug, Clone)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Installs handlers for SIGINT, SIGTERM and SIGHUP.
    pub fn watch() -> Result<Self> {
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
        Ok(Self(flag))
    }

    /// The flag, for loops that check it themselves.
    pub fn flag(&self) -> &Arc<AtomicBool> {
        &self.0
    }

    /// Returns an error if the user requested a stop.
    pub fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            Err(Interrupted.into())
        } else {
            Ok(())
        }
    }
}
