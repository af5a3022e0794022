//! From trials to ledgers: whatever was measured, the rows and the differences add up.

use hdrhistogram::Histogram;
use pgassay_account::ledger::{
    CheckName, Divider, Ledger, LedgerDifference, Nature, Part, PointMeasurements, difference,
    ledger,
};
use pgassay_model::counters::Counters;
use pgassay_model::cpu::{Background, CpuTotals};
use pgassay_model::profile::{Frame, Profile, ProfileBuilder};
use pgassay_model::trial::{ClientTotals, Latency, Trial, TrialKind};
use pgassay_model::waits::{WaitCount, WaitSource, Waits};
use proptest::prelude::*;

const CLIENTS: f64 = 8.0;
const WINDOW_US: f64 = 1e6;

/// What a simulated point spends per transaction, in µs.
#[derive(Debug, Clone, Copy)]
struct Spends {
    on_cpu: f64,
    run_queue: f64,
    blocked: f64,
    between: f64,
    client_cpu: f64,
}

impl Spends {
    fn whole(&self) -> f64 {
        self.on_cpu + self.run_queue + self.blocked + self.between
    }

    fn transactions(&self) -> u64 {
        (CLIENTS * WINDOW_US / self.whole()) as u64
    }
}

fn trial(block: u32, kind: TrialKind, spends: Spends) -> Trial {
    let transactions = spends.transactions();
    let all = transactions as f64 * 1.25;
    let mut latency = Histogram::<u64>::new(3).expect("3 digits are allowed");
    let latency_us = spends.whole() - spends.between;
    latency
        .record_n((latency_us * 1e3) as u64, transactions)
        .expect("the histogram grows");
    Trial {
        repeats: None,
        server_start: 0,
        block,
        condition: 0,
        variant: 0,
        position: 0,
        kind,
        started_us: 0,
        window_us: WINDOW_US,
        transactions,
        credited_transactions: None,
        transactions_total: all as u64,
        failed: 0,
        failed_us: 0.0,
        latency: Latency::from_histogram(&latency),
        server: Some(CpuTotals {
            on_cpu_us: spends.on_cpu * all,
            run_queue_us: spends.run_queue * all,
            processes: CLIENTS as u32,
        }),
        client: ClientTotals {
            cpu_us: spends.client_cpu * all,
            run_queue_us: 0.0,
            in_transaction_us: latency_us * transactions as f64,
            between_transactions_us: spends.between * transactions as f64,
            sleep_us: 0.0,
            thread_busy_us: None,
            client_run_queue_us: None,
            possible_thread_busy_us: None,
            possible_run_queue_us: None,
            client_limited: false,
        },
        cpu_steal: 0.0,
        other_programs: 0.01,
        unaccounted: Some(0.01),
        cpu_utilization: 0.5,
        background: vec![Background {
            role: "checkpointer".to_owned(),
            cpu: CpuTotals {
                on_cpu_us: 2.0 * all,
                ..CpuTotals::default()
            },
        }],
        waits: None,
        cross_checks: None,
        backend_memory: None,
        counters: Counters::default(),
    }
}

fn waits(events: &[(&str, &str, u64)]) -> Waits {
    Waits {
        blocked_samples: events.iter().map(|event| event.2).sum(),
        events: events
            .iter()
            .map(|(kind, name, samples)| WaitCount {
                kind: (*kind).to_owned(),
                name: (*name).to_owned(),
                samples: *samples,
            })
            .collect(),
        ..Waits::default()
    }
}

/// A timed and a profiled trial in each of `blocks` blocks.
fn trials(blocks: u32, spends: impl Fn(u32) -> Spends, seen: &Waits) -> Vec<Trial> {
    (0..blocks)
        .flat_map(|block| {
            let profiled = Trial {
                waits: Some(seen.clone()),
                ..trial(block, TrialKind::Profiled, spends(block))
            };
            [trial(block, TrialKind::Timed, spends(block)), profiled]
        })
        .collect()
}

fn frames(stack: &'static str) -> impl Iterator<Item = Frame> {
    stack.split(';').map(|symbol| Frame {
        symbol: Some(symbol.to_owned()),
        object: "postgres".to_owned(),
        offset: 0,
        kernel: false,
    })
}

const PLAN: &str = "main;PostgresMain;exec_simple_query;pg_plan_query;standard_planner";
const RUN: &str = "main;PostgresMain;exec_simple_query;PortalRun;ExecutorRun;IndexNext";
const READ: &str = "main;PostgresMain;ReadCommand;SocketBackend;pq_recvbuf;secure_read";
const LOG: &str = "main;PostgresMain;exec_simple_query;EmitErrorReport;write_pipe_chunks";

fn profile(blocks: usize, plan: u32, run: u32, blocked: &[(&'static str, u64)]) -> Profile {
    let mut builder = ProfileBuilder::new(blocks);
    for block in 0..blocks {
        builder.add(block, frames(PLAN), plan);
        builder.add(block, frames(RUN), run);
        for (stack, ns) in blocked {
            builder.add_blocked(block, frames(stack), ("", ""), *ns);
        }
    }
    builder.finish()
}

fn measured<'a>(trials: &'a [Trial], profile: Option<&'a Profile>) -> PointMeasurements<'a> {
    PointMeasurements {
        condition: 0,
        variant: 0,
        trials: trials.iter().collect(),
        profile,
        major: "18",
    }
}

fn sum(ledger: &Ledger) -> f64 {
    ledger.rows.iter().map(|row| row.us).sum()
}

fn us(ledger: &Ledger, mechanism: &str) -> f64 {
    let rows = ledger.rows.iter().filter(|row| row.mechanism == mechanism);
    rows.map(|row| row.us).sum()
}

const SPENDS: Spends = Spends {
    on_cpu: 50.0,
    run_queue: 30.0,
    blocked: 100.0,
    between: 20.0,
    client_cpu: 25.0,
};

#[test]
fn a_ledger_adds_up_to_the_clients_clock() {
    let seen = waits(&[("Client", "ClientRead", 60), ("LWLock", "WALWrite", 40)]);
    let trials = trials(3, |_| SPENDS, &seen);
    let profile = profile(3, 20, 80, &[]);
    let ledger = ledger(&measured(&trials, Some(&profile)))
        .expect("histograms are whole")
        .expect("there are totals");
    assert!((sum(&ledger) - ledger.response_us - ledger.between_transactions_us).abs() < 1e-9);
    assert!((ledger.between_transactions_us - 20.0).abs() < 1e-9);
    assert!(
        (us(&ledger, "plan") - 10.0).abs() < 1e-9,
        "20% of the exact 50 µs"
    );
    assert!((us(&ledger, "run queue") - 30.0).abs() < 1e-9);
    assert!(
        (us(&ledger, "LWLock WALWrite") - 48.0).abs() < 0.1,
        "40% of 120 µs blocked"
    );
    assert!(
        (us(&ledger, "client CPU") - 5.0).abs() < 1e-9,
        "20 of 25 µs are between transactions"
    );
    assert_eq!(ledger.blocked_by, Divider::MemoryWaitEvents);
    assert!(
        (ledger.checks.coverage - 1.0).abs() < 0.001,
        "{:?}",
        ledger.checks
    );
    assert!(ledger.checks.little_error < 0.001, "{:?}", ledger.checks);
    assert_eq!(ledger.background[0].role, "checkpointer");
    assert!((ledger.background[0].us - 2.0).abs() < 1e-2);
    let groups = ledger.groups();
    let all: f64 = groups.iter().map(|group| group.us).sum();
    assert!((all - sum(&ledger)).abs() < 1e-9);
}

/// The rows are per transaction that succeeded and include the time of failed ones; the latencies do not.
#[test]
fn time_of_failed_transactions_is_not_a_difference_from_the_clients_clock() {
    let spends = Spends {
        on_cpu: 100.0,
        run_queue: 50.0,
        blocked: 350.0,
        between: 0.0,
        client_cpu: 20.0,
    };
    let seen = waits(&[("Lock", "transactionid", 100)]);
    let half_failed = |failed_us: f64| {
        let mut trials = trials(4, |_| spends, &seen);
        for trial in &mut trials {
            let half = trial.transactions / 2;
            let mut latency = trial.latency.histogram().expect("whole");
            latency.reset();
            latency.record_n(500_000, half).expect("in range");
            trial.latency = Latency::from_histogram(&latency);
            trial.failed = trial.transactions - half;
            trial.failed_us = failed_us;
            trial.transactions = half;
            trial.transactions_total /= 2;
        }
        let ledger = ledger(&measured(&trials, None));
        let ledger = ledger.expect("whole").expect("there are totals");
        (ledger.checks.coverage, ledger.checks.little_error)
    };
    let (coverage, little_error) = half_failed(CLIENTS * WINDOW_US / 2.0);
    assert!((coverage - 1.0).abs() < 0.01, "{coverage}");
    assert!(little_error < 0.01, "{little_error}");
    assert!(half_failed(0.0).0 > 1.9);
}

#[test]
fn stacks_of_blocked_backends_come_before_wait_events() {
    // Only the stack shows the logging pipe: it has no wait event.
    let seen = waits(&[("Client", "ClientRead", 60), ("", "", 40)]);
    let trials = trials(3, |_| SPENDS, &seen);
    let profile = profile(3, 20, 80, &[(READ, 300), (LOG, 700)]);
    let ledger = ledger(&measured(&trials, Some(&profile)))
        .expect("histograms are whole")
        .expect("there are totals");
    assert_eq!(ledger.blocked_by, Divider::Stacks);
    assert!(
        (us(&ledger, "logging pipe") - 84.0).abs() < 0.1,
        "{:?}",
        ledger.rows
    );
    let pipe = ledger
        .rows
        .iter()
        .find(|row| row.mechanism == "logging pipe");
    assert_eq!(pipe.map(|row| row.nature), Some(Nature::Queueing));
    assert!(ledger.part_us(Part::Unexplained) < 1e-9);
}

#[test]
fn a_lock_known_from_its_stack_is_named_by_samples_of_its_type() {
    const ROW: &str = "main;PostgresMain;exec_simple_query;XactLockTableWait;LockAcquire;ProcSleep";
    let seen = waits(&[
        ("Lock", "transactionid", 10),
        ("Lock", "tuple", 30),
        ("LWLock", "WALWrite", 40),
    ]);
    let trials = trials(3, |_| SPENDS, &seen);
    let profile = profile(3, 20, 80, &[(READ, 500), (ROW, 500)]);
    let of = |trials: &[Trial]| {
        let ledger = ledger(&measured(trials, Some(&profile))).expect("histograms are whole");
        ledger.expect("there are totals")
    };
    let named = of(&trials);
    let row = |name: &str| us(&named, name);
    assert!((row("Lock tuple") - 45.0).abs() < 0.1, "{:?}", named.rows);
    assert!((row("Lock transactionid") - 15.0).abs() < 0.1);
    assert!(
        row("Lock") + row("LWLock WALWrite") <= 0.0,
        "{:?}",
        named.rows
    );
    // If no sample caught a lock of its type, it keeps the name of the type.
    let unseen = of(&self::trials(
        3,
        |_| SPENDS,
        &waits(&[("Client", "ClientRead", 9)]),
    ));
    assert!(
        (us(&unseen, "Lock") - 60.0).abs() < 0.1,
        "{:?}",
        unseen.rows
    );
}

#[test]
fn blocked_time_without_a_reason_is_not_explained() {
    let seen = waits(&[("Client", "ClientRead", 60), ("", "", 40)]);
    let slow = Spends {
        blocked: 200.0,
        ..SPENDS
    };
    let (a, b) = (trials(4, |_| SPENDS, &seen), trials(4, |_| slow, &seen));
    let difference = difference(&measured(&a, None), &measured(&b, None))
        .expect("histograms are whole")
        .expect("there are totals");
    assert!((difference.response.difference_us - 100.0).abs() < 0.1);
    assert!((difference.unexplained_us - 40.0).abs() < 0.1);
    assert!(!difference.explained);
    let failed = |difference: &LedgerDifference| -> Vec<CheckName> {
        let failed = difference.checks.iter().filter(|it| !it.passed);
        failed.map(|it| it.name).collect()
    };
    assert!(failed(&difference).contains(&CheckName::UnexplainedTime));
    let with_clock = waits(&[("Client", "ClientRead", 60), ("Lock", "tuple", 40)]);
    let (a, b) = (
        trials(4, |_| SPENDS, &with_clock),
        trials(4, |_| slow, &with_clock),
    );
    let difference = pgassay_account::ledger::difference(&measured(&a, None), &measured(&b, None))
        .expect("histograms are whole")
        .expect("there are totals");
    let failed = failed(&difference);
    assert!(!failed.contains(&CheckName::UnexplainedTime));
    // The remainder of the wait for the client is not explained.
    assert!(failed.contains(&CheckName::ExplainedShare), "{failed:?}");
}

#[test]
fn undivided_blocked_time_is_one_row() {
    let trials: Vec<Trial> = (0..2)
        .map(|it| trial(it, TrialKind::Timed, SPENDS))
        .collect();
    let ledger = ledger(&measured(&trials, None))
        .expect("histograms are whole")
        .expect("there are totals");
    assert_eq!(ledger.blocked_by, Divider::Nothing);
    assert!((us(&ledger, "CPU") - 50.0).abs() < 1e-9);
    assert!((ledger.part_us(Part::Unexplained) - 100.0).abs() < 0.1);
    assert!((sum(&ledger) - ledger.response_us - ledger.between_transactions_us).abs() < 1e-9);
}

#[test]
fn a_remote_servers_clock_and_samples_divide_the_clients_time() {
    // Half of the samples that caught a statement found it active, far fewer than it was.
    let seen = Waits {
        source: WaitSource::PgStatActivity,
        runnable_samples: 10,
        ..waits(&[("Client", "ClientRead", 80), ("Lock", "tuple", 10)])
    };
    let mut trials = trials(3, |_| SPENDS, &seen);
    for trial in &mut trials {
        trial.server = None;
    }
    let of = |trials: &[Trial]| {
        let ledger = ledger(&measured(trials, None)).expect("histograms are whole");
        ledger.expect("the server was sampled")
    };
    let by_samples = of(&trials);
    let whole_us = SPENDS.whole();
    assert!((sum(&by_samples) / whole_us - 1.0).abs() < 1e-4);
    assert!((us(&by_samples, "Lock tuple") / whole_us - 0.1).abs() < 1e-4);
    assert!((by_samples.part_us(Part::Running) / whole_us - 0.1).abs() < 1e-4);
    assert_eq!(by_samples.blocked_by, Divider::ActivityStates);
    assert!(by_samples.checks.closes(), "{:?}", by_samples.checks);
    for trial in &mut trials {
        let active_ms = 60e-3 * trial.transactions_total as f64;
        let name = "pg_stat_database.active_time";
        trial.counters.insert(name, active_ms);
    }
    let with_clock = of(&trials);
    assert!(
        (us(&with_clock, "Lock tuple") - 30.0).abs() < 0.01,
        "{:?}",
        with_clock.rows
    );
    assert!((with_clock.part_us(Part::Running) - 30.0).abs() < 0.01);
    let client_us = with_clock.part_us(Part::Client) + with_clock.between_transactions_us;
    assert!(
        (client_us - (whole_us - 60.0)).abs() < 0.02,
        "{:?}",
        with_clock.rows
    );
    // Samples do not divide exactly, so they explain nothing.
    let slow = Spends {
        blocked: 200.0,
        ..SPENDS
    };
    let mut others = self::trials(3, |_| slow, &seen);
    for trial in &mut others {
        trial.server = None;
    }
    let difference = difference(&measured(&trials, None), &measured(&others, None))
        .expect("histograms are whole")
        .expect("there are ledgers");
    assert!(difference.differs() && !difference.explained);
}

#[test]
fn a_ledger_needs_exact_totals_or_activity_samples() {
    let mut trials = trials(2, |_| SPENDS, &Waits::default());
    for without in [Some(CpuTotals::default()), None] {
        for trial in &mut trials {
            trial.server = without;
        }
        let ledger = ledger(&measured(&trials, None)).expect("histograms are whole");
        assert!(ledger.is_none());
    }
}

#[test]
fn trials_without_ledger_fields_still_load() {
    let mut kept = serde_json::to_value(trial(0, TrialKind::Timed, SPENDS)).expect("it is plain");
    let fields = kept.as_object_mut().expect("an object");
    for field in ["busy", "background", "waits", "unaccounted"] {
        fields.remove(field);
    }
    fields.insert("of_the_future".to_owned(), 1.into());
    let trial: Trial = serde_json::from_value(kept).expect("old results load");
    let ledger = ledger(&measured(&[trial], None)).expect("histograms are whole");
    let checks = ledger.expect("there are totals").checks;
    assert_eq!(checks.machine_error, None);
}

#[test]
fn few_samples_may_differ_from_the_exact_total_by_chance() {
    let trials = trials(2, |_| SPENDS, &Waits::default());
    let profiled = trials.iter().filter(|it| it.kind == TrialKind::Profiled);
    let exact_ns: f64 = profiled.map(|it| it.server.unwrap().on_cpu_us * 1e3).sum();
    let agree = |samples: u64, ratio: f64| {
        let mut profile = profile(2, 10, 40, &[]);
        profile.quality.samples = samples;
        profile.quality.sampled_ns = (exact_ns * ratio) as u64;
        let ledger = ledger(&measured(&trials, Some(&profile))).expect("histograms are whole");
        ledger.expect("there are totals").checks.samples_agree()
    };
    assert_eq!(agree(400, 1.14), Some(true), "5% plus 2 / √400");
    assert_eq!(agree(400, 0.84), Some(false));
    assert_eq!(agree(1_000_000, 1.055), Some(false));
    assert_eq!(agree(1_000_000, 0.949), Some(true));
}

#[test]
fn a_row_that_grew_is_marked_and_drift_of_both_sides_is_not() {
    let seen = waits(&[("Client", "ClientRead", 1)]);
    let drifting = |block: u32| Spends {
        run_queue: 30.0 + 10.0 * f64::from(block),
        ..SPENDS
    };
    let planned = |block: u32| Spends {
        on_cpu: 70.0 + 0.1 * f64::from(block % 2),
        ..drifting(block)
    };
    let (a, b) = (trials(6, drifting, &seen), trials(6, planned, &seen));
    let (profile_a, profile_b) = (profile(6, 10, 40, &[]), profile(6, 30, 40, &[]));
    let difference = difference(
        &measured(&a, Some(&profile_a)),
        &measured(&b, Some(&profile_b)),
    )
    .expect("histograms are whole")
    .expect("there are totals");
    let lead = &difference.groups[0];
    assert_eq!((lead.part, lead.cost.name.as_str()), (Part::OnCpu, "plan"));
    assert_eq!(
        lead.cost.change,
        pgassay_account::cost_row::Change::Increased
    );
    assert!((lead.cost.difference_us - 20.0).abs() < 0.1);
    let queue = difference
        .groups
        .iter()
        .find(|row| row.part == Part::RunQueue);
    let queue = queue.expect("both sides have it");
    assert_eq!(
        queue.cost.change,
        pgassay_account::cost_row::Change::Inconclusive
    );
}

prop_compose! {
    fn spends()(on_cpu in 1.0..500.0f64, run_queue in 0.0..500.0f64, blocked in 0.0..2000.0f64,
                between in 0.0..200.0f64, client_cpu in 0.0..300.0f64) -> Spends {
        Spends { on_cpu, run_queue, blocked, between, client_cpu }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn differences_add_up_to_the_difference_of_response_times(
        a in proptest::collection::vec(spends(), 4),
        b in proptest::collection::vec(spends(), 4),
        stacks in any::<bool>(),
        counts in proptest::collection::vec(0u64..50, 4),
    ) {
        let seen = waits(&[
            ("Client", "ClientRead", counts[0]), ("Lock", "tuple", counts[1]),
            ("IO", "WalSync", counts[2]), ("", "", counts[3]),
        ]);
        let of = |spends: &[Spends]| trials(4, |block| spends[block as usize], &seen);
        let (a, b) = (of(&a), of(&b));
        let blocked = [(READ, counts[0]), (LOG, counts[1])];
        let profile = profile(4, 3, 7, if stacks { &blocked } else { &[] });
        let (a, b) = (measured(&a, Some(&profile)), measured(&b, None));
        let (of_a, of_b) = (ledger(&a).unwrap().unwrap(), ledger(&b).unwrap().unwrap());
        for ledger in [&of_a, &of_b] {
            let whole = ledger.response_us + ledger.between_transactions_us;
            prop_assert!((sum(ledger) - whole).abs() < 1e-6 * whole);
        }
        let difference = difference(&a, &b).unwrap().unwrap();
        let response_us = difference.response.difference_us;
        prop_assert!((response_us - (of_b.response_us - of_a.response_us)).abs() < 1e-6);
        for rows in [&difference.groups, &difference.rows] {
            let sum: f64 = rows.iter().map(|row| row.cost.difference_us).sum();
            prop_assert!((sum - response_us).abs() < 1e-6, "{sum} is not {response_us}");
            prop_assert!(rows.iter().all(|row| row.part != Part::Between));
        }
    }
}
