//! Between client and server: round trips, the load generator, connections, TLS.
//!
//! Sources: `src/backend/libpq/{pqcomm,be-secure}.c`, `postmaster/postmaster.c` and
//! `utils/init/postinit.c` (the cost of a new connection).

use pgassay_record::finding::Source;

use crate::evaluation::{Evaluation, Signature};
use crate::evidence::{CLIENT, Evidence};

pub(super) const SIGNATURES: &[Signature] = &[
    Signature {
        id: "round-trips",
        title: "Each transaction takes many round trips between client and server",
        manual: "libpq: Pipeline Mode",
        measure: round_trips,
    },
    Signature {
        id: "client-limited",
        title: "The load generator, not the server, is the bottleneck",
        manual: "pgbench: Good Practices",
        measure: client_limited,
    },
    Signature {
        id: "connection-churn",
        title: "Connections are opened and closed too often",
        manual: "Server Configuration: Connections and Authentication",
        measure: connection_churn,
    },
    Signature {
        id: "tls",
        title: "TLS encryption takes CPU time",
        manual: "Server Setup and Operation: Secure TCP/IP Connections with SSL",
        measure: tls,
    },
];

/// With fewer waits per transaction than this, round trips do not matter.
const ROUND_TRIPS_MIN: f64 = 4.5;

fn round_trips(e: &Evidence) -> Evaluation {
    let trips = e.counter("backends.voluntary_switches");
    let waited = e.blocked(&[CLIENT]);
    let network = e.phases(&["network"]);
    let others: f64 = e.blocked.values().sum::<f64>() - waited;
    // Backends also wait for locks and the disk, so scripts of fewer statements do not have as many round trips.
    let is_enough = |count: f64| count >= ROUND_TRIPS_MIN;
    let many = trips.is_some_and(is_enough) && e.statements.is_none_or(is_enough);
    let large = e.of_response(waited) >= 0.35 || e.of_cpu(network) >= 0.35;
    Evaluation::of(waited + network)
        .when(many && large)
        .counter("waits of a backend (voluntary context switches)", trips)
        .waits("server waiting for the client", waited)
        .stacks("reading from and writing to the client", network)
        .against(
            others > waited,
            "the server waits longer for other things than for round trips",
        )
        .remedy(format!(
            "Send statements in a pipeline (libpq 14 and later, any server version), combine them \
             in one function or CTE, or insert many rows per statement or with COPY.{} Each statement \
             costs a round trip, two wake-ups and the client's own processing.",
            if e.uses_unix_socket {
                ""
            } else {
                " On the same host, use a Unix-domain socket instead of TCP."
            }
        ))
}

fn client_limited(e: &Evidence) -> Evaluation {
    Evaluation::of(e.client_cpu_us)
        .when(e.client_limited >= 0.5)
        .share(
            Source::Clocks,
            "of trials had a saturated load generator thread",
            Some(e.client_limited),
        )
        .context(|it| {
            it.clock("load generator CPU time", e.client_cpu_us)
                .clock("server CPU time", e.cpu_us)
                .share(
                    Source::Counters,
                    "of CPU capacity in use",
                    e.cpu_utilization(),
                )
        })
        .remedy(
            "Give the load generator more threads ([length] threads, -j) or run it on another machine, \
             or simplify the script's expressions. The figures show the limit of the load \
             generator, not of the server.",
        )
}

fn connection_churn(e: &Evidence) -> Evaluation {
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
    // Parallel workers also start and end processes, but not for a client.
    let of_workers = e.in_nested_functions(&[
        &["BackgroundWorkerMain", "StartBackgroundWorker"],
        &begin_or_end,
    ]);
    let us = e.in_functions(&begin_or_end) - of_workers;
    let sessions = e.counter("pg_stat_database.sessions");
    // Sessions are counted from 14 on; a count takes precedence over stacks.
    let many = sessions.map_or(e.of_cpu(us) >= 0.15, |count| count >= 0.3);
    // Processes that serve one transaction end before their stacks can be sampled.
    let waited_us = e.reconnecting_us();
    Evaluation::of(us.max(waited_us))
        .when(many || waited_us > e.response_us)
        .stacks("starting and ending server processes", us)
        .micros(
            "opening and closing the connection, as the client sees it",
            Some(waited_us),
        )
        .counter("sessions started", sessions)
        .remedy(
            "Keep connections open, or use a connection pooler (PgBouncer or the driver's own). \
             Each new connection starts a process, authenticates and fills its caches: some \
             milliseconds, many times the cost of a short transaction.",
        )
}

/// Sending and receiving, which a connection without TLS does, too: PostgreSQL's functions, those of libc, and the
/// kernel's entry points, for binaries without symbols.
const RAW_IO: [&str; 16] = [
    "secure_raw_read",
    "secure_raw_write",
    "port_bio_read",
    "port_bio_write",
    "my_sock_read",
    "my_sock_write",
    "recv",
    "send",
    "__libc_recv",
    "__libc_send",
    "entry_SYSCALL_64_after_hwframe",
    "do_syscall_64",
    "el0_svc",
    "el0t_64_sync",
    "__sys_recvfrom",
    "__sys_sendto",
];

/// From this share of TLS on, handshakes are worth avoiding.
const HANDSHAKES_MIN: f64 = 0.2;

fn tls(e: &Evidence) -> Evaluation {
    // libcrypto alone is not TLS: md5(), gen_random_uuid(), pgcrypto and SCRAM use it, too.
    let functions = [
        "be_tls_read",
        "be_tls_write",
        "be_tls_open_server",
        "libssl",
    ];
    let us = e.in_functions(&functions) - e.in_nested_functions(&[&functions, &RAW_IO]);
    let handshakes = e.in_functions(&["be_tls_open_server"])
        - e.in_nested_functions(&[&["be_tls_open_server"], &RAW_IO]);
    let advice = "Check that the CPU supports AES instructions (openssl speed). Each message is encrypted by \
                  itself, so fewer and larger ones cost less";
    let socket = "; on the same host, use a Unix-domain socket, which needs no encryption.";
    Evaluation::of(us)
        .when(e.of_cpu(us) >= 0.05)
        .stacks("TLS, without sending and receiving", us)
        .stacks("of which handshakes", handshakes)
        .remedy(if handshakes >= HANDSHAKES_MIN * us {
            format!("Keep connections open, so that handshakes are rare. {advice}{socket}")
        } else {
            format!("{advice}{socket}")
        })
}
