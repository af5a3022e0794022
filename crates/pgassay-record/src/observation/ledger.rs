//! The ledger of a live server: all time of its backends, in rows that add up.
//!
//! The clients are external, so waiting for them is one row, which includes idle time.

use pgassay_account::ledger::account::{BlockedKey, BlockedWeights, Exact, name_locks, rows};
use pgassay_account::ledger::{
    Divider, Nature, Part, Row, blocked_key, blocked_weights, cpu_weights,
};

use super::Observation;

impl Observation {
    /// The backends' time over the whole window by phase and mechanism, longest row first. The rows add
    /// up to `backends_present_us`.
    pub fn ledger(&self) -> Vec<Row> {
        let exact = Exact {
            whole_us: self.backends_present_us - self.ended_us(),
            on_cpu_us: self.on_cpu_us(),
            run_queue_us: self.backends.map_or(0.0, |it| it.run_queue_us),
            idle_us: None,
            client: None,
            overlap_us: 0.0,
        };
        let major = self.subject.major.as_deref().unwrap_or("devel");
        let profile = self.profile.as_ref();
        let on_cpu = profile.map(|it| cpu_weights(it, major)).unwrap_or_default();
        let mut blocked = profile.map(blocked_weights).unwrap_or_default();
        let waits = self.waits_as_weights();
        if blocked.is_empty() {
            blocked = waits;
        } else {
            name_locks(&mut blocked, &waits);
        }
        let mut rows = rows(&exact, &on_cpu, &blocked);
        rows.extend(self.ended());
        rows.sort_by(|a, b| b.us.total_cmp(&a.us));
        rows
    }

    fn ended(&self) -> Option<Row> {
        let us = self.ended_us();
        (us > 0.0).then(|| Row {
            part: Part::Unexplained,
            nature: Nature::Service,
            phase: String::new(),
            mechanism: "CPU of ended processes".to_owned(),
            us,
            system_us: 0.0,
            possible_us: 0.0,
        })
    }

    /// Whether stacks divide the on-CPU time, and the source that divides the blocked time.
    pub fn divided_by(&self) -> (bool, Divider) {
        let blocked_by = match &self.waits {
            _ if self.seen_blocked().is_some() => Divider::Stacks,
            _ if self.backends.is_none() => Divider::ActivityStates,
            Some(waits) if waits.blocked_samples > 0 => waits.source.into(),
            _ => Divider::Nothing,
        };
        (self.sampled().is_some(), blocked_by)
    }

    fn waits_as_weights(&self) -> BlockedWeights {
        let events = self.waits.iter().flat_map(|waits| &waits.events);
        let mut weights = BlockedWeights::new();
        let running = self.waits.as_ref().map_or(0, |it| it.runnable_samples);
        if self.backends.is_none() && running > 0 {
            weights.insert(BlockedKey::running(), running as f64);
        }
        for event in events.filter(|event| event.samples > 0) {
            let key = blocked_key(&[], &event.kind, &event.name);
            *weights.entry(key).or_default() += event.samples as f64;
        }
        weights
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::tests::observation;
    use pgassay_account::ledger::{Divider, Part, explained_share, tier};
    use pgassay_model::profile::{Frame, ProfileBuilder};
    use pgassay_model::waits::{WaitCount, WaitSource, Waits};

    fn event(kind: &str, name: &str, samples: u64) -> WaitCount {
        WaitCount {
            kind: kind.to_owned(),
            name: name.to_owned(),
            samples,
        }
    }

    #[test]
    fn a_lock_known_from_its_stack_is_named_by_samples_of_its_type() {
        let mut observation = observation();
        let mut builder = ProfileBuilder::new(1);
        let frame = |symbol: &str| Frame {
            symbol: Some(symbol.to_owned()),
            object: "postgres".to_owned(),
            offset: 0,
            kernel: false,
        };
        let stack = ["PostgresMain", "LockAcquire", "ProcSleep"].map(frame);
        builder.add_blocked(0, stack, ("", ""), 1000);
        observation.profile = Some(builder.finish());
        let rows = |observation: &super::Observation| {
            let blocked = observation.ledger().into_iter();
            let blocked = blocked.filter(|row| row.part == Part::Blocked);
            blocked.map(|row| row.mechanism).collect::<Vec<_>>()
        };
        assert_eq!(rows(&observation), ["Lock"]);
        observation.waits = Some(Waits {
            blocked_samples: 4,
            events: vec![event("Lock", "tuple", 3), event("Client", "ClientRead", 1)],
            ..Waits::default()
        });
        assert_eq!(rows(&observation), ["Lock tuple"]);
    }

    /// Regression: CPU time of sessions that end was blocked time.
    #[test]
    fn sessions_that_end_do_not_wait_while_they_use_the_cpu() {
        let mut observation = observation();
        observation.waits = Some(Waits {
            blocked_samples: 1,
            events: vec![event("Lock", "tuple", 1)],
            ..Waits::default()
        });
        let blocked_us = observation.blocked_us();
        observation.ended_cpu_us = Some(1e6);
        assert!((blocked_us - observation.blocked_us() - 1e6).abs() < 1e-6);
        let rows = observation.ledger();
        let us = |mechanism: &str| rows.iter().find(|it| it.mechanism == mechanism).unwrap().us;
        assert!((us("CPU of ended processes") - 1e6).abs() < 1e-6);
        assert!((us("Lock tuple") - observation.blocked_us()).abs() < 1e-6);
        let sum: f64 = rows.iter().map(|row| row.us).sum();
        assert!((sum - observation.backends_present_us).abs() < 1e-6);
        let blocked: f64 = observation.blocked().iter().map(|it| it.blocked_us).sum();
        assert!((blocked - observation.blocked_us()).abs() < 1e-6);
        // It may be that of processes whose time is not known.
        observation.ended_cpu_us = Some(1e9);
        assert!(observation.blocked_us().abs() < 1e-6);
        // The processes of other sessions.
        observation.subject.backend_pid = Some(1);
        assert!((observation.blocked_us() - blocked_us).abs() < 1e-6);
    }

    #[test]
    fn rows_add_up_to_the_time_of_the_backends() {
        let mut observation = observation();
        for events in [
            vec![],
            vec![
                event("Client", "ClientRead", 3),
                event("LWLock", "WALWrite", 1),
            ],
        ] {
            let has_events = !events.is_empty();
            observation.waits = Some(Waits {
                blocked_samples: events.iter().map(|it| it.samples).sum(),
                events,
                ..Waits::default()
            });
            let rows = observation.ledger();
            let sum: f64 = rows.iter().map(|row| row.us).sum();
            assert!((sum - observation.backends_present_us).abs() < 1e-6);
            let has_unexplained = rows.iter().any(|row| row.part == Part::Unexplained);
            assert_eq!(has_unexplained, !has_events, "{rows:?}");
            // On-CPU time is explained in either case.
            let share = explained_share(&rows);
            let unexplained = 1.0 - observation.blocked_us() / observation.backends_present_us;
            let expected = if has_events { 1.0 } else { unexplained };
            assert!((share - expected).abs() < 1e-9, "{share}");
            let (cpu_by_stacks, blocked_by) = observation.divided_by();
            assert_eq!(tier(cpu_by_stacks, blocked_by), 2);
            assert_eq!(blocked_by == Divider::MemoryWaitEvents, has_events);
            let plan = rows.iter().find(|row| row.phase == "plan");
            assert!(plan.is_some_and(|row| (row.us - 200.0).abs() < 1e-6));
        }
        // Without stacks, on-CPU time is not explained.
        observation.profile = None;
        let share = explained_share(&observation.ledger());
        let on_cpu = observation.on_cpu_us() / observation.backends_present_us;
        assert!((share - (1.0 - on_cpu)).abs() < 1e-9, "{share}");
        assert!(!observation.divided_by().0);
    }

    #[test]
    fn for_a_remote_server_shares_of_samples_stand_for_shares_of_time() {
        let mut observation = observation();
        observation.profile = None;
        observation.backends = None;
        observation.waits = Some(Waits {
            source: WaitSource::PgStatActivity,
            blocked_samples: 75,
            runnable_samples: 25,
            events: vec![
                event("Client", "ClientRead", 60),
                event("Lock", "tuple", 15),
            ],
            ..Waits::default()
        });
        let whole_us = observation.backends_present_us;
        let rows = observation.ledger();
        let share = |part: Part| {
            let of_part = rows.iter().filter(|row| row.part == part);
            of_part.map(|row| row.us).sum::<f64>() / whole_us
        };
        for (part, expected) in [
            (Part::Running, 0.25),
            (Part::Client, 0.6),
            (Part::Blocked, 0.15),
        ] {
            assert!((share(part) - expected).abs() < 1e-9, "{rows:?}");
        }
        assert!((explained_share(&rows) - 0.75).abs() < 1e-9);
        assert!((observation.blocked_us() / whole_us - 0.75).abs() < 1e-9);
        let (cpu_by_stacks, blocked_by) = observation.divided_by();
        assert_eq!(tier(cpu_by_stacks, blocked_by), 0);
    }
}
