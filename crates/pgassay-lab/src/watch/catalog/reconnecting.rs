//! When a lost connection is opened again: a server that refuses, or answers no query, must not be asked all the
//! time.

use std::time::{Duration, Instant};

/// The first pause.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest. A connection that lasts longer ends the series.
const PAUSE_MAX: Duration = Duration::from_mins(1);

/// Pauses that double from attempt to attempt.
#[derive(Debug)]
pub(super) struct ReconnectPause {
    /// The next pause.
    pause: Duration,
    connected: Instant,
    /// When the connection was lost, and not before when it may be opened again.
    lost: Option<(Instant, Instant)>,
}

impl ReconnectPause {
    /// Of a connection that was opened at `now`.
    pub fn new(now: Instant) -> Self {
        Self {
            pause: PAUSE_MIN,
            connected: now,
            lost: None,
        }
    }

    /// The connection is lost, or was before.
    pub fn lose(&mut self, now: Instant) {
        if self.lost.is_some() {
            return;
        }
        if now - self.connected > PAUSE_MAX {
            self.pause = PAUSE_MIN;
        }
        self.lost = Some((now, self.next(now)));
    }

    /// It is lost, and may be opened again.
    pub fn is_due(&self, now: Instant) -> bool {
        self.lost.is_some_and(|(_, next)| now >= next)
    }

    /// It could not be opened.
    pub fn refuse(&mut self, now: Instant) {
        if let Some((lost, _)) = self.lost {
            self.lost = Some((lost, self.next(now)));
        }
    }

    /// It is there again. Returns for how long it was not.
    pub fn connect(&mut self, now: Instant) -> Duration {
        self.connected = now;
        let lost = self.lost.take();
        lost.map_or(Duration::ZERO, |(lost, _)| now - lost)
    }

    fn next(&mut self, now: Instant) -> Instant {
        let pause = self.pause;
        self.pause = PAUSE_MAX.min(2 * pause);
        now + pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks every second; the seconds of the attempts, of which those that `succeeds` open a connection that is
    /// lost at once.
    fn attempts(succeeds: impl Fn(u64) -> bool, seconds: u64) -> Vec<u64> {
        let start = Instant::now();
        let mut pause = ReconnectPause::new(start);
        pause.lose(start);
        let mut attempts = Vec::new();
        for second in 1..seconds {
            let now = start + Duration::from_secs(second);
            if !pause.is_due(now) {
                continue;
            }
            attempts.push(second);
            if succeeds(second) {
                pause.connect(now);
                pause.lose(now);
            } else {
                pause.refuse(now);
            }
        }
        attempts
    }

    #[test]
    fn a_server_that_refuses_or_answers_nothing_is_asked_ever_more_rarely() {
        let expected = [1, 3, 7, 15, 31, 63, 123, 183];
        assert_eq!(attempts(|_| false, 200), expected);
        assert_eq!(attempts(|_| true, 200), expected);
        assert_eq!(attempts(|second| second % 2 == 0, 200), expected);
    }

    #[test]
    fn a_connection_that_lasted_is_opened_again_soon() {
        let start = Instant::now();
        let mut pause = ReconnectPause::new(start);
        pause.lose(start);
        pause.refuse(start + Duration::from_secs(1));
        let connected = start + Duration::from_secs(3);
        assert!(pause.is_due(connected));
        assert_eq!(pause.connect(connected), Duration::from_secs(3));
        assert!(!pause.is_due(connected + Duration::from_hours(1)));
        let lost = connected + Duration::from_secs(90);
        pause.lose(lost);
        assert!(!pause.is_due(lost));
        assert!(pause.is_due(lost + PAUSE_MIN));
    }
}
