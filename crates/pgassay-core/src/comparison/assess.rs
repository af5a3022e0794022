//! From trials to summaries, ratios and verdicts.

use hdrhistogram::Histogram;
use pgassay_stats as stats;

use super::cost::{Side, cost_difference};
use super::{Comparison, PointSummary, Ratio, Verdict};
use crate::counters::Counted;
use crate::ledger::{self, Ledger, Measured};
use crate::plan::Plan;
use crate::profile::Profile;
use crate::study::DriverKind;
use crate::trial::{LatencyError, Trial, TrialKind};

/// Confidence of all intervals of one condition together.
const LEVEL: f64 = 0.95;

/// Figures of every point, and every variant against the baseline.
#[derive(Debug, Clone, PartialEq)]
pub struct Assessment {
    /// In the plan's order of points.
    pub points: Vec<PointSummary>,
    /// Conditions in order, and within each the variants but the baseline.
    pub comparisons: Vec<Comparison>,
    /// Where each point's transactions spend their time; points without exact totals have none.
    pub ledgers: Vec<Ledger>,
}

/// Assesses what has been measured; conditions without a full pair are left out.
///
/// `profiles` is one per point in the plan's order, or empty where nothing was sampled; `majors`
/// are the servers' major versions (`18`, `9.6`) in the plan's order.
///
/// # Errors
/// A damaged latency histogram.
pub fn assess(
    plan: &Plan,
    majors: &[String],
    trials: &[Trial],
    profiles: &[Profile],
) -> Result<Assessment, LatencyError> {
    let mut assessment = Assessment {
        points: Vec::new(),
        comparisons: Vec::new(),
        ledgers: Vec::new(),
    };
    for condition in 0..plan.conditions.len() {
        let variants: Vec<Vec<Figures>> = (0..plan.variants.len())
            .map(|variant| {
                let units = plan.point(condition, variant).per_transaction();
                figures(trials, condition, variant, units as f64)
            })
            .collect::<Result<_, _>>()?;
        let mut summaries = Vec::new();
        for (variant, figures) in variants.iter().enumerate() {
            let units = plan.point(condition, variant).per_transaction();
            summaries.push(summary(trials, condition, variant, figures, units as f64)?);
        }
        let mut comparisons = compared(condition, plan.schedule.blocks, &variants);
        let measured = |variant: usize| {
            let point = plan.point(condition, variant);
            // The account is one of PostgreSQL's backends.
            let has_account = point.driver == DriverKind::Postgres;
            let trials = of_point(trials, condition, variant);
            Measured {
                condition,
                variant,
                trials: trials.filter(|_| has_account).collect(),
                profile: profiles.get(condition * plan.variants.len() + variant),
                major: majors.get(point.server).map_or("", String::as_str),
            }
        };
        for variant in 0..plan.variants.len() {
            assessment
                .ledgers
                .extend(ledger::ledger(&measured(variant))?);
        }
        for comparison in &mut comparisons {
            comparison.ledger = ledger::difference(&measured(0), &measured(comparison.variant))?;
            let side = |variant: usize| -> Option<Side<'_>> {
                let profile = profiles.get(condition * plan.variants.len() + variant)?;
                let major = majors[plan.point(condition, variant).server].as_str();
                Some(Side {
                    profile,
                    trials,
                    condition,
                    variant,
                    major,
                    units: plan.point(condition, variant).per_transaction(),
                })
            };
            let counted = |variant: usize| counted(trials, condition, variant);
            comparison.counted = counted(comparison.variant).against(&counted(0));
            if let (Some(baseline), Some(variant)) = (side(0), side(comparison.variant)) {
                comparison.cost = cost_difference(plan, &baseline, &variant);
            }
        }
        assessment.points.extend(summaries);
        assessment.comparisons.extend(comparisons);
    }
    Ok(assessment)
}

/// What one timed trial says; the order of [`METRICS`].
#[derive(Debug, Clone, Copy)]
struct Figures {
    block: u32,
    /// `None` where it could not be read.
    values: [Option<f64>; METRICS],
}

/// Throughput, mean, p50, p95, p99 of latency, server CPU per transaction; throughput and server CPU
/// in the study's unit, where it has one.
const METRICS: usize = 6;
const TPS: usize = 0;
const SERVER_CPU: usize = 5;

fn figures(
    trials: &[Trial],
    condition: usize,
    variant: usize,
    units: f64,
) -> Result<Vec<Figures>, LatencyError> {
    timed(trials, condition, variant)
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
            Ok(Figures {
                block: trial.block,
                values,
            })
        })
        .collect()
}

/// The counters of all trials, the profiled ones included.
fn counted(trials: &[Trial], condition: usize, variant: usize) -> Counted<'_> {
    Counted::new(of_point(trials, condition, variant))
}

fn of_point(trials: &[Trial], condition: usize, variant: usize) -> impl Iterator<Item = &Trial> {
    let is_of_point =
        move |trial: &&Trial| trial.condition == condition && trial.variant == variant;
    trials.iter().filter(is_of_point)
}

fn timed(trials: &[Trial], condition: usize, variant: usize) -> impl Iterator<Item = &Trial> {
    of_point(trials, condition, variant).filter(|trial| trial.kind == TrialKind::Timed)
}

/// The geometric mean of one metric in each block; `None` where the block has no trial.
fn metric_by_block(figures: &[Figures], metric: usize, blocks: u32) -> Vec<Option<f64>> {
    (0..blocks)
        .map(|block| {
            let of_block = figures.iter().filter(|figures| figures.block == block);
            geometric_mean(of_block.filter_map(|figures| figures.values[metric]))
        })
        .collect()
}

fn geometric_mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0u32, 0.0), |(count, sum), value| {
        (count + 1, sum + value.ln())
    });
    (count > 0).then(|| (sum / f64::from(count)).exp())
}

fn summary(
    trials: &[Trial],
    condition: usize,
    variant: usize,
    figures: &[Figures],
    units: f64,
) -> Result<PointSummary, LatencyError> {
    // All trials' transactions in one histogram: percentiles of the whole, not means of percentiles.
    let mut latency = Histogram::<u64>::new(3).expect("3 digits are within the crate's 0 to 5");
    let (mut transactions, mut total, mut limited, mut count) = (0, 0, 0u32, 0u32);
    let mut client_us = 0.0;
    // Of trials that are all on one server, which tells it or does not.
    let mut server: Option<(f64, f64)> = None;
    for trial in timed(trials, condition, variant) {
        // A histogram that resizes itself can hold whatever another one holds.
        latency
            .add(trial.latency.histogram()?)
            .map_err(|_| LatencyError)?;
        transactions += trial.transactions;
        total += trial.transactions_total;
        limited += u32::from(trial.client.client_limited);
        if let Some(of_trial) = trial.server {
            let (on_cpu_us, run_queue_us) = server.get_or_insert_default();
            *on_cpu_us += of_trial.on_cpu_us;
            *run_queue_us += of_trial.run_queue_us;
        }
        client_us += trial.client.cpu_us;
        count += 1;
    }
    let mean_of = |metric: usize| {
        geometric_mean(figures.iter().filter_map(|f| f.values[metric])).unwrap_or(0.0)
    };
    let per_transaction = |sum: f64| if total == 0 { 0.0 } else { sum / total as f64 };
    let quantile_us = |q: f64| latency.value_at_quantile(q) as f64 / 1e3;
    Ok(PointSummary {
        condition,
        variant,
        trials: count,
        transactions,
        tps: mean_of(TPS) / units,
        latency_mean_us: latency.mean() / 1e3,
        latency_p50_us: quantile_us(0.5),
        latency_p95_us: quantile_us(0.95),
        latency_p99_us: quantile_us(0.99),
        latency_max_us: latency.max() as f64 / 1e3,
        server_cpu_us: server.map(|(on_cpu_us, _)| per_transaction(on_cpu_us)),
        server_run_queue_us: server.map(|(_, run_queue_us)| per_transaction(run_queue_us)),
        client_cpu_us: per_transaction(client_us),
        client_limited: if count == 0 {
            0.0
        } else {
            f64::from(limited) / f64::from(count)
        },
        counted: counted(trials, condition, variant).figures(),
    })
}

/// Every variant against the baseline, with Holm's correction over the condition's comparisons.
fn compared(condition: usize, blocks: u32, variants: &[Vec<Figures>]) -> Vec<Comparison> {
    let Some((baseline, others)) = variants.split_first() else {
        return Vec::new();
    };
    let pairs_of = |variant: &[Figures], metric: usize| -> Vec<stats::Pair> {
        let of_baseline = metric_by_block(baseline, metric, blocks);
        let of_variant = metric_by_block(variant, metric, blocks);
        of_baseline
            .into_iter()
            .zip(of_variant)
            .filter_map(|(a, b)| {
                Some(stats::Pair {
                    baseline: a?,
                    variant: b?,
                })
            })
            .collect()
    };
    let p_values: Vec<f64> = others
        .iter()
        .map(|variant| p_value(&pairs_of(variant, TPS)))
        .collect();
    let levels = holm_levels(&p_values);
    others
        .iter()
        .zip(levels)
        .enumerate()
        .filter_map(|(index, (figures, level))| {
            let ratio = |metric: usize| ratio(&pairs_of(figures, metric), level);
            let tps = ratio(TPS)?;
            Some(Comparison {
                condition,
                variant: index + 1,
                verdict: verdict(&tps),
                tps,
                latency_mean: ratio(1)?,
                latency_p50: ratio(2)?,
                latency_p95: ratio(3)?,
                latency_p99: ratio(4)?,
                server_cpu: ratio(SERVER_CPU),
                cost: None,
                counted: Vec::new(),
                ledger: None,
            })
        })
        .collect()
}

fn p_value(pairs: &[stats::Pair]) -> f64 {
    let comparison = stats::compare(pairs, LEVEL).ok();
    comparison
        .as_ref()
        .and_then(stats::Comparison::estimate)
        .map_or(1.0, |estimate| estimate.p_value)
}

/// The confidence level at which Holm's step-down procedure tests each comparison, so that an
/// interval excludes 1 exactly when the procedure rejects (Holm 1979, "A simple sequentially
/// rejective multiple test procedure").
fn holm_levels(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|&a, &b| p_values[a].total_cmp(&p_values[b]));
    let mut levels = vec![LEVEL; p_values.len()];
    let mut still_open = p_values.len();
    for index in order {
        let alpha = (1.0 - LEVEL) / still_open as f64;
        levels[index] = 1.0 - alpha;
        // After the first that is not rejected, all the rest are tested at its level.
        if p_values[index] <= alpha && still_open > 1 {
            still_open -= 1;
        }
    }
    levels
}

/// `None` where there are no pairs, or figures that have no ratio (a cost of 0).
fn ratio(pairs: &[stats::Pair], level: f64) -> Option<Ratio> {
    let by_pair: Vec<f64> = pairs
        .iter()
        .map(|pair| pair.variant / pair.baseline)
        .collect();
    let alone = |ratio: f64, by_pair: Vec<f64>| Ratio {
        ratio,
        low: ratio,
        high: ratio,
        level,
        pair_sd: 0.0,
        detectable: None,
        ranks_disagree: false,
        by_pair,
    };
    Some(match stats::compare(pairs, level).ok()? {
        stats::Comparison::Descriptive { ratio } => alone(ratio, by_pair),
        stats::Comparison::Estimated(estimate) => Ratio {
            ratio: estimate.ratio,
            low: estimate.interval.low,
            high: estimate.interval.high,
            level,
            pair_sd: estimate.pair_sd_log,
            detectable: Some(stats::power::mde80_log(
                estimate.pair_sd_log,
                estimate.pairs,
            )),
            ranks_disagree: estimate.rank.agreement == stats::RankAgreement::Disagrees,
            by_pair,
        },
    })
}

fn verdict(tps: &Ratio) -> Verdict {
    if tps.by_pair.len() < 2 {
        return Verdict::Unresolved;
    }
    let interval = stats::Interval {
        low: tps.low,
        high: tps.high,
        level: tps.level,
    };
    match stats::Verdict::of(
        &interval,
        stats::Direction::HigherIsBetter,
        stats::Band::default(),
    ) {
        stats::Verdict::Faster => Verdict::Faster,
        stats::Verdict::Slower => Verdict::Slower,
        stats::Verdict::Same => Verdict::Same,
        stats::Verdict::Unresolved => Verdict::Unresolved,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holm_tests_the_clearest_first_and_strictest() {
        assert_eq!(holm_levels(&[0.5]), [0.95]);
        assert_eq!(holm_levels(&[0.001, 0.02]), [0.975, 0.95]);
        assert_eq!(holm_levels(&[0.03, 0.001]), [0.95, 0.975]);
        assert_eq!(holm_levels(&[0.03, 0.04]), [0.975, 0.975]);
    }
}
