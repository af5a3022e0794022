//! How long servers that do not answer may delay the end of a command that the user interrupts.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pgassay_server::TimedStream;

use crate::interrupt::Interrupt;

/// A server that is silent for this long after an interrupt is given up. The last readings of a server at
/// work take less.
const SILENCE_MAX: Duration = Duration::from_secs(1);
/// How often [`Patience::wait_for`] checks whether to go on.
const POLL: Duration = Duration::from_millis(50);

/// Ends the waits for a server after an interrupt, on all its connections. A server that answers is heard to
/// the end; one that is silent on a connection for [`SILENCE_MAX`] is not asked again.
#[derive(Clone)]
pub struct Patience(Arc<PatienceState>);

struct PatienceState {
    interrupt: Interrupt,
    /// When a wait first noticed the interrupt.
    noticed: OnceLock<Instant>,
    is_over: AtomicBool,
}

impl Patience {
    /// Until this interrupt, it is endless.
    pub fn until(interrupt: &Interrupt) -> Self {
        Self(Arc::new(PatienceState {
            interrupt: interrupt.clone(),
            noticed: OnceLock::new(),
            is_over: AtomicBool::new(false),
        }))
    }

    /// Ends the waits on a connection.
    pub fn apply_to(&self, stream: &TimedStream) {
        let patience = self.clone();
        stream.end_waits(Arc::new(move |began| patience.check(began)));
    }

    /// Does what may wait in other ways than on a connection, such as for a name server, on a thread that is
    /// left alone if it takes too long.
    ///
    /// # Errors
    /// As `work`, or the server is given up.
    pub fn wait_for<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let began = Instant::now();
        self.check(began)?;
        let (sender, done) = mpsc::sync_channel(1);
        thread::Builder::new()
            // Sending fails if the receiver is gone.
            .spawn(move || _ = sender.send(work()))
            .context("cannot start a thread that connects")?;
        loop {
            match done.recv_timeout(POLL) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Timeout) => self.check(began)?,
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("connecting ended unexpectedly; please report it")
                }
            }
        }
    }

    /// Returns an error if a wait that began at this moment is to end.
    fn check(&self, began: Instant) -> io::Result<()> {
        if self.is_over(began) {
            // Not a timeout: those of answers have a message of their own.
            let seconds = SILENCE_MAX.as_secs();
            return Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                format!("no answer within {seconds} s after the interrupt"),
            ));
        }
        Ok(())
    }

    /// Whether a wait that began at this moment is to end.
    fn is_over(&self, began: Instant) -> bool {
        let state = &self.0;
        if state.is_over.load(Ordering::Relaxed) {
            return true;
        }
        if !state.interrupt.is_requested() {
            return false;
        }
        let noticed = *state.noticed.get_or_init(Instant::now);
        let is_over = began.max(noticed).elapsed() >= SILENCE_MAX;
        if is_over {
            state.is_over.store(true, Ordering::Relaxed);
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_an_interrupt_a_silent_server_is_waited_for_once() {
        let interrupt = Interrupt::default();
        let patience = Patience::until(&interrupt);
        interrupt.flag().store(true, Ordering::Relaxed);
        let began = Instant::now();
        let wait = || {
            thread::sleep(Duration::from_hours(1));
            Ok(())
        };
        let error = patience.wait_for(wait).unwrap_err();
        assert!(error.to_string().contains("after the interrupt"), "{error}");
        assert!(began.elapsed() >= SILENCE_MAX);
        assert!(patience.is_over(Instant::now()));
        let never = || -> Result<()> { unreachable!("it is not asked again") };
        assert!(patience.wait_for(never).is_err());
    }

    #[test]
    fn after_an_interrupt_a_server_that_answers_is_heard() {
        let interrupt = Interrupt::default();
        let patience = Patience::until(&interrupt);
        interrupt.flag().store(true, Ordering::Relaxed);
        for _ in 0..15 {
            let work = || {
                thread::sleep(SILENCE_MAX / 10);
                Ok(7)
            };
            assert_eq!(patience.wait_for(work).unwrap(), 7);
        }
    }
}
