//! A request to stop a run after its current step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;

/// Whether the user requested a stop. The program that owns the flag sets it, for example in a signal handler.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

/// Interrupted by the user.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

impl Interrupt {
    /// An interrupt that this flag requests.
    pub fn of(flag: Arc<AtomicBool>) -> Self {
        Self(flag)
    }

    /// The flag, for loops that check it themselves.
    pub fn flag(&self) -> &Arc<AtomicBool> {
        &self.0
    }

    /// Whether a stop was requested.
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
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
