//! Why backends were blocked: samples that divide the exact blocked time, and nothing else.
//!
//! A sampler in user space under-reports running and waiting to run, by half on a full machine
//! (PostgreSQL 15, 2 CPUs, 16 clients: 18 % of its samples, where the kernel counts 32 % of the
//! time). So how often backends were found runnable is kept, but no time is computed from it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Observation;
use crate::ledger::Divider;

/// Where waits were looked up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaitSource {
    /// The backends' memory, which costs the server nothing.
    #[default]
    Memory,
    /// The server's own view, over a connection: where its memory may not be read. Its answers take
    /// long enough for a backend to go on, and tell nothing of a wait without a name that is shorter.
    PgStatActivity,
}

impl From<WaitSource> for Divider {
    fn from(source: WaitSource) -> Self {
        match source {
            WaitSource::Memory => Self::WaitEvents,
            WaitSource::PgStatActivity => Self::AskedWaitEvents,
        }
    }
}

/// What the backends were seen to wait for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Waits {
    /// Where it was looked up.
    #[serde(default)]
    pub source: WaitSource,
    /// Looks that found a backend blocked; the events' samples add up to it.
    pub blocked_samples: u64,
    /// Looks that found one on a CPU or waiting for one. No share of time: see the module.
    pub runnable_samples: u64,
    /// Looks at processes that could not be read, or of which the server told us nothing.
    pub unreadable: u64,
    /// CPU time that looking took, the server's included where it was asked and may be seen.
    pub sampling_cpu_us: f64,
    /// The waits.
    pub events: Vec<WaitCount>,
}

impl Waits {
    /// Looks that told something of a backend.
    pub fn looks(&self) -> u64 {
        self.blocked_samples + self.runnable_samples
    }
}

/// How often a wait was met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WaitCount {
    /// `wait_event_type` as `pg_stat_activity` shows it; empty if no reason was told.
    pub kind: String,
    /// `wait_event`, likewise.
    pub name: String,
    /// Looks that met it.
    pub samples: u64,
}

/// A reason's part of the blocked time over the whole window.
#[derive(Debug, Clone, PartialEq)]
pub struct WaitRow {
    /// `wait_event_type`; empty if no reason was told.
    pub kind: String,
    /// `wait_event`, likewise.
    pub name: String,
    /// Its part.
    pub blocked_us: f64,
}

impl Observation {
    /// The blocked time by its reasons, the longest first; empty without samples.
    pub fn blocked(&self) -> Vec<WaitRow> {
        let Some(waits) = self.waits.as_ref().filter(|it| it.blocked_samples > 0) else {
            return Vec::new();
        };
        let us_per_sample = self.blocked_us() / waits.blocked_samples as f64;
        let mut rows: Vec<WaitRow> = waits
            .events
            .iter()
            .map(|event| WaitRow {
                kind: event.kind.clone(),
                name: event.name.clone(),
                blocked_us: event.samples as f64 * us_per_sample,
            })
            .collect();
        rows.sort_by(|a, b| b.blocked_us.total_cmp(&a.blocked_us));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::tests::observation;
    use super::*;

    #[test]
    fn samples_divide_the_blocked_time_and_no_other() {
        let mut observation = observation();
        let exact_us = observation.blocked_us();
        for runnable_samples in [0, 1_000_000] {
            let event = |name: &str, samples| WaitCount {
                kind: "Lock".to_owned(),
                name: name.to_owned(),
                samples,
            };
            observation.waits = Some(Waits {
                blocked_samples: 4,
                runnable_samples,
                events: vec![event("tuple", 1), event("transactionid", 3)],
                ..Waits::default()
            });
            let rows = observation.blocked();
            assert_eq!(rows[0].name, "transactionid");
            assert!((rows[0].blocked_us - exact_us * 0.75).abs() < 1e-6);
            let sum: f64 = rows.iter().map(|row| row.blocked_us).sum();
            assert!(
                (sum - exact_us).abs() < 1e-6,
                "however often they were runnable"
            );
        }
        observation.waits = Some(Waits::default());
        assert!(observation.blocked().is_empty());
    }
}
