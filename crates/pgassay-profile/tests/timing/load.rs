//! Servers under load.

use pgassay_profile::{Sampler, SamplerConfig, SamplerError};
use pgassay_server::{Connection, Server};
use pgassay_test_support::skip;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// A sampler of a server; `None`, with a visible skip, if it is not permitted.
pub fn sampler(server: &Server, config: &SamplerConfig) -> Option<Sampler> {
    let config = SamplerConfig {
        postmaster_pids: vec![postmaster(server)],
        ..config.clone()
    };
    match Sampler::open(&config) {
        Ok(sampler) => Some(sampler),
        Err(error @ (SamplerError::NotPermitted(_) | SamplerError::Unsupported { .. })) => {
            skip("sampling a server", &error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

pub fn postmaster(server: &Server) -> u32 {
    u32::try_from(server.postmaster_pid()).unwrap()
}

pub fn connect(server: &Server) -> (Connection, u32) {
    let mut connection = server.connect().unwrap();
    let pid = connection
        .value("select pg_backend_pid()")
        .unwrap()
        .unwrap()
        .parse()
        .unwrap();
    (connection, pid)
}

/// Calls `observe` with the PIDs of the backends while all clients repeat a statement; `sql` gets a
/// random number and the client's index.
pub fn under_load<T>(
    server: &Server,
    clients: usize,
    sql: &(impl Fn(u64, usize) -> String + Sync),
    observe: impl FnOnce(&[u32]) -> T,
) -> T {
    let (connections, pids): (Vec<_>, Vec<_>) = (0..clients).map(|_| connect(server)).unzip();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for (client, mut connection) in connections.into_iter().enumerate() {
            let stop = &stop;
            scope.spawn(move || {
                let mut n = client as u64 + 1;
                while !stop.load(Ordering::Relaxed) {
                    n = n
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695);
                    connection.query(&sql(n >> 33, client)).unwrap();
                }
            });
        }
        thread::sleep(Duration::from_millis(200));
        let observed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| observe(&pids)));
        stop.store(true, Ordering::Relaxed);
        observed.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Creates a table `t (id, info)` with ten thousand rows and an index.
pub fn fill(server: &Server) {
    let (mut connection, _) = connect(server);
    connection
        .execute(
            "create table t as select i as id, i::text as info from generate_series(1, 10000) i",
        )
        .unwrap();
    connection.execute("create unique index on t (id)").unwrap();
}

pub fn select_by_id(n: u64, _client: usize) -> String {
    format!("select info from t where id = {}", n % 10_000 + 1)
}
