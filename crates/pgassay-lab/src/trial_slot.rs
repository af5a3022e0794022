//! The position of a trial in a run.

use pgassay_load::Timing;
use pgassay_model::plan::{PointId, Round};
use pgassay_model::trial::TrialKind;

/// The position of a trial in a run.
#[derive(Debug, Clone, Copy)]
pub struct TrialSlot {
    /// Number of the block, from 0.
    pub block: u32,
    /// Number of the server start, from 0.
    pub server_start: u32,
    /// The point that it measures.
    pub point: PointId,
    /// Position within its round, from 0.
    pub position: u32,
    /// How often its round runs the timed trials in mirrored order, if less often than planned.
    pub repeats: Option<u32>,
    /// Whether it is timed, profiled, or for hardware counters.
    pub kind: TrialKind,
    /// Whether no trial of its variant follows in its round, apart from those for hardware counters.
    pub is_last_of_variant: bool,
    /// Its duration, and when its clients start.
    pub window: Timing,
}

impl TrialSlot {
    /// The seed for the clients' start times, different for each trial of a run.
    pub fn seed(&self, of_run: u64) -> u64 {
        let condition = self.point.condition as u64;
        let place = (u64::from(self.block) << 40) ^ (condition << 20) ^ u64::from(self.position);
        of_run ^ place.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// The trials of a round in order, each as its kind and variant; those for hardware counters, which come
/// last, only if there are any.
pub fn planned_trials(round: &Round, has_hardware_counters: bool) -> Vec<(TrialKind, usize)> {
    let of = |kind, variants: &[usize]| {
        let variants = variants.iter().map(move |&variant| (kind, variant));
        variants.collect::<Vec<_>>()
    };
    let mut trials = of(TrialKind::Timed, &round.timed);
    trials.extend(of(TrialKind::Profiled, &round.profiled));
    if has_hardware_counters {
        trials.extend(of(TrialKind::HardwareCounters, &round.hardware_counters));
    }
    trials
}
