//! Clients that keep a server busy, each on a separate thread, for the findings about live servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use pgassay_record::finding::Finding;
use pgassay_record::observation::Observation;
use pgassay_server::{Connection, Server};
use pgassay_test_support::{Finished, Scratch, wait_until};

use crate::PROGRAM;

fn observed(finished: &Finished) -> Observation {
    assert_eq!(finished.code, Some(0), "{finished:?}");
    serde_json::from_str(&finished.stdout).expect("JSON on stdout alone")
}

/// Clients that work until they are dropped.
pub struct Clients {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Clients {
    pub fn none() -> Self {
        Self {
            is_over: Arc::default(),
            threads: Vec::new(),
        }
    }

    /// Adds clients that execute these statements in turn, again and again. Errors are ignored: a
    /// deadlock is one.
    pub fn repeat(self, server: &Server, clients: usize, statements: &[&str]) -> Self {
        let statements: Vec<String> = statements.iter().map(|it| (*it).to_owned()).collect();
        self.work(server, clients, move |connection, _| {
            for sql in &statements {
                let _ = connection.execute(sql);
            }
        })
    }

    /// Adds clients that do this again and again; the second argument counts all repetitions. Waits
    /// until each of them has begun.
    pub fn work(
        mut self,
        server: &Server,
        clients: usize,
        work: impl Fn(&mut Connection, u64) + Clone + Send + 'static,
    ) -> Self {
        let (begun, number) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        for _ in 0..clients {
            let mut connection = server.connect().expect("a connection");
            let (is_over, work) = (Arc::clone(&self.is_over), work.clone());
            let (begun, number) = (Arc::clone(&begun), Arc::clone(&number));
            self.threads.push(thread::spawn(move || {
                begun.fetch_add(1, Ordering::Relaxed);
                while !AtomicBool::load(&is_over, Ordering::Relaxed) {
                    work(&mut connection, number.fetch_add(1, Ordering::Relaxed));
                }
            }));
        }
        wait_until("the clients are at work", || {
            begun.load(Ordering::Relaxed) >= clients as u64
        });
        self
    }

    /// Ends them; whatever they wait for must have ended.
    pub fn stop(mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("clients do not panic");
        }
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// A session that executed these statements.
pub fn session(server: &Server, statements: &[&str]) -> Connection {
    let mut connection = server.connect().expect("a connection");
    for sql in statements {
        connection
            .execute(sql)
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    connection
}

/// A statement on a separate thread, and the PID of its session.
pub fn start(server: &Server, before: &[&str], sql: &'static str) -> (u32, JoinHandle<()>) {
    let mut connection = session(server, before);
    let pid = pid(&connection);
    let thread = thread::spawn(move || {
        let _ = connection.execute(sql);
    });
    (pid, thread)
}

pub fn pid(connection: &Connection) -> u32 {
    u32::try_from(connection.backend_pid().expect("a PID")).expect("positive")
}

/// Waits until this many sessions wait for locks.
pub fn wait_for_waiters(server: &Server, count: &str) {
    let mut asker = server.connect().expect("a connection");
    let sql = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'";
    wait_until("sessions wait for locks", || {
        asker.value(sql).expect("a count").as_deref() == Some(count)
    });
}

/// What `pgassay profile` finds about objects in this time: findings for operators.
pub fn profiled(server: &Server, duration: &str) -> Vec<Finding> {
    let scratch = Scratch::on_disk(PROGRAM);
    let dsn = server.conninfo();
    let finished = scratch.finished(&["profile", "--dsn", &dsn, "--duration", duration, "--json"]);
    let observation = observed(&finished);
    let activity = observation.activity.expect("the sessions were watched");
    assert!(activity.catalog.is_some(), "{:?}", activity.unavailable);
    let mut found = observation.findings;
    found.retain(|it| it.object.is_some());
    found
}

/// Fails unless all of these are found, each an ID and an object as reports name it.
pub fn assert_found(found: &[Finding], expected: &[(&str, String)], version: &str) {
    let names: Vec<(String, String)> = found
        .iter()
        .map(|it| {
            let object = it.object.as_ref().expect("an object");
            (it.id.clone(), object.to_string())
        })
        .collect();
    let missing: Vec<&(&str, String)> = expected
        .iter()
        .filter(|(id, object)| !names.iter().any(|it| it.0 == *id && it.1 == *object))
        .collect();
    assert!(
        missing.is_empty(),
        "{version}: {missing:?} not in {names:#?}"
    );
}
