//! How often a round repeats its timed trials if transactions take long.
//!
//! Repeats exist because trials of some 100 ms cost less than the server start and the warm-up before them. Trials
//! that slow transactions make longer cost more than these, and are better spent on further rounds, each of which
//! gives one more pair.

use std::time::Duration;

use pgassay_load::Timing;
use pgassay_model::plan::{Round, Schedule};
use pgassay_model::trial::TrialKind;

/// Slow transactions make a round this many times as long as planned before it has fewer repeats.
const LONGER_MAX: u32 = 2;

/// A round that takes less longer is not worth a line.
const NOTICEABLE_S: f64 = 3.0;

/// The repeats of a round whose trials have these lengths, one for each variant: as planned, or as many as fit into
/// twice the planned time, and at least one.
pub fn repeats_of_round(schedule: &Schedule, windows: &[Timing]) -> u32 {
    let planned_us = (schedule.settle_us + schedule.trial_us) * windows.len() as u64;
    let trials = windows.iter().map(|it| it.settle + it.measure);
    let repeat_us = trials.map(|it| it.as_micros() as u64).sum::<u64>().max(1);
    let fit = planned_us * u64::from(schedule.repeats * LONGER_MAX) / repeat_us;
    schedule.repeats.min(fit as u32).max(1)
}

/// Whether a round with this number of repeats runs the trial at this position. The shares of timed and profiled
/// trials stay about the same, and one of each is left.
pub fn takes_part(round: &Round, repeats: u32, (position, kind): (usize, TrialKind)) -> bool {
    let variants = round.warm_up.len().max(1);
    let planned_repeats = (round.timed.len() / (2 * variants)).max(1);
    let kept = |planned: usize| {
        planned
            .saturating_mul(repeats as usize)
            .div_ceil(planned_repeats)
    };
    match kind {
        TrialKind::Timed => position < kept(round.timed.len()),
        TrialKind::Profiled => {
            let of_variant = (position - round.timed.len()) / variants;
            of_variant < kept(round.profiled.len() / variants)
        }
        TrialKind::HardwareCounters => true,
    }
}

/// What to say before the trials of a round, if slow transactions make them much longer than planned.
pub fn longer_than_planned(schedule: &Schedule, trials: &[Timing], rounds: u32) -> Option<String> {
    let planned_us = (schedule.settle_us + schedule.trial_us) * trials.len() as u64;
    let planned_s = planned_us as f64 / 1e6;
    let takes: Duration = trials.iter().map(|it| it.settle + it.measure).sum();
    let takes_s = takes.as_secs_f64();
    if takes_s < planned_s * f64::from(LONGER_MAX) || takes_s < planned_s + NOTICEABLE_S {
        return None;
    }
    let all_min = takes_s * f64::from(rounds) / 60.0;
    Some(format!(
        "transactions take long: the trials of a block take about {takes_s:.0} s instead of {planned_s:.1} s, and \
         those of {rounds} blocks about {all_min:.1} min"
    ))
}

#[cfg(test)]
mod tests {
    use pgassay_model::plan::{Overrides, plan};
    use pgassay_model::study::StudySource;

    use super::*;
    use crate::trial_slot::planned_trials;

    /// Two variants, four repeats of two timed trials, and two profiled ones.
    fn schedule_and_round() -> (Schedule, Round) {
        let source = StudySource {
            file: "s.toml".to_owned(),
            text: "question = \"?\"\n[[script]]\nname = \"a\"\ntext = \"select 1\"\n\
                   [[variant]]\nname = \"a\"\n[[variant]]\nname = \"b\"\nprotocol = \"prepared\"\n"
                .to_owned(),
        };
        let study = source.parse().unwrap();
        let plan = plan(&study, &source, &Overrides::default()).unwrap();
        (plan.schedule, plan.block(0).remove(0))
    }

    fn kept(round: &Round, repeats: u32) -> Vec<usize> {
        let trials = planned_trials(round, true).into_iter().enumerate();
        let kept =
            trials.filter(|&(position, (kind, _))| takes_part(round, repeats, (position, kind)));
        kept.map(|(position, _)| position).collect()
    }

    #[test]
    fn a_statement_of_a_second_does_not_take_four_minutes_per_round() {
        let (schedule, _) = schedule_and_round();
        assert_eq!((schedule.repeats, schedule.profiled), (4, 2));
        let repeats = |transaction_ms: [u64; 2]| {
            let windows = transaction_ms.map(|it| {
                let settle = Duration::from_micros(schedule.settle_us);
                let planned = Duration::from_micros(schedule.trial_us);
                Timing::of(settle, planned, Duration::from_millis(it))
            });
            repeats_of_round(&schedule, &windows)
        };
        assert_eq!(repeats([1, 1]), 4);
        assert_eq!(repeats([1000, 1000]), 1);
        assert_eq!(repeats([1, 1000]), 1);
    }

    /// Regression: with `--length 10s`, statements of 3 s made a run of "9 to 28 s" one of 12 minutes without a word.
    #[test]
    fn slow_statements_are_announced_with_the_time_that_they_take() {
        let (schedule, _) = schedule_and_round();
        let note = |transaction_ms: u64, trials: usize| {
            let settle = Duration::from_micros(schedule.settle_us);
            let planned = Duration::from_micros(schedule.trial_us);
            let transaction = Duration::from_millis(transaction_ms);
            let windows = vec![Timing::of(settle, planned, transaction); trials];
            longer_than_planned(&schedule, &windows, 12)
        };
        assert_eq!(note(1, 6), None);
        let trial = Timing::of(
            Duration::from_micros(schedule.settle_us),
            Duration::from_micros(schedule.trial_us),
            Duration::from_secs(3),
        );
        let takes_s = 6.0 * (trial.settle + trial.measure).as_secs_f64();
        let text = note(3000, 6).unwrap();
        let expected = format!("take about {takes_s:.0} s instead of");
        assert!(text.contains(&expected), "{text}");
        let all = format!("those of 12 blocks about {:.1} min", takes_s / 5.0);
        assert!(text.ends_with(&all), "{text}");
    }

    #[test]
    fn fewer_repeats_keep_the_mirrored_order_and_a_profiled_trial_of_each_variant() {
        let (_, round) = schedule_and_round();
        let hardware: Vec<usize> = (20..22).collect();
        assert_eq!(kept(&round, 4), (0..22).collect::<Vec<_>>());
        assert_eq!(
            kept(&round, 1),
            [vec![0, 1, 2, 3, 16, 17], hardware.clone()].concat()
        );
        let of_three: Vec<usize> = (0..12).chain(16..20).collect();
        assert_eq!(kept(&round, 3), [of_three, hardware].concat());
    }
}
