//! Counters of statements whose sessions show no query ID, on real servers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pgassay_lab::watch::WatchOptions;
use pgassay_record::activity::{Activity, ActivityStatement};
use pgassay_server::{Connection, Server};

use crate::catalog_common::{execute, on_each, start};
use crate::watch_sessions::{run, watch_of};

const SETUP: &str = "create extension pg_stat_statements; \
     create table t (i int, v int, d date, j jsonb); \
     insert into t values (1, 1, '2020-01-01', '{\"k\": 1}'); \
     create schema one; create schema two; \
     create table one.same (i int); insert into one.same values (1); \
     create table two.same (n numeric); insert into two.same values (1); \
     prepare p (int) as select $1, pg_sleep(0.02)";

/// A statement with other constants in each round, and the beginning of its normalized text.
struct Sent {
    begins: &'static str,
    text: fn(u64) -> String,
}

/// Statements whose counters are those of all of their executions.
const COUNTED: [Sent; 7] = [
    // An operator that looks like a constant on 9.6.
    Sent {
        begins: "select pg_sleep($1), i from t where j ? $2",
        text: |n| format!("select pg_sleep(0.02), i from t where j ? 'k' and i < 1 + {n}"),
    },
    Sent {
        begins: "update t set v = null",
        text: |n| {
            let list = vec!["-1"; n as usize % 3 + 1].join(", ");
            format!("update t set v = null from (select pg_sleep(0.02)) s where i in ({list}, 1)")
        },
    },
    Sent {
        begins: "select extract(year from d)",
        text: |n| {
            format!(
                "/* {n} */ select extract(year from d), date '2020-01-01' d, pg_sleep(0.02) from t -- {n}"
            )
        },
    },
    // Not normalized by the server.
    Sent {
        begins: "do $1",
        text: |n| format!("do $$ begin perform pg_sleep(0.02 + {n} * 0); end $$"),
    },
    Sent {
        begins: "select pg_sleep($1), same",
        text: |_| "set search_path = one; select pg_sleep(0.02), same from same".to_owned(),
    },
    Sent {
        begins: "select pg_sleep($1), same",
        text: |_| "set search_path = two, public; select pg_sleep(0.02), same from same".to_owned(),
    },
    // Cut within the list.
    Sent {
        begins: "select pg_sleep($1), i, v from t where i in ($2",
        text: |n| {
            let list: Vec<String> = (n..n + 600).map(|it| it.to_string()).collect();
            let list = list.join(", ");
            format!("select pg_sleep(0.02), i, v from t where i in ({list}) or i = 1")
        },
    },
];

/// Statements whose counters cannot be separated from those of others.
const UNCLEAR: [Sent; 4] = [
    Sent {
        begins: "select pg_sleep($1); select",
        text: |n| format!("select pg_sleep(0.02); select {n}"),
    },
    Sent {
        begins: "execute p",
        text: |n| format!("execute p({n})"),
    },
    // Cut before they differ.
    Sent {
        begins: "select i, i, i, i",
        text: |_| format!("select {} d, pg_sleep(0.02) from t", "i, ".repeat(400)),
    },
    Sent {
        begins: "select i, i, i, i",
        text: |_| format!("select {} v, pg_sleep(0.02) from t", "i, ".repeat(400)),
    },
];

/// Executes all statements in turn until it is over, and returns how often.
fn send_all(connection: &mut Connection, is_over: &AtomicBool) -> u64 {
    let mut rounds = 0;
    while !is_over.load(Ordering::Relaxed) {
        rounds += 1;
        for sent in COUNTED.iter().chain(&UNCLEAR) {
            let text = (sent.text)(rounds);
            // Not in one message.
            match text.strip_prefix("set ").and_then(|it| it.split_once("; ")) {
                Some((setting, text)) => {
                    execute(connection, &format!("set {setting}"));
                    execute(connection, text);
                }
                None => execute(connection, &text),
            }
        }
    }
    rounds
}

/// Watches until each statement was seen, and returns how often all were sent.
fn watch_all(server: &Server) -> (Activity, u64) {
    let mut connection = server.connect().expect("a connection");
    for sql in SETUP.split("; ") {
        execute(&mut connection, sql);
    }
    let mut watch = watch_of(server, true, &WatchOptions::default());
    let is_over = AtomicBool::new(false);
    let rounds = thread::scope(|scope| {
        let sending = scope.spawn(|| send_all(&mut connection, &is_over));
        let all = COUNTED.iter().chain(&UNCLEAR).map(|it| it.begins);
        let mut unseen: BTreeSet<&str> = all.collect();
        let limit = Instant::now() + Duration::from_mins(1);
        while !unseen.is_empty() && Instant::now() < limit && !sending.is_finished() {
            run(&mut watch, Duration::from_millis(300));
            for statement in watch.take().statements {
                unseen.retain(|it| !text(&statement).starts_with(it));
            }
        }
        is_over.store(true, Ordering::Relaxed);
        let rounds = sending.join().expect("no panic");
        assert!(unseen.is_empty(), "{unseen:?}");
        rounds
    });
    (watch.finish(), rounds)
}

fn text(statement: &ActivityStatement) -> &str {
    statement.text.as_deref().unwrap_or_default()
}

/// Executions of each part of a watch.
const PART_CALLS: [u64; 3] = [20, 30, 25];

/// Regression: `top` showed `≥` and what samples had seen, although the server counted the calls.
#[test]
fn each_part_of_a_watch_has_its_own_counters() {
    on_each(&["10", "18"], start, |version, server| {
        let mut connection = server.connect().expect("a connection");
        execute(&mut connection, "create extension pg_stat_statements");
        let mut watch = watch_of(server, true, &WatchOptions::default());
        let mut all = 0;
        for calls in PART_CALLS {
            thread::scope(|scope| {
                let sending = scope.spawn(|| {
                    for n in 0..calls {
                        execute(&mut connection, &format!("select {n}, pg_sleep(0.02)"));
                    }
                });
                while !sending.is_finished() {
                    run(&mut watch, Duration::from_millis(100));
                }
            });
            watch.read_counters();
            let part = watch.take();
            let seen = counted(&part);
            assert_eq!(seen, Some(calls), "{version}: {part:?}");
            let counters_s = part.counters_s();
            assert!(
                part.counters_us.is_some() && counters_s >= 0.02 * calls as f64,
                "{version}: {counters_s}"
            );
            all += calls;
        }
        assert_eq!(counted(&watch.finish()), Some(all), "{version}");
    });
}

fn counted(activity: &Activity) -> Option<u64> {
    let mut statements = activity.statements.iter();
    let slept = statements.find(|it| text(it).starts_with("select $1, pg_sleep"));
    slept?.counters.map(|it| it.calls)
}

mod slow {
    use super::*;

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn statements_before_14_have_the_counters_of_their_texts_and_no_others() {
        on_each(&["9.6", "10", "13"], start, |version, server| {
            let (activity, rounds) = watch_all(server);
            let mut expected: BTreeMap<&str, u64> = BTreeMap::new();
            for sent in &COUNTED {
                *expected.entry(sent.begins).or_default() += rounds;
            }
            // On a busy machine, a reading may hit the settings between them, which last microseconds.
            let is_of_load = |it: &&ActivityStatement| !text(it).starts_with("set search_path = ");
            for statement in activity.statements.iter().filter(is_of_load) {
                let counters = statement.counters;
                let text = text(statement);
                assert_eq!(statement.query_id, None, "{version}: {text}");
                let calls = expected
                    .iter()
                    .find(|(begins, _)| text.starts_with(*begins));
                assert_eq!(
                    counters.map(|it| it.calls),
                    calls.map(|(_, calls)| *calls),
                    "{version}: {text}"
                );
                if let (Some(counters), Some((_, calls))) = (counters, calls) {
                    assert!(
                        counters.execution_us >= 0.02e6 * *calls as f64,
                        "{version}: {text}"
                    );
                }
            }
            let unavailable: Vec<_> = activity
                .unavailable
                .iter()
                .map(|it| it.name.as_str())
                .collect();
            assert_eq!(unavailable, ["counters by text"], "{version}");
        });
    }
}
