//! The sampler on real servers under load.

use crate::load::{connect, fill, postmaster, select_by_id, under_load};
use pgassay_profile::{ProcessTotals, Role, Sampler, SamplerConfig, Samples, Selection};
use pgassay_server::Server;
use pgassay_test_support::{servers, timing_tests};
use std::thread;
use std::time::Duration;

timing_tests! {
    stacks_of_selects_on_18_are_complete,
    stacks_of_selects_on_a_stripped_10_are_complete,
    a_library_that_is_loaded_while_sampling_is_unwound_through,
    two_servers_are_distinguished_and_parallel_workers_have_their_leader,
}

const CLIENTS: usize = 4;
const TIME: Duration = Duration::from_millis(2500);

fn sampler(server: &Server) -> Option<Sampler> {
    let config = SamplerConfig {
        frequency_hz: 499,
        // Large, since the reader may have to wait for a CPU while other tests run.
        ring_bytes: 16 * 1024 * 1024,
        ..SamplerConfig::default()
    };
    crate::load::sampler(server, &config)
}

/// The result of one sampling window under load.
struct Run {
    samples: Samples,
    pids: Vec<u32>,
    exact_ns: u64,
}

/// Samples while clients repeat a statement over connections opened before.
fn run(server: &Server, sampler: &Sampler, sql: &(impl Fn(u64, usize) -> String + Sync)) -> Run {
    under_load(server, CLIENTS, sql, |pids| {
        sampler.start().unwrap();
        let before = ProcessTotals::read(pids);
        thread::sleep(TIME);
        let used = ProcessTotals::read(pids).since(&before);
        let samples = sampler.stop().unwrap();
        assert_eq!(used.ended_pids, Vec::<u32>::new());
        Run {
            samples,
            pids: pids.to_vec(),
            exact_ns: used.total().on_cpu_ns,
        }
    })
}

/// The share of samples whose stacks contain the function.
fn inclusive(selection: &Selection<'_>, name: &str) -> f64 {
    let with: u64 = selection
        .stacks()
        .filter_map(|(mut frames, n)| frames.any(|f| f.name() == Some(name)).then_some(n))
        .sum();
    with as f64 / selection.quality.total as f64
}

/// Stacks of selects are complete and have names, and agree with the exact totals.
fn selects_are_seen_whole(version: &str) {
    let Some(server) = servers::start_on_disk(version) else {
        return;
    };
    let Some(sampler) = sampler(&server) else {
        return;
    };
    fill(&server);
    let Run {
        samples,
        pids,
        exact_ns,
    } = run(&server, &sampler, &select_by_id);

    let backends = samples.backends(&pids);
    let quality = backends.quality;
    assert!(quality.total >= 100, "{quality:?}");
    assert!(
        quality.reached_entry_share() >= Some(0.97),
        "{version}: {quality:?}"
    );
    assert!(
        inclusive(&backends, "main") > 0.97,
        "{version}: {}",
        backends.folded()
    );
    assert!(inclusive(&backends, "PostgresMain") > 0.97);
    assert!((0.02..0.9).contains(&inclusive(&backends, "PortalRun")));
    assert!(
        inclusive(&backends, "raw_parser") > 0.005,
        "simple queries are parsed each time"
    );
    assert!(quality.in_kernel > 0 && quality.in_kernel < quality.total);
    assert_eq!(samples.lost, 0);

    // The samples must agree with the exact total, which they allocate: within 2% if only the server
    // uses the machine, but other tests may be running: see `samples`.
    let ratio = quality.sampled_ns as f64 / exact_ns as f64;
    let noise = 4.0 / (quality.total as f64).sqrt();
    assert!(
        (ratio - 1.0).abs() < 0.25 + noise,
        "{version}: sampled / exact = {ratio}"
    );
    // The processes are backends according to their titles.
    for process in samples
        .processes
        .iter()
        .filter(|p| p.pid.is_some_and(|it| pids.contains(&it)))
    {
        assert_eq!(process.role, Role::Backend);
        assert_eq!(process.postmaster_pid, postmaster(&server));
    }
    drop(sampler);
    server.stop().unwrap();
}

fn stacks_of_selects_on_18_are_complete() {
    selects_are_seen_whole("18");
}

fn stacks_of_selects_on_a_stripped_10_are_complete() {
    selects_are_seen_whole("10");
}

fn a_library_that_is_loaded_while_sampling_is_unwound_through() {
    let Some(server) = servers::start_on_disk("18") else {
        return;
    };
    let Some(sampler) = sampler(&server) else {
        return;
    };
    fill(&server);
    let (mut connection, pid) = connect(&server);
    sampler.start().unwrap();
    // The first use of PL/pgSQL maps its library.
    connection
        .execute(
            "do $$ declare n bigint := 0; till timestamptz := clock_timestamp() + '1 s'; begin \
             while clock_timestamp() < till loop n := n + (select count(*) from t where id < 50); \
             end loop; end $$",
        )
        .unwrap();
    let samples = sampler.stop().unwrap();
    let backend = samples.backends(&[pid]);
    assert!(backend.quality.total >= 50, "{:?}", backend.quality);
    assert!(
        backend.quality.reached_entry_share() >= Some(0.97),
        "{:?}",
        backend.quality
    );
    assert!(
        inclusive(&backend, "plpgsql_inline_handler") > 0.8,
        "{}",
        backend.folded()
    );
    let in_library = |object: &str| {
        backend
            .stacks()
            .any(|(mut frames, _)| frames.any(|f| &*f.object == object))
    };
    assert!(in_library("plpgsql.so"));
    server.stop().unwrap();
}

fn two_servers_are_distinguished_and_parallel_workers_have_their_leader() {
    let (Some(ours), Some(other)) = (servers::start_on_disk("18"), servers::start_on_disk("18"))
    else {
        return;
    };
    let Some(sampler) = sampler(&ours) else {
        return;
    };
    sampler.watch(postmaster(&other)).unwrap();
    let (mut connection, pid) = connect(&ours);
    let (mut second, second_pid) = connect(&other);
    connection.execute("set debug_parallel_query = on").unwrap();
    let sum = "select sum(sqrt(i)) from generate_series(1, 300000) i";
    // A worker's leader can be read only while it runs, so it must run longer than a delay of the
    // reader.
    connection
        .execute("create table p as select i from generate_series(1, 2000000) i")
        .unwrap();
    connection.execute("set parallel_setup_cost = 0").unwrap();
    connection.execute("set parallel_tuple_cost = 0").unwrap();
    connection
        .execute("set min_parallel_table_scan_size = 0")
        .unwrap();
    sampler.start().unwrap();
    for _ in 0..4 {
        connection.query("select sum(sqrt(i)) from p").unwrap();
        second.query(sum).unwrap();
    }
    let samples = sampler.stop().unwrap();
    let of = |pid| {
        samples
            .processes
            .iter()
            .find(|p| p.pid == Some(pid))
            .map(|p| p.postmaster_pid)
    };
    assert_eq!(of(pid), Some(postmaster(&ours)), "{samples:?}");
    assert_eq!(of(second_pid), Some(postmaster(&other)));
    let workers = samples.processes.iter().filter(
        |p| matches!(p.role, Role::ParallelWorker { leader_pid: Some(leader) } if leader == pid),
    );
    let worked: u64 = workers.map(|p| p.quality.total).sum();
    assert!(worked > 0, "{:?}", samples.processes);
    // The time of workers is not part of their leader's time.
    let alone = samples.select(|p| p.pid == Some(pid)).quality.total;
    assert_eq!(samples.backends(&[pid]).quality.total, alone);
    drop(sampler);
    ours.stop().unwrap();
    other.stop().unwrap();
}
