//! Between client and server: round trips, the load generator, connections, encryption.
//!
//! Sources: `src/backend/libpq/{pqcomm,be-secure}.c`, `postmaster/postmaster.c` and
//! `utils/init/postinit.c` (what a new connection costs).

use super::Source;
use super::evidence::{CLIENT, Evidence};
use super::measure::{Measure, Signature};

pub(super) const SIGNATURES: &[Signature] = &[
    Signature {
        id: "round-trips",
        title: "Round trips between client and server bound the transaction",
        manual: "libpq: Pipeline Mode",
        measure: round_trips,
    },
    Signature {
        id: "client-limited",
        title: "The load generator, not the server, sets the pace",
        manual: "pgbench: Good Practices",
        measure: client_limited,
    },
    Signature {
        id: "connection-churn",
        title: "Connections are opened for each transaction",
        manual: "Server Configuration: Connections and Authentication",
        measure: connection_churn,
    },
    Signature {
        id: "tls",
        title: "Encryption of the connection",
        manual: "Server Setup and Operation: Secure TCP/IP Connections with SSL",
        measure: tls,
    },
];

/// Fewer waits per transaction than this are no round trips to speak of.
const ROUND_TRIPS_MIN: f64 = 4.5;

fn round_trips(e: &Evidence) -> Measure {
    let trips = e.counter("backends.voluntary_switches");
    let waited = e.blocked(&[CLIENT]);
    let network = e.phases(&["network"]);
    // Where nobody looked at waits: what neither the backend's CPU nor its run queue explain.
    let rest = (e.response_us - e.cpu_us - e.run_queue_us).max(0.0);
    let away = if e.blocked.is_empty() { rest } else { waited };
    let others: f64 = e.blocked.values().sum::<f64>() - waited;
    let many = trips.is_some_and(|count| count >= ROUND_TRIPS_MIN);
    let large = e.of_response(away) >= 0.35 || e.of_cpu(network) >= 0.35;
    Measure::of(away + network)
        .when(many && large)
        .counter(
            "times that a server process waited (voluntary switches)",
            trips,
        )
        .waits("the server waits for the client", waited)
        .stacks("reading from and writing to the client", network)
        .against(
            others > waited,
            "the server waits longer for other things than for its client",
        )
        .remedy(
            "Every statement is a round trip: the answer's way back, the client's turn, the next \
             statement's way, and two wake-ups. Send statements in a pipeline (libpq 14 and \
             later; any server), put them into one function or CTE, insert many rows at once or \
             by COPY; a unix socket is nearer than TCP.",
        )
}

fn client_limited(e: &Evidence) -> Measure {
    Measure::of(e.client_cpu_us)
        .when(e.client_limited >= 0.5)
        .share(
            Source::Clocks,
            "trials in which a thread of the generator had no reserve",
            Some(e.client_limited),
        )
        .context(|it| {
            it.clock("the generator's CPU", e.client_cpu_us)
                .clock("the server's CPU", e.cpu_us)
                .share(
                    Source::Counters,
                    "of the machine's processors in use",
                    e.busy(),
                )
        })
        .remedy(
            "The figures are the generator's own. Give it more threads ([length] threads, -j), or \
             a machine of its own; simplify the script's expressions.",
        )
}

fn connection_churn(e: &Evidence) -> Measure {
    let begin_or_end = [
        "InitPostgres",
        "BackendInitialize",
        "ProcessStartupPacket",
        "InitProcess",
        "ClientAuthentication",
        "RelationCacheInitializePhase3",
        "proc_exit",
        "shmem_exit",
    ];
    // Parallel workers are processes that begin and end, too, but for no client.
    let of_workers = e.path(&[
        &["BackgroundWorkerMain", "StartBackgroundWorker"],
        &begin_or_end,
    ]);
    let us = e.with(&begin_or_end) - of_workers;
    let sessions = e.counter("pg_stat_database.sessions");
    // Counted from 14 on; what was counted is believed before stacks.
    let many = sessions.map_or(e.of_cpu(us) >= 0.15, |count| count >= 0.3);
    Measure::of(us)
        .when(many)
        .stacks("starting and ending server processes", us)
        .counter("sessions begun", sessions)
        .remedy(
            "A connection costs a process, its sign-in and cold caches: some milliseconds, many \
             times a short transaction. Keep connections, or put a pooler (PgBouncer, the \
             driver's own) between.",
        )
}

fn tls(e: &Evidence) -> Measure {
    let us = e.with(&[
        "be_tls_read",
        "be_tls_write",
        "be_tls_open_server",
        "libssl",
        "libcrypto",
    ]);
    let handshakes = e.with(&["be_tls_open_server"]);
    Measure::of(us)
        .when(e.of_cpu(us) >= 0.1)
        .stacks("TLS", us)
        .stacks("of it handshakes", handshakes)
        .remedy(
            "Keep connections, so that handshakes do not count; see that AES instructions are \
             there (openssl speed); on the same machine a unix socket needs no encryption.",
        )
}
