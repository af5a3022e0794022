//! The trials and profiles of a busy server.

use hdrhistogram::Histogram;
use pgassay_account::ledger::PointMeasurements;
use pgassay_model::counters::Counters;
use pgassay_model::cpu::{Background, CpuTotals};
use pgassay_model::profile::{Frame, Profile, ProfileBuilder};
use pgassay_model::trial::{ClientTotals, CrossCheckReadings, Latency, Trial, TrialKind};
use pgassay_model::waits::{WaitCount, Waits};

pub const CLIENTS: f64 = 64.0;
pub const WINDOW_US: f64 = 1e6;
/// Length of the whole run over that of the window.
pub const RUN: f64 = 1.25;
pub const PROCESSORS: f64 = 4.0;
pub const BLOCKS: u32 = 4;
pub const BACKGROUND_US: f64 = 2.0;

/// What a transaction takes, in µs.
#[derive(Debug, Clone, Copy)]
pub struct Spends {
    pub on_cpu: f64,
    pub run_queue: f64,
    pub wal_sync: f64,
    pub row_lock: f64,
    pub between: f64,
    pub client_cpu: f64,
    pub client_run_queue: f64,
    pub thread_busy: f64,
    pub network: f64,
    /// How long replies waited while the client's thread had not checked for them.
    pub arrived: f64,
}

pub const A: Spends = Spends {
    on_cpu: 45.0,
    run_queue: 400.0,
    wal_sync: 60.0,
    row_lock: 50.0,
    between: 60.0,
    client_cpu: 75.0,
    client_run_queue: 300.0,
    thread_busy: 500.0,
    network: 40.0,
    arrived: 0.0,
};

/// More CPU time on the server, and longer queues for 64 clients.
pub const B: Spends = Spends {
    on_cpu: 65.0,
    run_queue: 600.0,
    row_lock: 90.0,
    thread_busy: 650.0,
    network: 41.0,
    ..A
};

impl Spends {
    /// How long the server waits for its client, including think time.
    pub fn client(&self) -> f64 {
        let at_work = self.client_cpu - self.between;
        self.between
            + at_work
            + self.client_run_queue
            + self.thread_busy
            + self.network
            + self.arrived
    }

    pub fn server(&self) -> f64 {
        self.on_cpu + self.run_queue + self.wal_sync + self.row_lock
    }

    pub fn whole(&self) -> f64 {
        self.client() + self.server()
    }

    /// The costs in this block: they drift from block to block.
    pub fn in_block(&self, block: u32) -> Self {
        let drift = 1.0 + 0.02 * f64::from(block);
        Self {
            run_queue: self.run_queue * drift,
            thread_busy: self.thread_busy * drift,
            network: self.network + 0.3 * f64::from(block % 2),
            ..*self
        }
    }
}

pub fn trial(block: u32, kind: TrialKind, spends: Spends) -> Trial {
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
        credited_transactions: Some(credited),
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
            run_queue_us: spends.client_run_queue * all / 40.0,
            in_transaction_us: latency_us * credited,
            between_transactions_us: spends.between * credited,
            sleep_us: 0.0,
            thread_busy_us: Some(spends.thread_busy * credited),
            client_run_queue_us: Some(spends.client_run_queue * credited),
            // The thread may have been busy or without a CPU for longer than that.
            possible_thread_busy_us: Some(spends.arrived * 0.5 * credited),
            possible_run_queue_us: Some(spends.arrived * 1.5 * credited),
            client_limited: false,
        },
        backend_memory: None,
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
        waits: (kind == TrialKind::Profiled).then(|| waits(spends)),
        cross_checks: Some(CrossCheckReadings {
            backends_clock_us: Some(spends.on_cpu * all * 1.01),
            client_process_us: Some(spends.client_cpu * all + 500.0),
            reading_us: 0.0,
            machine_us: Some(machine_us),
            run_us: Some(WINDOW_US * RUN),
        }),
        counters: Counters::from([
            ("pg_stat_database.active_time", active_us * all / 1e3),
            ("backends.voluntary_switches", 2.2 * all),
        ]),
    }
}

/// Wait events, read 40 times per second.
fn waits(spends: Spends) -> Waits {
    let seen = |us: f64| (CLIENTS * WINDOW_US / 25_000.0 * us / spends.whole()).round() as u64;
    let events = [
        ("Client", "ClientRead", spends.client()),
        ("IO", "WalSync", spends.wal_sync),
        ("Lock", "transactionid", spends.row_lock),
    ];
    let events = events.map(|(kind, name, us)| WaitCount {
        kind: kind.to_owned(),
        name: name.to_owned(),
        samples: seen(us),
    });
    Waits {
        blocked_samples: events.iter().map(|it| it.samples).sum(),
        events: events.to_vec(),
        ..Waits::default()
    }
}

pub fn trials(spends: Spends) -> Vec<Trial> {
    (0..BLOCKS)
        .flat_map(|block| {
            [TrialKind::Timed, TrialKind::Profiled]
                .map(|kind| trial(block, kind, spends.in_block(block)))
        })
        .collect()
}

pub fn frames(stack: &'static str) -> impl Iterator<Item = Frame> {
    stack.split(';').map(|symbol| Frame {
        symbol: Some(symbol.to_owned()),
        object: "postgres".to_owned(),
        offset: 0,
        kernel: false,
    })
}

pub const RUNS: &str = "main;PostgresMain;exec_simple_query;PortalRun;ExecutorRun;IndexNext";
pub const READS: &str = "main;PostgresMain;ReadCommand;SocketBackend;pq_recvbuf;secure_read";
pub const SYNCS: &str = "main;PostgresMain;CommitTransaction;XLogFlush;issue_xlog_fsync;fdatasync";
pub const LOCKS: &str = "main;PostgresMain;PortalRun;heap_update;LockAcquire;ProcSleep";

/// Samples, and slices of context switches that cover a tenth of the time.
pub fn profile(spends: Spends) -> Profile {
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
    quality.user_samples = quality.samples;
    quality.unwound_to_entry = quality.samples - quality.samples / 100;
    quality.sampled_ns = (on_cpu_ns * 0.99) as u64;
    quality.observed_ns = (CLIENTS * WINDOW_US * 1e3 * 0.1) as u64 * u64::from(BLOCKS);
    quality.switched_cpu_ns = (on_cpu_ns / RUN * 0.11) as u64;
    quality.switched_run_queue_ns = (run_queue_ns / RUN * 0.09) as u64;
    profile
}

pub fn side<'a>(
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
