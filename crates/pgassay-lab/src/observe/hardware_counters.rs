//! Counts instructions and cycles in trials of their own: counting changes what a profile shows.

use std::collections::BTreeMap;

use anyhow::Result;
use pgassay_load::Measurement;
use pgassay_model::trial::{Trial, TrialKind};
use pgassay_profile::{CountedEvent, EventCounter};

use super::{TrialObserver, TrialWatch, WatchDecision, WatchedTrial};
use crate::load::Clients;
use crate::raw_results::RawResults;

/// The processor's hardware counters. `doctor` and the checks of every result report whether there are any.
pub struct HardwareCounters {
    are_there: bool,
}

impl HardwareCounters {
    /// Tries them on this process.
    pub fn probe() -> Self {
        let own = [std::process::id()];
        Self {
            are_there: EventCounter::open(&CountedEvent::HARDWARE, &own).is_ok(),
        }
    }
}

impl TrialObserver for HardwareCounters {
    fn offers_hardware_counters(&self) -> bool {
        self.are_there
    }

    fn watch<'w>(
        &'w self,
        trial: &WatchedTrial<'_>,
        pools: &mut [Box<dyn Clients>],
    ) -> Result<WatchDecision<'w>> {
        if trial.slot.kind != TrialKind::HardwareCounters {
            return Ok(WatchDecision::Nothing);
        }
        let clients = &pools[trial.point.variant];
        if !clients.are_of_postgres() || trial.backend_pids.is_empty() {
            return Ok(WatchDecision::Impossible);
        }
        let opened = EventCounter::open(&CountedEvent::HARDWARE, &clients.server_pids());
        Ok(match opened {
            Ok(events) => WatchDecision::Watch(Box::new(HardwareWatch(events))),
            Err(_) => WatchDecision::Impossible,
        })
    }
}

struct HardwareWatch(EventCounter);

impl TrialWatch for HardwareWatch {
    fn finish(
        self: Box<Self>,
        _: &mut dyn Clients,
        _: &Measurement,
        trial: &mut Trial,
        _: &mut RawResults,
    ) -> Result<()> {
        // The kernel may take the counters away for its own use; then the trial has none.
        let executed = self.0.read().unwrap_or_default().into_iter();
        let named = executed.map(|(event, sum)| (event.name().to_owned(), sum));
        let named: BTreeMap<String, f64> = named.collect();
        trial.counters = named.into();
        Ok(())
    }
}
