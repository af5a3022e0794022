//! Ctrl-C: the first ends the run at its next boundary, the second ends the program at once.
//!
//! Servers outlive neither: each has a keeper that stops it when this process is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::exit::{INTERRUPTED, Interrupted};

/// Whether the user wants to stop.
#[derive(Debug, Clone)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Watches for SIGINT, SIGTERM and SIGHUP.
    pub fn watch() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // In this order: the flag is still unset when the first signal passes the first handler.
            signal_hook::flag::register_conditional_shutdown(
                signal,
                i32::from(INTERRUPTED),
                Arc::clone(&flag),
            )
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
            .context("cannot watch for Ctrl-C")?;
        }
        Ok(Self(flag))
    }

    /// The flag, for loops that must look at it themselves.
    pub fn flag(&self) -> &Arc<AtomicBool> {
        &self.0
    }

    /// An error once the user wants to stop.
    pub fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            Err(Interrupted.into())
        } else {
            Ok(())
        }
    }
}
