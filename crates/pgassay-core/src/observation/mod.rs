//! What was seen of a server that somebody else runs: one look, without trials and verdicts.
//!
//! Identities: `cpu_us_per_sample × profile.total() = backends.on_cpu_us` (samples only divide the
//! exact total), and the rows of [`Observation::subsystems`] add up to it, as do those of
//! [`Observation::phases`] and the own parts of [`Observation::functions`].
//! The rows of [`Observation::blocked`] are rows of [`Observation::ledger`], and add up to
//! [`Observation::blocked_us`].
//!
//! Invariant: what could not be seen is `None` or stands in `limits`; nothing is estimated for it.

mod ledger;
mod rows;
mod waits;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use rows::Row;
pub use waits::{WaitCount, WaitRow, WaitSource, Waits};

use crate::finding::Finding;
use crate::profile::Profile;
use crate::run::Check;
use crate::trial::CpuTotals;

/// The value of [`Observation::schema`] that this version writes.
pub const SCHEMA: &str = "pgassay.observation/1";

/// One look at a live server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Observation {
    /// Name and version of this form.
    pub schema: String,
    /// Version of pgassay.
    pub pgassay: String,
    /// When it began, microseconds since 1970.
    pub started_us: i64,
    /// How long it was watched.
    pub window_us: f64,
    /// Samples a second of each CPU that was busy.
    pub frequency_hz: u32,
    /// What was watched.
    pub subject: Subject,
    /// Transactions that ended in the window, committed or not, of all databases; `None` where
    /// nobody could be asked, and where one backend of several is watched.
    pub transactions: Option<u64>,
    /// The exact totals of the backends that were watched, and of the parallel workers that worked
    /// for them; `None` of a server whose processes are not to be seen from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backends: Option<CpuTotals>,
    /// How many of them there were.
    #[serde(default)]
    pub sessions: u32,
    /// How long those processes were there, summed.
    pub backends_present_us: f64,
    /// The server's other processes.
    pub background: Vec<Background>,
    /// The backends' CPU stacks; `None` where they could not be sampled.
    pub profile: Option<Profile>,
    /// What the backends were seen to wait for; `None` where it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<Waits>,
    /// How deep we could look into this server, and what grants the next tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<Check>,
    /// What keeps this from being the whole truth.
    pub limits: Vec<Check>,
    /// Known causes of lost time that were seen, the strongest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
}

/// What was watched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Subject {
    /// The server's first process; `None` where it is not to be seen from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub postmaster_pid: Option<u32>,
    /// Where the server was reached that is not to be seen from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// The one backend that was watched; `None` if all were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend_pid: Option<u32>,
    /// The server's major version, as `18` or `9.6`; `None` if nothing told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub major: Option<String>,
}

/// What one kind of process used that serves no client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Background {
    /// What the processes are for, as `checkpointer`.
    pub role: String,
    /// Their exact totals.
    pub cpu: CpuTotals,
}

/// What a time is divided by before it is shown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Basis {
    /// Transactions in the window.
    Transactions(u64),
    /// The window's length in seconds, where transactions could not be counted.
    Seconds(f64),
}

impl Basis {
    /// How the unit of a time on this basis is written.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Transactions(_) => "µs/tx",
            Self::Seconds(_) => "µs/s",
        }
    }

    /// A time of the whole window on this basis.
    pub fn of(self, whole_us: f64) -> f64 {
        match self {
            Self::Transactions(count) => whole_us / count as f64,
            Self::Seconds(seconds) => whole_us / seconds,
        }
    }
}

impl Observation {
    /// Per transaction where there were any to count, else per second.
    pub fn basis(&self) -> Basis {
        match self.transactions {
            Some(count) if count > 0 => Basis::Transactions(count),
            _ => Basis::Seconds((self.window_us / 1e6).max(f64::MIN_POSITIVE)),
        }
    }

    /// The stacks, if there is a sample among them.
    pub fn sampled(&self) -> Option<&Profile> {
        self.profile.as_ref().filter(|profile| profile.total() > 0)
    }

    /// The exact CPU time of the backends; 0 where nothing tells it.
    pub fn on_cpu_us(&self) -> f64 {
        self.backends.map_or(0.0, |it| it.on_cpu_us)
    }

    /// The exact CPU time that each sample stands for; 0 without samples.
    pub fn cpu_us_per_sample(&self) -> f64 {
        self.sampled()
            .map_or(0.0, |profile| self.on_cpu_us() / profile.total() as f64)
    }

    /// The stacks of what was blocked (see [`Profile::off_cpu`]), if there is any time among them.
    pub fn seen_blocked(&self) -> Option<Profile> {
        let blocked = self.profile.as_ref().map(Profile::off_cpu);
        blocked.filter(|profile| profile.total() > 0)
    }

    /// The time that the backends neither had a CPU nor waited for one. Where nothing tells their
    /// totals it is as much of their time as of the looks at them that met a wait.
    pub fn blocked_us(&self) -> f64 {
        match (&self.backends, &self.waits) {
            (Some(exact), _) => {
                let used_us = exact.on_cpu_us + exact.run_queue_us;
                (self.backends_present_us - used_us).max(0.0)
            }
            (None, Some(waits)) => {
                let share = waits.blocked_samples as f64 / waits.looks().max(1) as f64;
                self.backends_present_us * share
            }
            (None, None) => 0.0,
        }
    }
}
