//! How long a run of transactions of some length has to be, and when its clients begin.
//!
//! A transaction that straddles an end of the window is credited with the share of it inside, which
//! integrates 1 / duration over the window. The mean of that is the rate where clients are in the
//! middle of a transaction when the window begins as often as at any other time. Clients that all
//! begin together are not: their first transactions end together, and with a coefficient of variation
//! c the credit of each client is c² / 2 of a transaction too high. So clients begin spread over one
//! mean transaction, and the window begins no sooner than one more after that: for exponential
//! durations that leaves less than a twentieth of a transaction of the half. What is left is divided
//! by the transactions of a client in the window, and mostly cancels in a ratio, being the same on
//! both sides.

use std::time::Duration;

use pgassay_script::Rng;

/// Transactions of each client that a window should hold: of a twentieth of a transaction's bias,
/// 0.5% is left then, of which a ratio has the difference: 0.05% where two variants differ by a tenth.
const TRANSACTIONS_MIN: u32 = 10;
/// No window is made longer than this for their sake.
const MEASURE_MAX: Duration = Duration::from_secs(10);
/// Nor are starts spread over more than this.
const SPREAD_MAX: Duration = Duration::from_secs(1);

/// The stretches of a timed run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The clients begin within this time.
    pub spread: Duration,
    /// The time until the window begins.
    pub settle: Duration,
    /// The window.
    pub measure: Duration,
}

impl Timing {
    /// As planned, or longer where transactions are slow: `transaction` is their mean length.
    pub fn of(settle: Duration, measure: Duration, transaction: Duration) -> Self {
        let spread = transaction.min(SPREAD_MAX);
        Self {
            spread,
            settle: settle.max(spread * 2),
            measure: measure.max((transaction * TRANSACTIONS_MIN).min(MEASURE_MAX)),
        }
    }
}

/// When each client begins, in ns from the run's begin: evenly spread, in random order, each at a
/// random moment of its share. The same seed gives the same.
pub(crate) fn starts(clients: usize, spread: Duration, seed: u64) -> Vec<u64> {
    let mut rng = Rng::from_seed(seed);
    let mut shares: Vec<usize> = (0..clients).collect();
    for last in (1..clients).rev() {
        shares.swap(last, rng.up_to(last as u64) as usize);
    }
    let share_ns = spread.as_nanos() as f64 / clients.max(1) as f64;
    let start = |share: usize| ((share as f64 + rng.unit()) * share_ns) as u64;
    shares.into_iter().map(start).collect()
}

#[cfg(test)]
mod simulation;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_transactions_make_a_run_longer() {
        let of = |transaction_ms| {
            let ms = Duration::from_millis;
            let timing = Timing::of(ms(20), ms(300), ms(transaction_ms));
            [timing.spread, timing.settle, timing.measure].map(|it| it.as_millis())
        };
        assert_eq!(of(1), [1, 20, 300]);
        assert_eq!(of(30), [30, 60, 300]);
        assert_eq!(of(100), [100, 200, 1000]);
        assert_eq!(of(5000), [1000, 2000, 10_000]);
    }

    #[test]
    fn clients_begin_spread_and_the_same_for_the_same_seed() {
        let spread = Duration::from_nanos(6400);
        let first = starts(64, spread, 1);
        assert_eq!(first, starts(64, spread, 1));
        assert_ne!(first, starts(64, spread, 2));
        assert!(!first.is_sorted(), "in random order");
        let mut sorted = first;
        sorted.sort_unstable();
        for (share, start_ns) in sorted.into_iter().enumerate() {
            let share_ns = 100 * share as u64;
            assert!((share_ns..=share_ns + 100).contains(&start_ns));
        }
    }
}
