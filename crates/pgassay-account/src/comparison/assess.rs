//! Computes summaries, ratios and verdicts from trials.

use pgassay_model::plan::{Plan, PointId};
use pgassay_model::profile::Profile;
use pgassay_model::study::DriverKind;
use pgassay_model::trial::{LatencyError, Trial, TrialKind};

use super::cost::{ProfiledSide, cost_difference};
use super::figures::{BlockSummary, LATENCY_MEAN, TPS, figures, geometric_mean};
use super::pairing::compare_all;
use super::pooled::PooledTrials;
use super::precision_verdicts::compare_precisely;
use super::sequential_verdicts::compare_sequentially;
use super::{Comparison, PointSummary};
use crate::counters::PointCounters;
use crate::ledger::{self, Ledger, PointMeasurements};

/// The figures of every point, and the comparison of every variant with the baseline.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Assessment {
    /// The points, in the plan's order.
    pub points: Vec<PointSummary>,
    /// The comparisons, by condition, then by variant; without the baseline.
    pub comparisons: Vec<Comparison>,
    /// The ledger of each point; none for points without exact totals.
    pub ledgers: Vec<Ledger>,
}

/// Assesses the trials. Omits conditions without a complete pair.
///
/// `profiles` has one profile per point, in the plan's order, or is empty if nothing was sampled.
/// `majors` has the servers' major versions (`18`, `9.6`), in the plan's order.
///
/// # Errors
/// A corrupted latency histogram.
pub fn assess(
    plan: &Plan,
    majors: &[String],
    trials: &[Trial],
    profiles: &[Profile],
) -> Result<Assessment, LatencyError> {
    let mut assessment = Assessment::default();
    let by_condition: Vec<Vec<Vec<BlockSummary>>> = (0..plan.conditions.len())
        .map(|condition| figures_of_condition(plan, trials, condition))
        .collect::<Result<_, _>>()?;
    // All conditions together, because the verdicts of a study share one error rate.
    let all = compare_sequentially(plan, trials, &by_condition)
        .or_else(|| compare_precisely(plan, trials, &by_condition))
        .unwrap_or_else(|| compare_all(plan, &by_condition));
    let mut all = all.into_iter().peekable();
    for (condition, variants) in by_condition.iter().enumerate() {
        let mut summaries = Vec::new();
        for (variant, figures) in variants.iter().enumerate() {
            let point = plan.point(PointId::new(condition, variant));
            let units = point.per_transaction() as f64;
            summaries.push(summary(trials, condition, variant, figures, units)?);
        }
        let mut comparisons: Vec<Comparison> =
            std::iter::from_fn(|| all.next_if(|it| it.condition == condition)).collect();
        let measured = |variant: usize| {
            let id = PointId::new(condition, variant);
            let point = plan.point(id);
            // Only PostgreSQL backends have a ledger.
            let has_account = point.driver == DriverKind::Postgres;
            let trials = of_point(trials, condition, variant);
            PointMeasurements {
                condition,
                variant,
                trials: trials.filter(|_| has_account).collect(),
                profile: profiles.get(plan.index_of(id)),
                major: majors.get(point.server).map_or("", String::as_str),
            }
        };
        for variant in 0..plan.variants.len() {
            let ledger = ledger::ledger(&measured(variant))?;
            assessment.ledgers.extend(ledger);
        }
        for comparison in &mut comparisons {
            let baseline = plan.baseline_of(comparison.variant);
            let [before, after] = [baseline, comparison.variant].map(&measured);
            comparison.ledger = ledger::difference(&before, &after)?;
            let side = |variant: usize| -> Option<ProfiledSide<'_>> {
                let id = PointId::new(condition, variant);
                let profile = profiles.get(plan.index_of(id))?;
                let point = plan.point(id);
                Some(ProfiledSide {
                    profile,
                    trials,
                    condition,
                    variant,
                    major: majors[point.server].as_str(),
                    units: point.per_transaction(),
                })
            };
            let [a, b] = [baseline, comparison.variant].map(|it| counted(trials, condition, it));
            comparison.counters = b.compare_with(&a, before.major == after.major);
            if let (Some(baseline), Some(variant)) = (side(baseline), side(comparison.variant)) {
                comparison.cost = cost_difference(plan, &baseline, &variant);
            }
        }
        assessment.points.extend(summaries);
        assessment.comparisons.extend(comparisons);
    }
    Ok(assessment)
}

/// The figures of each variant's blocks.
fn figures_of_condition(
    plan: &Plan,
    trials: &[Trial],
    condition: usize,
) -> Result<Vec<Vec<BlockSummary>>, LatencyError> {
    let of_variant = |variant: usize| {
        let point = plan.point(PointId::new(condition, variant));
        figures(plan, point, timed(trials, condition, variant))
    };
    (0..plan.variants.len()).map(of_variant).collect()
}

/// The counters of all trials, including profiled ones.
fn counted(trials: &[Trial], condition: usize, variant: usize) -> PointCounters<'_> {
    PointCounters::new(of_point(trials, condition, variant))
}

fn of_point(trials: &[Trial], condition: usize, variant: usize) -> impl Iterator<Item = &Trial> {
    let is_of_point =
        move |trial: &&Trial| trial.condition == condition && trial.variant == variant;
    trials.iter().filter(is_of_point)
}

fn timed(trials: &[Trial], condition: usize, variant: usize) -> impl Iterator<Item = &Trial> {
    of_point(trials, condition, variant).filter(|trial| trial.kind == TrialKind::Timed)
}

fn summary(
    trials: &[Trial],
    condition: usize,
    variant: usize,
    figures: &[BlockSummary],
    units: f64,
) -> Result<PointSummary, LatencyError> {
    // Percentiles of all transactions, not means of percentiles.
    let pooled = PooledTrials::of(timed(trials, condition, variant))?;
    let (mut transactions, mut total, mut limited, mut count) = (0, 0, 0u32, 0u32);
    let mut client_us = 0.0;
    // All trials of a point run on one server: either all have these totals or none.
    let mut server: Option<(f64, f64)> = None;
    for trial in timed(trials, condition, variant) {
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
        // A block that was interrupted is in no pair, either, if there is another one.
        let any_is_complete = figures.iter().any(|it| it.is_complete);
        let used = figures
            .iter()
            .filter(|it| it.is_complete || !any_is_complete);
        geometric_mean(used.filter_map(|it| it.values[metric])).unwrap_or(0.0)
    };
    let per_transaction = |sum: f64| if total == 0 { 0.0 } else { sum / total as f64 };
    let latency_us = |of: &dyn Fn(&PooledTrials) -> f64| pooled.as_ref().map_or(0.0, of);
    let quantile_us = |q: f64| latency_us(&|it| it.latency_quantile_us(q));
    Ok(PointSummary {
        condition,
        variant,
        trials: count,
        transactions,
        tps: mean_of(TPS) / units,
        latency_mean_us: mean_of(LATENCY_MEAN),
        latency_p50_us: quantile_us(0.5),
        latency_p95_us: quantile_us(0.95),
        latency_p99_us: quantile_us(0.99),
        latency_max_us: latency_us(&|it| it.latency_ns.max() as f64 / 1e3),
        server_cpu_us: server.map(|(on_cpu_us, _)| per_transaction(on_cpu_us)),
        server_run_queue_us: server.map(|(_, run_queue_us)| per_transaction(run_queue_us)),
        client_cpu_us: per_transaction(client_us),
        client_limited: if count == 0 {
            0.0
        } else {
            f64::from(limited) / f64::from(count)
        },
        counters: counted(trials, condition, variant).figures(),
        backend_memory_bytes: of_point(trials, condition, variant)
            .filter_map(|it| Some(it.backend_memory.as_ref()?.peak_bytes))
            .max(),
        memory_contexts: of_point(trials, condition, variant)
            .filter_map(|it| Some(&it.backend_memory.as_ref()?.contexts))
            .find(|contexts| !contexts.is_empty())
            .cloned()
            .unwrap_or_default(),
    })
}
