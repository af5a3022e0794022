//! Loads that stall for longer than a window, so that their windows miss most of it.
//!
//! A trial begins with idle clients, and ends when their transactions have ended. A transaction that takes longer than
//! the window therefore has at most one window's length of its time inside, and the rate of the windows is too high.
//! The rate of whole trials is not: it divides all transactions by all of the time. Both are about the same without
//! stalls; that of whole trials is a little lower, because clients wait for the last one to end.

use pgassay_model::trial::{Trial, TrialKind};
use pgassay_record::run::Run;

/// A rate of whole trials below this share of that in the windows is mentioned. Slow transactions of many clients
/// alone lower it to about two thirds.
const SHARE_NOTICEABLE: f64 = 0.5;
/// Points that are named.
const SHOWN_MAX: usize = 6;

/// The points whose windows miss most of the time of long transactions, as a sentence.
pub(crate) fn sentence(run: &Run) -> Option<String> {
    let named = run.plan.points.iter().filter_map(|it| {
        let share = share_of_windows(&run.trials, it.condition, it.variant)?;
        let title = run.plan.conditions[it.condition].title();
        let variant = &run.plan.variants[it.variant];
        let words = format!("{:.0}% for {variant} ({title})", 100.0 * share);
        (share < SHARE_NOTICEABLE).then_some(words)
    });
    let words: Vec<String> = named.take(SHOWN_MAX).collect();
    (!words.is_empty()).then(|| {
        format!(
            "some transactions take longer than a trial's window, and most of their time is outside it. Over whole \
             trials, throughput is only this share of that in the windows: {}. Ratios and verdicts may be wrong; use \
             a longer --length",
            words.join(", ")
        )
    })
}

/// The rate of whole trials relative to that of their windows; `None` if it is unknown.
fn share_of_windows(trials: &[Trial], condition: usize, variant: usize) -> Option<f64> {
    let is_of_point = |it: &&Trial| {
        it.kind == TrialKind::Timed && (it.condition, it.variant) == (condition, variant)
    };
    let (mut transactions, mut run_us, mut credited, mut window_us) = (0, 0.0, 0.0, 0.0);
    for trial in trials.iter().filter(is_of_point) {
        run_us += trial.cross_checks.as_ref()?.run_us?;
        transactions += trial.transactions_total;
        credited += trial.credited_or_counted();
        window_us += trial.window_us;
    }
    (run_us > 0.0 && credited > 0.0)
        .then(|| (transactions as f64 / run_us) / (credited / window_us))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgassay_model::trial::CrossCheckReadings;

    /// Regression: a load that stalled for a second every 500 transactions seemed as fast as one that did not stall,
    /// although pgbench found it to be seven times slower.
    #[test]
    fn a_stall_that_outlasts_its_window_lowers_the_rate_of_whole_trials() {
        let trial = |run_s: f64, transactions: u64| Trial {
            window_us: 125e3,
            transactions,
            credited_transactions: Some(transactions as f64),
            transactions_total: transactions + 60,
            cross_checks: Some(CrossCheckReadings {
                run_us: Some(1e6 * run_s),
                ..CrossCheckReadings::default()
            }),
            ..Trial::empty(TrialKind::Timed)
        };
        let share = |trials: &[Trial]| share_of_windows(trials, 0, 0);
        let stalling = [trial(1.04, 297), trial(1.07, 142), trial(0.15, 789)];
        assert!(share(&stalling).is_some_and(|it| it < 0.3));
        let even = [trial(0.15, 317), trial(0.15, 272)];
        assert!(share(&even).is_some_and(|it| it > 0.9));
        assert_eq!(share(&[Trial::empty(TrialKind::Timed)]), None);
        assert_eq!(share(&[]), None);
    }
}
