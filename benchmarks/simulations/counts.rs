//! Rates from transaction counts: clients with regular transactions, in a window in step with them.

use pgassay_stats::{Pair, PairContext, compare_in_context};

use crate::world::Draws;
use crate::{Share, row};

const WINDOW_US: f64 = 300_000.0;
const BLOCKS: usize = 6;
/// B's transactions take this much longer, which lowers the rate by 2.9%.
const LONGER: f64 = 1.03;

/// How a trial's rate is calculated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Method {
    /// Transactions that end inside the window count as whole ones.
    Integer,
    /// The same, with intervals widened by one transaction per client.
    IntegerWithSteps,
    /// Each transaction counts by the share of its duration inside the window.
    Fractional,
}

#[derive(Clone, Copy)]
pub struct Load {
    pub transaction_us: f64,
    pub cv: f64,
    pub clients: u32,
}

pub const LOADS: [Load; 5] = [
    Load {
        transaction_us: 30_000.0,
        cv: 0.02,
        clients: 1,
    },
    Load {
        transaction_us: 30_000.0,
        cv: 0.05,
        clients: 8,
    },
    Load {
        transaction_us: 10_000.0,
        cv: 0.05,
        clients: 8,
    },
    Load {
        transaction_us: 5_000.0,
        cv: 0.05,
        clients: 16,
    },
    Load {
        transaction_us: 1_000.0,
        cv: 0.05,
        clients: 16,
    },
];

/// Transactions in the window of a trial: the number that end inside, and the sum of their shares.
fn trial(draws: &mut Draws, load: Load, mean_us: f64) -> (f64, f64) {
    // Clients start together and run some transactions before the window opens.
    let opens = 100_000.0;
    let closes = opens + WINDOW_US;
    let (mut whole, mut credited) = (0.0, 0.0);
    for _ in 0..load.clients {
        let mut now = 0.0;
        while now < closes {
            let end = now + mean_us * draws.factor(load.cv);
            whole += f64::from(u8::from(end > opens && end <= closes));
            credited += (end.min(closes) - now.max(opens)).max(0.0) / (end - now);
            now = end;
        }
    }
    (whole, credited)
}

/// Whether the interval of a run covers the true ratio, and its half-width.
fn covers(draws: &mut Draws, load: Load, way: Method) -> (bool, f64) {
    let (mut pairs, mut fewest) = (Vec::new(), f64::INFINITY);
    for _ in 0..BLOCKS {
        let mut side = |mean_us: f64| {
            let mut both = [(); 2].map(|()| match (way, trial(draws, load, mean_us)) {
                (Method::Fractional, (_, credited)) => credited,
                (_, (whole, _)) => whole,
            });
            both.sort_by(f64::total_cmp);
            fewest = fewest.min(both[0]);
            (both[0] * both[1]).sqrt()
        };
        pairs.push(Pair {
            baseline: side(load.transaction_us),
            variant: side(load.transaction_us * LONGER),
        });
    }
    let step = match way {
        Method::IntegerWithSteps => f64::from(load.clients) / fewest,
        _ => 0.0,
    };
    let background = PairContext {
        boots: &[],
        steps: [step; 2],
    };
    let found = compare_in_context(&pairs, background, 0.95).expect("every trial has transactions");
    let interval = found.estimate().expect("there are six pairs").interval;
    (
        interval.contains(1.0 / LONGER),
        (interval.high / interval.low).ln() / 2.0,
    )
}

pub fn misses(load: Load, way: Method, runs: u32) -> (Share, f64) {
    let mut draws = Draws::new(2);
    let (mut hits, mut width) = (0, 0.0);
    for _ in 0..runs {
        let (covered, half) = covers(&mut draws, load, way);
        hits += usize::from(covered);
        width += half / f64::from(runs);
    }
    (Share::of(hits, runs).complement(), width)
}

pub fn tables(runs: u32) {
    println!("## Counting transactions\n");
    println!(
        "Intervals that miss the true value, and their mean half-width: 6 pairs, 300 ms, B slower by 2.9%.\n"
    );
    row(&[
        "load",
        "whole transactions",
        "with their steps",
        "by shares",
    ]);
    row(&["---"; 4]);
    let limit = 0.055 + 2.0 * (0.05 * 0.95 / f64::from(runs)).sqrt();
    for load in LOADS {
        let of_way = |way: Method| misses(load, way, runs);
        let ways = [
            Method::Integer,
            Method::IntegerWithSteps,
            Method::Fractional,
        ]
        .map(of_way);
        let cell = |(share, width): (Share, f64)| format!("{share} (±{:.1}%)", 100.0 * width);
        row(&[
            &format!(
                "{} ms, cv {:.0}%, {} clients",
                load.transaction_us / 1e3,
                load.cv * 100.0,
                load.clients
            ),
            &cell(ways[0]),
            &cell(ways[1]),
            &cell(ways[2]),
        ]);
        assert!(
            ways[1].0.0 <= limit && ways[2].0.0 <= limit,
            "{}",
            load.transaction_us
        );
    }
    assert!(
        misses(LOADS[0], Method::Integer, runs).0.0 > 0.5,
        "whole transactions must fail"
    );
    println!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_transactions_miss_the_true_ratio_and_shares_do_not() {
        let of_way = |way: Method| misses(LOADS[0], way, 300).0.0;
        assert!(of_way(Method::Integer) > 0.5);
        assert!(of_way(Method::IntegerWithSteps) <= 0.09);
        assert!(of_way(Method::Fractional) <= 0.09);
    }
}
