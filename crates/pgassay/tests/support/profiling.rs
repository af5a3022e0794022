//! Helpers to profile a busy server.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use pgassay_core::observation::Observation;
use pgassay_server::{Server, testing};

use super::Finished;

pub fn run(command: &mut Command) -> Finished {
    Finished::of(&command.output().expect("the program runs"))
}

pub fn observed(finished: &Finished) -> Observation {
    assert_eq!(finished.code, Some(0), "{finished:?}");
    serde_json::from_str(&finished.stdout).expect("JSON on stdout alone")
}

/// Starts two clients that keep the server busy for this long; returns their number of transactions.
pub fn load(server: &Server, time: Duration) -> thread::JoinHandle<u64> {
    let clients: Vec<_> = (0..2)
        .map(|_| server.connect().expect("a connection"))
        .collect();
    thread::spawn(move || {
        let until = Instant::now() + time;
        let threads: Vec<_> = clients
            .into_iter()
            .map(|mut client| {
                thread::spawn(move || {
                    let mut count = 0;
                    while Instant::now() < until {
                        client
                            .query("select count(*) from pg_class")
                            .expect("the query succeeds");
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|it| it.join().expect("clients do not panic"))
            .sum()
    })
}

pub fn sampling_is_permitted() -> bool {
    let config = pgassay_profile::SamplerConfig::default();
    match pgassay_profile::Sampler::open(&config) {
        Ok(_) => true,
        Err(error) => {
            testing::skip("CPU stacks", &error.to_string());
            false
        }
    }
}
