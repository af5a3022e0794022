//! Which rates to measure next, so that the highest sustained one is found and the rates near it are known.

use std::collections::BTreeMap;

use pgassay_account::sustained_rate::{PacedThroughput, sustained_count};

/// Doubles the rate until the server does not keep up. Then each block measures all rates so far, and the
/// candidates between the last sustained and the first other one, as powers of two halve that range.
#[derive(Debug)]
pub struct RateSearch {
    /// In ascending order.
    candidates: Vec<u32>,
    /// Throughputs of the rounds of each rate.
    measured: BTreeMap<u32, Vec<f64>>,
    /// The time that a round measures, seconds.
    round_s: f64,
}

impl RateSearch {
    /// A search among these rates, transactions per second, in rounds that measure this many seconds.
    pub fn new(candidates: &[u32], round_s: f64) -> Self {
        let mut candidates = candidates.to_vec();
        candidates.sort_unstable();
        Self {
            candidates,
            measured: BTreeMap::new(),
            round_s,
        }
    }

    /// Takes note of the throughput of a round.
    pub fn round_ended(&mut self, rate: u32, throughput: f64) {
        self.measured.entry(rate).or_default().push(throughput);
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
            return next.map_or_else(|| self.all(), |it| vec![*it]);
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
            rounds.sort_by(f64::total_cmp);
            PacedThroughput {
                rate: f64::from(*rate),
                tps: rounds.get(rounds.len() / 2).copied().unwrap_or(0.0),
                seconds: self.round_s,
            }
        });
        let medians: Vec<PacedThroughput> = medians.collect();
        sustained_count(&medians)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_double_until_the_server_does_not_keep_up_and_then_close_in() {
        let candidates = [
            100, 119, 141, 168, 200, 238, 283, 336, 400, 476, 566, 673, 800, 1600,
        ];
        let mut search = RateSearch::new(&candidates, 100.0);
        let mut blocks = Vec::new();
        for _ in 0..7 {
            let next = search.next_block();
            for rate in &next {
                search.round_ended(*rate, f64::from(*rate).min(500.0));
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
        let mut search = RateSearch::new(&[10, 20, 40], 2.0);
        search.round_ended(search.next_block()[0], 8.0);
        assert_eq!(search.next_block(), [20]);
        search.round_ended(20, 5.0);
        assert!(!search.next_block().contains(&40));
    }

    #[test]
    fn a_stall_in_the_first_round_of_a_rate_does_not_end_the_search() {
        let mut search = RateSearch::new(&[100, 150, 200, 400], 100.0);
        search.round_ended(search.next_block()[0], 20.0);
        assert_eq!(search.next_block(), [100]);
        search.round_ended(100, 100.0);
        assert_eq!(search.next_block(), [200]);
    }

    #[test]
    fn a_server_that_keeps_up_with_everything_is_measured_again() {
        let mut search = RateSearch::new(&[100, 200], 100.0);
        for _ in 0..2 {
            let next = search.next_block();
            search.round_ended(next[0], f64::from(next[0]));
        }
        assert_eq!(search.next_block(), [100, 200]);
        assert!(RateSearch::new(&[], 1.0).next_block().is_empty());
    }
}
