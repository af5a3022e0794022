//! The figures of a timed trial, and the resolution of each.

use pgassay_model::trial::{LatencyError, Trial};

/// Throughput; mean, p50, p95 and p99 latency; server CPU per transaction. Throughput and server CPU are
/// in the study's unit, if it has one.
pub(super) const METRICS: usize = 6;
pub(super) const TPS: usize = 0;
pub(super) const LATENCY_MEAN: usize = 1;
pub(super) const SERVER_CPU: usize = 5;

/// Histograms keep three digits, so latencies have a resolution of 0.1%.
const LATENCY_STEP: f64 = 1e-3;

/// The figures of one timed trial, in the order of [`METRICS`].
#[derive(Debug, Clone, Copy)]
pub(super) struct TrialFigures {
    pub(super) block: u32,
    /// The server start that it ran on.
    pub(super) boot: u32,
    /// `None` if not available.
    pub(super) values: [Option<f64>; METRICS],
    /// Resolution of each figure, relative to it.
    pub(super) steps: [f64; METRICS],
}

/// The figures of the timed trials of one point with this number of `clients`.
pub(super) fn figures<'a>(
    timed: impl Iterator<Item = &'a Trial>,
    clients: u32,
    units: f64,
) -> Result<Vec<TrialFigures>, LatencyError> {
    timed
        .filter(|trial| trial.transactions > 0)
        .map(|trial| {
            let latency = trial.latency.histogram()?;
            let quantile = |q: f64| latency.value_at_quantile(q).max(1) as f64 / 1e3;
            let values = [
                Some(trial.tps() * units),
                Some(latency.mean().max(1.0) / 1e3),
                Some(quantile(0.5)),
                Some(quantile(0.95)),
                Some(quantile(0.99)),
                trial.server_cpu_us_per_tx().map(|us| us / units),
            ];
            let mut steps = [LATENCY_STEP; METRICS];
            steps[TPS] = rate_resolution(trial, clients);
            // The kernel reports nanoseconds, from idle to idle.
            steps[SERVER_CPU] = 0.0;
            Ok(TrialFigures {
                block: trial.block,
                boot: trial.server_start,
                values,
                steps,
            })
        })
        .collect()
}

/// Transaction credit depends on two timestamps with a resolution of one microsecond each.
const CREDIT_STEP_US: f64 = 2.0;

/// The resolution of a trial's rate.
///
/// With credited transactions it is that of the clock. In older results, a transaction that ends in the
/// window counts fully: clients with regular transactions run in lockstep with each other and with the
/// window, so that each can gain or lose one transaction, the same in every trial.
pub(super) fn rate_resolution(trial: &Trial, clients: u32) -> f64 {
    if trial.credited_transactions.is_some() {
        return CREDIT_STEP_US / trial.window_us.max(1.0);
    }
    f64::from(clients) / trial.transactions.max(1) as f64
}

/// `None` without values.
pub(super) fn geometric_mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0u32, 0.0), |(count, sum), value| {
        (count + 1, sum + value.ln())
    });
    (count > 0).then(|| (sum / f64::from(count)).exp())
}
