//! What one trial measured.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer as _, V2Serializer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::counters::Counters;
use crate::cpu::{Background, CpuTotals};
use crate::waits::Waits;

/// Why a trial was run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrialKind {
    /// For verdicts: only exact counters are read.
    Timed,
    /// For the cost breakdown: the sampling profiler runs and uses part of the machine.
    Profiled,
    /// For hardware counters only. Switching them at every context switch reduced the throughput of a
    /// virtual machine by 60 to 72%, so no other figure of such a trial is valid.
    HardwareCounters,
}

/// One trial of a point.
///
/// Identities: `transactions_total ≥ transactions`; CPU totals cover the whole trial, from idle to idle,
/// so per-transaction figures divide by `transactions_total`; throughput is
/// `credited_transactions / window_us`, and a client's time per transaction is its time in the window
/// divided by `credited_transactions`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Trial {
    /// The block (round over all points) that it belongs to, from 0.
    pub block: u32,
    /// The server start that it ran on, from 0. Trials of one server start share its memory layout.
    #[serde(default)]
    pub server_start: u32,
    /// Index into the plan's conditions.
    pub condition: usize,
    /// Index into the plan's variants.
    pub variant: usize,
    /// Its position in the block, from 0, counting all kinds.
    pub position: u32,
    /// How often its round ran the timed trials in mirrored order, if less often than the plan's repeats because
    /// transactions took long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<u32>,
    /// Why it was run.
    pub kind: TrialKind,
    /// Start of the measurement window, microseconds since 1970.
    pub started_us: i64,
    /// Length of the measurement window.
    pub window_us: f64,
    /// Number of transactions that ended inside the window.
    pub transactions: u64,
    /// Transactions, weighted by the share of their duration inside the window: 1 for a transaction
    /// entirely inside, a fraction for one that overlaps an end. Unlike the count of transactions that
    /// ended inside, this does not jump by 1 if a transaction ends slightly earlier or later.
    /// `None` in results of older versions; see [`Trial::credited_or_counted`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credited_transactions: Option<f64>,
    /// Number of all transactions, including those while settling and draining.
    pub transactions_total: u64,
    /// Transactions that failed inside the window with a serialization failure or a deadlock. They count in no other
    /// figure of transactions.
    #[serde(default, skip_serializing_if = "is_none_failed")]
    pub failed: u64,
    /// How long failed transactions took inside the window; 0 in results of older versions.
    #[serde(default, skip_serializing_if = "is_no_time")]
    pub failed_us: f64,
    /// Latencies of the transactions that ended inside the window.
    pub latency: Latency,
    /// CPU totals of the server's backends, over the whole trial; `None` if not available, for example
    /// from a server on another machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<CpuTotals>,
    /// Totals of the load generator.
    pub client: ClientTotals,
    /// CPU steal, as a share of the machine's CPU time, 0 to 1.
    pub cpu_steal: f64,
    /// Share of the machine's CPU time used by other programs than the server and the load generator, 0
    /// to 1.
    pub other_programs: f64,
    /// Share of the machine's CPU time that was neither idle nor stolen nor used by a visible process. Can
    /// be negative, because the kernel counts idle time in ticks. `None` if not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unaccounted: Option<f64>,
    /// Server and kernel statistics by name, such as `wal.insert_bytes`, over the whole trial like the
    /// CPU totals; empty if not read.
    #[serde(default, skip_serializing_if = "Counters::is_empty")]
    #[schemars(with = "BTreeMap<String, f64>")]
    pub counters: Counters,
    /// Share of the machine's CPU time that was used by anything, 0 to 1; 0 if not recorded.
    #[serde(default)]
    pub cpu_utilization: f64,
    /// Resource usage of the server's background processes, over the whole trial.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub background: Vec<Background>,
    /// Sampled waits of the backends; only in profiled trials, if available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<Waits>,
    /// Independent readings that the ledger's inputs are checked against; `None` if not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cross_checks: Option<CrossCheckReadings>,
    /// Memory of the backends, read after the last trial of a variant in each round; `None` in other trials,
    /// and if it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend_memory: Option<BackendMemory>,
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_none_failed(failed: &u64) -> bool {
    *failed == 0
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_no_time(us: &f64) -> bool {
    *us <= 0.0
}

/// If the shares of failed transactions differ by more, rates of the successful ones are those of different work.
pub const FAILED_DIFFERENCE_MAX: f64 = 0.01;

/// The share of transactions that failed in the timed trials of a variant under a condition, 0 to 1.
pub fn failed_share(trials: &[Trial], condition: usize, variant: usize) -> f64 {
    let of_point = |it: &&Trial| (it.condition, it.variant) == (condition, variant);
    let timed = |it: &&Trial| it.kind == TrialKind::Timed;
    let trials = trials.iter().filter(of_point).filter(timed);
    let sums = trials.fold((0.0, 0.0_f64), |(failed, all), it| {
        let of_trial = it.failed as f64 + it.transactions as f64;
        (failed + it.failed as f64, all + of_trial)
    });
    sums.0 / sums.1.max(1.0)
}

/// Memory of the backends as proportional set size (PSS): a page that n processes share counts 1/n in each.
/// Shared memory, such as shared buffers, is not included.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackendMemory {
    /// The largest peak of any backend since it connected, in bytes. Parallel workers are not included.
    pub peak_bytes: u64,
    /// Number of backends that were read.
    pub backends: u32,
    /// The memory contexts of one backend after the trial, the largest first; empty in other trials, before
    /// PostgreSQL 14, and for external servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contexts: Vec<MemoryContext>,
}

/// The memory that a backend holds in all memory contexts of one name, as `pg_backend_memory_contexts` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryContext {
    /// Their name, such as `CacheMemoryContext` or `CachedPlan`.
    pub name: String,
    /// Their allocated size in bytes, free space included.
    pub bytes: u64,
    /// Number of contexts.
    pub contexts: u32,
}

/// Independent readings of a trial, each from a different source than the figure that it checks.
///
/// CPU clocks and `schedstat` are two kernel interfaces to the same scheduler accounting. They detect a
/// misread figure or a missed process, but not wrong accounting; samples, context switches and the
/// machine's idle time come from other clocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CrossCheckReadings {
    /// CPU time of the backends from their CPU clocks (`clock_getcpuclockid(3)`), over the whole trial like
    /// [`CpuTotals::on_cpu_us`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backends_clock_us: Option<f64>,
    /// CPU time of the whole load generator process from its CPU clock, over the whole trial like
    /// [`ClientTotals::cpu_us`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_process_us: Option<f64>,
    /// CPU time for these readings at the end of the trial: part of the machine's time, but not of
    /// `client_process_us`.
    #[serde(default)]
    pub reading_us: f64,
    /// CPU time of the machine, over all CPUs; `busy` and `other_programs` are shares of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_us: Option<f64>,
    /// Duration of the whole trial, in which [`Trial::transactions_total`] transactions ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_us: Option<f64>,
}

impl Trial {
    /// A trial of this kind in which nothing was measured: all figures are 0 or absent, and the latency
    /// histogram is empty text, which does not decode.
    pub fn empty(kind: TrialKind) -> Self {
        Self {
            block: 0,
            server_start: 0,
            condition: 0,
            variant: 0,
            position: 0,
            repeats: None,
            kind,
            started_us: 0,
            window_us: 0.0,
            transactions: 0,
            credited_transactions: None,
            transactions_total: 0,
            failed: 0,
            failed_us: 0.0,
            latency: Latency {
                hdr_v2_ns: String::new(),
            },
            server: None,
            client: ClientTotals::default(),
            cpu_steal: 0.0,
            other_programs: 0.0,
            unaccounted: None,
            counters: Counters::default(),
            cpu_utilization: 0.0,
            background: Vec::new(),
            waits: None,
            cross_checks: None,
            backend_memory: None,
        }
    }

    /// Transactions, weighted by the share of their duration inside the window; in results of older
    /// versions, the number that ended inside it.
    pub fn credited_or_counted(&self) -> f64 {
        let counted = self.transactions as f64;
        self.credited_transactions.unwrap_or(counted)
    }

    /// Transactions per second inside the window.
    pub fn tps(&self) -> f64 {
        self.credited_or_counted() / (self.window_us / 1e6)
    }
}

/// CPU usage of the load generator over the whole trial, and a breakdown of its clients' time in the
/// window.
///
/// Identities: `in_transaction_us + between_transactions_us + sleep_us = clients × window_us` within 1%;
/// the four times of waiting for the thread add up to at most `in_transaction_us`, because they are disjoint
/// parts of the time between writing a request and reading its reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClientTotals {
    /// CPU time of the load generator's threads.
    pub cpu_us: f64,
    /// Run-queue wait of the load generator's threads.
    pub run_queue_us: f64,
    /// Time inside transactions, summed over clients.
    pub in_transaction_us: f64,
    /// Time between transactions, summed over clients.
    pub between_transactions_us: f64,
    /// Time in `\sleep` or waiting for the schedule (`--rate`), summed over clients.
    pub sleep_us: f64,
    /// Client thread busy, summed over clients, in the window: a client had a reply to read or a request to
    /// send, but its thread was on a CPU for other clients. `None` if not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_busy_us: Option<f64>,
    /// Summed over clients, in the window: a client had a reply to read or a request to send, but its
    /// thread waited for a CPU. `None` if not recorded. Not to be confused with `run_queue_us`, which is
    /// summed over threads. In runs without `possible_run_queue_us`, an upper bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_run_queue_us: Option<f64>,
    /// How much longer than `thread_busy_us` clients may have waited, summed over clients, in the window:
    /// the thread was on a CPU for other clients when the reply may have arrived, and had not looked for it
    /// yet. An upper bound. `None` if not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub possible_thread_busy_us: Option<f64>,
    /// How much longer than `client_run_queue_us` they may have waited: the thread waited for a CPU then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub possible_run_queue_us: Option<f64>,
    /// Whether the load generator was the bottleneck: one of its threads was too busy.
    pub client_limited: bool,
}

impl ClientTotals {
    /// Total time of the clients.
    pub fn total_us(&self) -> f64 {
        self.in_transaction_us + self.between_transactions_us + self.sleep_us
    }
}

/// A latency histogram in `HdrHistogram`'s V2 encoding; values are nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Latency {
    /// Base64 of the V2 encoding, uncompressed, values in nanoseconds.
    pub hdr_v2_ns: String,
}

impl Latency {
    /// Encodes a histogram of nanoseconds.
    ///
    /// # Panics
    /// Never: encoding a histogram of `u64` into memory does not fail.
    pub fn from_histogram(histogram: &Histogram<u64>) -> Self {
        let mut bytes = Vec::new();
        V2Serializer::new()
            .serialize(histogram, &mut bytes)
            .expect("encoding a histogram of u64 into memory does not fail");
        Self {
            hdr_v2_ns: BASE64.encode(bytes),
        }
    }

    /// Decodes the histogram.
    ///
    /// # Errors
    /// Text that is not such an encoding, for example from a corrupted file.
    pub fn histogram(&self) -> Result<Histogram<u64>, LatencyError> {
        let bytes = BASE64.decode(&self.hdr_v2_ns).map_err(|_| LatencyError)?;
        Deserializer::new()
            .deserialize(&mut bytes.as_slice())
            .map_err(|_| LatencyError)
    }
}

/// A latency histogram that cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("corrupted latency histogram in this result (not base64 of HdrHistogram V2)")]
pub struct LatencyError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_round_trips() {
        let mut histogram = Histogram::<u64>::new(3).unwrap();
        for value in [1_000, 25_000, 9_000_000] {
            histogram.record(value).unwrap();
        }
        let kept = Latency::from_histogram(&histogram);
        assert_eq!(kept.histogram().unwrap(), histogram);
    }

    #[test]
    fn throughput_uses_credited_transactions_if_available() {
        let mut trial = Trial {
            window_us: 1e6,
            transactions: 100,
            ..Trial::empty(TrialKind::Timed)
        };
        assert_eq!((trial.credited_or_counted(), trial.tps()), (100.0, 100.0));
        trial.credited_transactions = Some(100.25);
        assert_eq!((trial.credited_or_counted(), trial.tps()), (100.25, 100.25));
    }

    #[test]
    fn a_corrupted_histogram_is_an_error() {
        assert!(
            Latency {
                hdr_v2_ns: "AAAA".to_owned()
            }
            .histogram()
            .is_err()
        );
    }
}
