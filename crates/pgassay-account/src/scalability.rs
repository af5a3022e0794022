//! A curve of throughput and latency: its points, the law that fits them, and what limits each point.

use std::collections::BTreeMap;

use pgassay_model::plan::{Plan, PointId};
use pgassay_model::trial::{Trial, TrialKind};
use pgassay_stats::Interval;
use pgassay_stats::scalability::{
    CriticalClients, MeasuredThroughput, ScalabilityFit, fit_scalability,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::comparison::{PointSummary, PooledRate};
use crate::ledger::Ledger;
use crate::scaling_limit::{BusyShares, ResponseSide, limit, of_processors};
pub use crate::scaling_limit::{LimitKind, ScalingLimit};
use crate::sustained_rate::{PacedThroughput, sustained_count};

/// The value of [`ScalabilityCurve::schema`] that this version writes.
pub const SCHEMA: &str = "pgassay.curve/1";

/// Throughput and latency against the number of clients, or against the rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScalabilityCurve {
    /// Name and version of the schema.
    pub schema: String,
    /// Version of pgassay.
    pub pgassay_version: String,
    /// ID of the run with the trials.
    pub run: String,
    /// What was run: the scripts, the protocol and the server.
    pub load: String,
    /// The measured points, by number of clients, then by rate.
    pub points: Vec<CurvePoint>,
    /// Measuring time: the sum of all trials, s.
    pub measured_s: f64,
    /// The Universal Scalability Law; `None` if it could not be fitted, and for curves against the rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub law: Option<FittedLaw>,
    /// Why there is no law.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_law: Option<String>,
    /// The highest rate that the server sustained, transactions per second; only for curves against the
    /// rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sustained_rate: Option<f64>,
    /// Warnings about the run; empty in results of older versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// A figure and its 95% CI; an absent figure or end is infinite.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CurveFigure {
    /// The estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<f64>,
    /// Lower end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// Upper end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
}

/// The Universal Scalability Law: λN / (1 + σ(N − 1) + κN(N − 1)) transactions per second for N clients.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FittedLaw {
    /// λ: throughput of one client.
    pub per_client: CurveFigure,
    /// σ: contention.
    pub contention: CurveFigure,
    /// κ: crosstalk.
    pub crosstalk: CurveFigure,
    /// The number of clients beyond which latency grows faster than throughput.
    pub knee: CurveFigure,
    /// The number of clients with the greatest throughput.
    pub peak: CurveFigure,
    /// The greatest throughput within the measured numbers of clients.
    pub greatest: CurveFigure,
    /// Standard deviation of a round's throughput, relative to it (0.01 is 1%).
    pub noise: f64,
    /// Standard deviation of the difference between server and law, relative to the throughput.
    pub misfit: f64,
}

/// One number of clients, or one rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CurvePoint {
    /// Concurrent clients.
    pub clients: u32,
    /// Requested transactions per second; `None` if each client sends its next transaction at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Rounds, of two timed trials each.
    pub rounds: u32,
    /// The time in which transactions were counted, in seconds; 0 in results of older versions.
    #[serde(default)]
    pub seconds: f64,
    /// Transactions per second; ends of the interval only if there is a law.
    pub throughput: CurveFigure,
    /// Throughput according to the law.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fitted: Option<f64>,
    /// Mean latency; with a rate, from the time at which the transaction was due.
    pub latency_mean_us: f64,
    /// Median latency.
    pub latency_p50_us: f64,
    /// 95th percentile of latency.
    pub latency_p95_us: f64,
    /// 99th percentile of latency.
    pub latency_p99_us: f64,
    /// What limits the point; `None` without a ledger, and for the first point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<ScalingLimit>,
}

/// The identity of a curve.
#[derive(Debug, Clone, Default)]
pub struct CurveIdentity {
    /// ID of the run.
    pub run: String,
    /// Version of pgassay.
    pub pgassay_version: String,
    /// What was run.
    pub load: String,
}

/// The curve of a plan's first variant. `points` and `ledgers` are those of the run.
pub fn scalability_curve(
    plan: &Plan,
    trials: &[Trial],
    points: &[PointSummary],
    ledgers: &[Ledger],
    identity: CurveIdentity,
) -> ScalabilityCurve {
    let rounds = rounds(trials);
    let rate = |condition: usize| plan.point(PointId::new(condition, 0)).rate_per_s;
    let is_paced = (0..plan.conditions.len()).any(|it| rate(it).is_some());
    let measured: Vec<MeasuredThroughput> = rounds
        .iter()
        .map(|((condition, _), throughput)| MeasuredThroughput {
            clients: plan.conditions[*condition].clients,
            throughput: *throughput,
        })
        .collect();
    let fit = (!is_paced).then(|| fit_scalability(&measured));
    let mut order: Vec<&PointSummary> = points
        .iter()
        .filter(|it| it.variant == 0 && it.trials > 0)
        .collect();
    let key = |it: &PointSummary| (plan.conditions[it.condition].clients, rate(it.condition));
    order.sort_by(|a, b| {
        key(a)
            .partial_cmp(&key(b))
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    let ledger = |it: &PointSummary| {
        let mut ledgers = ledgers.iter();
        ledgers.find(|ledger| (ledger.condition, ledger.variant) == (it.condition, 0))
    };
    let side = |it: &PointSummary| {
        let ledger = ledger(it)?;
        // Without a rate, both are the same up to the ends of the window.
        let waited_us = (it.latency_mean_us - ledger.response_us).max(0.0);
        let is_paced = rate(it.condition).is_some();
        Some(ResponseSide {
            ledger,
            waited_us: if is_paced { waited_us } else { 0.0 },
        })
    };
    let first = order.first().and_then(|it| side(it));
    let law = fit.as_ref().and_then(|it| it.as_ref().ok());
    let curve_points = order.iter().enumerate().map(|(at, summary)| {
        let both = first.zip(side(summary)).filter(|_| at > 0);
        CurvePoint {
            limit: both.map(|(first, side)| {
                let found = limit(first, side, summary.client_limited);
                of_processors(found, cpu_use(trials, summary.condition))
            }),
            ..curve_point((plan, trials), summary, &rounds, law)
        }
    });
    let points: Vec<CurvePoint> = curve_points.collect();
    let sustained = points[..sustained_points(&points)].last();
    ScalabilityCurve {
        schema: SCHEMA.to_owned(),
        pgassay_version: identity.pgassay_version,
        run: identity.run,
        load: identity.load,
        sustained_rate: sustained.and_then(|it| it.rate),
        warnings: Vec::new(),
        points,
        measured_s: trials.iter().map(|it| it.window_us).sum::<f64>() / 1e6,
        law: law.map(fitted_law),
        no_law: fit.and_then(Result::err).map(|error| error.to_string()),
    }
}

/// What used the machine's CPU time in a condition's timed trials.
fn cpu_use(trials: &[Trial], condition: usize) -> BusyShares {
    let of_condition = || timed(trials).filter(|it| it.condition == condition);
    let mean = |share: fn(&Trial) -> f64| {
        of_condition().map(share).sum::<f64>() / of_condition().count().max(1) as f64
    };
    BusyShares {
        all: mean(|it| it.cpu_utilization),
        other_programs: mean(|it| it.other_programs),
    }
}

/// The timed trials of the first variant.
fn timed(trials: &[Trial]) -> impl Iterator<Item = &Trial> {
    let is_timed = |it: &&Trial| it.kind == TrialKind::Timed && it.variant == 0;
    trials.iter().filter(is_timed)
}

/// The throughput of the timed trials of each round, by condition and block.
fn rounds(trials: &[Trial]) -> BTreeMap<(usize, u32), f64> {
    let mut rates: BTreeMap<(usize, u32), PooledRate> = BTreeMap::new();
    for trial in timed(trials) {
        let of_round = rates.entry((trial.condition, trial.block)).or_default();
        of_round.add(trial);
    }
    let rounds = rates
        .into_iter()
        .map(|(round, it)| (round, it.per_second()));
    rounds.filter(|(_, tps)| *tps > 0.0).collect()
}

/// The point without its limit.
fn curve_point(
    (plan, trials): (&Plan, &[Trial]),
    summary: &PointSummary,
    rounds: &BTreeMap<(usize, u32), f64>,
    law: Option<&ScalabilityFit>,
) -> CurvePoint {
    let clients = plan.conditions[summary.condition].clients;
    let of_point = (summary.condition, 0)..=(summary.condition, u32::MAX);
    let fitted = law.and_then(|law| law.points.iter().find(|it| it.clients == clients));
    let rate = plan.point(PointId::new(summary.condition, 0)).rate_per_s;
    let timed = timed(trials).filter(|it| it.condition == summary.condition);
    let seconds = timed.map(|it| it.window_us).sum::<f64>() / 1e6;
    let tps = match rate {
        // Of few transactions per trial, a geometric mean is too low, and leaves out trials without any.
        Some(_) if seconds > 0.0 => summary.transactions as f64 / seconds,
        _ => summary.tps,
    };
    CurvePoint {
        clients,
        rate,
        rounds: rounds.range(of_point).count() as u32,
        seconds,
        throughput: CurveFigure {
            estimate: Some(fitted.map_or(tps, |it| it.throughput)),
            low: fitted.map(|it| it.interval.low),
            high: fitted.map(|it| it.interval.high),
        },
        fitted: fitted.map(|it| it.fitted),
        latency_mean_us: summary.latency_mean_us,
        latency_p50_us: summary.latency_p50_us,
        latency_p95_us: summary.latency_p95_us,
        latency_p99_us: summary.latency_p99_us,
        limit: None,
    }
}

fn fitted_law(fit: &ScalabilityFit) -> FittedLaw {
    let figure = |estimate: f64, interval: Interval| {
        let finite = |value: f64| value.is_finite().then_some(value);
        CurveFigure {
            estimate: finite(estimate),
            low: finite(interval.low),
            high: finite(interval.high),
        }
    };
    let critical = |it: CriticalClients| figure(it.clients, it.interval);
    FittedLaw {
        per_client: figure(fit.law.per_client, fit.per_client),
        contention: figure(fit.law.contention, fit.contention),
        crosstalk: figure(fit.law.crosstalk, fit.crosstalk),
        knee: critical(fit.knee),
        peak: critical(fit.peak),
        greatest: figure(fit.greatest, fit.greatest_interval),
        noise: fit.noise,
        misfit: fit.misfit,
    }
}

impl FittedLaw {
    /// Throughput of this many clients according to the law.
    pub fn throughput(&self, clients: f64) -> f64 {
        let of = |figure: &CurveFigure| figure.estimate.unwrap_or(0.0);
        let others = clients - 1.0;
        let slowdown = 1.0 + of(&self.contention) * others + of(&self.crosstalk) * clients * others;
        of(&self.per_client) * clients / slowdown
    }
}

impl ScalabilityCurve {
    /// The points before the first whose rate the server did not sustain; without a rate, all.
    pub fn sustained_points(&self) -> usize {
        sustained_points(&self.points)
    }
}

fn sustained_points(points: &[CurvePoint]) -> usize {
    let paced = points.iter().map(|it| {
        Some(PacedThroughput {
            rate: it.rate?,
            tps: it.tps(),
            seconds: if it.seconds > 0.0 {
                it.seconds
            } else {
                f64::INFINITY
            },
        })
    });
    let paced: Option<Vec<PacedThroughput>> = paced.collect();
    paced.map_or(points.len(), |it| sustained_count(&it))
}

impl CurvePoint {
    /// Transactions per second.
    pub fn tps(&self) -> f64 {
        self.throughput.estimate.unwrap_or(0.0)
    }
}
