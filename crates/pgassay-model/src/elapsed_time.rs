//! The time that a run has taken, as its trials tell it.

use crate::trial::Trial;

/// A longer pause between two trials is that of a run that was continued, and does not count as elapsed.
const PAUSE_US_MAX: i64 = 60_000_000;

/// The time between the begin of the first trial and the end of the last, without long pauses. It comes from the
/// trials alone, so that a scheduler that is given the trials of an earlier process comes to the same state.
#[derive(Debug, Default)]
pub struct ElapsedTime {
    /// Until the last trial began.
    us: i64,
    paused_us: i64,
    /// Begin and end of the last trial.
    last_us: Option<[i64; 2]>,
    /// Its block and server start.
    last_place: Option<(u32, u32)>,
    /// The last block, and when its first trial began.
    block: Option<(u32, i64)>,
}

impl ElapsedTime {
    /// Of these trials, in the order in which they ran.
    pub fn of<'a>(trials: impl IntoIterator<Item = &'a Trial>) -> Self {
        let mut elapsed = Self::default();
        trials.into_iter().for_each(|trial| elapsed.add(trial));
        elapsed
    }

    /// Takes note of a trial.
    pub fn add(&mut self, trial: &Trial) {
        if let Some([began_us, ended_us]) = self.last_us {
            let pause_us_max = if self.is_continued_by(trial) {
                0
            } else {
                PAUSE_US_MAX
            };
            // A file of a run from elsewhere may have any numbers.
            let between_us = trial.started_us.saturating_sub(ended_us);
            let pause_us = between_us.clamp(0, pause_us_max);
            let window_us = ended_us.saturating_sub(began_us);
            self.us = self.us.saturating_add(window_us.saturating_add(pause_us));
            let paused_us = between_us.saturating_sub(pause_us).max(0);
            self.paused_us = self.paused_us.saturating_add(paused_us);
        }
        if self.block.is_none_or(|(block, _)| block != trial.block) {
            self.block = Some((trial.block, self.us));
        }
        let ended_us = trial.started_us.saturating_add(trial.window_us as i64);
        self.last_us = Some([trial.started_us, ended_us]);
        self.last_place = Some((trial.block, trial.server_start));
    }

    /// Whether a new process ran the trial: otherwise servers start between blocks only.
    fn is_continued_by(&self, trial: &Trial) -> bool {
        let is_another = |(block, start)| block == trial.block && start != trial.server_start;
        self.last_place.is_some_and(is_another)
    }

    /// Microseconds.
    pub fn us(&self) -> u64 {
        let last_us = self
            .last_us
            .map_or(0, |[began_us, ended_us]| ended_us.saturating_sub(began_us));
        self.us.saturating_add(last_us).cast_unsigned()
    }

    /// When the last block began, microseconds.
    pub fn block_began_us(&self) -> u64 {
        self.block.map_or(0, |(_, us)| us).cast_unsigned()
    }

    /// Whether a run with this time limit ends now: less than half of a block like the last would fit, so that the
    /// last block is the one that ends closest to the limit.
    pub fn is_up(&self, limit_us: u64) -> bool {
        let half_us = (self.us() - self.block_began_us()) / 2;
        self.us() + half_us >= limit_us
    }

    /// The pauses that do not count: those of a run that was continued within a block, and of other long ones what
    /// exceeds a minute, microseconds.
    pub fn paused_us(&self) -> i64 {
        self.paused_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::TrialKind;

    fn trial(started_s: i64, window_s: i64) -> Trial {
        Trial {
            started_us: started_s * 1_000_000,
            window_us: window_s as f64 * 1e6,
            ..Trial::empty(TrialKind::Timed)
        }
    }

    #[test]
    fn trials_longer_than_a_minute_count_in_full() {
        let long = [trial(0, 300), trial(301, 300), trial(602, 300)];
        let elapsed = ElapsedTime::of(&long);
        assert_eq!(elapsed.us(), 902_000_000);
        assert_eq!(elapsed.paused_us(), 0);
    }

    #[test]
    fn a_run_ends_with_the_block_that_ends_closest_to_the_time_limit() {
        let of_block = |block: u32, started_s| Trial {
            block,
            ..trial(started_s, 10)
        };
        let trials = [(0, 0), (0, 10), (0, 20), (1, 30), (1, 40), (1, 50)];
        let trials = trials.map(|(block, started_s)| of_block(block, started_s));
        let elapsed = ElapsedTime::of(&trials);
        assert_eq!(
            (elapsed.us(), elapsed.block_began_us()),
            (60_000_000, 30_000_000)
        );
        assert!(elapsed.is_up(75_000_000) && !elapsed.is_up(75_000_001));
        assert!(!ElapsedTime::default().is_up(1));
    }

    /// Regression: a run with two trials of 20 s per block took 80 s instead of 40 s with a time limit of 55 s.
    #[test]
    fn the_last_trial_of_a_block_takes_time_as_well() {
        let elapsed = ElapsedTime::of(&[trial(0, 20), trial(20, 20)]);
        assert!(elapsed.is_up(55_000_000));
    }

    /// Regression: a run with a time limit of 60 s that was stopped after 45 s, and continued after a minute, ended with
    /// the block in which it was stopped.
    #[test]
    fn the_time_before_a_block_was_continued_does_not_count() {
        let continued = Trial {
            server_start: 1,
            ..trial(56, 5)
        };
        let elapsed = ElapsedTime::of(&[trial(0, 5), trial(6, 5), continued]);
        assert_eq!(elapsed.us(), (6 + 5 + 5) * 1_000_000);
        assert_eq!(elapsed.paused_us(), 45_000_000);
    }

    #[test]
    fn the_night_before_a_run_was_continued_does_not_count() {
        let night = [trial(0, 5), trial(6, 5), trial(36_011, 5)];
        let elapsed = ElapsedTime::of(&night);
        assert_eq!(elapsed.us(), (6 + 5 + 60 + 5) * 1_000_000);
        assert_eq!(elapsed.paused_us(), (36_000 - 60) * 1_000_000);
    }
}
