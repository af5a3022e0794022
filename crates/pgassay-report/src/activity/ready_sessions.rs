//! Sessions that used or wanted a CPU while PostgreSQL reported them as idle.

use pgassay_record::observation::Observation;

use super::blind_spots::unseen_sessions;
use super::figures::load;

/// The sessions by the kernel's times exceed the load by this factor and by this number of sessions, or it is not
/// worth a sentence.
const FACTOR_MIN: f64 = 1.25;
const SESSIONS_MIN: f64 = 0.1;

/// That more sessions ran or were ready to run than the load contains: a backend changes its status only when it
/// runs, and only once it has read its statement. `None` if the kernel's times are unknown or agree with the load, or
/// if statuses of sessions are unknown.
pub(crate) fn ready_but_idle(observation: &Observation) -> Option<String> {
    let activity = observation.activity.as_ref()?;
    let exact = observation.backends?;
    let running =
        (exact.on_cpu_us + exact.run_queue_us) / observation.window_us.max(f64::MIN_POSITIVE);
    let active = activity.active_sessions();
    let idle = running - active;
    let is_much = running >= FACTOR_MIN * active && idle >= SESSIONS_MIN;
    (is_much && unseen_sessions(activity).is_empty()).then(|| {
        format!(
            "By the kernel's times, {} sessions were running on or waiting for a CPU on average. {} of them are not part \
             of this load: PostgreSQL reports a session as idle, or idle in a transaction, until it has got a CPU and \
             read its next statement.",
            load(running),
            load(idle)
        )
    })
}
