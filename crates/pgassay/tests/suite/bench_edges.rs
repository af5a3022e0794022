//! What `pgassay bench` reports of the begin and end of a run, and of clients that were aborted.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::SystemTime;

use pgassay_test_support::{BareServer, wait_until};
use serde_json::Value;

use crate::PROGRAM;
use crate::pgbench::{Finished, Scratch};

fn json(run: &Finished) -> Value {
    serde_json::from_str(&run.out).unwrap()
}

#[test]
fn tps_of_a_run_whose_clients_were_all_aborted_count_until_then() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let scratch = Scratch::new();
    let gone = "select pg_terminate_backend(pg_backend_pid()) from pg_sleep(0.2);\n";
    scratch.script("gone.sql", gone);
    let run = scratch.ours(
        Some(&server),
        "-n -f gone.sql -c 4 -j 2 -T 3600 -R 1000 --json",
    );
    run.has(2, &[], &["Run was aborted"]);
    let json = json(&run);
    assert_eq!(json["aborted_clients"], 4);
    let elapsed_s = json["elapsed_s"].as_f64().unwrap();
    assert!((0.2..1800.0).contains(&elapsed_s), "{elapsed_s}");
    assert!(json["unserved"].as_u64().unwrap() < 1_800_000, "{json}");
}

/// All transactions end after the end of the run, as if a checkpoint had stalled them.
#[test]
fn percentiles_and_fairness_include_what_ends_after_the_time() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let scratch = Scratch::new();
    scratch.script("stall.sql", "select pg_sleep(2);\n");
    let options = "-n -f stall.sql -c 2 -j 2 -T 1 -R 1000000";
    // Under the name pgbench, it would print only pgbench's lines.
    let output = scratch
        .command(Path::new(PROGRAM), "18", Some(&server))
        .arg0("pgassay")
        .args(["bench", "--latency-percentiles=50,100"])
        .args(options.split(' '))
        .output();
    let text = Finished::from(&output.unwrap());
    let slowest = "fairness: the slowest client completed 1 transactions (+0.0%), the fastest 1";
    text.has(0, &["actually processed: 2\n", slowest], &[]);
    for prefix in [
        "latency percentile 50 = ",
        "latency percentile 100 = ",
        "latency from schedule = avg ",
        "latency from send = avg ",
    ] {
        let line = text.out.lines().find(|line| line.starts_with(prefix));
        let rest = line.unwrap().strip_prefix(prefix).unwrap();
        let number: f64 = rest.split([' ', ',']).next().unwrap().parse().unwrap();
        assert!(number > 1990.0, "{text:?}");
    }
    let run = scratch.ours(Some(&server), &format!("{options} --json"));
    let json = json(&run);
    assert_eq!(json["transactions"], 2);
    assert_eq!(json["transactions_by_client"], serde_json::json!([1, 1]));
    for latency in [
        &json["latency_ms"],
        &json["latency_from_send_ms"],
        &json["scripts"][0]["latency_ms"],
    ] {
        assert!(
            latency["percentiles"]["50"].as_f64().unwrap() > 1990.0,
            "{json}"
        );
    }
}

#[test]
fn aggregated_logs_begin_with_the_run_and_have_empty_intervals() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let scratch = Scratch::new();
    // Nothing ends in the first two seconds.
    scratch.script("slow.sql", "select pg_sleep(2 + :client_id);\n");
    let before_s = unix_s();
    let run = scratch.ours(
        Some(&server),
        "-n -f slow.sql -c 2 -j 2 -t 1 -l --log-prefix=log --aggregate-interval=1",
    );
    let after_s = unix_s();
    run.has(0, &[], &[]);
    let logs = scratch.files_that_begin_with("log.");
    assert_eq!(logs.len(), 2);
    for log in logs {
        let lines = log.lines().map(|line| {
            let fields = line.split(' ').map(|field| field.parse().unwrap());
            fields.collect::<Vec<u64>>()
        });
        let lines: Vec<_> = lines.collect();
        assert!(lines.len() >= 2, "{log}");
        for (line, second) in lines.iter().zip(lines[0][0]..) {
            assert_eq!((line[0], line.len()), (second, 15), "{log}");
        }
        assert!(
            lines[..2]
                .iter()
                .all(|line| line[1..].iter().all(|field| *field == 0)),
            "{log}"
        );
        assert!((before_s..=after_s - 2).contains(&lines[0][0]), "{log}");
    }
}

/// Each thread has an epoll instance and a log besides its clients' connections.
#[test]
fn many_threads_with_logs_fit_into_the_limit_on_open_files() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let scratch = Scratch::new();
    scratch.script("s.sql", "select 1;\n");
    for soft in [30, 150] {
        let run = format!(
            "ulimit -Sn {soft} && exec ./pgbench -n -f s.sql -c 60 -j 60 -t 2 -l --log-prefix=log{soft}"
        );
        let output = scratch
            .command(Path::new("/bin/sh"), "18", Some(&server))
            .arg0("sh")
            .args(["-c", &run])
            .output();
        Finished::from(&output.unwrap()).has(0, &["actually processed: 120/120"], &[]);
        let logs = scratch.files_that_begin_with(&format!("log{soft}."));
        let lines: Vec<usize> = logs.iter().map(|log| log.lines().count()).collect();
        assert_eq!(lines, [2; 60], "limit {soft}");
    }
}

/// Regression: 64 more open files were needed than are used, and the message came after the vacuum.
#[test]
fn clients_that_fit_into_the_hard_limit_on_open_files_were_refused() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let scratch = Scratch::new();
    scratch.script("s.sql", "select 1;\n");
    let with_limit = |hard: u32| {
        let run = format!("ulimit -n {hard} && exec ./pgbench -f s.sql -c 50 -t 2");
        let mut command = scratch.command(Path::new("/bin/sh"), "18", Some(&server));
        Finished::from(&command.arg0("sh").args(["-c", &run]).output().unwrap())
    };
    with_limit(60).has(0, &["actually processed: 100/100"], &[]);
    let refused = with_limit(54);
    refused.has(
        1,
        &[],
        &[
            "open files, but system limit is 54\n",
            "hint: Reduce number of clients",
        ],
    );
    assert!(!refused.err.contains("vacuum"), "{refused:?}");
}

fn unix_s() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_secs()
}

/// Regression: the results were lost, and the exit code was 0.
#[test]
fn json_results_on_a_full_disk_were_lost_silently() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let scratch = Scratch::new();
    scratch.script("s.sql", "select 1;\n");
    let full = || std::fs::File::create("/dev/full").unwrap();
    let run = |arguments: &[&str]| {
        let mut command = scratch.command(&scratch.path().join("pgbench"), "18", Some(&server));
        let command = command.args(["-n", "-f", "s.sql"]).args(arguments);
        Finished::from(&command.stdout(full()).output().unwrap())
    };
    let lost = "could not write the results: No space left on device";
    run(&["--json"]).has(1, &[], &[lost]);
    // As pgbench does.
    run(&[]).has(0, &[], &[]);
    // Regression: the help ended with a panic.
    for word in ["--help", "--version"] {
        let mut command = scratch.command(&scratch.path().join("pgbench"), "18", None);
        let output = command.arg(word).stdout(full()).output().unwrap();
        Finished::from(&output).has(0, &[], &[]);
    }
}

/// Regression: nothing said that the log was incomplete.
#[test]
fn a_log_on_a_full_disk_was_cut_silently() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let scratch = Scratch::new();
    scratch.script("s.sql", "select 1;\n");
    let logs = [
        // The name of the log contains the process ID, which exec keeps.
        ("ln -s /dev/full log.$$", "-l --log-prefix=log"),
        (
            "ln -s /dev/full log.$$",
            "-l --log-prefix=log --aggregate-interval=1 -T 2",
        ),
        ("true", "--hdr-log=/dev/full"),
    ];
    for (prepare, options) in logs {
        let words = format!("{prepare}; exec ./pgbench -n -f s.sql {options}");
        let mut command = scratch.command(Path::new("/bin/sh"), "18", Some(&server));
        let run = Finished::from(&command.args(["-c", &words]).output().unwrap());
        let no_space = "No space left on device";
        run.has(2, &["tps = "], &[no_space]);
        assert_eq!(run.err.matches(no_space).count(), 1, "{run:?}");
    }
}

/// Regression: a pipe hung, and the first Ctrl-C was ignored. What a link of another user led to was overwritten.
#[test]
fn a_pipe_or_a_link_of_another_user_in_place_of_a_log_is_refused() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let scratch = Scratch::new();
    scratch.script("s.sql", "select 1;\n");
    scratch.script("victim", "precious");
    let pipe = "No such device or address";
    let link = "it is a link of another user, in a directory that others can write to";
    for (prepare, options, words) in [
        ("mkfifo log.$$", "-l --log-prefix=log", pipe),
        ("mkfifo pipe", "--hdr-log=pipe", pipe),
        (
            "ln -s ../victim shared/log.$$",
            "-l --log-prefix=shared/log",
            link,
        ),
        ("ln -s ../victim shared/hlog", "--hdr-log=shared/hlog", link),
    ] {
        if words == link && !pgassay_test_support::os::is_root() {
            pgassay_test_support::skip("a link of another user", "requires root");
            continue;
        }
        let prepare = format!(
            "rm -rf shared; mkdir -m 1777 shared; {prepare}; chown -h 65534 shared/* 2> /dev/null"
        );
        let run = format!("{prepare}; exec ./pgbench -n -f s.sql -t 1 {options}");
        let mut command = scratch.command(Path::new("/bin/sh"), "18", Some(&server));
        let run = Finished::from(&command.args(["-c", &run]).output().unwrap());
        run.has(1, &[], &["could not open ", words]);
        let victim = std::fs::read_to_string(scratch.path().join("victim")).unwrap();
        assert_eq!(victim, "precious", "{options}");
    }
}

/// Regression: only the setup connection named the server.
#[test]
fn refused_clients_did_not_name_the_server() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let scratch = Scratch::new();
    scratch.script("s.sql", "select 1;\n");
    server.value("create role limited login connection limit 1");
    for (arguments, then) in [
        (
            "-U limited -n -f s.sql -c 2 -t 1",
            "could not create connection for client",
        ),
        (
            "-U limited -n -f s.sql -c 9 -t 99 -C",
            "aborted while establishing connection",
        ),
    ] {
        let mut ours = scratch.ours(Some(&server), arguments);
        // The backend of the run before may not have exited yet.
        wait_until("the role has no other session", || {
            let is_refused = ours.err.contains("connection for setup");
            if is_refused {
                ours = scratch.ours(Some(&server), arguments);
            }
            !is_refused
        });
        let refused = format!(
            "pgbench: error: connection to server on socket \"{}\" failed: FATAL:  too many \
             connections for role \"limited\"\n",
            server.socket().display()
        );
        assert!(ours.err.contains(&refused), "{ours:?}");
        assert!(ours.err.contains(then), "{ours:?}");
    }
}

/// Regression: they were unrecognized options.
#[test]
fn help_and_version_after_compat_were_refused() {
    let scratch = Scratch::new();
    for compat in ["--compat=15", "--compat 15"] {
        for (option, begin) in [
            ("--version", "pgbench (PostgreSQL) 15."),
            ("-V", "pgbench (PostgreSQL) 15."),
            ("--help", "pgbench is a benchmarking tool for PostgreSQL."),
            ("-?", "pgbench is a benchmarking tool for PostgreSQL."),
        ] {
            let run = scratch.ours(None, &format!("{compat} {option}"));
            run.has(0, &[begin], &[]);
        }
    }
}

/// Regression: pgbench names the command that stores rows.
#[test]
fn gset_in_a_pipeline_was_called_sql() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let scratch = Scratch::new();
    for command in ["gset", "aset"] {
        let script = format!("\\startpipeline\nselect 1 as a \\{command}\n\\endpipeline\n");
        scratch.script("s.sql", &script);
        let run = scratch.ours(Some(&server), "-n -f s.sql -t 1 -M extended");
        let refused = format!(
            "client 0 aborted in command 1 ({command}) of script 0; \\{command} is not allowed in \
             pipeline mode\n"
        );
        run.has(2, &[], &[&refused]);
    }
}

/// Regression: only a connection that was tried had this line.
#[test]
fn invalid_connection_strings_did_not_say_what_they_prevent() {
    let scratch = Scratch::new();
    for (options, prevented) in [("-n", "setup"), ("-i", "initialization")] {
        for database in ["foo=bar", "port=x", "host='x", "sslmode=no"] {
            let run = scratch.ours(None, &format!("{options} {database}"));
            let last = format!("pgbench: error: could not create connection for {prevented}\n");
            run.has(1, &[], &[]);
            assert!(run.err.ends_with(&last), "{run:?}");
            assert_eq!(run.err.lines().count(), 2, "{run:?}");
        }
    }
}

/// Regression: transactions that clients can no longer begin made a run unstable.
#[test]
fn a_run_whose_clients_were_aborted_was_called_unstable() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let scratch = Scratch::new();
    let gone = "select pg_terminate_backend(pg_backend_pid()) from pg_sleep(0.2);\n";
    scratch.script("gone.sql", gone);
    let run = scratch.ours(Some(&server), "-n -f gone.sql -T 3600 -R 1000");
    run.has(2, &[], &["Run was aborted"]);
    assert!(!run.out.contains("unstable"), "{run:?}");
}

/// Regression: it ended with `(os error 2)`, and had no hint.
#[test]
fn a_connection_that_failed_during_a_run_had_another_message_than_before_it() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let scratch = Scratch::new();
    let directory = server.socket_directory().display().to_string();
    let socket = format!("{directory}/.s.PGSQL.5432");
    scratch.script("s.sql", &format!("\\shell rm {socket}\nselect 1;\n"));
    let run = scratch.ours(Some(&server), "-n -C -f s.sql -t 2");
    let failed = format!(
        "pgbench: error: connection to server on socket \"{socket}\" failed: No such file or \
         directory\n\tIs the server running locally and accepting connections on that socket?\n\
         pgbench: error: client 0 aborted while establishing connection\n"
    );
    run.has(2, &[], &[&failed]);
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    /// Regression: it was `script 0 aborted in command 0 query 0: server closed the connection unexpectedly`.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_client_whose_backend_died_had_the_message_of_an_error() {
        let Some(server) = BareServer::trusting() else {
            return;
        };
        let scratch = Scratch::new();
        // The backend is gone without a message.
        scratch.script(
            "die.sql",
            "select 1;\ncopy (select 1) to program 'kill -9 $PPID';\n",
        );
        let run = scratch.ours(Some(&server), "-n -f die.sql -t 1");
        let died = "client 0 aborted in command 1 (SQL) of script 0; perhaps the backend died while \
                    processing\n";
        run.has(2, &[], &[died, "Run was aborted"]);
    }
}

#[test]
fn threads_run_on_the_cpus_of_their_list_and_unusable_ones_are_refused() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let scratch = Scratch::new();
    // A process has the CPUs of the thread that starts it.
    scratch.script(
        "where.sql",
        "\\shell grep Cpus_allowed_list /proc/self/status\n",
    );
    let allowed = pgassay_profile::allowed_cpus();
    let (first, last) = (allowed[0], allowed[allowed.len() - 1]);
    let arguments = format!("-n -f where.sql -c 2 -j 2 -t 1 --cpus={last},{first}");
    let run = scratch.ours(Some(&server), &arguments);
    for cpu in [first, last] {
        run.has(0, &[&format!("Cpus_allowed_list:\t{cpu}\n")], &[]);
    }
    scratch.script("s.sql", "select 1;\n");
    let run = scratch.ours(Some(&server), "-n -f s.sql -t 9 --json --cpus=0-1023");
    run.has(1, &[], &["this machine has no CPU", "--cpus"]);
    let arguments = format!("-n -f s.sql -c 4 -t 9 --json --cpus={first}");
    let json = json(&scratch.ours(Some(&server), &arguments));
    assert_eq!(json["cpus"], serde_json::json!([first]));
    let memory = |key: &str| json["client"][key].as_f64().unwrap();
    assert!(
        memory("memory_bytes_per_client") * 4.0 < memory("memory_bytes"),
        "{json}"
    );
}
