//! Which rates to measure next, so that the highest sustained one is found and the rates near it are known.

use std::collections::BTreeMap;

use pgassay_account::sustained_rate::{PacedThroughput, sustained_count};

/// Doubles the rate until the server does not keep up. Then each block measures all rates so far, and the
/// candidates between the last sustained and the first other one, as powers of two halve that range.
#[derive(Debug)]
pub struct RateSearch {
    /// In ascending order.
    candidates: Vec<u32>,
    /// Rounds of each rate.
    measured: BTreeMap<u32, Vec<PacedRound>>,
}

/// What a round of a rate measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PacedRound {
    /// Completed transactions per second.
    pub tps: f64,
    /// The time in which they were counted.
    pub seconds: f64,
}

impl RateSearch {
    /// A search among these rates, transactions per second.
    pub fn new(candidates: &[u32]) -> Self {
        let mut candidates = candidates.to_vec();
        candidates.sort_unstable();
        Self {
            candidates,
            measured: BTreeMap::new(),
        }
    }

    /// Takes note of a round.
    pub fn round_ended(&mut self, rate: u32, round: PacedRound) {
        self.measured.entry(rate).or_default().push(round);
    }

    /// The rates of the next block.
    pub fn next_block(&self) -> Vec<u32> {
        let Some(&least) = self.candidates.first() else {
            return Vec::new();
        };
        let saturated = self.measured.keys().nth(self.sustained_count());
        let Some(&saturated) = saturated else {
            let highest = self.measured.keys().next_back();
            let wanted = highest.map_or(least, |it| it.saturating_mul(2));
            let next = self.candidates.iter().find(|it| **it >= wanted);
            // The end of the range is less than a doubling away.
            let end = self.candidates.last().filter(|it| Some(*it) > highest);
            return next.or(end).map_or_else(|| self.all(), |it| vec![*it]);
        };
        let mut next: Vec<u32> = self.all();
        next.retain(|it| *it <= saturated);
        let sustained = next.iter().copied().rfind(|it| *it < saturated);
        let between = |it: &&u32| sustained.is_none_or(|low| **it > low) && **it < saturated;
        let between: Vec<u32> = self.candidates.iter().filter(between).copied().collect();
        next.extend(between.get(between.len() / 2));
        next.sort_unstable();
        next
    }

    fn all(&self) -> Vec<u32> {
        self.measured.keys().copied().collect()
    }

    /// By the median of the rounds of each rate, and the better one of two: a single stall does not end the search.
    fn sustained_count(&self) -> usize {
        let medians = self.measured.iter().map(|(rate, rounds)| {
            let mut rounds = rounds.clone();
            rounds.sort_by(|a, b| a.tps.total_cmp(&b.tps));
            // Each rate that was measured has a round.
            let median = rounds[rounds.len() / 2];
            PacedThroughput {
                rate: f64::from(*rate),
                tps: median.tps,
                seconds: median.seconds,
            }
        });
        let medians: Vec<PacedThroughput> = medians.collect();
        sustained_count(&medians)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round of 100 s.
    fn long(tps: f64) -> PacedRound {
        PacedRound {
            tps,
            seconds: 100.0,
        }
    }

    /// A round of 2 s.
    fn short(tps: f64) -> PacedRound {
        PacedRound { tps, seconds: 2.0 }
    }

    #[test]
    fn rates_double_until_the_server_does_not_keep_up_and_then_close_in() {
        let candidates = [
            100, 119, 141, 168, 200, 238, 283, 336, 400, 476, 566, 673, 800, 1600,
        ];
        let mut search = RateSearch::new(&candidates);
        let mut blocks = Vec::new();
        for _ in 0..7 {
            let next = search.next_block();
            for rate in &next {
                search.round_ended(*rate, long(f64::from(*rate).min(500.0)));
            }
            blocks.push(next);
        }
        assert_eq!(blocks[..4], [vec![100], vec![200], vec![400], vec![800]]);
        assert_eq!(blocks[4], [100, 200, 400, 566, 800]);
        assert_eq!(blocks[5], [100, 200, 400, 476, 566]);
        assert_eq!(
            blocks[6],
            [100, 200, 400, 476, 566],
            "nothing is left between"
        );
    }

    /// Regression: the search stopped at 10 transactions per second on an idle server.
    #[test]
    fn a_rate_with_few_due_transactions_is_not_called_saturated_by_chance() {
        let mut search = RateSearch::new(&[10, 20, 40]);
        search.round_ended(search.next_block()[0], short(8.0));
        assert_eq!(search.next_block(), [20]);
        search.round_ended(20, short(5.0));
        assert!(!search.next_block().contains(&40));
    }

    #[test]
    fn a_stall_in_the_first_round_of_a_rate_does_not_end_the_search() {
        let mut search = RateSearch::new(&[100, 150, 200, 400]);
        search.round_ended(search.next_block()[0], long(20.0));
        assert_eq!(search.next_block(), [100]);
        search.round_ended(100, long(100.0));
        assert_eq!(search.next_block(), [200]);
    }

    #[test]
    fn a_server_that_keeps_up_with_everything_is_measured_again() {
        let mut search = RateSearch::new(&[100, 200]);
        for _ in 0..2 {
            let next = search.next_block();
            search.round_ended(next[0], long(f64::from(next[0])));
        }
        assert_eq!(search.next_block(), [100, 200]);
        assert!(RateSearch::new(&[]).next_block().is_empty());
    }

    /// Regression: `--rate 1000..1900` measured 1000 only, again and again.
    #[test]
    fn the_end_of_a_range_is_measured_if_it_is_less_than_a_doubling_away() {
        let candidates = [1000, 1250, 1500, 1750, 1900];
        let blocks_up_to = |capacity: f64| {
            let mut search = RateSearch::new(&candidates);
            let block = |()| {
                let next = search.next_block();
                for rate in &next {
                    search.round_ended(*rate, long(f64::from(*rate).min(capacity)));
                }
                next
            };
            [(); 4].map(block)
        };
        let all = vec![1000, 1900];
        assert_eq!(
            blocks_up_to(5000.0),
            [vec![1000], vec![1900], all.clone(), all.clone()]
        );
        let closer = [vec![1000, 1500, 1900], vec![1000, 1500, 1750, 1900]];
        let [nearer, nearest] = closer;
        assert_eq!(
            blocks_up_to(1600.0),
            [vec![1000], vec![1900], nearer, nearest]
        );
    }

    /// Regression: trials of slow transactions are longer than planned, and a rate that the server did not sustain
    /// in them still passed for one that fell short by chance.
    #[test]
    fn chance_is_judged_by_the_time_that_a_round_really_took() {
        let next_after = |seconds: f64| {
            let mut search = RateSearch::new(&[10, 20, 40]);
            search.round_ended(10, PacedRound { tps: 8.0, seconds });
            search.next_block()
        };
        assert_eq!(next_after(2.0), [20]);
        assert_eq!(next_after(100.0), [10]);
    }
}
