//! How long a run must be for slow transactions, and when its clients begin.
//!
//! A transaction that straddles an end of the window is credited with the share inside it. The sum
//! integrates 1 / duration over the window, and its mean is the rate if the window begins at a
//! random moment in the clients' transactions. Clients that begin together violate this: their
//! first transactions end together, and with coefficient of variation c, each client's credit is c²
//! / 2 of a transaction too high. So the starts are spread over one mean transaction, and the
//! window begins at least one more mean transaction later. For exponential durations this reduces
//! the bias from one half to less than a twentieth of a transaction. The rest is divided by each
//! client's transactions in the window, and mostly cancels in a ratio because both sides have it.

use std::time::Duration;

use pgassay_script::Rng;

/// Transactions per client that a window is made long enough for, up to [`LONG`]. A bias of a twentieth of
/// a transaction is then 0.5%, and a ratio contains only the difference: 0.05% if two variants differ by 10%.
const TRANSACTIONS_MIN: u32 = 10;
/// Above this length, a window is made longer for [`SLOW_TRANSACTIONS_MIN`] transactions only: two more
/// trials then tell more than one long one, and both variants have about the same bias.
const LONG: Duration = Duration::from_secs(1);
const SLOW_TRANSACTIONS_MIN: u32 = 3;
/// Above this length, a window is made longer only until a transaction surely ends in it.
const MEASURE_MAX: Duration = Duration::from_secs(10);
/// Starts are not spread over more than this.
const SPREAD_MAX: Duration = Duration::from_secs(1);

/// The phases of a timed run.
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
    /// Returns the timing as planned, or longer for slow transactions; `transaction` is their mean
    /// length.
    pub fn of(settle: Duration, measure: Duration, transaction: Duration) -> Self {
        let spread = transaction.min(SPREAD_MAX);
        Self {
            spread,
            settle: settle.max(spread * 2),
            measure: measure.max(long_enough(transaction)),
        }
    }
}

fn long_enough(transaction: Duration) -> Duration {
    let each = |transactions| transaction * transactions;
    let of_slow = each(SLOW_TRANSACTIONS_MIN)
        .min(MEASURE_MAX)
        .max(each(3) / 2);
    each(TRANSACTIONS_MIN).min(LONG).max(of_slow)
}

/// Returns each client's start, in ns from the beginning of the run: one in each of equal shares of
/// the time, at a random moment, in random order. The same seed gives the same starts.
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
        assert_eq!(of(400), [400, 800, 1200]);
        assert_eq!(of(2000), [1000, 2000, 6000]);
        assert_eq!(of(5000), [1000, 2000, 10_000]);
        assert_eq!(of(20_000), [1000, 2000, 30_000]);
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
