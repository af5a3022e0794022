//! Two variants on one server whose cache is smaller than the table, with equal or independent streams of random
//! keys.

use pgassay_stats::{Pair, block_order, compare};

use crate::world::Draws;
use crate::{Share, row};

const PAGES: usize = 40_000;
const CACHED: usize = 21_000;
const BLOCKS: u64 = 6;
/// Length of a trial and of the warm-up, in units of A's CPU time per transaction.
const TRIAL: f64 = 600.0;
const WARM_UP: f64 = 900.0;
/// Cost of a page that is not in the cache, in the same unit.
const MISS: f64 = 3.85;

/// An LRU cache, close enough to PostgreSQL's clock sweep.
struct Cache {
    used: Vec<u64>,
    queue: std::collections::VecDeque<(usize, u64)>,
    held: usize,
    now: u64,
}

impl Cache {
    fn new() -> Self {
        Self {
            used: vec![0; PAGES],
            queue: std::collections::VecDeque::new(),
            held: 0,
            now: 0,
        }
    }

    /// Accesses a page. Returns whether it had to be read.
    fn misses(&mut self, page: usize) -> bool {
        self.now += 1;
        let missed = self.used[page] == 0;
        self.held += usize::from(missed);
        self.used[page] = self.now;
        self.queue.push_back((page, self.now));
        while self.held > CACHED {
            let Some((oldest, when)) = self.queue.pop_front() else {
                break;
            };
            if self.used[oldest] == when {
                self.used[oldest] = 0;
                self.held -= 1;
            }
        }
        missed
    }
}

/// A variant's connection: its stream of keys and the CPU cost of a transaction.
struct Client {
    keys: Draws,
    cpu: f64,
}

impl Client {
    /// Runs for `time`. Returns the number of transactions.
    fn run(&mut self, cache: &mut Cache, time: f64) -> f64 {
        let (mut spent, mut transactions) = (0.0, 0.0);
        while spent < time {
            let page = (self.keys.uniform() * PAGES as f64) as usize;
            spent += self.cpu + if cache.misses(page) { MISS } else { 0.0 };
            transactions += 1.0;
        }
        transactions
    }
}

/// Simulates a run. Returns B/A and whether its interval excludes 1.
fn run(seed: u64, saving: f64, equal_streams: bool) -> (f64, bool) {
    let mut cache = Cache::new();
    let mut others = Draws::new(!seed);
    while cache.held < CACHED {
        cache.misses((others.uniform() * PAGES as f64) as usize);
    }
    let mut pairs = Vec::new();
    for block in 0..BLOCKS {
        let stream = |variant: u64| {
            let of_variant = if equal_streams { 0 } else { variant };
            Draws::new((seed << 20) + block * 64 + of_variant)
        };
        let mut clients = [
            Client {
                keys: stream(0),
                cpu: 1.0,
            },
            Client {
                keys: stream(1),
                cpu: 1.0 - saving,
            },
        ];
        // Independent streams come with a random order of the warm-up.
        let swapped = !equal_streams && Draws::new(seed * 977 + block).chance(0.5);
        for place in 0..2 {
            clients[place ^ usize::from(swapped)].run(&mut cache, WARM_UP);
        }
        let mut rates = [1.0; 2];
        for variant in block_order(2, seed, block) {
            rates[variant] *= clients[variant].run(&mut cache, TRIAL);
        }
        pairs.push(Pair {
            baseline: rates[0].sqrt(),
            variant: rates[1].sqrt(),
        });
    }
    let found = compare(&pairs, 0.95).expect("every trial has transactions");
    let estimate = found.estimate().expect("there are six pairs");
    (estimate.ratio, estimate.excludes_one())
}

/// Mean B/A, and the share of runs that report a difference.
pub fn shares(saving: f64, equal_streams: bool, runs: u32) -> (f64, Share) {
    let found = (0..runs).map(|seed| run(u64::from(seed), saving, equal_streams));
    let (mut sum, mut different) = (0.0, 0);
    for (ratio, excluded) in found {
        sum += ratio.ln() / f64::from(runs);
        different += usize::from(excluded);
    }
    (sum.exp(), Share::of(different, runs))
}

pub fn tables(runs: u32) {
    println!("## Shared caches\n");
    println!("B/A of two variants on one server, by the share of CPU time that B saves.\n");
    row(&[
        "saving",
        "equal streams",
        "called different",
        "independent streams",
        "called different",
    ]);
    row(&["---"; 5]);
    for saving in [0.0, 0.2, 0.5] {
        let (equal, wrong) = shares(saving, true, runs);
        let (independent, called) = shares(saving, false, runs);
        row(&[
            &format!("{:.0}%", saving * 100.0),
            &format!("{equal:.3}"),
            &wrong.to_string(),
            &format!("{independent:.3}"),
            &called.to_string(),
        ]);
        assert!(equal < 1.0, "equal streams must fail: {equal}");
        if saving > 0.0 {
            assert!(independent > 1.0 && called.0 > 0.7, "{saving}");
        } else {
            let chance = 2.0 * (0.05 * 0.95 / f64::from(runs)).sqrt();
            assert!(
                called.0 <= 0.055 + chance && wrong.0 > 0.5,
                "{called} {wrong}"
            );
        }
    }
    println!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_streams_report_false_differences_and_independent_ones_do_not() {
        let (ratio, wrong) = shares(0.0, true, 20);
        assert!(wrong.0 > 0.5 && ratio < 0.99, "{ratio} {wrong}");
        let (ratio, called) = shares(0.0, false, 40);
        assert!(
            called.0 <= 0.2 && (ratio - 1.0).abs() < 0.01,
            "{ratio} {called}"
        );
    }
}
