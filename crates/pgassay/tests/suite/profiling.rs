//! Helpers to profile a busy server.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use pgassay_record::observation::Observation;
use pgassay_server::Server;
use pgassay_test_support::{Finished, wait_until};

pub fn run(command: &mut Command) -> Finished {
    Finished::of(&command.output().expect("the program runs"))
}

pub fn observed(finished: &Finished) -> Observation {
    assert_eq!(finished.code, Some(0), "{finished:?}");
    serde_json::from_str(&finished.stdout).expect("JSON on stdout alone")
}

/// Clients that repeat a statement until they are stopped.
pub struct Load {
    is_over: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Load {
    /// Starts two clients with a short query, and waits until they are at work.
    pub fn start(server: &Server) -> Self {
        Self::of(server, 2, "select count(*) from pg_class")
    }

    /// Starts clients with a statement, or several, and waits until they are at work.
    pub fn of(server: &Server, clients: u64, sql: &'static str) -> Self {
        let (is_over, done) = (Arc::default(), Arc::default());
        let threads = (0..clients)
            .map(|_| {
                let mut client = server.connect().expect("a connection");
                let (is_over, done) = (Arc::clone(&is_over), Arc::clone(&done));
                thread::spawn(move || {
                    while !AtomicBool::load(&is_over, Ordering::Relaxed) {
                        client.execute(sql).expect("the statement succeeds");
                        AtomicU64::fetch_add(&done, 1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let load = Self {
            is_over,
            done,
            threads,
        };
        wait_until("the clients are at work", || {
            load.done.load(Ordering::Relaxed) > 2 * clients
        });
        load
    }

    /// Stops the clients; returns the number of their executions.
    pub fn stop(mut self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("clients do not panic");
        }
        self.done.load(Ordering::Relaxed)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}
