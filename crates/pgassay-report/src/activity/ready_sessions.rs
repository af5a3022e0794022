//! Sessions that had work and waited for a CPU while PostgreSQL reported them as idle.

use pgassay_record::activity::Activity;
use pgassay_record::observation::Observation;

use super::blind_spots::unseen_sessions;
use super::figures::load;

/// The sessions by the kernel's times exceed the load by this factor and by this number of sessions, or it is not
/// worth a sentence.
const FACTOR_MIN: f64 = 1.25;
const SESSIONS_MIN: f64 = 0.1;
/// The run queue has this share of the difference. The rest is the CPU time that an idle session takes to receive a
/// statement.
const QUEUED_MIN: f64 = 0.5;

/// That more sessions ran or were ready to run than the load contains: a backend changes its status only when it
/// runs. `None` if the kernel's times are unknown or agree with the load, or if statuses of sessions are.
pub(crate) fn ready_but_idle(observation: &Observation) -> Option<String> {
    let activity: &Activity = observation.activity.as_ref()?;
    let exact = observation.backends?;
    let sessions = |us: f64| us / observation.window_us.max(f64::MIN_POSITIVE);
    let queued = sessions(exact.run_queue_us);
    let running = sessions(exact.on_cpu_us) + queued;
    let active = activity.active_sessions();
    let idle = running - active;
    let is_much = running >= FACTOR_MIN * active && idle >= SESSIONS_MIN;
    let is_queue = queued >= QUEUED_MIN * idle;
    (is_much && is_queue && unseen_sessions(activity).is_empty()).then(|| {
        format!(
            "By the kernel's times, {} sessions were running on or waiting for a CPU on average. {} of them are not part \
             of this load: PostgreSQL reports a session that was sent a statement as idle, or idle in a transaction, \
             until it gets a CPU.",
            load(running),
            load(idle)
        )
    })
}
