//! Reads the memory of the backends after the last trial of a variant in each round of the first blocks.
//!
//! A peak holds since the backend connected, so one reading covers all trials of the round. It is the first
//! observer and therefore the last to finish: nothing else is measured while it reads.

use anyhow::Result;
use pgassay_load::Measurement;
use pgassay_model::study::DriverKind;
use pgassay_model::trial::{BackendMemory, Trial, TrialKind};
use pgassay_profile::peak_pss_bytes;

use super::{TrialObserver, TrialWatch, WatchDecision, WatchedTrial};
use crate::load::Clients;
use crate::raw_results::RawResults;

/// Peaks hardly differ between blocks, and reading one takes up to a millisecond.
const BLOCKS_MAX: u32 = 4;

/// The memory of the backends on this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct BackendMemoryPeaks;

struct MemoryWatch {
    pids: Vec<u32>,
}

impl TrialObserver for BackendMemoryPeaks {
    fn watch<'w>(
        &'w self,
        trial: &WatchedTrial<'_>,
        _: &mut [Box<dyn Clients>],
    ) -> Result<WatchDecision<'w>> {
        let is_read = trial.slot.is_last_of_variant
            && trial.slot.block < BLOCKS_MAX
            && trial.slot.kind != TrialKind::HardwareCounters
            && trial.point.driver == DriverKind::Postgres
            && !trial.backend_pids.is_empty();
        if !is_read {
            return Ok(WatchDecision::Nothing);
        }
        Ok(WatchDecision::Watch(Box::new(MemoryWatch {
            pids: trial.backend_pids.to_vec(),
        })))
    }
}

impl TrialWatch for MemoryWatch {
    fn finish(
        self: Box<Self>,
        _: &mut dyn Clients,
        _: &Measurement,
        trial: &mut Trial,
        _: &mut RawResults,
    ) -> Result<()> {
        // Another user's memory is not readable; a warning of the run says so.
        let peaks = self.pids.iter().filter_map(|&pid| peak_pss_bytes(pid).ok());
        let peaks: Vec<u64> = peaks.collect();
        trial.backend_memory = peaks.iter().max().map(|&peak_bytes| BackendMemory {
            peak_bytes,
            backends: peaks.len() as u32,
        });
        Ok(())
    }
}
