//! A request to stop a run after its current step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

/// How soon [`Interrupt::sleep_until`] notices a request.
const CHECK_EVERY: Duration = Duration::from_millis(50);

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

    /// Sleeps until then, or until a stop is requested.
    pub fn sleep_until(&self, until: Instant) {
        let left = || until.saturating_duration_since(Instant::now());
        while !left().is_zero() && !self.is_requested() {
            thread::sleep(left().min(CHECK_EVERY));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_ends_in_time_or_when_a_stop_is_requested() {
        let interrupt = Interrupt::default();
        let begun = Instant::now();
        interrupt.sleep_until(begun + Duration::from_millis(20));
        assert!(begun.elapsed() >= Duration::from_millis(20));
        let flag = Arc::clone(interrupt.flag());
        let stopping = thread::spawn(move || flag.store(true, Ordering::Relaxed));
        interrupt.sleep_until(begun + Duration::from_hours(1));
        stopping.join().unwrap();
        assert!(begun.elapsed() < Duration::from_mins(1));
    }
}
