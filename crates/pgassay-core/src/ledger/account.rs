//! From exact totals and what divides them to rows that add up.
//!
//! Identity: whatever the weights, the rows' sum is `max(whole, on-CPU + run queue)`; with totals
//! that fit into the whole, it is the whole. The row of [`Part::Between`] is exactly the client's
//! own figure wherever the blocked time has room for it.
//!
//! The time in which the server waits for its client is divided in this order, each part taking
//! no more than is left: between transactions, asleep, the client's CPU, its run queue; the rest
//! is wire, wake-up, and waiting for a turn in a thread that serves other clients. Between two
//! transactions the client's thread is at work too, so that time of its CPU is not counted twice.

use std::collections::BTreeMap;

use super::reason::Reason;
use super::{Nature, Part, Row};

/// Exact times per transaction, in µs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Exact {
    /// Backends × window / transactions.
    pub whole_us: f64,
    /// On a CPU.
    pub on_cpu_us: f64,
    /// Runnable, waiting for one.
    pub run_queue_us: f64,
    /// In no statement, where the server keeps account of that; else samples tell how long it waits
    /// for its client.
    pub idle_us: Option<f64>,
    /// The load generator's own account, where it is ours.
    pub client: Option<ClientParts>,
}

/// The client's account, per transaction, in µs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ClientParts {
    /// No transaction under way.
    pub between_us: f64,
    /// Asleep inside a transaction, as its script asks.
    pub asleep_us: f64,
    /// On a CPU.
    pub cpu_us: f64,
    /// Its threads were runnable and waited for a CPU.
    pub run_queue_us: f64,
}

/// The name of a row on a CPU.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuKey {
    /// The phase of the statement.
    pub phase: String,
    /// The subsystem.
    pub mechanism: String,
    /// Nothing in the stack had a name.
    pub is_unresolved: bool,
}

/// The name of a row of blocked time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockedKey {
    /// The phase of the statement; empty where no stack told it.
    pub phase: String,
    /// For what.
    pub reason: Reason,
}

/// Weights of the rows on a CPU: all, and inside the kernel. Any unit, since only shares count.
pub type CpuWeights = BTreeMap<CpuKey, [f64; 2]>;
/// Weights of the reasons of blocking.
pub type BlockedWeights = BTreeMap<BlockedKey, f64>;

impl BlockedKey {
    /// Of looks at a server elsewhere that met a session at work (see [`Reason::running`]).
    pub fn running() -> Self {
        Self {
            phase: String::new(),
            reason: Reason::running(),
        }
    }
}

/// Divides the waits for locks that only stacks have told, too short for any look at that place,
/// among the locks of their kind, as looks at any time met them.
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
        let untold = |key: &BlockedKey, _: &mut f64| key.reason.mechanism == kind;
        let untold: Vec<(BlockedKey, f64)> = weights.extract_if(.., untold).collect();
        for (key, weight) in untold {
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

/// The rows, in no particular order. Without weights a total stays one row.
pub fn rows(exact: &Exact, on_cpu: &CpuWeights, blocked: &BlockedWeights) -> Vec<Row> {
    let mut rows = cpu_rows(exact.on_cpu_us, on_cpu);
    rows.push(row(
        Part::RunQueue,
        Nature::Queue,
        "run queue",
        exact.run_queue_us,
    ));
    let blocked_us = (exact.whole_us - exact.on_cpu_us - exact.run_queue_us).max(0.0);
    rows.extend(blocked_rows(blocked_us, blocked, exact));
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
    }
}

fn cpu_rows(on_cpu_us: f64, weights: &CpuWeights) -> Vec<Row> {
    let all: f64 = weights.values().map(|[all, _]| all).sum();
    if all <= 0.0 {
        return vec![row(Part::OnCpu, Nature::Demand, "CPU", on_cpu_us)];
    }
    let cpu_row = |(key, [own, system]): (&CpuKey, &[f64; 2])| {
        let part = if key.is_unresolved {
            Part::Unresolved
        } else {
            Part::OnCpu
        };
        Row {
            phase: key.phase.clone(),
            system_us: system / all * on_cpu_us,
            ..row(part, Nature::Demand, &key.mechanism, own / all * on_cpu_us)
        }
    };
    weights.iter().map(cpu_row).collect()
}

fn blocked_rows(blocked_us: f64, weights: &BlockedWeights, exact: &Exact) -> Vec<Row> {
    let client = exact.client.as_ref();
    let is_client = |key: &BlockedKey| key.reason.part == Part::Client;
    let all: f64 = weights.values().sum();
    let for_client: f64 = weights
        .iter()
        .filter(|(key, _)| is_client(key))
        .map(|it| it.1)
        .sum();
    // What the client knows of itself is exact and cannot be anything else.
    let known_us = client
        .map_or(0.0, |it| it.between_us + it.asleep_us)
        .min(blocked_us);
    let sampled_us = if all > 0.0 {
        for_client / all * blocked_us
    } else {
        0.0
    };
    let client_us = exact
        .idle_us
        .unwrap_or(sampled_us)
        .clamp(known_us, blocked_us);
    let mut rows = client_rows(client_us, client);
    let other_us = blocked_us - client_us;
    let other = all - for_client;
    if other <= 0.0 {
        let not_told = Reason::of_event("", "");
        rows.push(row(
            not_told.part,
            not_told.nature,
            &not_told.mechanism,
            other_us,
        ));
        return rows;
    }
    for (key, weight) in weights.iter().filter(|(key, _)| !is_client(key)) {
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
    let asleep = take(parts.asleep_us);
    let cpu = take(parts.cpu_us - parts.between_us);
    let run_queue = take(parts.run_queue_us);
    vec![
        row(
            Part::Between,
            Nature::Think,
            "between transactions",
            between,
        ),
        row(Part::Client, Nature::Think, "client asleep", asleep),
        row(Part::Client, Nature::Demand, "client CPU", cpu),
        row(Part::Client, Nature::Queue, "client run queue", run_queue),
        row(
            Part::Client,
            Nature::Queue,
            "wire, wake-up, client's turn",
            left_us,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cpu_key(name: u8) -> CpuKey {
        CpuKey {
            phase: ["parse", "plan", "execute"][usize::from(name) % 3].to_owned(),
            mechanism: format!("m{name}"),
            is_unresolved: name == 7,
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
                   idle_us in proptest::option::of(time())) -> Exact {
            let client = client.map(|[between_us, asleep_us, cpu_us, run_queue_us]| ClientParts {
                between_us, asleep_us, cpu_us, run_queue_us,
            });
            Exact { whole_us, on_cpu_us, run_queue_us, idle_us, client }
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
            client: Some(ClientParts {
                between_us: 5.0,
                asleep_us: 0.0,
                cpu_us: 12.0,
                run_queue_us: 3.0,
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
        assert!((us("wire, wake-up, client's turn").unwrap() - 45.0).abs() < 1e-9);
    }
}
