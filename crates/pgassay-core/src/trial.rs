//! What one trial measured.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer as _, V2Serializer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::observation::{Background, Waits};

/// Why a trial was run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TrialKind {
    /// For the verdict: nothing watches but exact counters.
    Timed,
    /// For the account of costs: the sampler runs, and takes its share of the machine.
    Profiled,
    /// For the processor's own counters alone. Switching them at every change of process took 60 to
    /// 72 % of a virtual machine's throughput, so that nothing else in such a trial is true.
    Counted,
}

/// One timed run of a point.
///
/// Identities: `transactions_total ≥ transactions`; the processor's totals cover the whole run,
/// from idle to idle, and so divide by `transactions_total`; throughput is
/// `credited_transactions / window_us`, and a client's time per transaction is its time in the
/// window divided by `credited_transactions`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Trial {
    /// The round over all points that it belongs to, from 0.
    pub block: u32,
    /// Which start of the servers it ran on, from 0. Trials of one start share its memory layout.
    #[serde(default)]
    pub boot: u32,
    /// Index into the plan's conditions.
    pub condition: usize,
    /// Index into the study's variants.
    pub variant: usize,
    /// Its place in the block's order, from 0 over all kinds.
    pub position: u32,
    /// Why it was run.
    pub kind: TrialKind,
    /// When its window began, microseconds since 1970.
    pub started_us: i64,
    /// Length of the window in which transactions counted.
    pub window_us: f64,
    /// Transactions that ended inside the window.
    pub transactions: u64,
    /// Transactions by the share of their duration that lies inside the window: 1 for one that lies
    /// inside as a whole, a fraction for one that straddles an end of it. Unlike the count of those
    /// that end inside, this does not jump by 1 where a transaction ends a little earlier or later.
    /// `None` in results of older versions, which did not keep it; see [`Trial::credited`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credited_transactions: Option<f64>,
    /// Transactions from the first to the last, settling and draining included.
    pub transactions_total: u64,
    /// Latencies of the transactions that ended inside the window.
    pub latency: Latency,
    /// The processor's account of the server's backends, over the whole run; `None` where it could
    /// not be read, as of a server on another machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<CpuTotals>,
    /// The load generator's own account.
    pub client: ClientTotals,
    /// Share of the machine's processor time that the hypervisor gave to others, 0 to 1.
    pub steal: f64,
    /// Share of the machine's processor time that neither the server nor the load generator used
    /// but other programs did, 0 to 1.
    pub foreign: f64,
    /// Share of it that was neither idle nor stolen nor used by a process that can be seen; may be
    /// negative, since the kernel tells idle time in ticks. `None` where it was not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unaccounted: Option<f64>,
    /// What server and kernel counted meanwhile, by name (see [`crate::counters`]), over the whole
    /// run like the processor's totals; empty where that was not read.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counters: BTreeMap<String, f64>,
    /// Share of it that was used at all, by whomever, 0 to 1; 0 where it was not kept.
    #[serde(default)]
    pub busy: f64,
    /// What the server's processes that serve no client used, over the whole run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub background: Vec<Background>,
    /// What the backends were seen to wait for; only in profiled trials, and where it could be seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<Waits>,
    /// What the ledger's inputs are checked against; `None` where it was not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second: Option<SecondReadings>,
}

/// Second figures of a trial: each is read from another place than the figure that it checks.
///
/// CPU clocks and `schedstat` are two of the kernel's interfaces to one scheduler's account, so they
/// tell a figure that was misread, or a process that was missed, but not an account that is wrong;
/// samples, context switches and the machine's idle time come from other clocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SecondReadings {
    /// CPU time of the backends by their CPU clocks (`clock_getcpuclockid(3)`), over the whole run as
    /// [`CpuTotals::on_cpu_us`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backends_clock_us: Option<f64>,
    /// CPU time of the load generator's whole process by its own clock, over the whole run as
    /// [`ClientTotals::cpu_us`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_process_us: Option<f64>,
    /// CPU time that reading took at the end of the run: part of the machine's time, but not of
    /// `client_process_us`.
    #[serde(default)]
    pub reading_us: f64,
    /// The machine's time: that of all its processors, of which `busy` and `foreign` are shares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_us: Option<f64>,
    /// How long the whole run was in which [`Trial::transactions_total`] were done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_us: Option<f64>,
}

impl Trial {
    /// Transactions by the share of their duration inside the window; in results of older versions
    /// those that ended inside it.
    pub fn credited(&self) -> f64 {
        let counted = self.transactions as f64;
        self.credited_transactions.unwrap_or(counted)
    }

    /// Transactions per second inside the window.
    pub fn tps(&self) -> f64 {
        self.credited() / (self.window_us / 1e6)
    }

    /// On-CPU time of the server's backends per transaction, in microseconds, where it is known.
    pub fn server_cpu_us_per_tx(&self) -> Option<f64> {
        Some(self.server?.on_cpu_us / self.transactions_total as f64)
    }
}

/// Exact totals of some processes, from the kernel's `schedstat`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CpuTotals {
    /// Time on a processor.
    pub on_cpu_us: f64,
    /// Time runnable, waiting for a processor.
    pub run_queue_us: f64,
    /// Processes summed over.
    pub processes: u32,
}

/// What the load generator itself used (over the whole run), and where its clients' time in the
/// window went.
///
/// Identities: `in_transaction_us + between_us + asleep_us = clients × window_us` within 1 %;
/// `turn_us + ready_run_queue_us ≤ in_transaction_us`, since both are parts of the time between a
/// request and the reading of its reply, and exclude each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClientTotals {
    /// Processor time of the generator's threads.
    pub cpu_us: f64,
    /// Time the generator's threads were runnable and waited for a processor.
    pub run_queue_us: f64,
    /// Sum over clients: inside transactions.
    pub in_transaction_us: f64,
    /// Sum over clients: between transactions.
    pub between_us: f64,
    /// Sum over clients: asleep as the script asks, or waiting for their schedule.
    pub asleep_us: f64,
    /// Sum over clients, in the window: a reply had been reported, and the generator's thread was on a
    /// processor for other clients before it read this one. `None` where it was not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_us: Option<f64>,
    /// Sum over clients, in the window: the generator's thread waited for a processor while a client
    /// of it had something to be read. A client counts with what its thread waited between its
    /// request and the reading of its reply, as far back as the last time that the thread asked for
    /// arrivals: all of it was lost to a client whose reply was there before, so this is an upper
    /// bound. `None` where it was not kept. Not to be confused with `run_queue_us`, which is the
    /// threads' own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_run_queue_us: Option<f64>,
    /// Whether a generator thread was so busy that it, not the server, set the pace.
    pub client_limited: bool,
}

impl ClientTotals {
    /// The clients' time, all of it.
    pub fn whole_us(&self) -> f64 {
        self.in_transaction_us + self.between_us + self.asleep_us
    }
}

/// A latency histogram in `HdrHistogram`'s V2 encoding; values are nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Latency {
    /// Base64 of the V2 encoding, uncompressed, values in nanoseconds.
    pub hdr_v2_ns: String,
}

impl Latency {
    /// Keeps a histogram of nanoseconds.
    ///
    /// # Panics
    /// Never: a histogram of `u64` always encodes, and memory takes it.
    pub fn from_histogram(histogram: &Histogram<u64>) -> Self {
        let mut bytes = Vec::new();
        V2Serializer::new()
            .serialize(histogram, &mut bytes)
            .expect("writing to memory does not fail and histograms of u64 always encode");
        Self {
            hdr_v2_ns: BASE64.encode(bytes),
        }
    }

    /// The histogram back.
    ///
    /// # Errors
    /// Text that is not such an encoding, as from a damaged file.
    pub fn histogram(&self) -> Result<Histogram<u64>, LatencyError> {
        let bytes = BASE64.decode(&self.hdr_v2_ns).map_err(|_| LatencyError)?;
        Deserializer::new()
            .deserialize(&mut bytes.as_slice())
            .map_err(|_| LatencyError)
    }
}

/// A latency histogram that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a latency histogram in this result is damaged (not base64 of HdrHistogram V2)")]
pub struct LatencyError;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A timed trial of a second in which a hundred transactions ended.
    pub(crate) fn trial() -> Trial {
        Trial {
            block: 0,
            boot: 0,
            condition: 0,
            variant: 0,
            position: 0,
            kind: TrialKind::Timed,
            started_us: 0,
            window_us: 1e6,
            transactions: 100,
            credited_transactions: None,
            transactions_total: 100,
            latency: Latency {
                hdr_v2_ns: String::new(),
            },
            server: Some(CpuTotals::default()),
            client: ClientTotals::default(),
            steal: 0.0,
            foreign: 0.0,
            unaccounted: None,
            busy: 0.0,
            background: Vec::new(),
            waits: None,
            second: None,
            counters: BTreeMap::new(),
        }
    }

    #[test]
    fn a_histogram_survives_being_kept() {
        let mut histogram = Histogram::<u64>::new(3).unwrap();
        for value in [1_000, 25_000, 9_000_000] {
            histogram.record(value).unwrap();
        }
        let kept = Latency::from_histogram(&histogram);
        assert_eq!(kept.histogram().unwrap(), histogram);
    }

    #[test]
    fn a_rate_follows_the_credit_and_without_one_the_count() {
        let mut trial = trial();
        assert_eq!((trial.credited(), trial.tps()), (100.0, 100.0));
        trial.credited_transactions = Some(100.25);
        assert_eq!((trial.credited(), trial.tps()), (100.25, 100.25));
    }

    #[test]
    fn damage_is_an_error() {
        assert!(
            Latency {
                hdr_v2_ns: "AAAA".to_owned()
            }
            .histogram()
            .is_err()
        );
    }
}
