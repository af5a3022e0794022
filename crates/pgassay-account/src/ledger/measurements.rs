//! The measurements of a point, and the exact figures of its blocks.

use std::collections::BTreeMap;

use pgassay_model::cpu::CpuTotals;
use pgassay_model::profile::Profile;
use pgassay_model::trial::{LatencyError, Trial, TrialKind};
use pgassay_model::waits::WaitSource;

use super::account::{ClientParts, Exact};

/// What the network and two wake-ups of idle CPUs may take, for each round trip.
const ROUND_TRIP_US: f64 = 40.0;

/// All measurements of one point.
pub struct PointMeasurements<'a> {
    /// The point's condition.
    pub condition: usize,
    /// The point's variant.
    pub variant: usize,
    /// Its trials, in any order.
    pub trials: Vec<&'a Trial>,
    /// Its stacks, if sampled.
    pub profile: Option<&'a Profile>,
    /// Major version of its server, such as `18` or `9.6`.
    pub major: &'a str,
}

/// Exact figures of one block's timed trials.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockFigures {
    pub number: u32,
    pub exact: Exact,
    pub backends: f64,
    /// Whether transactions count by their share of the window.
    pub is_credited: bool,
    /// Transactions in the window per µs.
    pub throughput: f64,
    /// Mean of the latency histogram.
    pub latency_us: f64,
    /// How long failed transactions took, for each one that succeeded.
    pub failed_us: f64,
    /// Mean length of the transactions in progress at a random instant.
    pub length_at_instant_us: f64,
    /// Mean length of the windows.
    pub window_us: f64,
}

impl BlockFigures {
    /// What clients measured per transaction that succeeded, as the rows count it: with the time that
    /// failed ones took.
    pub fn response_us(&self) -> f64 {
        self.latency_us + self.failed_us
    }
}

/// The trials of this kind in which transactions ended.
pub(super) fn of_kind<'a>(
    measured: &PointMeasurements<'a>,
    kind: TrialKind,
) -> impl Iterator<Item = &'a Trial> {
    let of_kind = move |trial: &&Trial| trial.kind == kind && trial.transactions > 0;
    measured.trials.clone().into_iter().filter(of_kind)
}

/// The exact figures of each block with timed trials.
pub(super) fn blocks(measured: &PointMeasurements<'_>) -> Result<Vec<BlockFigures>, LatencyError> {
    let mut by_number: BTreeMap<u32, Vec<&Trial>> = BTreeMap::new();
    let is_asked = only_activity_samples(measured);
    for trial in of_kind(measured, TrialKind::Timed) {
        let is_counted = exact_totals(trial).is_some();
        if is_counted || is_asked {
            by_number.entry(trial.block).or_default().push(trial);
        }
    }
    let mut blocks = Vec::new();
    for (number, trials) in by_number {
        let mut block = block(number, &trials)?;
        if is_asked {
            let in_block = idle_us(trials.iter().copied(), block.exact.whole_us);
            let in_any = || idle_us(of_kind(measured, TrialKind::Timed), block.exact.whole_us);
            block.exact.idle_us = in_block.or_else(in_any);
        }
        blocks.push(block);
    }
    Ok(blocks)
}

/// A trial's exact totals, if it has any.
pub(super) fn exact_totals(trial: &Trial) -> Option<CpuTotals> {
    let is_counted = |it: &CpuTotals| it.processes > 0 && it.on_cpu_us > 0.0;
    trial.server.filter(is_counted)
}

/// Whether samples of `pg_stat_activity` are all that is known of the backends.
pub(super) fn only_activity_samples(measured: &PointMeasurements<'_>) -> bool {
    let of_timed = || of_kind(measured, TrialKind::Timed);
    let mut asked = of_kind(measured, TrialKind::Profiled).filter_map(|trial| trial.waits.as_ref());
    of_timed().all(|trial| trial.server.is_none())
        && asked.any(|it| it.source == WaitSource::PgStatActivity && it.samples() > 0)
}

/// The part of the whole outside of statements, by the server's clock of the time inside statements
/// (`pg_stat_database.active_time`, in milliseconds; 14 and later).
fn idle_us<'a>(trials: impl Iterator<Item = &'a Trial>, whole_us: f64) -> Option<f64> {
    let (mut active_us, mut transactions) = (0.0, 0);
    for trial in trials {
        if let Some(active_ms) = trial.counters.get("pg_stat_database.active_time") {
            active_us += active_ms * 1e3;
            transactions += trial.transactions_total;
        }
    }
    (transactions > 0).then(|| (whole_us - active_us / transactions as f64).max(0.0))
}

/// Round trips per transaction: a backend switches voluntarily at least once for each. Without a
/// count it is 1, which makes bounds narrow rather than wide.
fn round_trips(trials: &[&Trial]) -> f64 {
    let figure = |trial: &&Trial| {
        let switches = trial.counters.get("backends.voluntary_switches")?;
        Some((switches, trial.transactions_total as f64))
    };
    let figures = trials.iter().filter_map(figure);
    let (switches, all) = figures.fold((0.0, 0.0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
    if all > 0.0 {
        (switches / all).max(1.0)
    } else {
        1.0
    }
}

fn block(number: u32, trials: &[&Trial]) -> Result<BlockFigures, LatencyError> {
    let sum = |of: fn(&Trial) -> f64| trials.iter().map(|trial| of(trial)).sum::<f64>();
    let of_server = |of: fn(&CpuTotals) -> f64| {
        trials
            .iter()
            .filter_map(|it| exact_totals(it))
            .map(|it| of(&it))
            .sum::<f64>()
    };
    // A client has one backend, visible or not.
    let backends = |trial: &Trial| match exact_totals(trial) {
        Some(server) => f64::from(server.processes),
        None => trial.client.total_us() / trial.window_us,
    };
    let backends_us = trials.iter().map(|trial| backends(trial) * trial.window_us);
    let in_window = sum(Trial::credited_or_counted);
    let ended = sum(|trial| trial.transactions as f64);
    let optional = |of: fn(&Trial) -> Option<f64>| -> Option<f64> {
        let parts: Option<Vec<f64>> = trials.iter().map(|trial| of(trial)).collect();
        Some(parts?.iter().sum::<f64>() / in_window)
    };
    let all = sum(|trial| trial.transactions_total as f64);
    let window_us = sum(|trial| trial.window_us);
    let (mut latency_us, mut squares_us2) = (0.0, 0.0);
    for trial in trials {
        let latency = trial.latency.histogram()?;
        let (mean_us, sd_us) = (latency.mean() / 1e3, latency.stdev() / 1e3);
        latency_us += mean_us * trial.transactions as f64;
        squares_us2 += (mean_us.powi(2) + sd_us.powi(2)) * trial.transactions as f64;
    }
    Ok(BlockFigures {
        number,
        exact: Exact {
            whole_us: backends_us.sum::<f64>() / in_window,
            on_cpu_us: of_server(|it| it.on_cpu_us) / all,
            run_queue_us: of_server(|it| it.run_queue_us) / all,
            idle_us: None,
            overlap_us: ROUND_TRIP_US * round_trips(trials),
            client: Some(ClientParts {
                between_us: sum(|trial| trial.client.between_transactions_us) / in_window,
                sleep_us: sum(|trial| trial.client.sleep_us) / in_window,
                cpu_us: sum(|trial| trial.client.cpu_us) / all,
                run_queue_us: sum(|trial| trial.client.run_queue_us) / all,
                ready_run_queue_us: optional(|trial| trial.client.client_run_queue_us),
                thread_busy_us: optional(|trial| trial.client.thread_busy_us),
                possible_busy_us: optional(|trial| trial.client.possible_thread_busy_us),
                possible_run_queue_us: optional(|trial| trial.client.possible_run_queue_us),
            }),
        },
        backends: trials.iter().map(|trial| backends(trial)).sum::<f64>() / trials.len() as f64,
        is_credited: trials.iter().all(|it| it.credited_transactions.is_some()),
        throughput: in_window / window_us,
        latency_us: latency_us / ended,
        failed_us: sum(|trial| trial.failed_us) / in_window,
        length_at_instant_us: squares_us2 / latency_us.max(f64::MIN_POSITIVE),
        window_us: window_us / trials.len() as f64,
    })
}

/// The mean; `None` without values.
pub(super) fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0u32, 0.0), |(count, sum), it| (count + 1, sum + it));
    (count > 0).then(|| sum / f64::from(count))
}
