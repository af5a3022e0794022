//! Divides exact totals by weights into rows that add up.
//!
//! Identity: whatever the weights, the rows add up to `max(whole, on-CPU + run queue)`, which is the
//! whole if the totals fit into it. The row of [`Part::Between`] equals the client's own figure if
//! the blocked time has room for it.
//!
//! The time in which the server waits for its client is divided in this order, each part taking no
//! more than is left: between transactions, sleep, client CPU, client run queue, client thread busy
//! (the thread serves other clients first). When a reply arrived at a thread that was not asleep is
//! unknown; such possible waiting takes what is left, in proportion, before the network does: a thread
//! that never sleeps would not have read a reply that arrived earlier. It is an upper bound, so it is kept
//! apart ([`Row::possible_us`]): as a known cause, it would explain whatever is left, by construction. The
//! rest is network and wake-up, which pgassay does not measure ([`super::is_remainder`]). The client's
//! thread also works between two transactions, so that CPU time is subtracted once.

use std::collections::BTreeMap;

use super::reason::Reason;
use super::row::{
    CLIENT_RUN_QUEUE, CLIENT_THREAD_BUSY, NETWORK_AND_THREAD_REMAINDER, NETWORK_REMAINDER, Nature,
    Part, Row,
};

/// Exact times per transaction, in µs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Exact {
    /// Backends × window / transactions.
    pub whole_us: f64,
    /// On CPU.
    pub on_cpu_us: f64,
    /// In the run queue.
    pub run_queue_us: f64,
    /// Outside of statements, if the server measures that; otherwise samples determine how long it
    /// waits for its client.
    pub idle_us: Option<f64>,
    /// The load generator's own times; `None` if the clients are not ours.
    pub client: Option<ClientParts>,
    /// How long client and server may work at once: the client may account for this much more than the
    /// server waits for it.
    pub overlap_us: f64,
}

impl Exact {
    /// Neither on CPU nor in the run queue.
    pub fn blocked_us(&self) -> f64 {
        (self.whole_us - self.on_cpu_us - self.run_queue_us).max(0.0)
    }
}

/// The client's own times per transaction, in µs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ClientParts {
    /// Between transactions.
    pub between_us: f64,
    /// Sleeping inside a transaction, as its script requests.
    pub sleep_us: f64,
    /// On CPU.
    pub cpu_us: f64,
    /// Run-queue wait of its threads.
    pub run_queue_us: f64,
    /// The same, weighted by the clients that were ready in the thread: the time that clients waited.
    /// `None` if the load generator did not record it.
    pub ready_run_queue_us: Option<f64>,
    /// Time a ready client waited while its thread served others; `None` if it was not measured.
    pub thread_busy_us: Option<f64>,
    /// At most this much more of `ready_run_queue_us`; `None` if it was not measured.
    pub possible_run_queue_us: Option<f64>,
    /// At most this much more of `thread_busy_us`; `None` if it was not measured.
    pub possible_busy_us: Option<f64>,
}

impl ClientParts {
    /// Time that clients waited because their thread waited for a CPU. Every ready client of a thread
    /// waits through its delay, so for several clients the thread's own delay is too little.
    pub fn waited_for_cpu_us(&self) -> f64 {
        self.ready_run_queue_us.unwrap_or(self.run_queue_us)
    }

    /// How much longer clients waited for their thread at most, on a CPU and in the run queue.
    pub fn possible_us(&self) -> f64 {
        self.possible_run_queue_us.unwrap_or(0.0) + self.possible_busy_us.unwrap_or(0.0)
    }

    /// Total time in which the server certainly waits for the client, as measured by the client. Each
    /// part counts once.
    pub fn accounted_us(&self) -> f64 {
        let cpu_us = (self.cpu_us - self.between_us).max(0.0);
        let turn_us = self.thread_busy_us.unwrap_or(0.0);
        self.between_us + self.sleep_us + cpu_us + self.waited_for_cpu_us() + turn_us
    }
}

/// Key of a row on CPU.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuKey {
    /// The phase of the statement.
    pub phase: String,
    /// The subsystem.
    pub mechanism: String,
    /// No frame of the stack could be attributed.
    pub is_unknown: bool,
}

/// Key of a row of blocked time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockedKey {
    /// The phase of the statement; empty without a stack.
    pub phase: String,
    /// The reason of blocking.
    pub reason: Reason,
}

/// Weights of the rows on CPU: total, and inside the kernel. Any unit, since only shares count.
pub type CpuWeights = BTreeMap<CpuKey, [f64; 2]>;
/// Weights of the reasons of blocking.
pub type BlockedWeights = BTreeMap<BlockedKey, f64>;

impl BlockedKey {
    /// Key of samples of a remote server that found an active session (see [`Reason::running`]).
    pub fn running() -> Self {
        Self {
            phase: String::new(),
            reason: Reason::running(),
        }
    }
}

/// Names the locks of waits that are known from stacks only, because no sample caught a wait event at
/// the same call site. Their weight is apportioned by all sampled waits of that lock type.
pub fn name_locks(weights: &mut BlockedWeights, events: &BlockedWeights) {
    for kind in Reason::LOCKS {
        let of_kind: Vec<(&Reason, f64)> = events
            .iter()
            .filter(|(key, _)| key.reason.is_lock_of(kind))
            .map(|(key, samples)| (&key.reason, *samples))
            .collect();
        let samples: f64 = of_kind.iter().map(|(_, samples)| samples).sum();
        if samples <= 0.0 {
            continue;
        }
        let unnamed = |key: &BlockedKey, _: &mut f64| key.reason.mechanism == kind;
        let unnamed: Vec<(BlockedKey, f64)> = weights.extract_if(.., unnamed).collect();
        for (key, weight) in unnamed {
            for (reason, of_reason) in &of_kind {
                let named = BlockedKey {
                    phase: key.phase.clone(),
                    reason: (*reason).clone(),
                };
                *weights.entry(named).or_default() += weight * of_reason / samples;
            }
        }
    }
}

/// The rows, in no particular order. Without weights, a total stays one row.
pub fn rows(exact: &Exact, on_cpu: &CpuWeights, blocked: &BlockedWeights) -> Vec<Row> {
    let mut rows = cpu_rows(exact.on_cpu_us, on_cpu);
    rows.push(row(
        Part::RunQueue,
        Nature::Queueing,
        "run queue",
        exact.run_queue_us,
    ));
    rows.extend(blocked_rows(exact.blocked_us(), blocked, exact));
    rows.retain(|row| row.us > 0.0);
    rows
}

fn row(part: Part, nature: Nature, mechanism: &str, us: f64) -> Row {
    Row {
        part,
        nature,
        phase: String::new(),
        mechanism: mechanism.to_owned(),
        us,
        system_us: 0.0,
        possible_us: 0.0,
    }
}

fn cpu_rows(on_cpu_us: f64, weights: &CpuWeights) -> Vec<Row> {
    let all: f64 = weights.values().map(|[all, _]| all).sum();
    if all <= 0.0 {
        return vec![row(Part::OnCpu, Nature::Service, "CPU", on_cpu_us)];
    }
    let cpu_row = |(key, [own, system]): (&CpuKey, &[f64; 2])| {
        let part = if key.is_unknown {
            Part::Unexplained
        } else {
            Part::OnCpu
        };
        Row {
            phase: key.phase.clone(),
            system_us: system / all * on_cpu_us,
            ..row(part, Nature::Service, &key.mechanism, own / all * on_cpu_us)
        }
    };
    weights.iter().map(cpu_row).collect()
}

fn blocked_rows(blocked_us: f64, weights: &BlockedWeights, exact: &Exact) -> Vec<Row> {
    let client = exact.client.as_ref();
    let (for_client, all) = client_weight(weights);
    // The client measures its own times exactly, and the server's wait is a share of few slices. So the
    // server must have waited about as long.
    let known_us = client.map_or(0.0, |it| {
        let surely_us = it.accounted_us() - exact.overlap_us;
        surely_us.max(it.between_us + it.sleep_us).min(blocked_us)
    });
    let client_us = server_waits_for_client_us(exact, weights)
        .unwrap_or(0.0)
        .clamp(known_us, blocked_us);
    let mut rows = client_rows(client_us, client);
    let other_us = blocked_us - client_us;
    let other = all - for_client;
    if other <= 0.0 {
        let unknown = Reason::of_event("", "");
        rows.push(row(
            unknown.part,
            unknown.nature,
            &unknown.mechanism,
            other_us,
        ));
        return rows;
    }
    for (key, weight) in weights.iter().filter(|it| !is_client(it.0)) {
        let BlockedKey { phase, reason } = key;
        rows.push(Row {
            phase: phase.clone(),
            ..row(
                reason.part,
                reason.nature,
                &reason.mechanism,
                weight / other * other_us,
            )
        });
    }
    rows
}

/// How long the server waited for its client according to the server's clock or, if there is none,
/// the samples of blocked backends; `None` without both. The client's own times are not used.
pub fn server_waits_for_client_us(exact: &Exact, weights: &BlockedWeights) -> Option<f64> {
    let (for_client, all) = client_weight(weights);
    let sampled_us = (all > 0.0).then(|| for_client / all * exact.blocked_us());
    exact.idle_us.or(sampled_us)
}

pub(super) fn is_client(key: &BlockedKey) -> bool {
    key.reason.part == Part::Client
}

/// The weight of waiting for the client, and the total weight.
pub(super) fn client_weight(weights: &BlockedWeights) -> (f64, f64) {
    let of_client = weights.iter().filter(|(key, _)| is_client(key));
    (of_client.map(|it| it.1).sum(), weights.values().sum())
}

fn client_rows(client_us: f64, client: Option<&ClientParts>) -> Vec<Row> {
    let Some(parts) = client else {
        return vec![row(Part::Client, Nature::Think, "client", client_us)];
    };
    let mut left_us = client_us;
    let mut take = |us: f64| {
        let taken = us.clamp(0.0, left_us);
        left_us -= taken;
        taken
    };
    let between = take(parts.between_us);
    let asleep = take(parts.sleep_us);
    let cpu = take(parts.cpu_us - parts.between_us);
    let run_queue = take(parts.waited_for_cpu_us());
    let turn = take(parts.thread_busy_us.unwrap_or(0.0));
    let possible_us = parts.possible_us();
    let possible = take(possible_us) / possible_us.max(f64::MIN_POSITIVE);
    let waiting = |name: &str, certain_us: f64, most_us: Option<f64>| {
        let possible_us = possible * most_us.unwrap_or(0.0);
        Row {
            possible_us,
            ..row(
                Part::Client,
                Nature::Queueing,
                name,
                certain_us + possible_us,
            )
        }
    };
    let remainder = match parts.thread_busy_us {
        Some(_) => NETWORK_REMAINDER,
        None => NETWORK_AND_THREAD_REMAINDER,
    };
    vec![
        row(
            Part::Between,
            Nature::Think,
            "between transactions",
            between,
        ),
        row(Part::Client, Nature::Think, "client sleep", asleep),
        row(Part::Client, Nature::Service, "client CPU", cpu),
        waiting(CLIENT_RUN_QUEUE, run_queue, parts.possible_run_queue_us),
        waiting(CLIENT_THREAD_BUSY, turn, parts.possible_busy_us),
        row(Part::Client, Nature::Queueing, remainder, left_us),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::row::is_remainder;
    use super::*;
    use proptest::prelude::*;

    fn cpu_key(name: u8) -> CpuKey {
        CpuKey {
            phase: ["parse", "plan", "execute"][usize::from(name) % 3].to_owned(),
            mechanism: format!("m{name}"),
            is_unknown: name == 7,
        }
    }

    fn blocked_key(name: u8) -> BlockedKey {
        let events = [
            ("Client", "ClientRead"),
            ("Lock", "tuple"),
            ("IO", "WalSync"),
            ("", ""),
        ];
        let (kind, event) = events[usize::from(name) % 4];
        BlockedKey {
            phase: String::new(),
            reason: Reason::of_event(kind, event),
        }
    }

    fn time() -> impl Strategy<Value = f64> {
        prop_oneof![Just(0.0), 0.0..1000.0f64]
    }

    prop_compose! {
        fn exact()(whole_us in time(), on_cpu_us in time(), run_queue_us in time(),
                   client in proptest::option::of([time(), time(), time(), time()]),
                   idle_us in proptest::option::of(time()), measured in any::<bool>()) -> Exact {
            let client = client.map(|[between_us, sleep_us, cpu_us, run_queue_us]| ClientParts {
                between_us, sleep_us, cpu_us, run_queue_us,
                ready_run_queue_us: measured.then_some(run_queue_us * 3.0),
                thread_busy_us: measured.then_some(cpu_us * 2.0),
                possible_run_queue_us: measured.then_some(run_queue_us / 2.0),
                possible_busy_us: measured.then_some(cpu_us),
            });
            Exact { whole_us, on_cpu_us, run_queue_us, idle_us, client, overlap_us: 40.0 }
        }
    }

    proptest! {
        #[test]
        fn rows_add_up_to_the_whole_whatever_divides_it(
            exact in exact(),
            cpu in proptest::collection::vec((0u8..9, time()), 0..8),
            blocked in proptest::collection::vec((0u8..4, time()), 0..6),
        ) {
            let cpu = cpu.into_iter().map(|(name, weight)| (cpu_key(name), [weight, weight / 2.0]));
            let blocked = blocked.into_iter().map(|(name, weight)| (blocked_key(name), weight));
            let rows = rows(&exact, &cpu.collect(), &blocked.collect());
            let used = exact.on_cpu_us + exact.run_queue_us;
            let sum: f64 = rows.iter().map(|row| row.us).sum();
            prop_assert!((sum - exact.whole_us.max(used)).abs() < 1e-6, "{sum} {rows:?}");
            prop_assert!(rows.iter().all(|row| row.us > 0.0 && row.system_us <= row.us));
            let blocked_us = (exact.whole_us - used).max(0.0);
            if let Some(client) = exact.client {
                let between: f64 = rows.iter().filter(|row| row.part == Part::Between).map(|row| row.us).sum();
                prop_assert!((between - client.between_us.min(blocked_us)).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn the_clients_cpu_is_not_counted_twice() {
        let exact = Exact {
            whole_us: 100.0,
            on_cpu_us: 20.0,
            run_queue_us: 10.0,
            idle_us: None,
            overlap_us: 40.0,
            client: Some(ClientParts {
                between_us: 5.0,
                sleep_us: 0.0,
                cpu_us: 12.0,
                run_queue_us: 3.0,
                ..ClientParts::default()
            }),
        };
        let blocked = BTreeMap::from([(blocked_key(0), 6.0), (blocked_key(1), 1.0)]);
        let rows = rows(&exact, &BTreeMap::new(), &blocked);
        let us = |mechanism: &str| {
            rows.iter()
                .find(|row| row.mechanism == mechanism)
                .map(|row| row.us)
        };
        assert_eq!(us("CPU"), Some(20.0));
        assert_eq!(us("between transactions"), Some(5.0));
        assert_eq!(us("client CPU"), Some(7.0));
        assert_eq!(us("client run queue"), Some(3.0));
        assert!((us("Lock tuple").unwrap() - 10.0).abs() < 1e-9);
        assert!((us("network, wake-up, client thread").unwrap() - 45.0).abs() < 1e-9);
    }

    /// Regression: 64 clients whose thread lost its CPU for 1.4 ms per transaction, of which 30 ms are a
    /// sleep in the statement: with so few slices, their share of the time is uncertain by 1 ms, and what
    /// the client had measured exactly was cut to it.
    #[test]
    fn a_share_of_few_slices_does_not_cut_what_the_client_has_measured() {
        let exact = Exact {
            whole_us: 32_000.0,
            on_cpu_us: 100.0,
            run_queue_us: 300.0,
            idle_us: None,
            overlap_us: 40.0,
            client: Some(ClientParts {
                cpu_us: 20.0,
                ready_run_queue_us: Some(1357.0),
                thread_busy_us: Some(40.0),
                ..ClientParts::default()
            }),
        };
        for seen_us in [0.0, 500.0, 1000.0, 1500.0] {
            let blocked = BTreeMap::from([
                (blocked_key(0), seen_us),
                (blocked_key(1), exact.blocked_us() - seen_us),
            ]);
            let rows = rows(&exact, &BTreeMap::new(), &blocked);
            let of_queue = rows.iter().find(|row| row.mechanism == CLIENT_RUN_QUEUE);
            let us = of_queue.map_or(0.0, |row| row.us);
            assert!((us - 1357.0).abs() < 1e-9, "{us} {rows:?}");
        }
    }

    /// When replies arrived at a thread that never sleeps is unknown, and the network is not where they
    /// waited.
    #[test]
    fn possible_waiting_for_the_thread_takes_what_is_left_before_the_network() {
        let us = |possible_run_queue_us, mechanism: &str| {
            let exact = Exact {
                whole_us: 1500.0,
                on_cpu_us: 40.0,
                run_queue_us: 460.0,
                idle_us: None,
                overlap_us: 40.0,
                client: Some(ClientParts {
                    cpu_us: 5.0,
                    ready_run_queue_us: Some(200.0),
                    thread_busy_us: Some(95.0),
                    possible_run_queue_us: Some(possible_run_queue_us),
                    possible_busy_us: Some(possible_run_queue_us / 3.0),
                    ..ClientParts::default()
                }),
            };
            let blocked = BTreeMap::from([(blocked_key(0), 1.0)]);
            let rows = rows(&exact, &BTreeMap::new(), &blocked);
            let row = rows.into_iter().find(|row| row.mechanism == mechanism);
            row.map_or(0.0, |row| row.us)
        };
        let is = |us: f64, expected: f64| assert!((us - expected).abs() < 1e-9, "{us}");
        // 700 µs are left: of more, as much as that.
        is(us(1500.0, CLIENT_RUN_QUEUE), 200.0 + 525.0);
        is(us(1500.0, "client thread busy"), 95.0 + 175.0);
        is(us(1500.0, NETWORK_REMAINDER), 0.0);
        // Of less, all.
        is(us(300.0, CLIENT_RUN_QUEUE), 500.0);
        is(us(300.0, "client thread busy"), 195.0);
        is(us(300.0, NETWORK_REMAINDER), 300.0);
    }

    /// One thread serves 64 clients, and another program competes for its CPU. The thread's own delay
    /// per transaction is 28 µs, but on average 49 clients are ready in it and wait through it.
    #[test]
    fn every_client_that_is_ready_in_a_delayed_thread_waits_through_its_delay() {
        let (thread_us, waited_us) = (28.0, 1384.0);
        let exact = |ready_run_queue_us, turn_us| Exact {
            whole_us: 1900.0,
            on_cpu_us: 40.0,
            run_queue_us: 10.0,
            idle_us: None,
            overlap_us: 40.0,
            client: Some(ClientParts {
                between_us: 1.0,
                cpu_us: 8.0,
                run_queue_us: thread_us,
                ready_run_queue_us,
                thread_busy_us: turn_us,
                ..ClientParts::default()
            }),
        };
        let blocked = BTreeMap::from([(blocked_key(0), 1.0)]);
        let us = |exact: &Exact, mechanism: &str| {
            let rows = rows(exact, &BTreeMap::new(), &blocked);
            let row = rows.into_iter().find(|row| row.mechanism == mechanism);
            row.map_or(0.0, |row| row.us)
        };
        let counted = exact(Some(waited_us), Some(400.0));
        assert!((us(&counted, "client run queue") - waited_us).abs() < 1e-9);
        assert!((us(&counted, "client thread busy") - 400.0).abs() < 1e-9);
        let left_us = 1900.0 - 50.0 - 8.0 - waited_us - 400.0;
        assert!((us(&counted, NETWORK_REMAINDER) - left_us).abs() < 1e-9);
        // If these were not recorded, the name of the remainder says that it includes them.
        let not_counted = exact(None, None);
        assert!((us(&not_counted, "client run queue") - thread_us).abs() < 1e-9);
        assert!(us(&not_counted, NETWORK_AND_THREAD_REMAINDER) > waited_us);
        assert!(is_remainder(NETWORK_REMAINDER) && is_remainder(NETWORK_AND_THREAD_REMAINDER));
    }
}
