//! The figures of a point in a block, and the resolution of each.

use std::collections::BTreeMap;

use pgassay_model::plan::{Plan, Point};
use pgassay_model::trial::{LatencyError, Trial};

use super::pooled::PooledTrials;

/// Throughput; mean, p50, p95 and p99 latency; server CPU per transaction. Throughput and server CPU are
/// in the study's unit, if it has one.
pub(super) const METRICS: usize = 6;
pub(super) const TPS: usize = 0;
pub(super) const LATENCY_MEAN: usize = 1;
pub(super) const SERVER_CPU: usize = 5;

/// Histograms keep three digits, so latencies have a resolution of 0.1%.
const LATENCY_STEP: f64 = 1e-3;

/// The figures of a point's timed trials in one block, in the order of [`METRICS`].
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockSummary {
    pub(super) block: u32,
    /// The server start that it ran on.
    pub(super) boot: u32,
    /// Whether all of its timed trials ended.
    pub(super) is_complete: bool,
    /// `None` if not available.
    pub(super) values: [Option<f64>; METRICS],
    /// Resolution of each figure, relative to it: the coarsest of the trials.
    pub(super) steps: [f64; METRICS],
}

/// The figures of each block of a point, given its timed trials.
pub(super) fn figures<'a>(
    plan: &Plan,
    point: &Point,
    timed: impl Iterator<Item = &'a Trial>,
) -> Result<Vec<BlockSummary>, LatencyError> {
    let mut blocks: BTreeMap<u32, Vec<&Trial>> = BTreeMap::new();
    for trial in timed.filter(|it| it.transactions > 0) {
        blocks.entry(trial.block).or_default().push(trial);
    }
    let (clients, units) = (
        plan.conditions[point.condition].clients,
        point.per_transaction() as f64,
    );
    let mut found = Vec::new();
    for (block, trials) in blocks {
        let Some(pooled) = PooledTrials::of(trials.iter().copied())? else {
            continue;
        };
        let values = [
            Some(pooled.tps() * units),
            Some(pooled.latency_mean_us()),
            Some(pooled.latency_quantile_us(0.5)),
            Some(pooled.latency_quantile_us(0.95)),
            Some(pooled.latency_quantile_us(0.99)),
            pooled.server_cpu_us_per_tx().map(|us| us / units),
        ];
        let mut steps = [LATENCY_STEP; METRICS];
        let resolutions = trials.iter().map(|trial| rate_resolution(trial, clients));
        steps[TPS] = resolutions.fold(0.0, f64::max);
        // The kernel reports nanoseconds, from idle to idle.
        steps[SERVER_CPU] = 0.0;
        found.push(BlockSummary {
            block,
            boot: trials[0].server_start,
            is_complete: trials.len() == timed_of_round(plan, trials[0]) as usize,
            values,
            steps,
        });
    }
    Ok(found)
}

/// How many timed trials the trial's point has in its round.
pub(super) fn timed_of_round(plan: &Plan, trial: &Trial) -> u32 {
    let repeats = trial.repeats.map(|it| it.saturating_mul(2));
    repeats.unwrap_or(plan.schedule.timed())
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
