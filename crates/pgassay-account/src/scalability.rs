//! A curve of throughput and latency: its points, the law that fits them, and what limits each point.
//!
//! # What limits a point
//! With perfect scaling, the response time does not depend on the number of clients. So the limit of a
//! point is the kind of ledger rows that has grown most per transaction since the smallest number of
//! clients (or the lowest rate): this is where the time went that scaling lost. A point whose response time
//! grew by less than a tenth has no limit.

use std::collections::BTreeMap;

use pgassay_model::plan::{Plan, PointId};
use pgassay_model::trial::{Trial, TrialKind};
use pgassay_stats::Interval;
use pgassay_stats::scalability::{
    CriticalClients, MeasuredThroughput, ScalabilityFit, fit_scalability,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::comparison::PointSummary;
use crate::ledger::{Ledger, Nature, Part, Row, is_client_run_queue, is_remainder};
use crate::sustained_rate::{is_sustained, sustained_rate};

/// The value of [`ScalabilityCurve::schema`] that this version writes.
pub const SCHEMA: &str = "pgassay.curve/1";
/// A response time that grew by less than this share has no limit.
const GROWTH_MIN: f64 = 0.1;
/// More clients than there are would not help much if transactions took longer by at least this share.
const INSIDE_GROWTH_MIN: f64 = 0.25;
/// The load generator is the limit if it was the bottleneck in this share of the trials.
const CLIENT_LIMITED: f64 = 0.5;

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

/// What limits a point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScalingLimit {
    /// The kind.
    pub kind: LimitKind,
    /// The ledger's row of this kind that grew most, such as `LWLock WALWrite`.
    pub row: String,
    /// Growth of the rows of this kind since the first point, per transaction.
    pub us: f64,
    /// Growth of the response time since the first point, per transaction; with a rate and any limit but
    /// `clients`, without the time before the transaction's start.
    pub growth_us: f64,
}

/// Kinds of limits.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// The response time hardly grew.
    Nothing,
    /// Waiting for a CPU.
    Processors,
    /// More CPU time per transaction, as by spinning or by cache misses.
    ServerCpu,
    /// Heavyweight locks, such as row locks.
    Locks,
    /// Lightweight locks.
    LightweightLocks,
    /// Files: reading, writing and syncing data and WAL.
    Storage,
    /// Other waits of the server.
    OtherWaits,
    /// The load generator.
    LoadGenerator,
    /// Network and wake-up.
    Network,
    /// With a rate: transactions that were due waited for a free client.
    Clients,
    /// Unexplained time.
    Unexplained,
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
            limit: both.map(|(first, side)| limit(first, side, summary.client_limited)),
            ..curve_point((plan, trials), summary, &rounds, law)
        }
    });
    let points: Vec<CurvePoint> = curve_points.collect();
    ScalabilityCurve {
        schema: SCHEMA.to_owned(),
        pgassay_version: identity.pgassay_version,
        run: identity.run,
        load: identity.load,
        sustained_rate: sustained_rate(&points),
        points,
        measured_s: trials.iter().map(|it| it.window_us).sum::<f64>() / 1e6,
        law: law.map(fitted_law),
        no_law: fit.and_then(Result::err).map(|error| error.to_string()),
    }
}

/// The timed trials of the first variant.
fn timed(trials: &[Trial]) -> impl Iterator<Item = &Trial> {
    let is_timed = |it: &&Trial| it.kind == TrialKind::Timed && it.variant == 0;
    trials.iter().filter(is_timed)
}

/// The geometric mean throughput of the timed trials of each round, by condition and block.
fn rounds(trials: &[Trial]) -> BTreeMap<(usize, u32), f64> {
    let mut logs: BTreeMap<(usize, u32), Vec<f64>> = BTreeMap::new();
    for trial in timed(trials).filter(|it| it.tps() > 0.0) {
        let of_round = logs.entry((trial.condition, trial.block)).or_default();
        of_round.push(trial.tps().ln());
    }
    let mean = |logs: Vec<f64>| (logs.iter().sum::<f64>() / logs.len() as f64).exp();
    let rounds = logs.into_iter();
    rounds.map(|(round, logs)| (round, mean(logs))).collect()
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

impl CurvePoint {
    /// Transactions per second.
    pub fn tps(&self) -> f64 {
        self.throughput.estimate.unwrap_or(0.0)
    }

    /// Whether the server kept up with the rate; always without one.
    pub fn is_sustained(&self) -> bool {
        let seconds = if self.seconds > 0.0 {
            self.seconds
        } else {
            f64::INFINITY
        };
        self.rate
            .is_none_or(|rate| is_sustained(rate, self.tps(), seconds))
    }
}

/// The kind of a row; `None` for time that is not part of the response time or that the script requests.
fn kind(row: &Row) -> Option<LimitKind> {
    let starts = |prefix: &str| row.mechanism.starts_with(prefix);
    Some(match row.part {
        Part::Between => return None,
        Part::Client if row.nature == Nature::Think => return None,
        Part::OnCpu => LimitKind::ServerCpu,
        Part::RunQueue | Part::Running => LimitKind::Processors,
        Part::Client if is_client_run_queue(&row.mechanism) => LimitKind::Processors,
        Part::Client if is_remainder(&row.mechanism) => LimitKind::Network,
        Part::Client => LimitKind::LoadGenerator,
        Part::Unexplained => LimitKind::Unexplained,
        Part::Blocked if row.nature == Nature::Service => LimitKind::Storage,
        Part::Blocked if starts("LWLock") => LimitKind::LightweightLocks,
        Part::Blocked if starts("Lock") => LimitKind::Locks,
        Part::Blocked => LimitKind::OtherWaits,
    })
}

/// The parts of a point's response time.
#[derive(Debug, Clone, Copy)]
struct ResponseSide<'a> {
    ledger: &'a Ledger,
    /// From the time at which a transaction was due to its start.
    waited_us: f64,
}

impl ResponseSide<'_> {
    fn response_us(&self) -> f64 {
        self.ledger.response_us + self.waited_us
    }
}

/// What grew most from the first point to another one.
fn limit(first: ResponseSide<'_>, side: ResponseSide<'_>, client_limited: f64) -> ScalingLimit {
    let growth_us = side.response_us() - first.response_us();
    let none = |kind: LimitKind, row: &str| ScalingLimit {
        kind,
        row: row.to_owned(),
        us: growth_us,
        growth_us,
    };
    if client_limited >= CLIENT_LIMITED {
        return none(LimitKind::LoadGenerator, "client CPU");
    }
    if growth_us < GROWTH_MIN * first.response_us() {
        return none(LimitKind::Nothing, "");
    }
    let rows = growth_by_row(first, side);
    let waited_us = side.waited_us - first.waited_us;
    let inside_us = growth_us - waited_us;
    // If transactions take longer themselves, that is why those that are due wait for a free client.
    let is_inside = inside_us >= INSIDE_GROWTH_MIN * first.ledger.response_us;
    let mut kinds: BTreeMap<LimitKind, f64> = BTreeMap::new();
    for ((kind, _), us) in &rows {
        *kinds.entry(*kind).or_default() += us;
    }
    if is_inside {
        kinds.remove(&LimitKind::Clients);
    }
    let most = kinds.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    let Some((kind, us)) = most else {
        return none(LimitKind::Unexplained, "");
    };
    let of_kind = rows.iter().filter(|((it, _), _)| *it == kind);
    let row = of_kind.max_by(|a, b| a.1.total_cmp(b.1));
    ScalingLimit {
        kind,
        row: row.map_or_else(String::new, |((_, name), _)| (*name).to_owned()),
        us,
        growth_us: if is_inside { inside_us } else { growth_us },
    }
}

/// The growth of each row from the first point to another one, by its kind and name: phases do not matter here.
fn growth_by_row<'a>(
    first: ResponseSide<'a>,
    side: ResponseSide<'a>,
) -> BTreeMap<(LimitKind, &'a str), f64> {
    let mut rows: BTreeMap<(LimitKind, &str), f64> = BTreeMap::new();
    for (side, sign) in [(first, -1.0), (side, 1.0)] {
        let waiting = (LimitKind::Clients, "waiting for a free client");
        *rows.entry(waiting).or_default() += sign * side.waited_us;
        for row in &side.ledger.rows {
            if let Some(kind) = kind(row) {
                *rows.entry((kind, row.mechanism.as_str())).or_default() += sign * row.us;
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{Divider, LedgerChecks};

    fn row(part: Part, nature: Nature, mechanism: &str, us: f64) -> Row {
        Row {
            part,
            nature,
            phase: String::new(),
            mechanism: mechanism.to_owned(),
            us,
            system_us: 0.0,
        }
    }

    fn ledger(rows: Vec<Row>) -> Ledger {
        Ledger {
            condition: 0,
            variant: 0,
            response_us: rows.iter().map(|it| it.us).sum(),
            between_transactions_us: 0.0,
            rows,
            background: Vec::new(),
            blocked_by: Divider::Nothing,
            cpu_by_stacks: false,
            tail: None,
            checks: LedgerChecks::default(),
            consistency: Vec::new(),
        }
    }

    /// 100 µs on CPU, and more.
    fn with(part: Part, nature: Nature, mechanism: &str, us: f64) -> Ledger {
        ledger(vec![
            row(Part::OnCpu, Nature::Service, "executor", 100.0),
            row(part, nature, mechanism, us),
        ])
    }

    fn side(ledger: &Ledger) -> ResponseSide<'_> {
        ResponseSide {
            ledger,
            waited_us: 0.0,
        }
    }

    #[test]
    fn waiting_for_a_free_client_is_a_limit_of_a_rate() {
        let first = with(Part::RunQueue, Nature::Queueing, "run queue", 1.0);
        let later = with(Part::RunQueue, Nature::Queueing, "run queue", 301.0);
        let waiting = |waited_us: f64| ResponseSide {
            waited_us,
            ..side(&later)
        };
        let kind = |waited_us: f64| limit(side(&first), waiting(waited_us), 0.0).kind;
        assert_eq!(kind(200.0), LimitKind::Processors);
        // Regression: on a saturated machine the limit was always the number of clients.
        let limit_of = limit(side(&first), waiting(4000.0), 0.0);
        assert_eq!(limit_of.kind, LimitKind::Processors);
        assert_eq!((limit_of.us, limit_of.growth_us), (300.0, 300.0));
        let healthy = with(Part::RunQueue, Nature::Queueing, "run queue", 11.0);
        let waiting = ResponseSide {
            waited_us: 400.0,
            ..side(&healthy)
        };
        assert_eq!(limit(side(&first), waiting, 0.0).kind, LimitKind::Clients);
    }

    #[test]
    fn the_limit_is_what_grew_most_since_the_first_point() {
        use Nature::{Queueing, Service, Think};
        let first = ledger(vec![
            row(Part::OnCpu, Service, "executor", 100.0),
            row(Part::Blocked, Service, "WAL sync", 900.0),
        ]);
        let later = ledger(vec![
            row(Part::OnCpu, Service, "executor", 120.0),
            row(Part::Blocked, Service, "WAL sync", 900.0),
            row(Part::Blocked, Queueing, "Lock tuple", 300.0),
            row(Part::Blocked, Queueing, "Lock transactionid", 500.0),
            row(Part::RunQueue, Queueing, "run queue", 600.0),
        ]);
        // Both locks together grew more than the run queue; the longest row stayed as it was.
        let found = limit(side(&first), side(&later), 0.0);
        assert_eq!(found.kind, LimitKind::Locks);
        assert_eq!(found.row, "Lock transactionid");
        assert!((found.us - 800.0).abs() < 1e-9 && (found.growth_us - 1420.0).abs() < 1e-9);
        assert_eq!(
            limit(side(&first), side(&later), 1.0).kind,
            LimitKind::LoadGenerator
        );
        let first = with(Part::RunQueue, Queueing, "run queue", 1.0);
        for (part, nature, mechanism, expected) in [
            (Part::RunQueue, Queueing, "run queue", LimitKind::Processors),
            (
                Part::Client,
                Queueing,
                "client run queue",
                LimitKind::Processors,
            ),
            (
                Part::Client,
                Service,
                "client CPU",
                LimitKind::LoadGenerator,
            ),
            (
                Part::Client,
                Queueing,
                "client thread busy",
                LimitKind::LoadGenerator,
            ),
            (
                Part::Client,
                Queueing,
                "network and wake-up",
                LimitKind::Network,
            ),
            (
                Part::Blocked,
                Queueing,
                "LWLock WALWrite",
                LimitKind::LightweightLocks,
            ),
            (Part::Blocked, Service, "data file read", LimitKind::Storage),
            (
                Part::Blocked,
                Queueing,
                "IPC ExecuteGather",
                LimitKind::OtherWaits,
            ),
            (Part::OnCpu, Service, "buffer manager", LimitKind::ServerCpu),
        ] {
            let later = with(part, nature, mechanism, 500.0);
            assert_eq!(
                limit(side(&first), side(&later), 0.0).kind,
                expected,
                "{mechanism}"
            );
        }
        // Sleep is requested; a response time that hardly grew has no limit.
        let hardly = with(Part::RunQueue, Queueing, "run queue", 9.0);
        assert_eq!(
            limit(side(&first), side(&hardly), 0.0).kind,
            LimitKind::Nothing
        );
        let asleep = ledger(vec![
            row(Part::OnCpu, Service, "executor", 150.0),
            row(Part::Client, Think, "client sleep", 500.0),
        ]);
        assert_eq!(
            limit(side(&first), side(&asleep), 0.0).kind,
            LimitKind::ServerCpu
        );
    }
}
