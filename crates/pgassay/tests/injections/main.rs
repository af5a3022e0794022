//! A delay of known length, or work of known cost, that is put into one place of a transaction must
//! lengthen that place's row of the ledger by as much, and no other.
//!
//! The short tier runs with the other tests. The long one, over versions and clients, and the power of
//! verdicts over injected slowdowns, are run by `benchmarks/injections` and `benchmarks/slowdowns`.

#[path = "../support/mod.rs"]
mod support;

mod cases;
mod drivers;
mod laboratory;
mod slowdowns;
mod table;

use std::sync::{Mutex, PoisonError};

use cases::{Case, Length};
use laboratory::{Laboratory, Landing};
use pgassay_server::testing;

/// One at a time, since they measure.
static TURN: Mutex<()> = Mutex::new(());

/// Other programs on the machine hold transactions up, too, and not both variants' alike: so much of d
/// may be missing, or stand elsewhere, in trials this short …
const BUSY_SHARE: f64 = 0.25;
/// … and so often it is tried.
const TRIES: u32 = 3;

/// Injects with one client, and again where the machine disturbed it; what it was like at last.
fn lands(case: Case, version: &str) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if !support::look::sampling_is_permitted() {
        return;
    }
    let Some(mut laboratory) = Laboratory::open(version) else {
        return;
    };
    if let Err(why) = laboratory.permits(case) {
        testing::skip(case.name(), &why);
        return;
    }
    let length = Length {
        full: "4s".to_owned(),
        pairs: 3,
    };
    let mut seen: Vec<Landing> = Vec::new();
    for _ in 0..TRIES {
        let landing = laboratory.inject(case, 1, &length);
        let allowed_us = BUSY_SHARE * landing.injected_us;
        let in_its_row = (landing.named.us - landing.injected_us).abs() <= allowed_us;
        if in_its_row && landing.other.1.us.abs() <= allowed_us {
            return;
        }
        seen.push(landing);
    }
    panic!("{} did not land in {}: {seen:#?}", case.name(), case.row());
}

#[test]
fn a_sleep_in_the_statement_lands_in_its_row() {
    lands(Case::Sleep, "18");
}

#[test]
fn a_row_lock_that_another_session_holds_lands_in_its_row() {
    lands(Case::RowLock, "15");
}

#[test]
fn a_lock_of_a_session_that_is_idle_in_its_transaction_lands_in_its_row() {
    lands(Case::IdleHolder, "10");
}

#[test]
fn a_relay_that_delays_lands_on_the_wire() {
    lands(Case::Relay, "18");
}

#[test]
fn work_of_a_function_lands_in_execution() {
    lands(Case::Cpu, "18");
}

#[test]
fn a_log_that_nobody_reads_lands_in_the_logging_pipe() {
    lands(Case::LogPipe, "10");
}

#[test]
fn a_client_whose_processor_is_taken_lands_in_its_run_queue() {
    lands(Case::Client, "18");
}

/// Before the load begins, and once a client has had its last transaction, its backend only waits for
/// it. Where that counted, a sleep of 20 ms with 64 clients was short by 4 ms, which stood on the wire.
#[test]
fn waiting_before_and_after_the_load_is_no_part_of_a_transaction() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if !support::look::sampling_is_permitted() {
        return;
    }
    let Some(laboratory) = Laboratory::open("18") else {
        return;
    };
    let length = Length {
        full: "4s".to_owned(),
        pairs: 2,
    };
    let run = laboratory.measure(Case::Sleep, 64, 0, &length);
    let clients = run.plan.conditions[0].clients;
    for profile in &run.profiles {
        let transactions = profile.transactions.as_ref().expect("slices are observed");
        let slices_ns = transactions.slices_ns;
        assert!(slices_ns > 0, "slices lie in every window of this length");
        let blocked = profile.blocked.iter().flat_map(|it| &it.blocked_ns);
        let blocked_ns: u64 = blocked.sum();
        // Each backend is blocked for no longer than the windows' slices last.
        assert!(
            blocked_ns <= u64::from(clients) * slices_ns,
            "{blocked_ns} ns of {clients} times {slices_ns} ns"
        );
    }
}

#[test]
#[ignore = "takes half an hour; benchmarks/injections runs it"]
fn every_injection_lands_in_its_row() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let missed = table::run(&table::Options::from_environment());
    assert!(
        missed.is_empty(),
        "not in its row, or elsewhere, too: {missed:?}"
    );
}

#[test]
#[ignore = "takes half an hour; benchmarks/slowdowns runs it"]
fn slowdowns_are_found() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let options = slowdowns::Options::from_environment();
    let Some(all) = slowdowns::run(&options) else {
        return;
    };
    assert!(all.iter().all(slowdowns::Power::suffices), "{all:?}");
}
