//! `pgassay profile` on running servers that it did not start.

use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use crate::PROGRAM;
use crate::profiling::{Load, observed, run};
use pgassay_model::check::Check;
use pgassay_model::waits::WaitSource;
use pgassay_record::activity::{Activity, ActivitySource, LoadBy};
use pgassay_server::ServerConfig;
use pgassay_test_support::{
    Finished, Scratch, collapse_whitespace, copy_program, not_applicable, os::is_root,
    sampling_is_permitted, servers, skip, wait_until,
};

#[test]
fn a_live_server_is_accounted_for_and_exported() {
    let Some(server) = servers::start("18") else {
        return;
    };
    let scratch = Scratch::new(PROGRAM);
    let clients = Load::start(&server);
    let folded = format!("folded={}", scratch.path().join("folded").display());
    let page = scratch.path().join("page.html");
    let mut command = scratch.command();
    command
        .args([
            "profile",
            "--dsn",
            &server.conninfo(),
            "--duration",
            "3s",
            "--json",
        ])
        .args(["--frequency", "499", "--export", &folded, "--html"])
        .arg(&page);
    let finished = run(&mut command);
    let done = clients.stop();
    if !sampling_is_permitted() {
        assert!(
            finished.error_message().contains("no stacks to export"),
            "{finished:?}"
        );
        return;
    }
    let seen = observed(&finished);

    assert_eq!(
        seen.subject.postmaster_pid.map(u32::cast_signed),
        Some(server.postmaster_pid())
    );
    assert_eq!(seen.subject.major.as_deref(), Some("18"));
    assert_eq!(seen.sessions, 2, "pgassay's own connection is excluded");
    assert!(
        (2.9e6..30e6).contains(&seen.window_us),
        "{}",
        seen.window_us
    );
    // Two backends were present all the time and on a CPU for part of it.
    let there_us = 2.0 * seen.window_us;
    assert!((seen.backends_present_us / there_us - 1.0).abs() < 0.03);
    let used_us = seen
        .backends
        .map_or(0.0, |it| it.on_cpu_us + it.run_queue_us);
    assert!(
        used_us > 0.1 * there_us && used_us < 1.03 * there_us,
        "{used_us}"
    );
    // Clients also worked before and after, and statistics are reported up to a second late. pgassay's
    // own transactions are few.
    let (counted, done) = (
        seen.transactions.expect("transactions were counted") as f64,
        done as f64,
    );
    assert!(
        counted > 0.02 * done && counted < 1.05 * done,
        "{counted} of {done}"
    );

    let profile = seen.profile.as_ref().expect("sampled");
    assert!(profile.total() > 100, "{}", profile.total());
    let functions = seen.functions();
    let portal_run = functions.iter().find(|row| row.name == "PortalRun");
    assert!(portal_run.is_some_and(|row| row.children_us > 0.1 * seen.on_cpu_us()));
    let sum: f64 = seen.subsystems().iter().map(|row| row.self_us).sum();
    assert!((sum / seen.on_cpu_us() - 1.0).abs() < 1e-9);
    assert!(
        seen.background.iter().any(|it| it.role == "checkpointer"),
        "{:?}",
        seen.background
    );

    // Wait samples apportion only the blocked time. Runnable samples, which miss half of the time on a
    // saturated machine, enter no figure. Backends that rarely get a CPU are rarely blocked.
    let waits = seen.waits.as_ref().expect("root may read memory");
    assert!(waits.blocked_samples > 0, "{waits:?}");
    assert!(
        waits.events.iter().any(|it| it.name == "ClientRead"),
        "{waits:?}"
    );
    let blocked_us: f64 = seen.blocked().iter().map(|row| row.blocked_us).sum();
    assert!(
        ((blocked_us + used_us) / there_us - 1.0).abs() < 0.03,
        "{seen:?}"
    );

    let folded =
        std::fs::read_to_string(scratch.path().join("folded")).expect("the file was written");
    let samples: u64 = folded
        .lines()
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok())
        .sum();
    assert_eq!(samples, profile.total());
    let page = std::fs::read_to_string(page).expect("the file was written");
    assert!(page.contains("flame-data"));
    let tier = "CPU by stacks, blocked time by wait events;";
    assert!(page.contains(tier) && page.contains("off-CPU stacks need --off-cpu"));
    server.stop().expect("the server stops");
}

#[test]
fn one_backend_is_profiled_by_pid() {
    let Some(server) = servers::start("10") else {
        return;
    };
    let scratch = Scratch::new(PROGRAM);
    let client = Load::of(&server, 1, "select count(*) from generate_series(1, 50000)");
    let pid = server.backend_pids()[0].to_string();
    let finished =
        run(scratch
            .command()
            .args(["profile", "--pid", &pid, "--duration", "2s", "--json"]));
    let seen = observed(&finished);
    client.stop();
    assert_eq!(seen.subject.backend_pid.map(|it| it.to_string()), Some(pid));
    assert_eq!(seen.subject.major.as_deref(), Some("10"));
    assert_eq!((seen.transactions, seen.sessions), (None, 1));
    assert!(seen.on_cpu_us() > 0.05 * seen.window_us, "{seen:?}");
    let no_waits = seen
        .limitations
        .iter()
        .find(|it| it.name == "waits")
        .expect("there is a limitation");
    assert!(
        seen.waits.is_none() && no_waits.fix.is_some(),
        "{no_waits:?}"
    );
    server.stop().expect("the server stops");
}

#[test]
fn the_wait_that_must_lead_does_on_a_version_whose_memory_must_be_learnt() {
    let Some(server) = servers::start("10") else {
        return;
    };
    let scratch = Scratch::new(PROGRAM);
    let mut first = server.connect().expect("a connection");
    first
        .execute("create table hot as select 1 as i")
        .expect("a table");
    let sql = "begin; update hot set i = i; select pg_sleep(0.02); commit";
    let clients = Load::of(&server, 4, sql);
    let arguments = [
        "profile",
        "--dsn",
        &server.conninfo(),
        "--duration",
        "3s",
        "--json",
    ];
    let seen = observed(&run(scratch.command().args(arguments)));
    clients.stop();
    let Some(waits) = &seen.waits else {
        let why = seen.limitations.iter().find(|it| it.name == "waits");
        skip("wait events", &format!("{why:?}"));
        return;
    };
    // `first` is idle all the time; of the other four, one sleeps and three wait for its lock.
    let rows = seen.blocked();
    let part = |kind: &str| {
        let of_kind = rows.iter().filter(|row| row.kind == kind);
        of_kind.map(|row| row.blocked_us).sum::<f64>() / seen.blocked_us()
    };
    assert!((0.4..0.7).contains(&part("Lock")), "{waits:?}");
    assert!((0.1..0.35).contains(&part("Timeout")), "{waits:?}");
    assert!((0.1..0.35).contains(&part("Client")), "{waits:?}");
    drop(first);
    server.stop().expect("the server stops");
}

/// Regressions: the tier was read at the end, when the server no longer ran, and "HTML page: FILE" was
/// printed about a page that could not be written.
#[test]
fn a_server_that_stops_meanwhile_and_a_full_disk_are_described_as_they_were() {
    let Some(server) = servers::start("18") else {
        return;
    };
    let scratch = Scratch::new(PROGRAM);
    let dsn = server.conninfo();
    let arguments = ["profile", "--dsn", &dsn, "--duration", "1min", "--html"];
    let mut command = scratch.command();
    command.args(arguments).arg("/dev/full");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("the program starts");
    let mut witness = server.connect().expect("a connection");
    // What the connection that counts transactions does last before the samples.
    let is_observed = "select count(*) from pg_stat_activity where state = 'idle' \
                       and query like '%; select sum(xact_commit%' \
                       and query_start < clock_timestamp() - interval '2 s'";
    wait_until("the server is observed", || {
        let seen = witness.value(is_observed).expect("an answer");
        seen.is_some_and(|it| it != "0")
    });
    server.stop().expect("the server stops");
    let output = child.wait_with_output().expect("the program ends");
    let finished = Finished::of(&output);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(finished.stderr.contains("/dev/full"), "{finished:?}");
    let text = &finished.stdout;
    assert!(text.contains("postmaster"), "{finished:?}");
    assert!(
        !text.contains("where the server runs") && !text.contains("HTML page"),
        "{finished:?}"
    );
}

/// Wait event numbers of an unknown version cannot be decoded, so pgassay asks the server for names.
#[test]
fn an_unknown_version_is_sampled_by_pg_stat_activity() {
    let Some(server) = servers::start("18") else {
        return;
    };
    // pgassay reads the version from this file; the server has already read it.
    std::fs::write(server.data_dir().join("PG_VERSION"), "42\n").expect("the file is written");
    let idle = server.connect().expect("a connection");
    let scratch = Scratch::new(PROGRAM);
    let dsn = server.conninfo();
    let arguments = ["profile", "--dsn", &dsn, "--duration", "1s", "--json"];
    let seen = observed(&run(scratch.command().args(arguments)));
    let waits = seen.waits.as_ref().expect("waits were sampled");
    assert_eq!(waits.source, WaitSource::PgStatActivity, "{seen:?}");
    assert_eq!(waits.events.len(), 1, "{waits:?}");
    assert_eq!(waits.events[0].name, "ClientRead");
    let limit = seen.limitations.iter().find(|it| it.name == "waits");
    let said = limit
        .and_then(|it| it.limitation.as_deref())
        .unwrap_or_default();
    assert!(said.contains("PostgreSQL 42"), "{said}");
    drop(idle);
    server.stop().expect("the server stops");
}

#[test]
fn targets_that_cannot_be_profiled_are_rejected() {
    let scratch = Scratch::new(PROGRAM);
    let own = std::process::id().to_string();
    for (arguments, error_message) in [
        (&["--pid", &own][..], "not a PostgreSQL server"),
        (&["--pid", "4194999"], "there is no process 4194999"),
        (
            &["--dsn", "host=/nowhere"],
            "connection to server on socket \"/nowhere/.s.PGSQL.5432\" failed",
        ),
    ] {
        let finished = run(scratch.command().arg("profile").args(arguments));
        assert_eq!(finished.code, Some(1), "{finished:?}");
        assert!(
            finished.error_message().contains(error_message),
            "{finished:?}"
        );
        assert_eq!(finished.stdout, "");
    }
    let arguments = ["profile", "--pid", "1", "--export", "svg=x"];
    let finished = run(scratch.command().args(arguments));
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let error_message = "unknown format \"svg\"; use one of folded";
    assert!(finished.stderr.contains(error_message), "{finished:?}");
    // Without a database, the environment decides.
    let finished = run(scratch.command().arg("profile").env("PGHOST", "/nowhere"));
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let error_message = "connection to server on socket \"/nowhere/.s.PGSQL.5432\" failed";
    assert!(finished.stderr.contains(error_message), "{finished:?}");
}

#[test]
fn statements_have_their_load_and_their_stacks() {
    let Some(server) = servers::start("15") else {
        return;
    };
    let scratch = Scratch::new(PROGRAM);
    let sql = "select sum(sqrt(i)) from (select generate_series(1, 300000) i) s";
    let working = Load::of(&server, 1, sql);
    let profile = |more: &str| {
        let conninfo = server.conninfo();
        let arguments = ["profile", &conninfo, "--duration", "2s", "--json", more];
        observed(&run(scratch.command().args(arguments)))
    };
    let (seen, without) = (profile("--frequency=199"), profile("--no-text"));
    working.stop();
    let activity = seen.activity.expect("the sessions were watched");
    assert!(activity.cost.peak_memory_bytes > 0 && activity.cost.own_cpu_us > 0.0);
    assert!((2..=4).contains(&activity.cost.connections));
    let top = activity.load_by(LoadBy::Statement).remove(0);
    let statement = &activity.statements[top.index.expect("a statement") as usize];
    let text = statement.text.as_deref().unwrap_or_default();
    assert!(text.starts_with("select sum(sqrt(i)) from (select generate_series($1, $2)"));
    assert!(top.load > 0.5 && statement.executions_seen > 1, "{top:?}");
    if is_root() && sampling_is_permitted() {
        assert_eq!(activity.source, ActivitySource::Memory);
        let profile = seen.profile.expect("sampled");
        let column = statement.profile_column.expect("it has CPU samples") as usize;
        let of_column = |column: usize| -> u64 {
            let samples = profile.nodes.iter().map(|it| it.samples[column]);
            samples.map(u64::from).sum()
        };
        assert!(
            of_column(column) > profile.total() * 3 / 4,
            "{} of {}",
            of_column(column),
            profile.total()
        );
    }
    let activity = without.activity.expect("the sessions were watched");
    assert!(activity.statements.iter().all(|it| it.text.is_none()));
    let fingerprints = activity.statements.iter().map(|it| &it.fingerprint);
    assert!(
        fingerprints
            .into_iter()
            .any(|it| *it == statement.fingerprint)
    );
    server.stop().expect("the server stops");
}

/// Whether an unprivileged user can see less than root here. Only root can switch users.
fn is_restricted_for_others() -> bool {
    let what = "an unprivileged profile";
    if !is_root() {
        skip(what, "only root can switch users");
        return false;
    }
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    let is_open = paranoid.is_ok_and(|text| text.trim().parse().is_ok_and(|it: i32| it <= 0));
    if is_open {
        not_applicable(what, "any user may sample here");
    }
    !is_open
}

/// Runs the program as an unprivileged user.
fn run_unprivileged(scratch: &Scratch, arguments: &[&str]) -> Finished {
    // A copy that any user can run; the build directory may not be accessible.
    let program = scratch.path().join("pgassay");
    if !program.exists() {
        copy_program(PROGRAM.as_ref(), &program);
    }
    let mut command = scratch.command_of(&program);
    run(command.args(arguments).uid(12_345).gid(12_345))
}

#[test]
fn unprivileged_users_get_exact_totals_and_a_list_of_limitations() {
    if !is_restricted_for_others() {
        return;
    }
    let Some(server) = servers::start("18") else {
        return;
    };
    let scratch = Scratch::new(PROGRAM);
    let clients = Load::start(&server);
    let pid = server.postmaster_pid().to_string();
    let profiling = |extra: &[&str]| {
        let arguments = ["profile", "--pid", &pid, "--duration", "1s"];
        run_unprivileged(&scratch, &[&arguments, extra].concat())
    };
    let finished = profiling(&[]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    for part in [
        "on CPU",
        "perf_event_paranoid",
        "to fix it: sudo sysctl",
        "wait events cannot be read",
        // No stacks and no waits: only CPU and run-queue time are known.
        "CPU in one row (not broken down), blocked time in one row;",
        "% of the time has a known cause; CPU stacks need sudo setcap cap_perfmon,cap_sys_ptrace,",
    ] {
        assert!(
            collapse_whitespace(&finished.stdout).contains(part),
            "{part}: {finished:?}"
        );
    }
    let seen = observed(&profiling(&["--json"]));
    assert!(seen.on_cpu_us() > 0.02 * seen.window_us, "{seen:?}");
    assert_eq!((seen.profile, seen.waits), (None, None));
    let export = profiling(&["--export", "folded=-"]);
    assert_eq!(export.code, Some(1));
    assert!(
        export.error_message().contains("perf_event_paranoid"),
        "{export:?}"
    );
    clients.stop();
    server.stop().expect("the server stops");
}

#[test]
fn what_backends_are_blocked_by_is_exported_as_stacks_that_end_in_waits() {
    let Some(server) = servers::start("18") else {
        return;
    };
    if !sampling_is_permitted() {
        return;
    }
    let mut holder = server.connect().expect("a connection");
    holder
        .query("select pg_advisory_lock(1)")
        .expect("the query succeeds");
    let mut waiter = server.connect().expect("a connection");
    let waiting = thread::spawn(move || waiter.query("select pg_advisory_lock(1)").map(drop));
    let scratch = Scratch::new(PROGRAM);
    let file = |name: &str| scratch.path().join(name);
    let export = |format: &str| format!("{format}={}", file(format).display());
    let mut command = scratch.command();
    command
        .args(["profile", "--dsn", &server.conninfo(), "--duration", "2s"])
        .args(["--off-cpu", "--export", &export("folded")])
        .args(["--export", &export("perf"), "--html"])
        .arg(file("page.html"));
    let finished = run(&mut command);
    drop(holder);
    waiting
        .join()
        .expect("the thread does not panic")
        .expect("the lock");
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let read = |name| std::fs::read_to_string(file(name)).expect("a file");

    let folded = read("folded");
    let of = |leaf: &str| -> u64 {
        let lines = folded.lines().filter(|line| line.contains(leaf));
        lines
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok())
            .sum()
    };
    let lock = of("ProcSleep;");
    assert!(folded.contains(";Lock: advisory "), "{folded}");
    // Two sessions were idle or waiting all the time, and slices cover a tenth; one waited for a lock.
    assert!(lock > 50_000, "{folded}");
    let share = lock as f64 / of("main;") as f64;
    assert!((0.4..0.6).contains(&share), "{share} {folded}");
    let perf = read("perf");
    assert!(perf.contains("of event 'off-cpu'"), "{perf}");
    assert!(perf.contains("ProcSleep"), "{perf}");
    let page = read("page.html");
    for text in [&page, &collapse_whitespace(&finished.stdout)] {
        // There may be no on-CPU samples.
        assert!(text.contains("CPU ") && text.contains(", blocked time by stacks;"));
    }
    assert!(
        page.contains("\"title\":\"blocked\""),
        "the page has both sides"
    );
    drop(server);
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    /// Regression: "0.0 transactions/s" of a server that executed thousands, of which its statistics had none yet.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn transactions_that_use_no_table_are_not_counted_as_none() {
        for version in ["15", "18"] {
            let Some(server) = servers::start(version) else {
                return;
            };
            let scratch = Scratch::new(PROGRAM);
            let sql = "select count(*) from generate_series(1, 50000)";
            let clients = Load::of(&server, 2, sql);
            // It began earlier: after its start, a session reports what it read of the catalog.
            thread::sleep(Duration::from_millis(1500));
            let conninfo = server.conninfo();
            let profile = ["profile", &conninfo, "--duration", "2s"];
            let seen = observed(&run(scratch.command().args(profile).arg("--json")));
            let text = run(scratch.command().args(profile)).stdout;
            clients.stop();
            assert_eq!(seen.transactions, None, "{:?}", seen.limitations);
            let has_reason = |it: &Check| it.name == Activity::TRANSACTIONS;
            assert!(seen.limitations.iter().any(has_reason), "{seen:?}");
            let activity = seen.activity.expect("the sessions were watched");
            assert!(activity.transactions_seen > 10, "{activity:?}");
            let rates = activity.timeline.iter().map(|it| it.transactions_per_s);
            assert!(rates.flatten().next().is_none(), "{:?}", activity.timeline);
            assert!(text.contains("transactions unknown"), "{text}");
            assert!(text.contains("whose transactions use no table"), "{text}");
            server.stop().expect("the server stops");
        }
    }

    /// A user who may not read the server's memory but has a connection.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn unprivileged_users_get_waits_from_pg_stat_activity() {
        if !is_restricted_for_others() {
            return;
        }
        let config = ServerConfig {
            tcp: true,
            ..servers::config()
        };
        let Some(server) = servers::start_with("18", &config) else {
            return;
        };
        let mut holder = server.connect().expect("a connection");
        for sql in [
            "create role watcher login password 'secret'",
            "grant pg_monitor to watcher",
            "select pg_advisory_lock(1)",
        ] {
            holder.query(sql).expect("the query succeeds");
        }
        let mut waiter = server.connect().expect("a connection");
        let waiting = thread::spawn(move || waiter.query("select pg_advisory_lock(1)").map(drop));
        let scratch = Scratch::new(PROGRAM);
        let port = server.tcp_address().expect("the server listens").port();
        let dsn =
            format!("host=127.0.0.1 port={port} user=watcher password=secret dbname=postgres");
        let profiling = |extra: &[&str]| {
            let arguments = ["profile", "--dsn", &dsn, "--duration", "2s"];
            run_unprivileged(&scratch, &[&arguments, extra].concat())
        };
        let page = scratch.path().join("page.html");
        let seen = observed(&profiling(&["--json", "--html", &page.to_string_lossy()]));
        let text = profiling(&[]);
        drop(holder);
        waiting
            .join()
            .expect("the thread does not panic")
            .expect("the lock");

        assert_eq!(
            seen.subject.major.as_deref(),
            Some("18"),
            "the server reports it"
        );
        assert_eq!(seen.sessions, 2, "pgassay's own connections are excluded");
        let waits = seen.waits.as_ref().expect("waits were sampled");
        assert_eq!(waits.source, WaitSource::PgStatActivity);
        assert_eq!(waits.unreadable, 0, "{waits:?}");
        assert!(waits.sampling_cpu_us > 0.0, "{waits:?}");
        // One session holds the lock and is idle, the other waits for it.
        let rows = seen.blocked();
        for (kind, name) in [("Client", "ClientRead"), ("Lock", "advisory")] {
            let row = rows
                .iter()
                .find(|row| (&*row.kind, &*row.name) == (kind, name));
            let share = row.map_or(0.0, |row| row.blocked_us / seen.blocked_us());
            assert!((share - 0.5).abs() < 0.01, "{name}: {share} {waits:?}");
        }
        let limit = seen.limitations.iter().find(|it| it.name == "waits");
        let limit = limit.expect("there is a limitation");
        assert_eq!(limit.value, "pg_stat_activity");
        assert!(limit.fix.is_some(), "{limit:?}");
        for part in [
            "samples of pg_stat_activity",
            "pgassay samples pg_stat_activity",
            "CPU in one row (not broken down), blocked time by wait events of pg_stat_activity;",
        ] {
            assert!(
                collapse_whitespace(&text.stdout).contains(part),
                "{part}: {text:?}"
            );
        }
        let page = std::fs::read_to_string(page).expect("the file was written");
        assert!(page.contains("samples of pg_stat_activity"), "{page}");
        server.stop().expect("the server stops");
    }
}
