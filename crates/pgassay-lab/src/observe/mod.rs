//! What observes the trials: statistics, exact CPU totals, stacks, waits, hardware counters, memory.

mod backend_memory;
mod hardware_counters;
mod probe_watch;
mod probes;
mod profiles;
mod statistics;
mod totals;
mod transactions;
pub mod waits;

pub use backend_memory::{BackendMemoryPeaks, MEMORY_BLOCKS_MAX};
pub use hardware_counters::HardwareCounters;
pub use probes::Probes;
pub use profiles::{ProfiledTrial, Profiles, add_blocked, add_samples_by_column};
pub use statistics::Statistics;
pub use transactions::TransactionRecorder;

use anyhow::Result;
use pgassay_load::Measurement;
use pgassay_model::plan::Point;
use pgassay_model::trial::Trial;

use crate::load::Clients;
use crate::raw_results::RawResults;
use crate::trial_slot::TrialSlot;

/// A trial that is about to start.
#[derive(Clone, Copy)]
pub struct WatchedTrial<'a> {
    /// Its position in the run.
    pub slot: TrialSlot,
    /// The point that it measures.
    pub point: &'a Point,
    /// The local processes that serve its clients. Empty if they run elsewhere, or if each serves only
    /// one transaction: then only the CPU time of exited children is known.
    pub backend_pids: &'a [u32],
    /// Local processes of all servers, these included; their descendants also belong to the servers.
    pub server_pids: &'a [u32],
}

/// What an observer does in a trial.
pub enum WatchDecision<'a> {
    /// It does not observe this trial.
    Nothing,
    /// It observes the trial until the watch is finished or dropped.
    Watch(Box<dyn TrialWatch + 'a>),
    /// The trial exists for this observer only, and it cannot observe it: skip the trial.
    Impossible,
}

/// Observes trials between two server starts.
pub trait TrialObserver {
    /// Whether there are hardware counters, so that their trials are worth running.
    fn offers_hardware_counters(&self) -> bool {
        false
    }

    /// The trials of a condition begin, on new connections.
    fn round_begins(&self) {}

    /// Starts to observe a trial. `pools` are the connected clients by variant.
    fn watch<'w>(
        &'w self,
        trial: &WatchedTrial<'_>,
        pools: &mut [Box<dyn Clients>],
    ) -> Result<WatchDecision<'w>>;
}

/// The observation of one trial. Dropping it ends the observation without a result, which happens if the
/// trial fails.
pub trait TrialWatch {
    /// Ends the observation and adds its result to the trial, or to what adds up over trials.
    fn finish(
        self: Box<Self>,
        clients: &mut dyn Clients,
        measured: &Measurement,
        trial: &mut Trial,
        results: &mut RawResults,
    ) -> Result<()>;
}
