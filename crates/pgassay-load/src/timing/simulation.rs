//! Simulation: how counting transactions by their end distorts a comparison, and how crediting
//! avoids it.
//!
//! Six pairs of trials in the order A B B A, with windows of 300 ms, and B slower by 2.9%: how
//! often does the confidence interval of the pairs miss the true ratio? The engine's own
//! [`Recorder`] counts the transactions, and starts and run lengths come from [`Timing`].

use std::time::Duration;

use pgassay_script::Rng;

use super::{Timing, starts};
use crate::recorder::{Ended, Recorder};

const PAIRS: usize = 6;
/// Student's t for 5 degrees of freedom, 97.5%.
const T_975: f64 = 2.570_582;
const TRUTH: f64 = 0.971;
const SETTLE: Duration = Duration::from_millis(20);
const MEASURE: Duration = Duration::from_millis(300);

/// Clients that run transactions of normally distributed lengths, back to back.
#[derive(Clone, Copy, Debug)]
struct Load {
    mean_ms: f64,
    /// Coefficient of variation.
    cv: f64,
    clients: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// Clients begin together, and transactions that end in the window count.
    Counting,
    /// As the engine does in studies.
    Crediting,
}

fn normal(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.unit()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.unit()).cos()
}

/// Returns the logarithm of a trial's rate.
fn trial(load: Load, way: Way, rng: &mut Rng, recorder: &mut Recorder) -> f64 {
    let mean = Duration::from_secs_f64(load.mean_ms / 1e3);
    let (timing, starts) = match way {
        Way::Crediting => {
            let timing = Timing::of(SETTLE, MEASURE, mean);
            (timing, starts(load.clients, timing.spread, rng.next_u64()))
        }
        Way::Counting => {
            let timing = Timing {
                spread: Duration::ZERO,
                settle: SETTLE,
                measure: MEASURE,
            };
            (timing, vec![0; load.clients])
        }
    };
    let window_begin_ns = timing.settle.as_nanos() as u64;
    let window_end_ns = window_begin_ns + timing.measure.as_nanos() as u64;
    recorder.reset(window_begin_ns, window_end_ns);
    for (client, start_ns) in starts.into_iter().enumerate() {
        let mut now_ns = start_ns;
        while now_ns < window_end_ns {
            let length = 1.0 + load.cv * normal(rng);
            let end_ns = now_ns + (length.max(0.01) * load.mean_ms * 1e6) as u64;
            recorder.end(Ended {
                client,
                script: 0,
                begin_ns: now_ns,
                started_ns: now_ns,
                claimed_ns: now_ns,
                end_ns,
                failed: false,
            });
            now_ns = end_ns;
        }
    }
    let transactions = match way {
        Way::Counting => recorder.clients.iter().sum::<u64>() as f64,
        Way::Crediting => recorder.credited_transactions(),
    };
    (transactions / timing.measure.as_secs_f64()).ln()
}

/// Returns the logarithm of a pair's ratio.
fn pair(load: Load, way: Way, rng: &mut Rng, recorder: &mut Recorder) -> f64 {
    let slower = Load {
        mean_ms: load.mean_ms / TRUTH,
        ..load
    };
    let [a, b, c, d] = [load, slower, slower, load].map(|it| trial(it, way, rng, recorder));
    (b + c - a - d) / 2.0
}

/// Returns the share of comparisons whose interval misses the truth, and the share whose interval
/// has zero width.
fn misses(load: Load, way: Way, comparisons: usize) -> (f64, f64) {
    let mut rng = Rng::from_seed(13);
    let mut recorder = Recorder::new(1, load.clients);
    let (mut missed, mut without_width) = (0, 0);
    for _ in 0..comparisons {
        let pairs: [f64; PAIRS] = std::array::from_fn(|_| pair(load, way, &mut rng, &mut recorder));
        let mean = pairs.iter().sum::<f64>() / PAIRS as f64;
        let squares: f64 = pairs.iter().map(|it| (it - mean).powi(2)).sum();
        let half = T_975 * (squares / (PAIRS * (PAIRS - 1)) as f64).sqrt();
        missed += usize::from((mean - TRUTH.ln()).abs() > half);
        without_width += usize::from(half < 1e-9);
    }
    let share = |count| count as f64 / comparisons as f64;
    (share(missed), share(without_width))
}

/// The loads come from the bug report, where counting missed in 100, 100, 67, 13 and 6% of
/// comparisons; slow transactions were added.
#[test]
fn an_interval_of_rates_misses_the_truth_in_5_percent_of_comparisons_and_not_in_all() {
    // The load, comparisons, and the minimum share that counting misses.
    for (mean_ms, cv, clients, comparisons, counting_least) in [
        (30.0, 0.02, 1, 1000, 0.95),
        (30.0, 0.05, 8, 500, 0.95),
        (10.0, 0.05, 8, 400, 0.5),
        (5.0, 0.1, 16, 150, 0.1),
        (1.0, 0.1, 16, 40, 0.0),
        // Slow transactions, of which three fit into a window; none ends in the window of counting.
        (800.0, 0.02, 1, 100, 0.0),
        (2000.0, 0.3, 4, 100, 0.0),
    ] {
        let load = Load {
            mean_ms,
            cv,
            clients,
        };
        let (counting, counting_without_width) = misses(load, Way::Counting, comparisons);
        let (crediting, without_width) = misses(load, Way::Crediting, comparisons);
        // 5.5%, plus two standard errors for this number of comparisons.
        let most = 0.055 + 2.0 * (0.055 * 0.945 / comparisons as f64).sqrt();
        assert!(crediting <= most, "{load:?}: {crediting} above {most}");
        assert!(counting >= counting_least, "{load:?}: {counting}");
        assert!(without_width == 0.0, "{load:?}: {without_width}");
        if clients == 1 && counting_least > most {
            // Counting gives the same integer in nearly every trial.
            assert!(counting_without_width > 0.5, "{counting_without_width}");
        }
        if counting_least > most {
            assert!(counting > most, "counting passes the same test");
        }
    }
}
