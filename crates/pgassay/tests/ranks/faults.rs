//! Whatever happens to one rank, all end soon, say why, and leave nothing.

use pgassay_test_support::os::kill;
use pgassay_test_support::{BareServer, wait_until};

use crate::mpirun::{Ended, Ranks, Running};

const SCRIPT: &str = "select pg_sleep(0.01);\n";
/// More than any test waits for.
const ENDLESS: &str = "-T 600";

/// Waits until all eight clients run, does something to the ranks, and waits for their end.
fn disturbed(length: &str, disturb: impl FnOnce(&Running<'_>)) -> Option<Ended> {
    let (server, ranks) = (BareServer::trusting()?, Ranks::new()?);
    ranks.script("sleep.sql", SCRIPT);
    let mut arguments = vec!["-c", "8", "-f", "sleep.sql"];
    arguments.extend(length.split(' '));
    let running = ranks.start(4, Some(&server), &arguments);
    wait_until_clients_run(&server, "8");
    disturb(&running);
    let ended = running.end();
    wait_until("the server has no client left", || {
        clients(&server) == Some("0".to_owned())
    });
    Some(ended)
}

fn clients(server: &BareServer) -> Option<String> {
    server.value("select count(*) from pg_stat_activity where application_name = 'pgbench'")
}

fn wait_until_clients_run(server: &BareServer, count: &str) {
    wait_until("the clients run", || {
        let begun = server.value(
            "select count(*) from pg_stat_activity \
             where application_name = 'pgbench' and query like '%pg_sleep%'",
        );
        begun.as_deref() == Some(count)
    });
}

#[test]
fn a_killed_rank_ends_all() {
    let Some(ended) = disturbed(ENDLESS, |running| kill(running.rank(2), libc::SIGKILL)) else {
        return;
    };
    ended.has(128 + libc::SIGKILL, &[], &["rank 2", "signal 9"]);
}

#[test]
fn a_killed_first_rank_ends_all() {
    let Some(ended) = disturbed(ENDLESS, |running| kill(running.rank(0), libc::SIGKILL)) else {
        return;
    };
    ended.has(128 + libc::SIGKILL, &[], &["rank 0", "signal 9"]);
}

#[test]
fn a_stopped_rank_is_noticed_at_the_agreed_end() {
    let Some(ended) = disturbed("-T 8", |running| kill(running.rank(2), libc::SIGSTOP)) else {
        return;
    };
    ended.has(
        2,
        &[],
        &["(rank 0): error: rank 2 has not answered for 5 s"],
    );
    assert!(!ended.out.contains("tps"), "{ended:?}");
}

#[test]
fn a_stopped_first_rank_is_noticed_by_the_others() {
    let Some(ended) = disturbed("-T 8", |running| kill(running.rank(0), libc::SIGSTOP)) else {
        return;
    };
    ended.has(2, &[], &["error: rank 0 has not answered for 5 s"]);
}

#[test]
fn a_stopped_rank_is_noticed_in_a_run_by_count() {
    let stop = |running: &Running<'_>| kill(running.rank(1), libc::SIGSTOP);
    let Some(ended) = disturbed("-t 1000000", stop) else {
        return;
    };
    ended.has(
        2,
        &[],
        &["(rank 0): error: rank 1 has not answered for 5 s"],
    );
}

#[test]
fn ctrl_c_ends_all_ranks() {
    let Some(ended) = disturbed(ENDLESS, |running| kill(running.mpirun(), libc::SIGINT)) else {
        return;
    };
    // mpirun's code is its own. It gives the ranks a second, so that a busy machine may miss their
    // report.
    assert_ne!(ended.code, Some(0), "{ended:?}");
    assert!(ended.code.is_some(), "{ended:?}");
}

#[test]
fn a_signal_to_one_rank_makes_the_results_incomplete() {
    let interrupt = |running: &Running<'_>| kill(running.rank(1), libc::SIGINT);
    // Longer than the silence after which ranks give each other up.
    let Some(ended) = disturbed("-T 12", interrupt) else {
        return;
    };
    ended.has(
        130,
        &["ranks: 4 on 1 host"],
        &["Run was interrupted; the above results are incomplete."],
    );
}

#[test]
fn the_death_of_one_ranks_server_ends_all() {
    let (Some(ranks), Some(one), Some(other)) =
        (Ranks::new(), BareServer::trusting(), BareServer::trusting())
    else {
        return;
    };
    ranks.script("sleep.sql", SCRIPT);
    let dsn = |server: &BareServer| {
        let socket = server.socket_directory();
        format!("--rank-dsn=host={} dbname=postgres", socket.display())
    };
    let (first, second) = (dsn(&one), dsn(&other));
    let arguments = ["-c", "8", "-f", "sleep.sql", "-T", "600", &first, &second];
    let running = ranks.start(4, None, &arguments);
    wait_until_clients_run(&one, "4");
    wait_until_clients_run(&other, "4");
    other.signal(libc::SIGQUIT);
    let ended = running.end();
    let lost = "error: all clients of this rank were aborted; the run ends on all ranks";
    ended.has(2, &[], &[lost]);
    let of_others = |rank: u32| format!("(rank {rank}): {lost}");
    for rank in [0, 2] {
        assert!(!ended.err.contains(&of_others(rank)), "{ended:?}");
    }
    wait_until("the server that lives has no client left", || {
        clients(&one) == Some("0".to_owned())
    });
}
