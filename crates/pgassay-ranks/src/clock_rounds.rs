//! The round trips that measure the clocks of all ranks, some ranks at a time.
//!
//! One rank after the other would take the time of all round trips, four seconds with 1,000 machines, in which
//! clocks drift. All at once, answers would wait for each other at rank 0, and no round trip would be short.

use crate::clock_offset::{ClockOffset, ClockReading};

/// Round trips per clock.
pub(crate) const ROUND_TRIPS: usize = 64;
/// Ranks at a time, at most. More keep rank 0 busy, so that answers wait.
const AT_ONCE_MAX: usize = 8;

/// How many ranks to ask at a time: each spins until it is asked again, perhaps on the machine of rank 0.
pub fn at_once(cpus: usize) -> usize {
    (cpus / 2).clamp(1, AT_ONCE_MAX)
}

/// What rank 0 knows of the other clocks while it asks for them.
pub struct ClockRounds {
    /// By rank, without rank 0.
    readings: Vec<Vec<ClockReading>>,
    /// Ranks that have a question, and when it was sent.
    asked: Vec<(usize, u64)>,
    at_once: usize,
    /// The next rank that was not asked yet.
    next: usize,
}

impl ClockRounds {
    /// Nothing is known of the clocks of ranks 1 to `ranks` - 1, of which at most `at_once` are asked at a time.
    pub fn new(ranks: usize, at_once: usize) -> Self {
        Self {
            readings: vec![Vec::with_capacity(ROUND_TRIPS); ranks.saturating_sub(1)],
            asked: Vec::new(),
            at_once: at_once.max(1),
            next: 1,
        }
    }

    /// A rank to ask for the first time, if there is room for one more.
    pub fn begin_next(&mut self) -> Option<usize> {
        let has_room = self.asked.len() < self.at_once && self.next <= self.readings.len();
        has_room.then(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// A question was sent to a rank.
    pub fn asked(&mut self, rank: usize, sent_ns: u64) {
        self.asked.push((rank, sent_ns));
    }

    /// The ranks that have not answered yet, and when they were asked.
    pub fn waiting(&self) -> &[(usize, u64)] {
        &self.asked
    }

    /// A rank has answered. Returns whether to ask it again.
    pub fn answered(&mut self, rank: usize, shown_ns: u64, received_ns: u64) -> bool {
        let Some(at) = self.asked.iter().position(|(asked, _)| *asked == rank) else {
            return false;
        };
        let (_, sent_ns) = self.asked.swap_remove(at);
        let readings = &mut self.readings[rank - 1];
        readings.push(ClockReading {
            sent_ns,
            shown_ns,
            received_ns,
        });
        readings.len() < ROUND_TRIPS
    }

    /// Whether all clocks are measured.
    pub fn is_complete(&self) -> bool {
        self.asked.is_empty() && self.next > self.readings.len()
    }

    /// The clocks of all ranks; that of rank 0 is the own one.
    pub fn offsets(&self) -> Vec<ClockOffset> {
        let others = self.readings.iter();
        let others = others.map(|readings| ClockOffset::of(readings).unwrap_or_default());
        std::iter::once(ClockOffset::default())
            .chain(others)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_clock_is_read_as_often_and_few_at_a_time() {
        for (ranks, at_once) in [(1, 4), (2, 1), (2, 8), (9, 1), (9, 3), (30, 8)] {
            let mut rounds = ClockRounds::new(ranks, at_once);
            let mut now_ns = 0;
            let mut trips = 0;
            while !rounds.is_complete() {
                while let Some(rank) = rounds.begin_next() {
                    rounds.asked(rank, now_ns);
                }
                assert!(rounds.waiting().len() <= at_once);
                // The last one that was asked answers first.
                let Some((rank, sent_ns)) = rounds.waiting().last().copied() else {
                    panic!("no rank is asked")
                };
                now_ns = sent_ns + 20_000;
                trips += 1;
                if rounds.answered(rank, sent_ns + 10_000 + 1000 * rank as u64, now_ns) {
                    rounds.asked(rank, now_ns);
                }
            }
            assert_eq!(trips, (ranks - 1) * ROUND_TRIPS);
            let offsets = rounds.offsets();
            assert_eq!(offsets.len(), ranks);
            for (rank, offset) in offsets.iter().enumerate() {
                assert_eq!(offset.offset_ns, 1000 * (rank as u64).cast_signed());
            }
        }
    }

    #[test]
    fn an_answer_without_a_question_is_not_counted() {
        let mut rounds = ClockRounds::new(2, 1);
        assert!(!rounds.answered(1, 5, 6));
        assert_eq!(rounds.begin_next(), Some(1));
    }

    #[test]
    fn a_small_machine_asks_one_rank_at_a_time() {
        assert_eq!([1, 2, 4, 64].map(at_once), [1, 1, 2, 8]);
    }
}
