//! What a timed trial says in figures, and how finely each can be read.

use crate::trial::{LatencyError, Trial};

/// Throughput, mean, p50, p95, p99 of latency, server CPU per transaction; throughput and server CPU
/// in the study's unit, where it has one.
pub(super) const METRICS: usize = 6;
pub(super) const TPS: usize = 0;
pub(super) const SERVER_CPU: usize = 5;

/// Histograms keep three digits: a latency stands for a thousandth of itself.
const LATENCY_STEP: f64 = 1e-3;

/// What one timed trial says; the order of [`METRICS`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Figures {
    pub(super) block: u32,
    /// The start of the servers that it ran on.
    pub(super) boot: u32,
    /// `None` where it could not be read.
    pub(super) values: [Option<f64>; METRICS],
    /// The step in which each is read, as a share of it.
    pub(super) steps: [f64; METRICS],
}

/// The figures of one point's timed trials, with as many `clients`.
pub(super) fn figures<'a>(
    timed: impl Iterator<Item = &'a Trial>,
    clients: u32,
    units: f64,
) -> Result<Vec<Figures>, LatencyError> {
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
            steps[TPS] = step_of_rate(trial, clients);
            // The kernel tells nanoseconds, from idle to idle.
            steps[SERVER_CPU] = 0.0;
            Ok(Figures {
                block: trial.block,
                boot: trial.boot,
                values,
                steps,
            })
        })
        .collect()
}

/// Transactions are credited by instants that are read to the microsecond, one at each end.
const CREDIT_STEP_US: f64 = 2.0;

/// The step in which a trial's rate is read.
///
/// Where transactions have their credit, it is that of the clock. In older results those that end in
/// the window count as a whole: clients with regular transactions are in step with one another and
/// with the window, so each may gain or lose one, in every trial the same.
fn step_of_rate(trial: &Trial, clients: u32) -> f64 {
    if trial.credited_transactions.is_some() {
        return CREDIT_STEP_US / trial.window_us.max(1.0);
    }
    f64::from(clients) / trial.transactions.max(1) as f64
}

/// `None` of no values.
pub(super) fn geometric_mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0u32, 0.0), |(count, sum), value| {
        (count + 1, sum + value.ln())
    });
    (count > 0).then(|| (sum / f64::from(count)).exp())
}
