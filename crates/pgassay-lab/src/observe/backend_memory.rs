//! Reads the memory of the backends after the last trial of a variant in each round of the first blocks.
//!
//! A peak holds since the backend connected, so one reading covers all trials of the round. It is the first
//! observer and therefore the last to finish: nothing else is measured while it reads.
//!
//! In the first block, a backend is also asked for its memory contexts, with `pg_backend_memory_contexts`, which
//! shows those of the session itself only. Executor memory is released by then; plans and caches are not.

use anyhow::Result;
use pgassay_load::{Measurement, TextRow};
use pgassay_model::study::DriverKind;
use pgassay_model::trial::{BackendMemory, MemoryContext, Trial, TrialKind};
use pgassay_profile::peak_pss_bytes;

use super::{TrialObserver, TrialWatch, WatchDecision, WatchedTrial};
use crate::host::{Host, Servers};
use crate::load::Clients;
use crate::major_version::major_of;
use crate::raw_results::RawResults;

/// Peaks hardly differ between blocks, and reading one takes up to a millisecond.
pub const MEMORY_BLOCKS_MAX: u32 = 4;

/// The first version with `pg_backend_memory_contexts`.
const CONTEXTS_SINCE: u32 = 14;
/// Names that are stored; those after them hold little.
const CONTEXTS: &str = "select name, sum(total_bytes)::bigint, count(*) \
    from pg_catalog.pg_backend_memory_contexts group by 1 order by 2 desc, 1 limit 12";

/// The memory of the backends on this machine.
#[derive(Debug, Clone)]
pub struct BackendMemoryPeaks {
    /// Which of the plan's servers show their backends' memory contexts to pgassay.
    shows_contexts: Vec<bool>,
}

struct MemoryWatch {
    pids: Vec<u32>,
    reads_contexts: bool,
}

impl BackendMemoryPeaks {
    /// Observes backends of these servers. The view is readable by superusers only, so external servers are not
    /// asked.
    pub fn new(servers: &Servers) -> Self {
        let shows = |host: &dyn Host| {
            let major = major_of(&host.facts().version);
            let major = major.parse::<u32>();
            !host.is_external() && major.is_ok_and(|it| it >= CONTEXTS_SINCE)
        };
        Self {
            shows_contexts: servers.iter().map(shows).collect(),
        }
    }
}

impl TrialObserver for BackendMemoryPeaks {
    fn watch<'w>(
        &'w self,
        trial: &WatchedTrial<'_>,
        _: &mut [Box<dyn Clients>],
    ) -> Result<WatchDecision<'w>> {
        let is_read = trial.slot.is_last_of_variant
            && trial.slot.block < MEMORY_BLOCKS_MAX
            && trial.slot.kind != TrialKind::HardwareCounters
            && trial.point.driver == DriverKind::Postgres
            && !trial.backend_pids.is_empty();
        if !is_read {
            return Ok(WatchDecision::Nothing);
        }
        Ok(WatchDecision::Watch(Box::new(MemoryWatch {
            pids: trial.backend_pids.to_vec(),
            reads_contexts: trial.slot.block == 0 && self.shows_contexts[trial.point.server],
        })))
    }
}

impl TrialWatch for MemoryWatch {
    fn finish(
        self: Box<Self>,
        clients: &mut dyn Clients,
        _: &Measurement,
        trial: &mut Trial,
        _: &mut RawResults,
    ) -> Result<()> {
        // Another user's memory is not readable; a warning of the run says so.
        let peaks = self.pids.iter().filter_map(|&pid| peak_pss_bytes(pid).ok());
        let peaks: Vec<u64> = peaks.collect();
        let Some(&peak_bytes) = peaks.iter().max() else {
            return Ok(());
        };
        let mut contexts = Vec::new();
        if self.reads_contexts {
            let rows = clients.query_first(CONTEXTS)?;
            contexts = rows.iter().filter_map(context).collect();
        }
        trial.backend_memory = Some(BackendMemory {
            peak_bytes,
            backends: peaks.len() as u32,
            contexts,
        });
        Ok(())
    }
}

fn context(row: &TextRow) -> Option<MemoryContext> {
    let [name, bytes, contexts] = row.as_slice() else {
        return None;
    };
    Some(MemoryContext {
        name: name.clone()?,
        bytes: bytes.as_ref()?.parse().ok()?,
        contexts: contexts.as_ref()?.parse().ok()?,
    })
}
