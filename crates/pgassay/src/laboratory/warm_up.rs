//! Warming up fresh connections until their throughput no longer rises.

use std::time::{Duration, Instant};

use anyhow::Result;
use pgassay_core::plan::{Point, Schedule};
use pgassay_core::study::StudySource;
use pgassay_load::{Timing, Window};

use super::crews::Clients;
use crate::exit::Interrupted;

/// Three windows agree when the last is no more than this above the best of the two before it: a
/// backend that still fills its caches gets faster, and noise alone goes both ways.
const STILL_RISING: f64 = 1.05;

/// What warming up found.
#[derive(Debug, Clone, Copy)]
pub struct WarmedUp {
    /// Whether throughput rose no longer.
    pub is_steady: bool,
    /// How long a trial should be: as planned, or longer where transactions are slow.
    pub trial: Timing,
}

/// Runs load until three windows agree, or until the cap.
pub fn warm_up(
    clients: &mut Clients,
    schedule: &Schedule,
    source: &StudySource,
    point: &Point,
) -> Result<WarmedUp> {
    let settle = Duration::from_micros(schedule.settle_us);
    let planned = Duration::from_micros(schedule.trial_us);
    let mut found = WarmedUp {
        is_steady: false,
        trial: Timing::of(settle, planned, Duration::ZERO),
    };
    let window = Window::Timed {
        settle: Duration::ZERO,
        measure: Duration::from_micros(schedule.warm_up_window_us),
    };
    let until = Instant::now() + Duration::from_micros(schedule.warm_up_cap_us);
    let mut history = Vec::new();
    while Instant::now() < until {
        let measured = clients.run(&window, source, point)?;
        if measured.interrupted {
            return Err(Interrupted.into());
        }
        let elapsed_ns = measured.instants.idle_ns - measured.instants.begin_ns;
        let each = measured.transactions_total.max(1) as f64 / measured.clients.len().max(1) as f64;
        let latency = Duration::from_nanos((elapsed_ns as f64 / each) as u64);
        found.trial = Timing::of(settle, planned, latency);
        history.push(measured.transactions_total as f64);
        if is_steady(&history) {
            found.is_steady = true;
            break;
        }
    }
    Ok(found)
}

/// Whether the last three windows agree.
fn is_steady(transactions: &[f64]) -> bool {
    let [.., first, second, last] = transactions else {
        return false;
    };
    let best = first.max(*second);
    best > 0.0 && *last <= STILL_RISING * best
}

#[cfg(test)]
mod tests {
    use super::is_steady;

    #[test]
    fn a_rise_is_not_steady_and_noise_is() {
        assert!(!is_steady(&[100.0, 100.0]));
        assert!(!is_steady(&[100.0, 120.0, 140.0]));
        assert!(is_steady(&[100.0, 140.0, 141.0]));
        assert!(is_steady(&[141.0, 100.0, 120.0]));
        assert!(!is_steady(&[0.0, 0.0, 0.0]), "nothing has run yet");
    }
}
