//! What part of a run's time was measured.

use pgassay_model::trial::TrialKind;
use pgassay_record::run::Run;

use crate::number;

/// A run's time, without setup, and what of it was measured: inside the windows of its trials. Verdicts are those of
/// timed trials alone.
pub(crate) fn time_measured(run: &Run) -> String {
    let elapsed_us = run.elapsed_us();
    let in_windows = |is_of: fn(TrialKind) -> bool| -> f64 {
        let trials = run.trials.iter().filter(|it| is_of(it.kind));
        trials.map(|it| it.window_us).sum()
    };
    let measured_us = in_windows(|_| true);
    if elapsed_us <= 0.0 || measured_us <= 0.0 {
        return String::new();
    }
    let share = |us: f64| format!("{} ({:.0}%)", number::duration(us), 100.0 * us / elapsed_us);
    let timed_us = in_windows(|kind| kind == TrialKind::Timed);
    let timed = if timed_us < measured_us {
        format!(", {} in timed trials", share(timed_us))
    } else {
        String::new()
    };
    format!(
        "; {} in total, {} of it measuring{timed}",
        number::duration(elapsed_us),
        share(measured_us)
    )
}
