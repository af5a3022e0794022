//! How blocked time is divided by reason: a second source is compared, or its lack is no pass.

use pgassay_account::ledger::{CheckName, LedgerDifference};
use pgassay_model::profile::Profile;
use pgassay_model::trial::TrialKind;

use crate::busy_server::*;
use crate::consistency::{Known, failed};

/// Sides that differ most in row locks.
fn locks() -> Known {
    let waits = |spends: Spends, row_lock: f64| Spends {
        wal_sync: 300.0,
        row_lock,
        ..spends
    };
    Known::of([waits(A, 250.0), waits(B, 500.0)])
}

/// Scales the blocked time of each stack by the factor that belongs to its wait.
fn scaled(mut known: Known, sides: [bool; 2], factors: [(&str, f64); 2]) -> Known {
    let profiles = known.profiles.iter_mut().flatten();
    for (profile, _) in profiles.zip(sides).filter(|(_, is_scaled)| *is_scaled) {
        for at in 0..profile.blocked.len() {
            let factor = factors.iter().find(|it| waits_in(profile, at, it.0));
            let factor = factor.map_or(1.0, |it| it.1);
            for ns in &mut profile.blocked[at].blocked_ns {
                *ns = (*ns as f64 * factor) as u64;
            }
        }
    }
    known
}

fn waits_in(profile: &Profile, at: usize, function: &str) -> bool {
    let node = profile.blocked[at].node.expect("every stack is known");
    let mut frames = profile.stack(node).into_iter();
    frames.any(|it| it.symbol.as_deref() == Some(function))
}

fn difference_us(difference: &LedgerDifference, name: &str) -> f64 {
    let mut groups = difference.groups.iter();
    let row = groups.find(|it| it.cost.name == name);
    row.map_or(0.0, |row| row.cost.difference_us)
}

/// Regression: only the weights of stacks divided the blocked time. With twice or half as much weight of locks, on
/// one side or both, hundreds of µs were in the wrong row of an explained difference.
#[test]
fn wrong_weights_of_the_reasons_of_blocking_are_not_explained() {
    let sound = locks();
    let difference = sound.difference();
    assert_eq!(failed(&difference), [], "{:#?}", difference.checks);
    assert!(difference.explained);
    let lock_us = difference_us(&difference, "Lock transactionid");
    assert!((lock_us - 250.0).abs() < 10.0, "{lock_us}");
    for sides in [[true, true], [true, false], [false, true]] {
        for [locks, syncs] in [
            [2.0, 1.0],
            [0.5, 1.0],
            [3.0, 1.0],
            [0.02, 1.0],
            [1.5, 0.5],
            [1.0, 2.0],
            [1.0, 0.5],
        ] {
            let factors = [("ProcSleep", locks), ("issue_xlog_fsync", syncs)];
            let difference = scaled(sound.clone(), sides, factors).difference();
            let failed = failed(&difference);
            assert!(
                failed.contains(&CheckName::BlockedReasons) && !difference.explained,
                "locks × {locks}, syncs × {syncs}, {sides:?}: {failed:?}"
            );
        }
    }
}

/// Regression: with stacks or wait events alone, no check failed, and none had been made.
#[test]
fn reasons_of_blocking_with_a_single_source_are_not_explained_unless_there_is_only_one() {
    let without_events = |mut known: Known| {
        let trials = known.trials.iter_mut().flatten();
        for trial in trials.filter(|it| it.kind == TrialKind::Profiled) {
            trial.waits = None;
        }
        known.difference()
    };
    let difference = without_events(locks());
    assert_eq!(failed(&difference), [CheckName::Sources]);
    assert!(!difference.explained);
    // Likewise without stacks of blocked backends.
    let mut by_events = locks();
    for profile in by_events.profiles.iter_mut().flatten() {
        profile.blocked.clear();
    }
    let difference = by_events.difference();
    assert_eq!(failed(&difference), [CheckName::Sources]);
    // Time cannot be in the row of another reason if there is none.
    let only_locks = |spends: Spends, row_lock: f64| Spends {
        wal_sync: 0.0,
        row_lock,
        ..spends
    };
    let difference = without_events(Known::of([only_locks(A, 250.0), only_locks(B, 500.0)]));
    assert_eq!(failed(&difference), [], "{:#?}", difference.checks);
}

/// Few samples differ by chance. They fail no check, and are no second source either.
#[test]
fn few_wait_events_are_no_second_source_of_the_reasons_of_blocking() {
    for one_in in [100, 200] {
        let mut known = locks();
        let trials = known.trials.iter_mut().flatten();
        for waits in trials.filter_map(|trial| trial.waits.as_mut()) {
            for event in &mut waits.events {
                event.samples = event.samples.div_ceil(one_in);
            }
            waits.blocked_samples = waits.events.iter().map(|it| it.samples).sum();
        }
        assert_eq!(
            failed(&known.difference()),
            [CheckName::Sources],
            "{one_in}"
        );
    }
}

/// Writing to the logging pipe has no wait event.
#[test]
fn a_wait_without_an_event_is_compared_with_blocked_time_without_one() {
    let mut known = locks();
    for profile in known.profiles.iter_mut().flatten() {
        for frame in &mut profile.frames {
            if frame.symbol.as_deref() == Some("issue_xlog_fsync") {
                frame.symbol = Some("write_pipe_chunks".to_owned());
            }
        }
    }
    let trials = known.trials.iter_mut().flatten();
    for waits in trials.filter_map(|trial| trial.waits.as_mut()) {
        let syncs = waits.events.iter_mut().filter(|it| it.kind == "IO");
        for event in syncs {
            event.kind.clear();
            event.name.clear();
        }
    }
    let difference = known.difference();
    assert_eq!(failed(&difference), [], "{:#?}", difference.checks);
    let pipes = [("ProcSleep", 1.0), ("write_pipe_chunks", 2.0)];
    let mutated = scaled(known, [true, false], pipes).difference();
    assert!(failed(&mutated).contains(&CheckName::BlockedReasons));
}
