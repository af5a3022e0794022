//! A profile of a live server over one window, without trials and verdicts.
//!
//! Identities: `cpu_us_per_sample × profile.total() = backends.on_cpu_us` (samples only divide the
//! exact total). The rows of [`Observation::subsystems`], those of [`Observation::phases`] and the self
//! times of [`Observation::functions`] each add up to it. The rows of [`Observation::blocked`] are rows
//! of [`Observation::ledger`] and add up to [`Observation::blocked_us`].
//!
//! Invariant: data that is not available is `None` or listed in `limitation`; it is never estimated.

mod ledger;
mod rows;
mod waits;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use rows::CpuRow;
pub use waits::WaitRow;

use pgassay_model::check::Check;
use pgassay_model::cpu::{Background, CpuTotals};
use pgassay_model::profile::Profile;
use pgassay_model::waits::Waits;

use crate::finding::Finding;

/// The value of [`Observation::schema`] that this version writes.
pub const SCHEMA: &str = "pgassay.observation/2";

/// A profile of a live server over one window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Observation {
    /// Name and version of this format.
    pub schema: String,
    /// Version of pgassay.
    pub pgassay_version: String,
    /// Start time, in microseconds since 1970.
    pub started_us: i64,
    /// Length of the window.
    pub window_us: f64,
    /// Samples per second of each busy CPU.
    pub frequency_hz: u32,
    /// The profiled server or backend.
    pub subject: Subject,
    /// Transactions that ended in the window, committed or not, in all databases; `None` without a
    /// connection, or if only one of several backends is profiled.
    pub transactions: Option<u64>,
    /// Exact totals of the profiled backends and of their parallel workers; `None` if the server's
    /// processes are not visible from this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backends: Option<CpuTotals>,
    /// Number of profiled backends.
    #[serde(default)]
    pub sessions: u32,
    /// Sum of the time that each of these processes existed in the window.
    pub backends_present_us: f64,
    /// CPU time that processes of the server used between their last reading and their end, which no other total
    /// contains; `None` if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_cpu_us: Option<f64>,
    /// Background processes.
    pub background: Vec<Background>,
    /// The backends' CPU stacks; `None` if they could not be sampled.
    pub profile: Option<Profile>,
    /// Wait events of the backends; `None` if they could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<Waits>,
    /// Statements, sessions, blockers, tables and time; `None` if only mechanisms were observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activity: Option<crate::activity::Activity>,
    /// The tier of data available for this server, and how to get the next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<Check>,
    /// Limitations of this profile.
    pub limitations: Vec<Check>,
    /// Findings, strongest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
}

/// The profiled server or backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Subject {
    /// The postmaster; `None` if it is not visible from this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub postmaster_pid: Option<u32>,
    /// Address of a server that is not on this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The profiled backend; `None` if all were profiled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend_pid: Option<u32>,
    /// The server's major version, such as `18` or `9.6`; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub major: Option<String>,
}

/// The divisor of displayed times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TimeDivisor {
    /// Transactions in the window.
    Transactions(u64),
    /// The window's length in seconds, if transactions could not be counted.
    Seconds(f64),
}

impl TimeDivisor {
    /// The unit of a time on this basis.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Transactions(_) => "µs/tx",
            Self::Seconds(_) => "µs/s",
        }
    }

    /// Converts a time over the whole window to this basis.
    pub fn of(self, whole_us: f64) -> f64 {
        match self {
            Self::Transactions(count) => whole_us / count as f64,
            Self::Seconds(seconds) => whole_us / seconds,
        }
    }
}

impl Observation {
    /// Per transaction if any were counted, else per second.
    pub fn basis(&self) -> TimeDivisor {
        match self.transactions {
            Some(count) if count > 0 => TimeDivisor::Transactions(count),
            _ => TimeDivisor::Seconds((self.window_us / 1e6).max(f64::MIN_POSITIVE)),
        }
    }

    /// The stacks, if they contain a sample.
    pub fn sampled(&self) -> Option<&Profile> {
        self.profile.as_ref().filter(|profile| profile.total() > 0)
    }

    /// Whether CPU totals, stacks or wait events were observed, and not only activity.
    pub fn has_mechanisms(&self) -> bool {
        self.backends.is_some() || self.waits.is_some() || self.profile.is_some()
    }

    /// The exact CPU time of the backends; 0 if unknown.
    pub fn on_cpu_us(&self) -> f64 {
        self.backends.map_or(0.0, |it| it.on_cpu_us)
    }

    /// The exact CPU time that each sample stands for; 0 without samples.
    pub fn cpu_us_per_sample(&self) -> f64 {
        self.sampled()
            .map_or(0.0, |profile| self.on_cpu_us() / profile.total() as f64)
    }

    /// The stacks of blocked backends (see [`Profile::off_cpu`]), if they contain any time.
    pub fn seen_blocked(&self) -> Option<Profile> {
        let blocked = self.profile.as_ref().map(Profile::off_cpu);
        blocked.filter(|profile| profile.total() > 0)
    }

    /// CPU time that processes of the server which have ended used after their last readings: nearly all are backends,
    /// some are of autovacuum. The times in which they were present
    /// include it on average, the exact totals do not. 0 if it is unknown, and for a single backend, since the
    /// processes of other sessions end, too.
    pub fn ended_us(&self) -> f64 {
        match (&self.backends, self.subject.backend_pid) {
            (Some(exact), None) => self.ended_cpu_us.unwrap_or(0.0).min(self.unused_us(exact)),
            _ => 0.0,
        }
    }

    fn unused_us(&self, exact: &CpuTotals) -> f64 {
        let used_us = exact.on_cpu_us + exact.run_queue_us;
        (self.backends_present_us - used_us).max(0.0)
    }

    /// The time in which the backends were neither on CPU nor in the run queue. Without exact totals, it
    /// is the share of samples that found a wait, applied to the backends' time.
    pub fn blocked_us(&self) -> f64 {
        match (&self.backends, &self.waits) {
            (Some(exact), _) => self.unused_us(exact) - self.ended_us(),
            (None, Some(waits)) => {
                let share = waits.blocked_samples as f64 / waits.samples().max(1) as f64;
                self.backends_present_us * share
            }
            (None, None) => 0.0,
        }
    }
}
