//! `pgassay bench` as a program: on a real server, and side by side with the real pgbench.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use pgassay_test_support::os::{kill, refuse};
use pgassay_test_support::{BareServer, Certificates, not_applicable, skip_comparison, wait_until};

use crate::PROGRAM;
use crate::pgbench::{Finished, Scratch};

/// The real pgbench programs found here, with their major versions.
fn real_pgbenches() -> Vec<(&'static str, PathBuf)> {
    const VERSIONS: [&str; 3] = ["15", "17", "18"];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let found = VERSIONS.into_iter().filter_map(|version| {
        let installed: PathBuf = format!("/usr/lib/postgresql/{version}/bin").into();
        let programs = on_path.iter().chain([&installed]);
        let is_it = |program: &PathBuf| {
            let output = Command::new(program).arg("-V").output();
            let begin = format!("pgbench (PostgreSQL) {version}.");
            output.is_ok_and(|it| String::from_utf8_lossy(&it.stdout).starts_with(&begin))
        };
        let mut programs = programs.map(|folder| folder.join("pgbench"));
        Some((version, programs.find(is_it)?))
    });
    let found: Vec<_> = found.collect();
    if !found.is_empty() {
        return found;
    }
    if Command::new("pgbench").arg("-V").output().is_ok() {
        // Messages of other versions differ, so this is no failure even with PGASSAY_NO_SKIP.
        not_applicable("comparison with pgbench", "it has another version");
    } else {
        skip_comparison("comparison with pgbench", "no pgbench 15, 17 or 18");
    }
    found
}

fn twins_agree(scratch: &Scratch, server: Option<&BareServer>, lines: &[&str]) {
    for (compat, real) in real_pgbenches() {
        for arguments in lines {
            let theirs = scratch.run(&real, compat, server, arguments);
            let ours = scratch.ours_as(compat, server, arguments);
            assert_eq!(
                ours.without_numbers(),
                theirs.without_numbers(),
                "{arguments} as {compat}"
            );
        }
    }
}

#[test]
fn refusals_against_the_real_pgbench() {
    let scratch = Scratch::new();
    scratch.script("bad.sql", "select 1;\n\\set x 1 +\n");
    scratch.script("empty.sql", "-- nothing\n");
    twins_agree(
        &scratch,
        None,
        &[
            "--bad-option",
            "-x",
            "-c",
            "--client",
            "--log=1",
            "--pro 5",
            "-c three",
            "-c 2000000000",
            "-j 0",
            "-s 99999999999",
            "-t zil",
            "-T 1 -t 1",
            "-D foo",
            "-D 1a=2",
            "-F 1",
            "-M none",
            "-P 0",
            "-R 0",
            "-L x",
            "--sampling-rate=2",
            "--sampling-rate=0.5",
            "-l --sampling-rate=0.5 --aggregate-interval=2",
            "--aggregate-interval=2",
            "--log-prefix=x",
            "-l -T 1 --aggregate-interval=3",
            "-l -T 5 --aggregate-interval=3",
            "--progress-timestamp",
            "--max-tries=-1",
            "--max-tries=0",
            "-b nope",
            "-b s",
            "-b se@x",
            "-b se@-1",
            "-b se@0",
            "-b list",
            "--show-script=si",
            "-f nope.sql",
            "-f bad.sql",
            "-f empty.sql",
            "-i -S",
            "-S -F 90",
            "-i -I dtx",
            "-i --partition-method=hash",
            "-i --partition-method=list",
            "--random-seed=one",
            "one two",
        ],
    );
}

#[test]
fn runs_against_the_real_pgbench() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let scratch = Scratch::new();
    for (name, text) in [
        ("zero.sql", "select 1;\nselect 1/0;\n"),
        ("nope.sql", "select 1;\nselect x\n  from nope;\n"),
        ("open.sql", "begin;\nselect 1;\n"),
        ("gset.sql", "select 1 as a union select 2 \\gset\n"),
        ("meta.sql", "\\set x 1/0\n"),
        (
            "one.sql",
            "\\if :client_id = 0\nselect 1/0;\n\\endif\nselect 1;\n",
        ),
        (
            "shell.sql",
            "\\setshell x echo 5\n\\set y debug(:x)\nselect :y;\n",
        ),
        (
            "pipe.sql",
            "\\startpipeline\nselect 1;\nselect 2;\n\\endpipeline\n",
        ),
        ("s.sql", "select 1;\n"),
        ("failing.sql", FAILING),
        (
            "retried.sql",
            "\\startpipeline\nselect 1;\ndo $$begin raise sqlstate '40001'; end$$;\n\\endpipeline\n",
        ),
        (
            "gone.sql",
            "select pg_terminate_backend(pg_backend_pid());\n",
        ),
    ] {
        scratch.script(name, text);
    }
    // Each creates tables for the next. Without tables, the server prints notices about the drops.
    let notice = "NOTICE:  table \"pgbench_tellers\" does not exist, skipping";
    scratch.ours(Some(&server), "-i -q").has(0, &[], &[notice]);
    twins_agree(
        &scratch,
        Some(&server),
        &[
            "-i -q --foreign-keys",
            "-i -I dtGvp --partitions=2 -F 90",
            "-S -t 20 -c 2 -j 2",
            "-t 5 -c 2 -r --max-tries=3 --failures-detailed",
            "-n -b se@3 -b si -t 30 -r",
            "-n -S -C -t 5 -M prepared",
            "-n -S -t 20 -R 2000 -L 500",
            "-n -S -s 7 -t 1",
            "-n -f zero.sql -c 2",
            "-n -f zero.sql -M prepared",
            "-n -f nope.sql",
            "-n -f nope.sql -M extended",
            "-n -f open.sql",
            "-n -f gset.sql",
            "-n -f meta.sql",
            "-n -f one.sql -c 3 -t 4 -r",
            "-n -f shell.sql -t 1",
            "-n -f pipe.sql",
            "-n -f pipe.sql -M extended -t 3",
            "-n -f gone.sql",
            "-n no-such-database",
            "-n -f s.sql@1 -f zero.sql@0 -t 10 -r",
            "-n -f s.sql@1 -f zero.sql@0 -t 10 -R 1000 -L 500 --failures-detailed --max-tries=2",
            "-n -f failing.sql -t 3 --failures-detailed",
            "-n -f failing.sql -t 3 --max-tries=3 -r",
            "-n -f failing.sql -t 3 -R 1000 -L 500",
            "-n -f failing.sql -t 3 -C",
            "-n -f failing.sql@1 -f s.sql@0 -t 3",
            "-n -f retried.sql -M prepared -t 2 --max-tries=2 --verbose-errors",
        ],
    );
}

/// Regression: messages named columns that are not stored, and a query after the last one; and notices
/// had a context.
#[test]
fn messages_about_results_differed_from_the_real_pgbench() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let scratch = Scratch::new();
    for (name, text) in [
        ("none.sql", "select 1 where false \\gset\n"),
        ("named.sql", "select 1 as a where false \\gset\n"),
        (
            "last.sql",
            "select 1 \\; select 2 as a \\gset\n\\set b :a + 0\n",
        ),
        (
            "two.sql",
            "select 1 as a \\; select 2 as b union select 3 \\gset\n",
        ),
        (
            "command.sql",
            "select 1 as a \\; set work_mem = '1MB' \\gset\n",
        ),
        ("unnamed.sql", "select 1 as a \\; select 2 \\gset\n"),
        ("all.sql", "select 1 as a \\; select 2 where false \\aset\n"),
        (
            "invalid.sql",
            "select 1 as a \\; select 2 \\; select 3 as b \\aset\n",
        ),
        ("null.sql", "select null as x \\gset\n\\set y :x + 1\n"),
        (
            "notice.sql",
            "do $$ begin raise notice 'a'; raise warning 'b' using detail = 'c', hint = 'd'; end $$;\n",
        ),
        ("raise.sql", "do $$ begin raise exception 'a'; end $$;\n"),
    ] {
        scratch.script(name, text);
        // The numbers of queries must agree, too.
        for mode in ["simple", "extended"] {
            let arguments = format!("-n -f {name} -M {mode} -t 1");
            for (compat, real) in real_pgbenches() {
                let theirs = scratch.run(&real, compat, Some(&server), &arguments);
                let ours = scratch.ours_as(compat, Some(&server), &arguments);
                assert_eq!(
                    (ours.code, ours.err),
                    (theirs.code, theirs.err),
                    "{arguments} as {compat}"
                );
            }
        }
    }
}

/// Every transaction fails with a retryable error.
const FAILING: &str = "do $$begin raise sqlstate '40001'; end$$;\n";

#[test]
fn the_report_of_18_ends_before_the_latency_where_all_transactions_failed() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let scratch = Scratch::new();
    scratch.script("failing.sql", FAILING);
    let run = scratch.ours(Some(&server), "-n -f failing.sql -t 3");
    let lines = ["number of failed transactions: 3 (100.000%)\nlatency average = "];
    run.has(0, &[lines[0], "tps = 0.000000"], &[]);
    let older = scratch.ours_as("17", Some(&server), "-n -f failing.sql -t 3");
    assert!(
        older.out.ends_with("failed transactions: 3 (100.000%)\n"),
        "{older:?}"
    );
}

#[test]
fn the_report_of_18_counts_only_what_a_script_has_done() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let scratch = Scratch::new();
    scratch.script("s.sql", "select 1;\n");
    scratch.script("failing.sql", FAILING);
    let run = scratch.ours(Some(&server), "-n -f failing.sql@1 -f s.sql@0 -t 4");
    let all = " - weight: 1 (targets 100.0% of total)\n - 4 transactions (100.0% of total)\n \
               - number of transactions actually processed: 0 (tps = 0.000000)\n \
               - number of failed transactions: 4 (100.000%)\n";
    // A script that never ran has no further lines.
    assert!(
        run.out
            .ends_with("(targets 0.0% of total)\n - 0 transactions (0.0% of total)\n"),
        "{run:?}"
    );
    run.has(0, &[all], &[]);
    let older = scratch.ours_as("15", Some(&server), "-n -f s.sql@1 -f failing.sql@0 -t 4");
    older.has(0, &[" - 4 transactions (100.0% of total, tps = "], &[]);
}

#[test]
fn a_lost_client_does_not_affect_the_others() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let scratch = Scratch::new();
    scratch.script(
        "one.sql",
        "\\if :client_id = 0\nselect 1/0;\n\\endif\nselect 1;\n",
    );
    let others = ["number of transactions actually processed: 20/30"];
    let incomplete = "Run was aborted; the above results are incomplete.";
    let run = scratch.ours(Some(&server), "-n -f one.sql -c 3 -j 2 -t 10");
    run.has(2, &others, &["ERROR:  division by zero", incomplete]);
    let run = scratch.ours(
        Some(&server),
        "-n -f one.sql -c 3 -j 3 -t 10 --exit-on-abort",
    );
    run.has(2, &[], &["Run was aborted due to an error in thread 0"]);
    let run = scratch.ours(
        Some(&server),
        "-n -f one.sql -c 3 -t 10 --continue-on-error --failures-detailed",
    );
    let failed = "number of other failures: 10 (33.333%)";
    run.has(0, &[others[0], failed], &[]);
}

#[test]
fn logs_percentiles_and_json() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let scratch = Scratch::new();
    scratch.script("s.sql", "select 1;\n");
    let run = scratch.ours(
        Some(&server),
        "-n -f s.sql -c 2 -j 2 -t 50 -l --log-prefix=log -R 5000 --latency-percentiles=50,100",
    );
    run.has(
        0,
        &["latency percentile 50 = ", "latency percentile 100 = "],
        &[],
    );
    let mut lines = 0;
    for log in scratch.files_that_begin_with("log.") {
        for line in log.lines() {
            let fields: Vec<u64> = line.split(' ').map(|f| f.parse().unwrap()).collect();
            assert_eq!(
                fields.len(),
                7,
                "client, count, µs, script, s, µs, lag: {line}"
            );
            assert!((1..=50).contains(&fields[1]), "{line}");
            lines += 1;
        }
    }
    assert_eq!(lines, 100);
    let run = scratch.ours(Some(&server), "-n -f s.sql -t 7 --json");
    let json: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(json["schema"], "pgassay.bench/1");
    assert_eq!(json["transactions"], 7);
}

#[test]
fn ctrl_c_still_gives_a_summary() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let scratch = Scratch::new();
    scratch.script("s.sql", "select 1;\n");
    let child = scratch
        .command(&scratch.path().join("pgbench"), "18", Some(&server))
        .args(["-n", "-f", "s.sql", "-T", "60", "-R", "50", "-c", "3"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let at_work = "select count(*) from pg_stat_activity where query like 'select 1;%'";
    wait_until("three clients are at work", || {
        server.value(at_work).as_deref() == Some("3")
    });
    kill(i32::try_from(child.id()).unwrap(), libc::SIGINT);
    let finished = Finished::from(&child.wait_with_output().unwrap());
    finished.has(130, &["tps = "], &["Run was interrupted"]);
}

/// Regression: a run under nohup ended when the terminal was closed.
#[test]
fn a_hang_up_that_nohup_ignores_does_not_end_the_run() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let scratch = Scratch::new();
    scratch.script("s.sql", "select 2;\n");
    let program = scratch.path().join("pgbench");
    let child = scratch
        .command(&PathBuf::from("/bin/sh"), "18", Some(&server))
        .args(["-c", "trap '' HUP; exec \"$@\"", "sh"])
        .arg(program)
        .args(["-n", "-f", "s.sql", "-t", "150", "-R", "100", "-c", "3"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let at_work = "select count(*) from pg_stat_activity where query like 'select 2;%'";
    wait_until("three clients are at work", || {
        server.value(at_work).as_deref() == Some("3")
    });
    kill(i32::try_from(child.id()).unwrap(), libc::SIGHUP);
    let finished = Finished::from(&child.wait_with_output().unwrap());
    finished.has(0, &["actually processed: 450/450"], &[]);
}

#[test]
fn statements_of_a_pipeline_take_longer_the_later_they_are() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let scratch = Scratch::new();
    let statements = "select pg_sleep(0.002);\n".repeat(10);
    let text = format!("\\startpipeline\n{statements}\\endpipeline\n");
    scratch.script("p.sql", &text);
    // Compare times within one transaction, because other load affects transactions differently.
    let run = scratch.ours(Some(&server), "-n -f p.sql -M prepared -t 1 -r");
    run.has(0, &[], &[]);
    let times: Vec<f64> = run
        .out
        .lines()
        .filter(|line| line.ends_with("select pg_sleep(0.002);"))
        .map(|line| line.split_whitespace().next().unwrap().parse().unwrap())
        .collect();
    assert_eq!(times.len(), 10);
    // A busy machine may read several replies at once, but always in order.
    assert!(times.is_sorted(), "{times:?}");
    for (index, time) in times.iter().enumerate() {
        assert!(*time >= 2.0 * (index + 1) as f64, "{times:?}");
    }
    assert!(times[0] < times[9], "{times:?}");
}

#[test]
fn names_and_versions() {
    let scratch = Scratch::new();
    let bench = |arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        Finished::from(&command.arg("bench").args(arguments).output().unwrap())
    };
    bench(&["--version"]).has(0, &["pgbench (PostgreSQL) 18"], &[]);
    let help = bench(&["--help"]);
    help.has(0, &["-d, --dbname=DBNAME", "--exit-on-abort"], &[]);
    // pgbench has it after 18, so in 18 it is an option of pgassay.
    let (of_pgbench, ours) = help
        .out
        .split_once("Options that pgbench does not have")
        .unwrap();
    assert!(!of_pgbench.contains("--continue-on-error"), "{of_pgbench}");
    assert!(ours.contains("--continue-on-error"), "{ours}");
    let older = bench(&["--compat=15", "-S", "--exit-on-abort"]);
    older.has(1, &[], &["unrecognized option '--exit-on-abort'"]);
    bench(&["--compat", "14"]).has(1, &[], &["expecting 15, 17 or 18"]);
    bench(&["--io=poll"]).has(1, &[], &["expecting auto, epoll or uring"]);
    let help = scratch.ours_as("15", None, "-?");
    help.has(0, &["pgbench is a benchmarking tool", "-d, --debug"], &[]);
}

#[test]
fn a_load_over_tls_verifies_the_server_and_refuses_a_stranger() {
    let files = tempfile::tempdir().unwrap();
    let made = Certificates::make(files.path());
    let given = ["server.crt", "server.key", "root.crt"].map(|name| made.path(name));
    let hba = "local all all trust\nhostssl all all 127.0.0.1/32 trust\n";
    let Some(server) = BareServer::start_with(hba, &given) else {
        return;
    };
    let scratch = Scratch::new();
    scratch.script(
        "s.sql",
        "select 1/ssl::int from pg_stat_ssl where pid = pg_backend_pid();\n",
    );
    let run = |mode: &str, root: &str, io: &str| {
        let mut command = scratch.command(&scratch.path().join("pgbench"), "18", Some(&server));
        command
            .args(["-n", "-f", "s.sql", "-c", "2", "-t", "20", "-M", "prepared"])
            .args([
                "-h",
                "127.0.0.1",
                "-p",
                &server.port().to_string(),
                "--io",
                io,
            ])
            .env("PGSSLMODE", mode)
            .env("PGSSLROOTCERT", made.path(root));
        Finished::from(&command.output().unwrap())
    };
    let all = ["number of transactions actually processed: 40/40"];
    for io in ["epoll", "auto"] {
        run("verify-full", "root.crt", io).has(0, &all, &[]);
    }
    run("verify-full", "other.crt", "auto").has(1, &[], &["certificate"]);
    run("disable", "root.crt", "auto").has(1, &[], &["pg_hba.conf"]);
}

#[test]
fn auto_falls_back_to_epoll_if_io_uring_is_not_available() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let scratch = Scratch::new();
    scratch.script("s.sql", "select 1;\n");
    for (errno, why) in [
        (libc::EPERM, "kernel.io_uring_disabled"),
        (libc::ENOSYS, "does not provide it"),
        (libc::ENOMEM, "ulimit -l"),
    ] {
        let run = |io: &str| {
            let mut command = scratch.command(&scratch.path().join("pgbench"), "18", Some(&server));
            command.args([
                "-n", "-f", "s.sql", "-c", "2", "-t", "20", "--json", "--io", io,
            ]);
            refuse(&mut command, &[libc::SYS_io_uring_setup], errno);
            Finished::from(&command.output().unwrap())
        };
        run("uring").has(1, &[], &["io_uring is not available", why]);
        let auto = run("auto");
        auto.has(0, &[], &[]);
        let json: serde_json::Value = serde_json::from_str(&auto.out).unwrap();
        assert_eq!(json["transactions"], 40);
        assert_eq!(json["client"]["io"], "epoll");
        let refused = json["client"]["io_uring_refused"].as_str().unwrap();
        assert!(refused.contains(why), "{refused}");
    }
}

/// What a launcher such as mpirun tells its third and first rank.
#[cfg(not(feature = "mpi"))]
#[test]
fn without_mpi_several_ranks_are_refused_once() {
    let scratch = Scratch::new();
    let as_rank = |rank: &str| {
        let output = Command::new(PROGRAM)
            .args(["bench", "-S"])
            .env("OMPI_COMM_WORLD_RANK", rank)
            .env("OMPI_COMM_WORLD_SIZE", "4")
            .current_dir(scratch.path())
            .output()
            .unwrap();
        Finished::from(&output)
    };
    as_rank("0").has(
        1,
        &[],
        &[
            "pgbench (rank 0): error: a launcher such as mpirun started 4 ranks",
            "built without MPI",
            "hint: Build it with \"cargo build --release --features pgassay/mpi\"",
        ],
    );
    let third = as_rank("2");
    assert_eq!((third.code, third.err.as_str()), (Some(1), ""));
}

/// Regression: each rank ran the whole command.
#[test]
fn commands_other_than_bench_ran_once_per_rank() {
    let scratch = Scratch::new();
    let as_rank = |rank: &str, words: &[&str]| {
        let output = Command::new(PROGRAM)
            .args(words)
            .env("OMPI_COMM_WORLD_RANK", rank)
            .env("OMPI_COMM_WORLD_SIZE", "2")
            .env("XDG_DATA_HOME", scratch.path())
            .current_dir(scratch.path())
            .output();
        Finished::from(&output.unwrap())
    };
    for words in [&["list"][..], &["curve", "-S"], &["doctor"]] {
        let refusal = "pgassay: a launcher such as mpirun started 2 ranks";
        as_rank("0", words).has(1, &[], &[refusal, "without mpirun.\n"]);
        let second = as_rank("1", words);
        assert_eq!((second.code, second.err.as_str()), (Some(1), ""));
        assert_eq!(second.out, "");
    }
    as_rank("1", &["--version"]).has(0, &["pgassay "], &[]);
    as_rank("1", &["curve", "--help"]).has(0, &["Usage: pgassay curve"], &[]);
}

#[test]
fn connection_strings_of_ranks_are_refused_without_ranks() {
    let scratch = Scratch::new();
    let refusal = "--rank-dsn is for the ranks that mpirun starts, but this is a single process";
    scratch
        .ours(None, "-S --rank-dsn=dbname=postgres")
        .has(1, &[], &[refusal]);
}
