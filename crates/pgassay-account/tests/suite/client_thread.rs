//! 64 clients of a thread that never sleeps: how long they waited for it has only an upper bound.

use pgassay_account::ledger::{CheckName, LedgerDifference, explained_share, ledger};

use crate::busy_server::*;
use crate::consistency::{FACTORS, Input, Known, SCOPES, failed, inputs};

/// Inputs of the account of the client's thread.
fn client_inputs() -> Vec<Input> {
    let of_thread = |name: &str| ["client run queue", "client thread busy"].contains(&name);
    let inputs = inputs().into_iter();
    inputs.filter(|(name, _)| of_thread(name)).collect()
}

fn saturated(spends: Spends, arrived: f64) -> Spends {
    Spends {
        network: 0.0,
        arrived,
        ..spends
    }
}

fn difference_us(difference: &LedgerDifference, name: &str) -> f64 {
    let mut rows = difference.groups.iter();
    let row = rows.find(|row| row.cost.name == name);
    row.map_or(0.0, |row| row.cost.difference_us)
}

/// A wrong account of the thread makes a difference not explained, unless no row's difference is wrong.
fn wrong_accounts_of_the_thread_do_not_explain(sound: &Known) {
    let difference = sound.difference();
    let limit_us = 0.2 * difference.response.difference_us;
    for (name, mutate) in client_inputs() {
        for (factor, scope) in FACTORS
            .iter()
            .flat_map(|it| SCOPES.map(|scope| (*it, scope)))
        {
            let mutated = sound.mutated(scope, &|it| mutate(it, factor)).difference();
            let rows = difference.groups.iter().map(|row| &row.cost);
            let wrong_us =
                rows.map(|row| (difference_us(&mutated, &row.name) - row.difference_us).abs());
            let wrong_us = wrong_us.fold(0.0, f64::max);
            assert!(
                !mutated.explained || wrong_us < limit_us,
                "{name} × {factor}, {scope:?}: {wrong_us}"
            );
        }
    }
}

/// Regression: with 64 clients on a saturated machine, 39% of the response time was "network and wake-up", and
/// replies had waited for a thread that was never asleep. Then it was all "client run queue" and "client thread
/// busy", and "100.0% (95% CI [100.0%, 100.0%])" explained: only an upper bound of it is measured, so nothing was
/// left by construction, and half or twice the certain waiting changed nothing.
#[test]
fn possible_waiting_for_a_thread_that_never_sleeps_is_shown_and_not_counted_as_known() {
    let sound = Known::of([saturated(A, 500.0), saturated(B, 620.0)]);
    let difference = sound.difference();
    let expected = [CheckName::ExplainedShare, CheckName::Sources];
    assert_eq!(failed(&difference), expected, "{:#?}", difference.checks);
    let us = |name: &str| -> f64 {
        let row = difference.groups.iter().find(|it| it.cost.name == name);
        row.map_or(0.0, |row| row.cost.baseline_us)
    };
    assert!((us("client run queue") - 300.0 - 375.0).abs() < 10.0);
    assert!((us("client thread busy") - 515.0 - 125.0).abs() < 10.0);
    assert!(us("network and wake-up") < 1.0);
    let share = difference.explained_share.expect("there is a difference");
    let possible = 120.0 / difference.response.difference_us;
    assert!((share.possible.expect("it has a range") - possible).abs() < 0.01);
    assert!((share.share - (1.0 - possible)).abs() < 0.01, "{share:?}");
    let [low, high] = share.interval.expect("four pairs bound it");
    assert!(low < 1.0 - possible && high > 0.99, "{share:?}");
    // Neither is it a known cause in the ledger of a point.
    let profile = sound.profiles.as_ref().map(|it| &it[0]);
    let of_point = ledger(&side(0, &sound.trials[0], profile)).expect("histograms are whole");
    let of_point = of_point.expect("there are totals");
    let possible_us: f64 = of_point.rows.iter().map(|row| row.possible_us).sum();
    assert!((possible_us - 500.0).abs() < 1.0, "{possible_us}");
    let known = explained_share(&of_point.rows);
    assert!(known <= 1.0 - 500.0 / of_point.response_us, "{known}");
    // No wrong figure makes it explained.
    for (name, mutate) in inputs() {
        for (factor, scope) in FACTORS
            .iter()
            .flat_map(|it| SCOPES.map(|scope| (*it, scope)))
        {
            let mutated = sound.mutated(scope, &|it| mutate(it, factor));
            assert!(
                !mutated.difference().explained,
                "{name} × {factor}, {scope:?}"
            );
        }
    }
    // Nor waiting that is longer than the thread's time.
    let outside = sound.mutated(SCOPES[0], &|it| {
        it.client.possible_run_queue_us = Some(0.0);
    });
    assert!(failed(&outside.difference()).contains(&CheckName::ClientAccount));
}

#[test]
fn a_difference_that_is_not_in_the_thread_is_explained_though_its_account_has_a_range() {
    let locks = Spends {
        row_lock: A.row_lock + 3000.0,
        ..A
    };
    let sound = Known::of([saturated(A, 500.0), saturated(locks, 520.0)]);
    let difference = sound.difference();
    assert_eq!(failed(&difference), [], "{:#?}", difference.checks);
    assert!(difference.explained);
    wrong_accounts_of_the_thread_do_not_explain(&sound);
}

/// A range within the tolerance of any account does not matter.
#[test]
fn a_narrow_range_of_waiting_for_the_thread_is_explained() {
    let narrow = Known::of([saturated(A, 20.0), saturated(B, 25.0)]);
    let difference = narrow.difference();
    assert_eq!(failed(&difference), [], "{:#?}", difference.checks);
    let share = difference.explained_share.expect("there is a difference");
    assert!(share.possible.is_some_and(|it| it > 0.0), "{share:?}");
    wrong_accounts_of_the_thread_do_not_explain(&narrow);
}
