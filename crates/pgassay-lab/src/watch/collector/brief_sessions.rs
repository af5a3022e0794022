//! Sessions of clients that come and go between two readings. Before version 14, the server does not count sessions.

use std::collections::HashMap;

use super::Collector;
use crate::system_env::unix_us;

/// A session that was seen once between two readings that are further apart may have lasted for many statements.
const BRIEF_US: f64 = 0.25e6;

/// Counts sessions that a single reading found.
#[derive(Debug, Default)]
pub(super) struct BriefSessions {
    /// Times of the last two readings.
    readings_us: [Option<f64>; 2],
    /// The PIDs at the last one.
    last: HashMap<u32, SeenClient>,
    count: u64,
    /// Readings that could find some.
    readings: u64,
    /// Of those that were found at work, their number and the sum of their ages then.
    aged: u64,
    ages_us: f64,
    /// Of which were taken.
    taken: u64,
}

/// A session at a reading.
#[derive(Debug)]
struct SeenClient {
    /// The reading before did not have it.
    is_new: bool,
    /// Since its start, in microseconds; `None` if idle, or if the server's clock may be another.
    age_us: Option<f64>,
}

/// An age by two readings of the same clock is at least this.
const AGE_MIN_US: f64 = 500.0;
/// Fewer sessions are chance.
const AGED_MIN: u64 = 5;

impl BriefSessions {
    /// Adds a reading with the sessions of clients and their ages. It could not read so many, which are missing.
    fn add(
        &mut self,
        (at_us, unreadable): (f64, u32),
        clients: impl Iterator<Item = (u32, Option<f64>)>,
    ) {
        let [before_us, last_us] = self.readings_us;
        let seen = |(pid, age_us)| {
            let is_new = last_us.is_some() && !self.last.contains_key(&pid);
            (pid, SeenClient { is_new, age_us })
        };
        let now: HashMap<u32, SeenClient> = clients.map(seen).collect();
        if before_us.is_some_and(|it| at_us - it <= BRIEF_US) {
            let last = self.last.iter();
            let ended = last.filter(|(pid, it)| it.is_new && !now.contains_key(*pid));
            let ended = ended.skip(unreadable as usize);
            self.readings += 1;
            for (_, client) in ended {
                self.count += 1;
                if let Some(age_us) = client.age_us {
                    self.aged += 1;
                    self.ages_us += age_us.max(AGE_MIN_US);
                }
            }
        }
        self.last = now;
        self.readings_us = [last_us, Some(at_us)];
    }

    /// How many there were in this time, at least. Most of those that last for less than the time between two readings
    /// are seen by none. What a reading finds of them on average is their rate times the time that they last, and that
    /// is at most twice their mean age when they are found.
    fn least_within(&self, window_us: f64) -> u64 {
        if self.aged < AGED_MIN {
            return self.count;
        }
        let pairs = self.aged as f64 * (self.aged - 1) as f64;
        let per_us = pairs / (2.0 * self.readings as f64 * self.ages_us);
        self.count.max((per_us * window_us) as u64)
    }
}

impl Collector {
    /// Adds a reading's sessions of clients, if the server does not count them.
    pub(super) fn note_brief(&mut self, reading: (f64, u32), idle: &[u32], others: &[(u32, i64)]) {
        if !self.is_before_14() {
            return;
        }
        let (now_us, own) = (unix_us(), &self.own_pids);
        let knows_age = self.reads_memory;
        let age_us = |started_us: i64| knows_age.then(|| (now_us - started_us) as f64);
        let idle = idle.iter().map(|pid| (*pid, None));
        let others = others.iter().map(|it| (it.0, age_us(it.1)));
        let all = idle.chain(others).filter(|it| !own.contains(&it.0));
        self.brief.add(reading, all);
    }

    /// Sessions that were seen to last for less than [`BRIEF_US`] since the last call; `None` if the server counts all
    /// sessions.
    pub fn take_brief(&mut self) -> Option<u64> {
        if !self.is_before_14() {
            return None;
        }
        let new = self.brief.count - self.brief.taken;
        self.brief.taken = self.brief.count;
        Some(new)
    }

    /// How many there were in a window of this length since the first reading, at least.
    pub fn all_brief(&self, window_us: f64) -> Option<u64> {
        let least = || self.brief.least_within(window_us);
        self.is_before_14().then(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the sessions of `pgbench -C` on 12 were no storm: most of them last for less than the time between
    /// two readings, so that those seen were few per transaction.
    #[test]
    fn sessions_of_a_single_reading_are_brief() {
        let mut brief = BriefSessions::default();
        let readings: [(f64, &[u32]); 6] = [
            // 1 was there before.
            (0.0, &[1, 2]),
            (25e3, &[2, 3, 4]),
            (50e3, &[2, 4, 5]),
            (75e3, &[2, 6]),
            // Readings that are far apart say nothing.
            (1e6, &[2, 7]),
            (1.025e6, &[2]),
        ];
        for (at_us, pids) in readings {
            brief.add((at_us, 0), pids.iter().map(|pid| (*pid, None)));
        }
        assert_eq!(brief.count, 2, "3 and 5");
        assert_eq!(brief.least_within(10e6), 2);
    }

    /// Regression: with 1,000 busy sessions, those that a reading could not read seemed to come and go.
    #[test]
    fn sessions_that_could_not_be_read_have_not_ended() {
        let mut brief = BriefSessions::default();
        let readings: [(u32, &[u32]); 5] =
            [(0, &[1, 2]), (1, &[1]), (0, &[1, 2]), (1, &[1]), (0, &[1])];
        for ((unreadable, pids), at) in readings.into_iter().zip(0..) {
            let at_us = f64::from(at) * 25e3;
            brief.add((at_us, unreadable), pids.iter().map(|pid| (*pid, None)));
        }
        assert_eq!(brief.count, 0);
    }

    /// Of 100 sessions per second that last for 4 ms, two of five readings find one, on average 2 ms after its start.
    #[test]
    fn sessions_between_readings_count_by_how_young_those_are_that_were_found() {
        let mut brief = BriefSessions::default();
        for reading in 0..100_u32 {
            let found = (reading % 5 < 2).then_some((reading, Some(2e3)));
            brief.add((f64::from(reading) * 25e3, 0), found.into_iter());
        }
        let least = brief.least_within(10e6);
        assert!((700..1000).contains(&least), "{least} of 1000");
        assert!(brief.count < 50);
    }
}
