//! When the server did not answer, as one whose processes or machine were stopped for a while.

use std::io;
use std::time::{Duration, Instant};

use pgassay_model::wording::counted;
use pgassay_wire::ExchangeError;

/// The server ends a query after 2 s. If the answer takes longer than that, the server hardly ran.
const SILENCE_MIN: Duration = Duration::from_secs(3);
/// More of them have only their number.
const LISTED_MAX: usize = 3;

/// The times without an answer.
#[derive(Debug, Default)]
pub(super) struct SilenceLog {
    /// A moment of the window, in microseconds since its start; `None` before the window.
    moment: Option<(f64, Instant)>,
    /// From when on there is no answer.
    since: Option<Instant>,
    /// Those that are over.
    spans: Vec<(Instant, Instant)>,
}

impl SilenceLog {
    /// It is `at_us` since the window's start.
    pub fn set_moment(&mut self, at_us: f64, now: Instant) {
        self.moment = Some((at_us, now));
    }

    /// A question was answered. Returns whether there is a new silence to tell of.
    pub fn answer(&mut self, asked: Instant, now: Instant) -> bool {
        let began = self.since.take().unwrap_or(asked);
        let is_long = self.moment.is_some() && now - began >= SILENCE_MIN;
        if is_long {
            self.spans.push((began, now));
        }
        is_long
    }

    /// A question failed. Returns whether the server is silent, and did not end the connection.
    pub fn fail(&mut self, asked: Instant, error: &ExchangeError) -> bool {
        let is_late = matches!(error, ExchangeError::Stream(error) if is_timeout(error));
        if is_late {
            self.since.get_or_insert(asked);
        }
        is_late
    }

    /// In words: when, and what follows from it.
    pub fn describe(&self) -> String {
        let spans = self.spans.iter().take(LISTED_MAX).map(|&(began, ended)| {
            let (from, to) = (self.at_s(began), self.at_s(ended));
            format!("from {from:.0} s to {to:.0} s ({:.0} s)", to - from)
        });
        let mut when: Vec<String> = spans.collect();
        let others = self.spans.len().saturating_sub(LISTED_MAX);
        if others > 0 {
            when.push(format!("{} later", counted(others, "time")));
        }
        when.extend(
            self.since
                .map(|it| format!("from {:.0} s on", self.at_s(it))),
        );
        format!(
            "the server did not answer {}: its processes were stopped, its machine was paused, the network was \
             interrupted, or it had far too much to do; rates and times per second are averages that include this time",
            when.join(", ")
        )
    }

    /// Seconds since the window's start.
    fn at_s(&self, then: Instant) -> f64 {
        let (at_us, moment) = self.moment.unwrap_or((0.0, then));
        let later = then.saturating_duration_since(moment).as_secs_f64();
        let earlier = moment.saturating_duration_since(then).as_secs_f64();
        (at_us / 1e6 + later - earlier).max(0.0)
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    /// Regression: rates were spread over the time in which a server was stopped, and nothing said so.
    #[test]
    fn a_server_that_was_stopped_for_a_while_did_not_answer() {
        let start = Instant::now();
        let mut log = SilenceLog::default();
        assert!(!log.answer(start, after(start, 5)), "before the window");
        log.set_moment(6e6, after(start, 6));
        assert!(!log.answer(after(start, 6), after(start, 8)));
        log.set_moment(10e6, after(start, 10));
        assert!(log.answer(after(start, 11), after(start, 15)));
        let words = log.describe();
        assert!(
            words.contains("did not answer from 11 s to 15 s (4 s): its"),
            "{words}"
        );

        // Longer than the connection lasts.
        let late = ExchangeError::Stream(io::ErrorKind::TimedOut.into());
        assert!(log.fail(after(start, 20), &late));
        assert!(log.describe().contains("(4 s), from 20 s on: its"));
        assert!(log.fail(after(start, 26), &late));
        assert!(log.answer(after(start, 30), after(start, 31)));
        assert!(log.describe().contains("from 20 s to 31 s (11 s): its"));
    }

    #[test]
    fn a_connection_that_the_server_ends_is_no_silence() {
        let start = Instant::now();
        let mut log = SilenceLog::default();
        log.set_moment(0.0, start);
        assert!(!log.fail(start, &ExchangeError::Closed));
        assert!(!log.answer(after(start, 8), after(start, 9)));
    }
}
