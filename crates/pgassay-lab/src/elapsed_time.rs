//! The time that a run has taken, as its trials tell it.

use pgassay_model::trial::Trial;

/// A longer pause between two trials is that of a run that was continued, and does not count as elapsed.
const PAUSE_US_MAX: i64 = 60_000_000;

/// The time between the begin of the first trial and that of the last, without long pauses. It comes from the
/// trials alone, so that a scheduler that is given the trials of an earlier process comes to the same state.
#[derive(Debug, Default)]
pub struct ElapsedTime {
    us: i64,
    /// Begin of the last trial.
    last_us: Option<i64>,
}

impl ElapsedTime {
    /// Takes note of a trial.
    pub fn add(&mut self, trial: &Trial) {
        let pause_us = self.last_us.map_or(0, |last_us| trial.started_us - last_us);
        self.us += pause_us.clamp(0, PAUSE_US_MAX);
        self.last_us = Some(trial.started_us);
    }

    /// Microseconds.
    pub fn us(&self) -> u64 {
        self.us.cast_unsigned()
    }
}
