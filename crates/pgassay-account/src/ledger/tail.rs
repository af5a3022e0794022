//! Where transactions beyond p99 spend their time, compared with all transactions. Both come from the
//! same slices of the same profiled trials, so they are comparable.
//!
//! Identity: the rows add up to the mean latencies, since the time that slices show divides the whole
//! time of the transactions. The ledger's own rows come from timed trials, but these do not, so the
//! latency of the same tail in timed trials is kept as well.

use pgassay_knowledge::Symbols;
use pgassay_model::profile::{Node, Profile};
use pgassay_model::trial::{LatencyError, TrialKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::measurements::{PointMeasurements, of_kind};
use super::reason::Reason;
use super::row::{Nature, Part};
use super::weights::{cpu_key, key_in_profile};

/// The fewest transactions beyond p99 within slices for which a tail is computed.
pub const TAIL_TRANSACTIONS_MIN: u64 = 20;
/// The fewest samples in the tail that divide its CPU time by phase.
const TAIL_SAMPLES_MIN: f64 = 100.0;
/// The percentile at which the tail begins.
const PERCENTILE: f64 = 99.0;

/// Where transactions beyond their trial's p99 spend their time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tail {
    /// The lowest p99 of the profiled trials.
    pub p99_low_us: f64,
    /// The highest p99 of the profiled trials.
    pub p99_high_us: f64,
    /// Transactions beyond p99.
    pub transactions: u64,
    /// The part of them that slices covered at least partly.
    pub covered: u64,
    /// Mean latency of the transactions beyond p99: the sum of the rows' `tail_us`.
    pub tail_us: f64,
    /// Mean latency of all transactions of these trials: the sum of the rows' `all_us`.
    pub all_us: f64,
    /// Mean latency beyond p99 in the timed trials, which are not profiled.
    pub timed_us: f64,
    /// Share of the trials' windows that slices covered.
    pub slices_share: f64,
    /// Share of the tail's time that slices covered. It equals `slices_share` if slices cover the tail
    /// as often as other transactions.
    pub covered_share: f64,
    /// Transactions dropped because the buffer was full; no figure here includes them.
    #[serde(default)]
    pub dropped: u64,
    /// The rows, longest in the tail first.
    pub rows: Vec<TailRow>,
}

/// One row of the tail's ledger.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TailRow {
    /// State of the backend.
    pub part: Part,
    /// Service, queueing or think time.
    pub nature: Nature,
    /// The reason for waiting, such as `LWLock WALWrite`; on CPU the phase, or `CPU` if the tail has
    /// too few samples to distinguish phases.
    pub mechanism: String,
    /// Time per transaction, for all transactions.
    pub all_us: f64,
    /// Time per transaction, for those beyond p99.
    pub tail_us: f64,
}

/// The tail of a point; `None` if context switches were not observed, or in too few transactions.
pub(super) fn tail(measured: &PointMeasurements<'_>) -> Result<Option<Tail>, LatencyError> {
    let observed = measured
        .profile
        .and_then(|it| Some((it, it.transactions.as_ref()?)));
    let Some((profile, transactions)) = observed else {
        return Ok(None);
    };
    let (all, tail) = (&transactions.all, &transactions.tail);
    if tail.covered < TAIL_TRANSACTIONS_MIN {
        return Ok(None);
    }
    let mut rows = TailRows(Vec::new());
    let cpu_us = (
        all.per_transaction_us(all.on_cpu_ns),
        tail.per_transaction_us(tail.on_cpu_ns),
    );
    for (reason, (of_all, of_tail)) in cpu_shares(profile, measured.major) {
        rows.add(reason, (cpu_us.0 * of_all, cpu_us.1 * of_tail));
    }
    let mut add = |reason: Reason, in_all_ns: u64, in_tail_ns: u64| {
        let figures = (
            all.per_transaction_us(in_all_ns),
            tail.per_transaction_us(in_tail_ns),
        );
        rows.add(reason, figures);
    };
    let run_queue = is(Part::RunQueue, Nature::Queueing, "run queue");
    add(run_queue, all.run_queue_ns, tail.run_queue_ns);
    let unseen = is(Part::Unexplained, Nature::Unknown, "not observed");
    add(unseen, all.unknown_state_ns, tail.unknown_state_ns);
    for blocked in &profile.blocked {
        let key = key_in_profile(profile, blocked);
        add(key.reason, blocked.in_transactions_ns, blocked.in_tail_ns);
    }
    let p99_us = |ns: Option<&u64>| ns.map_or(0.0, |&ns| ns as f64 / 1e3);
    Ok(Some(Tail {
        p99_low_us: p99_us(transactions.p99_ns.iter().min()),
        p99_high_us: p99_us(transactions.p99_ns.iter().max()),
        transactions: tail.transactions,
        covered: tail.covered,
        tail_us: tail.mean_us(),
        all_us: all.mean_us(),
        timed_us: timed_us(measured)?,
        slices_share: transactions.slices_ns as f64 / transactions.window_ns.max(1) as f64,
        covered_share: tail.covered_ns as f64 / tail.latency_ns.max(1) as f64,
        dropped: transactions.dropped,
        rows: rows.finish(),
    }))
}

fn is(part: Part, nature: Nature, mechanism: &str) -> Reason {
    Reason {
        part,
        nature,
        mechanism: mechanism.to_owned(),
    }
}

/// The share of CPU time of each phase, in all transactions and in the tail; one row if the tail has
/// too few samples.
fn cpu_shares(profile: &Profile, major: &str) -> Vec<(Reason, (f64, f64))> {
    let sampled = (0u32..)
        .zip(&profile.nodes)
        .filter(|(_, node)| node.in_transactions > 0);
    let sum = |of: fn(&Node) -> u64| profile.nodes.iter().map(of).sum::<u64>() as f64;
    let (all, tail) = (sum(|node| node.in_transactions), sum(|node| node.in_tail));
    if tail < TAIL_SAMPLES_MIN {
        return vec![(is(Part::OnCpu, Nature::Service, "CPU"), (1.0, 1.0))];
    }
    let symbols = Symbols::for_major(major);
    sampled
        .map(|(index, node)| {
            let key = cpu_key(&symbols, &profile.stack(index));
            let reason = if key.is_unknown {
                is(Part::Unexplained, Nature::Service, &key.mechanism)
            } else {
                is(Part::OnCpu, Nature::Service, &key.phase)
            };
            let shares = (
                node.in_transactions as f64 / all,
                node.in_tail as f64 / tail,
            );
            (reason, shares)
        })
        .collect()
}

struct TailRows(Vec<TailRow>);

impl TailRows {
    fn add(&mut self, reason: Reason, (all_us, tail_us): (f64, f64)) {
        let same = |row: &&mut TailRow| {
            row.part == reason.part
                && row.nature == reason.nature
                && row.mechanism == reason.mechanism
        };
        if let Some(row) = self.0.iter_mut().find(same) {
            row.all_us += all_us;
            row.tail_us += tail_us;
            return;
        }
        self.0.push(TailRow {
            part: reason.part,
            nature: reason.nature,
            mechanism: reason.mechanism,
            all_us,
            tail_us,
        });
    }

    fn finish(mut self) -> Vec<TailRow> {
        self.0.retain(|row| row.all_us > 0.0 || row.tail_us > 0.0);
        self.0.sort_by(|a, b| b.tail_us.total_cmp(&a.tail_us));
        self.0
    }
}

/// Mean latency beyond each timed trial's own p99, over all timed trials.
fn timed_us(measured: &PointMeasurements<'_>) -> Result<f64, LatencyError> {
    let (mut sum_us, mut transactions) = (0.0, 0);
    for trial in of_kind(measured, TrialKind::Timed) {
        let latency = trial.latency.histogram()?;
        let p99_ns = latency.value_at_percentile(PERCENTILE);
        let recorded = latency.iter_recorded();
        for step in recorded.filter(|step| step.value_iterated_to() > p99_ns) {
            let count = step.count_since_last_iteration();
            sum_us +=
                latency.median_equivalent(step.value_iterated_to()) as f64 / 1e3 * count as f64;
            transactions += count;
        }
    }
    Ok(sum_us / transactions.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::trial;
    use hdrhistogram::Histogram;
    use pgassay_model::profile::{Frame, ProfileBuilder};
    use pgassay_model::transactions::{TransactionTimes, Transactions};
    use pgassay_model::trial::{Latency, Trial};

    /// A timed trial of 198 transactions of 0.1 ms and two of 8 ms.
    fn timed() -> Trial {
        let mut latency = Histogram::<u64>::new(3).unwrap();
        latency.record_n(100_000, 198).unwrap();
        latency.record_n(8_000_000, 2).unwrap();
        Trial {
            latency: Latency::from_histogram(&latency),
            ..trial()
        }
    }

    fn times(transactions: u64, each_ns: u64, on_cpu_ns: u64, blocked_ns: u64) -> TransactionTimes {
        TransactionTimes {
            transactions,
            latency_ns: transactions * each_ns,
            covered: transactions / 2,
            covered_ns: on_cpu_ns + 200 + 100 + blocked_ns,
            on_cpu_ns,
            run_queue_ns: 200,
            unknown_state_ns: 100,
        }
    }

    fn profile(tail_transactions: u64) -> Profile {
        let mut builder = ProfileBuilder::new(1);
        let frame = |symbol: &str| Frame {
            symbol: Some(symbol.to_owned()),
            object: "postgres".to_owned(),
            offset: 0,
            kernel: false,
        };
        // Two call sites with the same reason for waiting become one row.
        for at in ["heap_update", "heap_delete"] {
            let stack = [frame("PostgresMain"), frame(at), frame("ProcSleep")];
            let wait = ("Lock", "tuple");
            builder.add_blocked_in_transactions(stack, wait, (500, 8_000));
        }
        let transactions = Transactions {
            all: times(5000, 150_000, 8_700, 1_000),
            tail: times(tail_transactions, 9_000_000, 1_700, 16_000),
            p99_ns: vec![2_000_000, 1_500_000],
            window_ns: 1_000_000,
            slices_ns: 330_000,
            dropped: 0,
        };
        builder.add_transactions(&transactions);
        builder.finish()
    }

    fn tail_of(profile: Option<&Profile>) -> Option<Tail> {
        let trial = timed();
        let measured = PointMeasurements {
            condition: 0,
            variant: 0,
            trials: vec![&trial],
            profile,
            major: "18",
        };
        tail(&measured).unwrap()
    }

    #[test]
    fn rows_add_up_to_the_mean_latencies() {
        let tail = tail_of(Some(&profile(50))).unwrap();
        let sum = |of: fn(&TailRow) -> f64| tail.rows.iter().map(of).sum::<f64>();
        assert!((sum(|row| row.tail_us) - 9000.0).abs() < 1e-6, "{tail:?}");
        assert!((sum(|row| row.all_us) - 150.0).abs() < 1e-6, "{tail:?}");
        let names: Vec<&str> = tail.rows.iter().map(|row| &row.mechanism[..]).collect();
        assert_eq!(names, ["Lock tuple", "CPU", "run queue", "not observed"]);
        assert!((tail.rows[0].tail_us - 9000.0 * 16.0 / 18.0).abs() < 1e-6);
        assert_eq!(tail.rows[3].part, Part::Unexplained);
        assert_eq!((tail.p99_low_us, tail.p99_high_us), (1500.0, 2000.0));
        // The latency of two of two hundred transactions without profiling.
        assert!((tail.timed_us - 8000.0).abs() < 8.0, "{tail:?}");
    }

    #[test]
    fn enough_samples_divide_the_cpu_time_by_phase() {
        let frames = |leaf: &str| {
            ["PostgresMain", "exec_simple_query", leaf].map(|symbol| Frame {
                symbol: Some(symbol.to_owned()),
                object: "postgres".to_owned(),
                offset: 0,
                kernel: false,
            })
        };
        let sampled = |in_tail: u64| {
            let mut builder = ProfileBuilder::new(1);
            builder.add_transactions(profile(50).transactions.as_ref().unwrap());
            builder.add_in_transactions(frames("pg_plan_query"), (400, in_tail));
            builder.add_in_transactions(frames("PortalRun"), (100, 3 * in_tail));
            let tail = tail_of(Some(&builder.finish())).unwrap();
            let row = |name: &str| {
                let row = tail.rows.iter().find(|row| row.mechanism == name);
                row.map(|row| (row.all_us, row.tail_us))
            };
            (row("CPU"), row("plan"), row("execute"))
        };
        let (cpu, plan, execute) = sampled(24);
        assert!(
            plan.is_none() && execute.is_none(),
            "96 samples are too few"
        );
        let cpu = cpu.unwrap();
        let (none, plan, execute) = sampled(25);
        assert!(none.is_none());
        let close = |a: f64, b: f64| (a - b).abs() < 1e-6;
        let (plan, execute) = (plan.unwrap(), execute.unwrap());
        assert!(close(plan.0, cpu.0 * 0.8) && close(plan.1, cpu.1 * 0.25));
        assert!(close(execute.0, cpu.0 * 0.2) && close(execute.1, cpu.1 * 0.75));
    }

    #[test]
    fn too_few_or_unobserved_transactions_have_no_tail() {
        let few = 2 * TAIL_TRANSACTIONS_MIN - 2;
        assert!(tail_of(Some(&profile(few))).is_none());
        assert!(tail_of(Some(&profile(few + 2))).is_some());
        assert!(tail_of(Some(&Profile::default())).is_none());
        assert!(tail_of(None).is_none());
    }
}
