//! A request to stop a run after its current step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;

/// Whether the user requested a stop, or suspended this process meanwhile. The program that owns the flags sets them,
/// for example in signal handlers.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    stop: Arc<AtomicBool>,
    continued: Arc<AtomicBool>,
}

/// Interrupted by the user.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

impl Interrupt {
    /// An interrupt that this flag requests.
    pub fn of(flag: Arc<AtomicBool>) -> Self {
        Self {
            stop: flag,
            continued: Arc::default(),
        }
    }

    /// The flag to set when this process continues after it was suspended (SIGCONT).
    pub fn continued_flag(&self) -> &Arc<AtomicBool> {
        &self.continued
    }

    /// Whether this process was suspended since the last call: then a time measured since is not a server's.
    pub fn take_suspended(&self) -> bool {
        self.continued.swap(false, Ordering::Relaxed)
    }

    /// The flag, for loops that check it themselves.
    pub fn flag(&self) -> &Arc<AtomicBool> {
        &self.stop
    }

    /// Whether a stop was requested.
    pub fn is_requested(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Returns [`Interrupted`] if a stop was requested.
    pub fn check(&self) -> Result<()> {
        if self.is_requested() {
            Err(Interrupted.into())
        } else {
            Ok(())
        }
    }

    /// A result, or [`Interrupted`] if it failed after a stop was requested, which cancels statements.
    pub fn or<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.check()?;
        }
        result
    }
}
