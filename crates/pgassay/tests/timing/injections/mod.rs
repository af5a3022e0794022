//! A known delay or amount of work injected into a transaction must increase the matching ledger row by
//! as much, and no other row.
//!
//! The short tier runs with the other tests. `benchmarks/injections` runs the long tier over versions
//! and clients, `benchmarks/slowdowns` measures the power of verdicts for injected slowdowns.

mod cases;
mod drivers;
mod laboratory;
mod slowdowns;
mod table;

use cases::{Case, Length};
use laboratory::{Figure, Laboratory, Landing};
use pgassay_account::ledger::LedgerRow;
use pgassay_test_support::{sampling_is_permitted, skip, timing_tests};

timing_tests! {
    a_sleep_in_the_statement_lands_in_its_row,
    a_row_lock_that_another_session_holds_lands_in_its_row,
    a_lock_of_a_session_that_is_idle_in_its_transaction_lands_in_its_row,
    a_delaying_relay_lands_in_the_network_row,
    work_of_a_function_lands_in_execution,
    a_log_that_nobody_reads_lands_in_the_logging_pipe,
    a_descheduled_client_lands_in_its_run_queue,
    waiting_before_and_after_the_load_is_no_part_of_a_transaction,
}

/// In trials this short, this share of d may be missing or in other rows.
const SHARE: f64 = 0.25;
/// If others take this share of the machine, transactions wait for CPUs, and not alike in both variants.
/// Then run queues are ignored and rows may also miss d by their own interval, …
const OTHERS: f64 = 0.05;
/// … but must still show this share of d.
const SHARE_MIN: f64 = 0.5;
/// Attempts.
const TRIES: u32 = 3;

/// Whether d is in its row and in no other, with a tolerance for the machine's load.
fn is_as_injected(case: Case, landing: &Landing) -> bool {
    let (named, d_us) = (&landing.named, landing.injected_us);
    let is_shared = landing.others_share > OTHERS;
    let noise_us = |it: &Figure| if is_shared { it.half_width_us } else { 0.0 };
    let is_busy = |it: &LedgerRow| is_shared && it.cost.name.ends_with("run queue");
    let groups = landing.ledger.groups.iter();
    let mut others = groups.filter(|it| !case.is_its(it) && !is_busy(it));
    named.us >= SHARE_MIN * d_us
        && (named.us - d_us).abs() <= SHARE * d_us + noise_us(named)
        && others.all(|it| {
            let other = Figure::of(&it.cost);
            other.us.abs() <= SHARE * d_us + noise_us(&other)
        })
}

/// Injects with one client; retries because other load may disturb it.
fn lands(case: Case, version: &str) {
    if !sampling_is_permitted() {
        return;
    }
    let Some(mut laboratory) = Laboratory::open(version) else {
        return;
    };
    if let Err(why) = laboratory.permits(case) {
        skip(case.name(), &why);
        return;
    }
    let length = Length {
        full: "4s".to_owned(),
        pairs: 3,
    };
    let mut seen: Vec<Landing> = Vec::new();
    for _ in 0..TRIES {
        let landing = laboratory.inject(case, 1, &length);
        if is_as_injected(case, &landing) {
            return;
        }
        seen.push(landing);
    }
    panic!("{} did not land in {}: {seen:#?}", case.name(), case.row());
}

fn a_sleep_in_the_statement_lands_in_its_row() {
    lands(Case::Sleep, "18");
}

fn a_row_lock_that_another_session_holds_lands_in_its_row() {
    lands(Case::RowLock, "15");
}

fn a_lock_of_a_session_that_is_idle_in_its_transaction_lands_in_its_row() {
    lands(Case::IdleHolder, "10");
}

fn a_delaying_relay_lands_in_the_network_row() {
    lands(Case::Relay, "18");
}

fn work_of_a_function_lands_in_execution() {
    lands(Case::Cpu, "18");
}

fn a_log_that_nobody_reads_lands_in_the_logging_pipe() {
    lands(Case::LogPipe, "10");
}

fn a_descheduled_client_lands_in_its_run_queue() {
    lands(Case::Client, "18");
}

/// Before the load starts and after a client's last transaction, its backend only waits for it.
/// Regression: this was counted, and of a 20 ms sleep with 64 clients 4 ms appeared as network time.
fn waiting_before_and_after_the_load_is_no_part_of_a_transaction() {
    if !sampling_is_permitted() {
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
        // No backend is blocked for longer than the slices within the windows.
        assert!(
            blocked_ns <= u64::from(clients) * slices_ns,
            "{blocked_ns} ns of {clients} times {slices_ns} ns"
        );
    }
}

#[test]
#[ignore = "takes half an hour; benchmarks/injections runs it"]
fn the_ledger_finds_every_injection() {
    let missed = table::run(&table::Options::from_environment());
    assert!(
        missed.is_empty(),
        "not in its row, or also in others: {missed:?}"
    );
}

#[test]
#[ignore = "takes half an hour; benchmarks/slowdowns runs it"]
fn slowdowns_are_found() {
    let options = slowdowns::Options::from_environment();
    let Some(all) = slowdowns::run(&options) else {
        return;
    };
    assert!(all.iter().all(slowdowns::Power::suffices), "{all:?}");
}
