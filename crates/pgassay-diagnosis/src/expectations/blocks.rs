//! Intervals of a point's own figures, from its blocks.
//!
//! As everywhere, the unit is the block, never a second within a trial. The figures are not paired with
//! those of another variant, so they include the machine's drift.

use std::collections::BTreeMap;

use pgassay_model::expression::{Figure, Percentile};
use pgassay_stats as stats;

use super::interval::MeasuredValue;

use pgassay_account::comparison::PooledTrials;
use pgassay_account::counters::{CounterFigure, PointCounters};
use pgassay_model::profile::{Node, Profile};
use pgassay_model::trial::{Trial, TrialKind};

/// Confidence of each interval.
const LEVEL: f64 = 0.95;

/// A figure of a point with the interval of its blocks' figures. The interval is that of the blocks' ratios
/// to their geometric mean, around `point`, so units cancel.
pub(super) fn of_trials(
    trials: &[Trial],
    condition: usize,
    variant: usize,
    figure: &Figure,
    point: f64,
) -> MeasuredValue {
    let mut blocks: BTreeMap<u32, Vec<&Trial>> = BTreeMap::new();
    let is_its = |it: &&Trial| {
        (it.condition, it.variant, it.kind) == (condition, variant, TrialKind::Timed)
            && it.transactions > 0
    };
    for trial in trials.iter().filter(is_its) {
        blocks.entry(trial.block).or_default().push(trial);
    }
    let values = blocks.into_values().filter_map(|it| of_block(it, figure));
    let logs: Vec<f64> = values
        .filter(|it| it.is_finite() && *it > 0.0)
        .map(f64::ln)
        .collect();
    let mean = stats::mean_difference(&logs, LEVEL).ok();
    let interval = mean.and_then(|mean| Some((mean.mean, mean.interval?)));
    match interval {
        Some((mean, it)) if it.high > it.low => {
            let ends = [(it.low - mean).exp(), (it.high - mean).exp()];
            MeasuredValue::within(point, ends.map(|end| point * end))
        }
        _ => MeasuredValue::without_interval(point),
    }
}

fn of_block(trials: Vec<&Trial>, figure: &Figure) -> Option<f64> {
    let pooled = PooledTrials::of(trials).ok()??;
    match figure {
        Figure::Tps | Figure::Rate | Figure::PerDay => Some(pooled.tps()),
        Figure::LatencyMs(Percentile::Mean) => Some(pooled.latency_mean_us()),
        Figure::LatencyMs(Percentile::P50) => Some(pooled.latency_quantile_us(0.5)),
        Figure::LatencyMs(Percentile::P95) => Some(pooled.latency_quantile_us(0.95)),
        Figure::LatencyMs(Percentile::P99) => Some(pooled.latency_quantile_us(0.99)),
        Figure::CpuUs => pooled.server_cpu_us_per_tx(),
        _ => None,
    }
}

/// A counter per transaction, with the interval of the blocks in which it was read. If several trials have the same
/// value in all of them, it is exact.
pub(super) fn of_counter(
    trials: &[Trial],
    condition: usize,
    variant: usize,
    counter: &CounterFigure,
) -> MeasuredValue {
    let point = counter.per_transaction;
    let is_its = |it: &&Trial| (it.condition, it.variant) == (condition, variant);
    let counted = PointCounters::new(trials.iter().filter(is_its));
    if let [first, others @ ..] = &counted.per_trial(&counter.name)[..]
        && !others.is_empty()
        && others.iter().all(|it| it.to_bits() == first.to_bits())
    {
        return MeasuredValue::exact(point);
    }
    let mean = stats::mean_difference(&counted.per_block(&counter.name), LEVEL).ok();
    match mean.and_then(|mean| mean.interval) {
        Some(it) => MeasuredValue::within(point, [it.low.max(0.0), it.high]),
        None => MeasuredValue::without_interval(point),
    }
}

/// Percentage of a profile's samples with this function anywhere on the stack, with the interval of
/// the blocks' shares; `None` without samples. Compiler clones (`f.constprop.0`) count as the function.
pub(super) fn inclusive_share(profile: &Profile, function: &str) -> Option<MeasuredValue> {
    let under = nodes_under(profile, function);
    let share = |samples: &dyn Fn(&Node) -> u64| {
        let all: u64 = profile.nodes.iter().map(samples).sum();
        let its = profile.nodes.iter().zip(&under).filter(|(_, is)| **is);
        let its: u64 = its.map(|(node, _)| samples(node)).sum();
        (all > 0).then(|| 100.0 * its as f64 / all as f64)
    };
    let point = share(&Node::total)?;
    let blocks = profile.nodes.iter().map(|it| it.samples.len()).max();
    let shares: Vec<f64> = (0..blocks.unwrap_or(0))
        .filter_map(|block| {
            share(&|node: &Node| u64::from(node.samples.get(block).copied().unwrap_or(0)))
        })
        .collect();
    let interval = stats::mean_difference(&shares, LEVEL).ok()?.interval;
    Some(match interval {
        Some(it) if it.high > it.low => {
            MeasuredValue::within(point, [it.low.max(0.0), it.high.min(100.0)])
        }
        _ => MeasuredValue::without_interval(point),
    })
}

/// Which nodes are the function or below it.
fn nodes_under(profile: &Profile, function: &str) -> Vec<bool> {
    let is_it = |symbol: &Option<String>| {
        let name = symbol.as_deref().unwrap_or_default();
        name.split('.').next() == Some(function)
    };
    let frames: Vec<bool> = profile.frames.iter().map(|it| is_it(&it.symbol)).collect();
    let mut under = Vec::with_capacity(profile.nodes.len());
    for node in &profile.nodes {
        // Callers come before callees.
        let of_caller = node.parent.is_some_and(|parent| under[parent as usize]);
        under.push(of_caller || frames[node.frame as usize]);
    }
    under
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::Histogram;
    use pgassay_account::counters::PointCounters;
    use pgassay_model::profile::{Frame, ProfileBuilder};
    use pgassay_model::trial::Latency;

    /// Two trials per block, given their transactions.
    fn trials(transactions: &[u64]) -> Vec<Trial> {
        let of = |(index, &transactions): (usize, &u64)| Trial {
            block: index as u32 / 2,
            transactions,
            counters: [("log.lines", transactions as f64)].into(),
            window_us: 1e6,
            transactions_total: 100,
            latency: Latency::from_histogram(&Histogram::new(3).unwrap()),
            ..Trial::empty(TrialKind::Timed)
        };
        transactions.iter().enumerate().map(of).collect()
    }

    #[test]
    fn a_rate_has_the_interval_of_its_blocks_and_one_block_has_none() {
        let of = |trials: &[Trial]| of_trials(trials, 0, 0, &Figure::Rate, 1000.0);
        // Blocks of 100 and 121: ln differs by 0.19062, t(0.975, 1) = 12.7062.
        let [low, high] = of(&trials(&[100, 100, 121, 121])).interval().unwrap();
        let half = 12.706_2 * (121.0_f64 / 100.0).ln() / 2.0;
        assert!((low / 1000.0 - (-half).exp()).abs() < 1e-4, "{low}");
        assert!((high / 1000.0 / half.exp() - 1.0).abs() < 1e-4, "{high}");
        let one = of(&trials(&[100, 120]));
        assert_eq!((one.point, one.interval()), (1000.0, None));
        assert!(one.low.is_infinite());
        // Equal blocks give no estimate of the noise.
        assert!(of(&trials(&[100, 100, 100, 100])).low.is_infinite());
    }

    #[test]
    fn a_counter_is_exact_where_every_trial_counts_alike() {
        let of = |trials: &[Trial]| {
            let figures = PointCounters::new(trials.iter()).figures();
            of_counter(trials, 0, 0, &figures[0])
        };
        let mut alike = trials(&[100, 100]);
        assert_eq!(of(&alike), MeasuredValue::exact(1.0));
        alike[1].counters.insert("log.lines", 300.0);
        assert!(of(&alike).low.is_infinite(), "one block");
        let mut blocks = trials(&[100, 100, 100, 100]);
        blocks[1].counters.insert("log.lines", 300.0);
        assert!(of(&blocks).interval().is_some());
        assert!(of(&alike[..1]).low.is_infinite());
    }

    #[test]
    fn a_share_has_the_interval_of_its_blocks() {
        let mut builder = ProfileBuilder::new(3);
        let frame = |symbol: &str| Frame {
            symbol: Some(symbol.to_owned()),
            object: "postgres".to_owned(),
            offset: 0,
            kernel: false,
        };
        for (block, samples) in [(0, 40), (1, 50), (2, 60)] {
            builder.add(block, [frame("main"), frame("sort.isra.0")], samples);
            builder.add(block, [frame("main")], 100 - samples);
        }
        let profile = builder.finish();
        let share = inclusive_share(&profile, "sort").unwrap();
        assert!((share.point - 50.0).abs() < 1e-9);
        // t(0.975, 2) = 4.3027, the standard error 10 / √3.
        let [low, _] = share.interval().unwrap();
        assert!((low - (50.0 - 4.302_653 * 10.0 / 3.0_f64.sqrt())).abs() < 1e-4);
        assert_eq!(inclusive_share(&Profile::default(), "sort"), None);
    }
}
