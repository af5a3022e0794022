//! A ledger with wrong inputs is never called explained, although its rows add up.
//!
//! The trials are those of a busy server: 64 clients, short transactions, and slightly different
//! blocks. Each exact input is scaled on one side or on both, in timed trials or in all trials. The
//! rows still add up, since blocked time is the rest of the window, so only the checks can detect it.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use pgassay_core::ledger::{
    CheckName, LedgerDifference, LedgerRow, Part, PointMeasurements, difference, explained_share,
    ledger,
};
use pgassay_core::observation::Background;
use pgassay_core::profile::{Frame, Profile, ProfileBuilder};
use pgassay_core::trial::{ClientTotals, CpuTotals, CrossCheckReadings, Latency, Trial, TrialKind};

const CLIENTS: f64 = 64.0;
const WINDOW_US: f64 = 1e6;
/// Length of the whole run over that of the window.
const RUN: f64 = 1.25;
const PROCESSORS: f64 = 4.0;
const BLOCKS: u32 = 4;
const BACKGROUND_US: f64 = 2.0;

/// What a transaction takes, in µs.
#[derive(Debug, Clone, Copy)]
struct Spends {
    on_cpu: f64,
    run_queue: f64,
    wal_sync: f64,
    row_lock: f64,
    between: f64,
    client_cpu: f64,
    client_run_queue: f64,
    thread_busy: f64,
    network: f64,
}

const A: Spends = Spends {
    on_cpu: 45.0,
    run_queue: 400.0,
    wal_sync: 60.0,
    row_lock: 50.0,
    between: 60.0,
    client_cpu: 75.0,
    client_run_queue: 300.0,
    thread_busy: 500.0,
    network: 40.0,
};

/// More CPU time on the server, and longer queues for 64 clients.
const B: Spends = Spends {
    on_cpu: 65.0,
    run_queue: 600.0,
    row_lock: 90.0,
    thread_busy: 650.0,
    network: 41.0,
    ..A
};

impl Spends {
    /// How long the server waits for its client, including think time.
    fn client(&self) -> f64 {
        let at_work = self.client_cpu - self.between;
        self.between + at_work + self.client_run_queue + self.thread_busy + self.network
    }

    fn server(&self) -> f64 {
        self.on_cpu + self.run_queue + self.wal_sync + self.row_lock
    }

    fn whole(&self) -> f64 {
        self.client() + self.server()
    }

    /// The costs in this block: they drift from block to block.
    fn in_block(&self, block: u32) -> Self {
        let drift = 1.0 + 0.02 * f64::from(block);
        Self {
            run_queue: self.run_queue * drift,
            thread_busy: self.thread_busy * drift,
            network: self.network + 0.3 * f64::from(block % 2),
            ..*self
        }
    }
}

fn trial(block: u32, kind: TrialKind, spends: Spends) -> Trial {
    // Profiling has a small overhead.
    let slower = if kind == TrialKind::Profiled {
        1.08
    } else {
        1.0
    };
    let spends = Spends {
        on_cpu: spends.on_cpu * slower,
        run_queue: spends.run_queue * slower,
        ..spends
    };
    let credited = CLIENTS * WINDOW_US / spends.whole();
    let (transactions, all) = (credited as u64, credited * RUN);
    let latency_us = spends.whole() - spends.between;
    let mut latency = Histogram::<u64>::new(3).expect("3 digits are allowed");
    for share in [0.5, 1.5] {
        let count = transactions / 2 + if share > 1.0 { transactions % 2 } else { 0 };
        latency
            .record_n((latency_us * share * 1e3) as u64, count)
            .expect("the histogram grows");
    }
    let machine_us = PROCESSORS * WINDOW_US * RUN;
    let foreign = 0.01;
    let used_us = (spends.on_cpu + spends.client_cpu + BACKGROUND_US) * all + 500.0;
    let active_us =
        spends.on_cpu * 0.8 + spends.run_queue * 0.3 + spends.wal_sync + spends.row_lock;
    Trial {
        server_start: 0,
        block,
        condition: 0,
        variant: 0,
        position: 0,
        kind,
        started_us: 0,
        window_us: WINDOW_US,
        transactions,
        credited_transactions: Some(credited),
        transactions_total: all as u64,
        latency: Latency::from_histogram(&latency),
        server: Some(CpuTotals {
            on_cpu_us: spends.on_cpu * all,
            run_queue_us: spends.run_queue * all,
            processes: CLIENTS as u32,
        }),
        client: ClientTotals {
            cpu_us: spends.client_cpu * all,
            run_queue_us: spends.client_run_queue * all / 40.0,
            in_transaction_us: latency_us * credited,
            between_transactions_us: spends.between * credited,
            sleep_us: 0.0,
            thread_busy_us: Some(spends.thread_busy * credited),
            client_run_queue_us: Some(spends.client_run_queue * credited),
            client_limited: false,
        },
        cpu_steal: 0.0,
        other_programs: foreign,
        unaccounted: Some(0.01),
        cpu_utilization: used_us / machine_us + foreign + 0.01,
        background: vec![Background {
            role: "checkpointer".to_owned(),
            cpu: CpuTotals {
                on_cpu_us: BACKGROUND_US * all,
                ..CpuTotals::default()
            },
        }],
        waits: None,
        cross_checks: Some(CrossCheckReadings {
            backends_clock_us: Some(spends.on_cpu * all * 1.01),
            client_process_us: Some(spends.client_cpu * all + 500.0),
            reading_us: 0.0,
            machine_us: Some(machine_us),
            run_us: Some(WINDOW_US * RUN),
        }),
        counters: BTreeMap::from([
            (
                "pg_stat_database.active_time".to_owned(),
                active_us * all / 1e3,
            ),
            ("backends.voluntary_switches".to_owned(), 2.2 * all),
        ]),
    }
}

fn trials(spends: Spends) -> Vec<Trial> {
    (0..BLOCKS)
        .flat_map(|block| {
            [TrialKind::Timed, TrialKind::Profiled]
                .map(|kind| trial(block, kind, spends.in_block(block)))
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

const RUNS: &str = "main;PostgresMain;exec_simple_query;PortalRun;ExecutorRun;IndexNext";
const READS: &str = "main;PostgresMain;ReadCommand;SocketBackend;pq_recvbuf;secure_read";
const SYNCS: &str = "main;PostgresMain;CommitTransaction;XLogFlush;issue_xlog_fsync;fdatasync";
const LOCKS: &str = "main;PostgresMain;PortalRun;heap_update;LockAcquire;ProcSleep";

/// Samples, and slices of context switches that cover a tenth of the time.
fn profile(spends: Spends) -> Profile {
    let mut builder = ProfileBuilder::new(BLOCKS as usize);
    for block in 0..BLOCKS {
        builder.add(block as usize, frames(RUNS), 1000);
        let spends = spends.in_block(block);
        for (stack, us) in [
            (READS, spends.client()),
            (SYNCS, spends.wal_sync),
            (LOCKS, spends.row_lock),
        ] {
            builder.add_blocked(block as usize, frames(stack), ("", ""), (us * 1e6) as u64);
        }
    }
    let mut profile = builder.finish();
    let profiled: Vec<Trial> = trials(spends)
        .into_iter()
        .filter(|it| it.kind == TrialKind::Profiled)
        .collect();
    let sum_ns = |of: fn(&CpuTotals) -> f64| -> f64 {
        let totals = profiled.iter().filter_map(|it| it.server.as_ref());
        totals.map(of).sum::<f64>() * 1e3
    };
    let (on_cpu_ns, run_queue_ns) = (sum_ns(|it| it.on_cpu_us), sum_ns(|it| it.run_queue_us));
    let quality = &mut profile.quality;
    quality.samples = u64::from(4000 * BLOCKS);
    quality.sampled_ns = (on_cpu_ns * 0.99) as u64;
    quality.observed_ns = (CLIENTS * WINDOW_US * 1e3 * 0.1) as u64 * u64::from(BLOCKS);
    quality.switched_cpu_ns = (on_cpu_ns * 0.11) as u64;
    quality.switched_run_queue_ns = (run_queue_ns * 0.09) as u64;
    profile
}

fn side<'a>(
    variant: usize,
    trials: &'a [Trial],
    profile: Option<&'a Profile>,
) -> PointMeasurements<'a> {
    PointMeasurements {
        condition: 0,
        variant,
        trials: trials.iter().collect(),
        profile,
        major: "18",
    }
}

/// The measurements of both sides.
#[derive(Clone)]
struct Known {
    trials: [Vec<Trial>; 2],
    profiles: Option<[Profile; 2]>,
}

impl Known {
    fn with_switches() -> Self {
        Self {
            trials: [A, B].map(trials),
            profiles: Some([A, B].map(profile)),
        }
    }

    fn difference(&self) -> LedgerDifference {
        let profile = |at: usize| self.profiles.as_ref().map(|it| &it[at]);
        difference(
            &side(0, &self.trials[0], profile(0)),
            &side(1, &self.trials[1], profile(1)),
        )
        .expect("histograms are whole")
        .expect("there are totals")
    }

    /// Mutates the trials of some sides, timed ones or all.
    fn mutated(&self, scope: Scope, mutate: &dyn Fn(&mut Trial)) -> Self {
        let mut mutated = self.clone();
        for (at, trials) in mutated.trials.iter_mut().enumerate() {
            let of_side = scope.sides[at];
            let of_kind = |it: &&mut Trial| scope.profiled || it.kind == TrialKind::Timed;
            trials
                .iter_mut()
                .filter(|_| of_side)
                .filter(of_kind)
                .for_each(mutate);
        }
        mutated
    }
}

#[derive(Debug, Clone, Copy)]
struct Scope {
    sides: [bool; 2],
    profiled: bool,
}

const SCOPES: [Scope; 6] = {
    const fn scope(a: bool, b: bool, profiled: bool) -> Scope {
        Scope {
            sides: [a, b],
            profiled,
        }
    }
    [
        scope(true, true, true),
        scope(true, false, true),
        scope(false, true, true),
        scope(true, true, false),
        scope(true, false, false),
        scope(false, true, false),
    ]
};
const FACTORS: [f64; 4] = [0.5, 2.0, 0.02, 3.0];

fn failed(difference: &LedgerDifference) -> Vec<CheckName> {
    let failed = difference.checks.iter().filter(|it| !it.passed);
    failed.map(|it| it.name).collect()
}

/// Every exact input of a ledger.
#[allow(clippy::type_complexity)]
fn inputs() -> Vec<(&'static str, fn(&mut Trial, f64))> {
    fn server(trial: &mut Trial, change: impl FnOnce(&mut CpuTotals)) {
        if let Some(server) = &mut trial.server {
            change(server);
        }
    }
    vec![
        ("on CPU", |it, by| server(it, |it| it.on_cpu_us *= by)),
        ("run queue", |it, by| server(it, |it| it.run_queue_us *= by)),
        ("backends", |it, by| {
            server(it, |it| {
                it.processes = (f64::from(it.processes) * by) as u32;
            });
        }),
        ("window", |it, by| it.window_us *= by),
        ("transactions", |it, by| {
            it.transactions = (it.transactions as f64 * by) as u64;
        }),
        ("credited transactions", |it, by| {
            it.credited_transactions = it.credited_transactions.map(|credit| credit * by);
        }),
        ("all transactions", |it, by| {
            it.transactions_total = (it.transactions_total as f64 * by) as u64;
        }),
        ("latencies", |it, by| {
            let latency = it.latency.histogram().expect("it is whole");
            let mut scaled = Histogram::<u64>::new(3).expect("3 digits are allowed");
            for step in latency.iter_recorded() {
                let value = (step.value_iterated_to() as f64 * by) as u64;
                let count = step.count_since_last_iteration();
                scaled.record_n(value, count).expect("it grows");
            }
            it.latency = Latency::from_histogram(&scaled);
        }),
        ("client CPU", |it, by| it.client.cpu_us *= by),
        ("client run queue", |it, by| {
            it.client.client_run_queue_us = it.client.client_run_queue_us.map(|us| us * by);
        }),
        ("client thread busy", |it, by| {
            it.client.thread_busy_us = it.client.thread_busy_us.map(|us| us * by);
        }),
        ("in transactions", |it, by| {
            it.client.in_transaction_us *= by;
        }),
        ("between transactions", |it, by| {
            it.client.between_transactions_us *= by;
        }),
    ]
}

#[test]
fn a_ledger_of_sound_figures_is_explained() {
    let difference = Known::with_switches().difference();
    assert_eq!(failed(&difference), [], "{:#?}", difference.checks);
    assert!(difference.explained);
    let share = difference.explained_share.expect("there is a difference");
    let [low, high] = share.interval.expect("four pairs bound it");
    assert!(low <= share.share && share.share <= high, "{share:?}");
    assert!((share.share - 1.0).abs() < 0.05, "{share:?}");
}

#[test]
fn an_input_off_by_a_factor_of_two_is_never_explained() {
    let sound = Known::with_switches();
    for (name, mutate) in inputs() {
        for factor in FACTORS {
            for scope in SCOPES {
                let mutated = sound.mutated(scope, &|it| mutate(it, factor));
                let profile = mutated.profiles.as_ref().map(|it| &it[0]);
                let point = side(0, &mutated.trials[0], profile);
                let Ok(Some(of_a)) = ledger(&point) else {
                    continue;
                };
                let sum: f64 = of_a.rows.iter().map(|row| row.us).sum();
                let whole = of_a.response_us + of_a.between_transactions_us;
                assert!(
                    (sum - whole).abs() < 1e-6 * whole,
                    "rows add up in any case"
                );
                let difference = mutated.difference();
                assert!(
                    !difference.explained && !failed(&difference).is_empty(),
                    "{name} × {factor}, {scope:?}"
                );
            }
        }
    }
}

#[test]
fn wrong_sampled_cpu_time_is_not_explained() {
    for factor in FACTORS {
        for at in [0, 1] {
            let mut known = Known::with_switches();
            let profiles = known.profiles.as_mut().expect("there are some");
            let sampled_ns = &mut profiles[at].quality.sampled_ns;
            *sampled_ns = (*sampled_ns as f64 * factor) as u64;
            let difference = known.difference();
            assert_eq!(failed(&difference), [CheckName::Samples], "{factor}");
            assert!(!difference.explained);
        }
    }
}

#[test]
fn a_run_queue_with_one_source_only_does_not_explain() {
    // Without context switches and `thread_busy_us`, schedstat is the only source of the run queue.
    let mut known = Known::with_switches();
    for profile in known.profiles.iter_mut().flatten() {
        profile.quality.switched_cpu_ns = 0;
        profile.quality.switched_run_queue_ns = 0;
    }
    assert!(
        known.difference().explained,
        "the client's own times bound it"
    );
    for trial in known.trials.iter_mut().flatten() {
        trial.client.thread_busy_us = None;
    }
    let difference = known.difference();
    assert!(!difference.explained);
    let failed = failed(&difference);
    assert!(failed.contains(&CheckName::Sources), "{failed:?}");
}

#[test]
fn without_switches_the_clients_times_detect_a_wrong_run_queue() {
    let mut sound = Known::with_switches();
    for profile in sound.profiles.iter_mut().flatten() {
        profile.quality.switched_cpu_ns = 0;
        profile.quality.switched_run_queue_ns = 0;
    }
    assert!(sound.difference().explained);
    for factor in FACTORS {
        for scope in SCOPES {
            let mutated = sound.mutated(scope, &|it| {
                if let Some(server) = &mut it.server {
                    server.run_queue_us *= factor;
                }
            });
            assert!(!mutated.difference().explained, "{factor} {scope:?}");
        }
    }
}

#[test]
fn the_remainder_is_not_explained() {
    // All of the difference is in the network between server and client.
    let slow = Spends {
        network: 240.0,
        ..A
    };
    let known = Known {
        trials: [A, slow].map(trials),
        profiles: Some([A, slow].map(profile)),
    };
    let difference = known.difference();
    let row = &difference.groups[0];
    assert_eq!(
        (row.part, row.cost.name.as_str()),
        (Part::Client, "network and wake-up")
    );
    assert!((row.cost.difference_us - 200.0).abs() < 4.0, "{row:?}");
    assert!(difference.unexplained_us < 1.0, "every µs has a name");
    assert!(!difference.explained);
    assert!(failed(&difference).contains(&CheckName::ExplainedShare));
    let share = difference.explained_share.expect("there is a difference");
    assert!(share.share.abs() < 0.05, "{share:?}");
    let of_point = ledger(&side(1, &known.trials[1], None)).expect("histograms are whole");
    let of_point = of_point.expect("there are totals");
    assert!(explained_share(&of_point.rows) < 0.9);
}

#[test]
fn a_remainder_whose_difference_is_noise_of_the_size_of_the_effect_is_not_explained() {
    let noisy = |spends: Spends, sign: f64| -> Vec<Trial> {
        let of_block = |block: u32| {
            let error = [90.0, -80.0, 70.0, -75.0][block as usize] * sign;
            Spends {
                network: 140.0 + error,
                ..spends
            }
        };
        let kinds = [TrialKind::Timed, TrialKind::Profiled];
        (0..BLOCKS)
            .flat_map(|block| kinds.map(|kind| trial(block, kind, of_block(block))))
            .collect()
    };
    let known = Known {
        trials: [noisy(A, -1.0), noisy(B, 1.0)],
        profiles: Some([A, B].map(|it| {
            profile(Spends {
                network: 140.0,
                ..it
            })
        })),
    };
    let difference = known.difference();
    let share = difference.explained_share.expect("there is a difference");
    if let Some([low, high]) = share.interval {
        assert!(high - low > 0.2, "{share:?}");
    }
    assert!(failed(&difference).contains(&CheckName::ExplainedShare));
    assert!(!difference.explained);
}

#[test]
fn a_limiting_client_or_high_profiling_overhead_is_not_explained() {
    let sound = Known::with_switches();
    let both = SCOPES[0];
    let limited = sound.mutated(both, &|it| it.client.client_limited = true);
    assert!(failed(&limited.difference()).contains(&CheckName::ClientLimited));
    let slowed = sound.mutated(both, &|it| {
        if it.kind == TrialKind::Profiled {
            it.credited_transactions = it.credited_transactions.map(|credit| credit / 2.0);
        }
    });
    assert!(failed(&slowed.difference()).contains(&CheckName::ProfilingOverhead));
    // A large share of the machine's time goes to processes that are not visible.
    let hidden = sound.mutated(both, &|it| it.cpu_utilization += 0.3);
    let failed = failed(&hidden.difference());
    assert!(failed.contains(&CheckName::Machine), "{failed:?}");
}

#[test]
fn long_transactions_do_not_widen_the_tolerance_where_they_count_by_their_share() {
    let lasting = |spends: Spends| Spends {
        row_lock: spends.row_lock + 120_000.0,
        ..spends
    };
    let mut known = Known {
        trials: [A, B].map(|it| trials(lasting(it))),
        profiles: None,
    };
    let edge = |known: &Known| {
        let of_a = ledger(&side(0, &known.trials[0], None)).expect("histograms are whole");
        of_a.expect("there are totals").checks.edge
    };
    // Half of them take 60 ms and half 180 ms, in windows of a second: E[R²]/E[R] is 150 ms.
    let credited = edge(&known);
    for trial in known.trials.iter_mut().flatten() {
        trial.credited_transactions = None;
    }
    let counted = edge(&known);
    assert!((counted - 0.15).abs() < 0.01, "{counted}");
    assert!((credited - 0.03).abs() < 0.01, "{credited}");
}

#[test]
fn a_difference_without_checks_still_loads() {
    let difference = Known::with_switches().difference();
    let mut kept = serde_json::to_value(&difference).expect("it is plain");
    let fields = kept.as_object_mut().expect("an object");
    for field in ["checks", "explained_share"] {
        assert!(fields.remove(field).is_some(), "{field}");
    }
    let old: LedgerDifference = serde_json::from_value(kept).expect("old results load");
    assert!(old.checks.is_empty() && old.explained_share.is_none());
    let text = serde_json::to_string(&difference).expect("it is plain");
    assert!(
        text.contains("\"name\":\"cpu_clock\""),
        "results contain the names of the checks"
    );
}

#[test]
fn client_times_longer_than_the_wait_widen_the_interval() {
    // A client's thread still works after its server has started, by a different time in each block.
    let overlapping = |spends: Spends, overlaps: [f64; 4]| -> Vec<Trial> {
        let mut trials = trials(Spends {
            network: 0.0,
            ..spends
        });
        for trial in &mut trials {
            let overlap_us = overlaps[trial.block as usize] * trial.credited_or_counted();
            if let Some(turn_us) = &mut trial.client.thread_busy_us {
                *turn_us += overlap_us;
            }
        }
        trials
    };
    let known = Known {
        trials: [
            overlapping(A, [10.0, 90.0, 20.0, 110.0]),
            overlapping(B, [80.0, 15.0, 100.0, 20.0]),
        ],
        profiles: Some([A, B].map(|it| profile(Spends { network: 0.0, ..it }))),
    };
    let difference = known.difference();
    let of_remainder = |row: &&LedgerRow| row.cost.name == "network and wake-up";
    let remainder = difference.groups.iter().find(of_remainder);
    assert!(remainder.is_none_or(|row| row.cost.difference_us.abs() < 1.0));
    let share = difference.explained_share.expect("there is a difference");
    let [low, high] = share.interval.expect("four pairs bound it");
    assert!(
        high - low > 0.1,
        "trimmed rows widen the interval: {share:?}"
    );
}
