//! Why sampled waits are longer than those of the ledger on a machine with saturated CPUs.

use pgassay_account::ledger::Part;
use pgassay_record::activity::{Activity, LoadCell, SessionStatus};
use pgassay_record::observation::Observation;

use super::wait_class::WaitClass;

/// Waits that differ by less than this share of the load need no explanation.
const DIFFERENCE_MIN: f64 = 0.05;

/// That sampled waits contain time in the run queue; `None` if they agree with the ledger, or if the run queue
/// does not explain the difference.
pub(crate) fn waits_in_run_queue(observation: &Observation, activity: &Activity) -> Option<String> {
    let sessions = |us: f64| us / observation.window_us.max(f64::MIN_POSITIVE);
    let queued = sessions(observation.backends?.run_queue_us);
    let rows = observation.blocked();
    if rows.is_empty() {
        return None;
    }
    let blocked = rows.iter().filter(|row| row.part == Part::Blocked);
    let blocked = sessions(blocked.map(|row| row.blocked_us).sum());
    let is_wait = |cell: &LoadCell| {
        let wait = activity.waits.get(cell.wait as usize);
        let class = WaitClass::of(wait.map_or("", |it| &it.kind));
        cell.state == SessionStatus::Active && !matches!(class, WaitClass::Cpu | WaitClass::Client)
    };
    let excess = activity.load_of(is_wait) - blocked;
    let is_much = excess >= DIFFERENCE_MIN * activity.active_sessions();
    (excess > 0.0 && is_much && queued >= excess / 2.0).then(|| {
        "A session still shows its wait event while it waits for a CPU to continue. That time is part of these \
         waits; in the ledger, it is in the run queue."
            .to_owned()
    })
}
