//! Studies on an external server, which is left as it was.

use std::fs;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use pgassay_account::ledger::{Divider, Part};
use pgassay_record::run::{Run, WarningKind};
use pgassay_test_support::{Finished, Scratch, os::kill, skip, wait_for_exit, wait_until};

use crate::PROGRAM;
use crate::external_server::{ALLOWED, Theirs, of_dsn, run_of};

/// Runs a study to its end, with permission for changes.
fn run(scratch: &Scratch, study: &str, arguments: &[&str]) -> Finished {
    scratch.run(study, &[&ALLOWED, arguments].concat())
}

/// Starts a study with permission for changes, and waits until its trials have begun.
fn start(scratch: &Scratch, study: &str, arguments: &[&str]) -> Child {
    scratch.start(study, &[&ALLOWED, arguments].concat())
}

fn kinds(run: &Run) -> Vec<WarningKind> {
    run.warnings.iter().map(|warning| warning.kind).collect()
}

#[test]
fn an_external_server_is_measured_and_left_as_it_was() {
    for version in ["9.6", "18"] {
        if let Some(theirs) = Theirs::start_version(version) {
            is_used_and_left_as_it_was(&theirs, version);
        }
    }
}

fn is_used_and_left_as_it_was(theirs: &Theirs, version: &str) {
    let scratch = Scratch::new(PROGRAM);
    let run = run_of(&run(
        &scratch,
        &of_dsn(&theirs.server.conninfo()),
        &["--json"],
    ));
    assert_eq!((run.complete, run.comparisons.len()), (true, 1));
    let plans = run.plans.as_ref().expect("plans were taken");
    let all = plans.points.iter().flat_map(|it| &it.statements);
    let all: Vec<_> = all.flat_map(|it| &it.plans).collect();
    assert!(
        !all.is_empty() && all.iter().all(|it| !it.is_executed),
        "only planned"
    );
    assert_eq!(
        run.servers.len(),
        1,
        "variants that differ in session settings share a server"
    );
    let facts = &run.servers[0];
    assert!(facts.version.starts_with(version), "{facts:?}");
    assert!(facts.origin.starts_with("external server at socket "));
    assert_eq!(facts.settings["fsync"], "off", "{facts:?}");
    assert!(facts.compiler.contains("gcc") && facts.cflags.contains("-O"));
    for trial in &run.trials {
        let server = trial.server.expect("it runs on this machine");
        assert!(server.on_cpu_us > 0.0 && server.processes == 2, "{trial:?}");
        assert!(trial.counters.get("log.bytes").is_none(), "not readable");
    }
    let counted = |name: &str| {
        let mut figures = run.points[0].counters.iter();
        let found = figures.find(|figure| figure.name == name);
        found.map(|figure| figure.per_transaction)
    };
    let commits = counted("pg_stat_database.xact_commit").expect("statistics were read");
    assert!(
        (commits - 1.0).abs() < 0.1,
        "{commits} commits a transaction"
    );
    assert_eq!(run.ledgers.len(), 2);
    for ledger in &run.ledgers {
        let checks = &ledger.checks;
        // How closely they agree depends on the machine's other load: the timing tier asserts it.
        assert!((0.5..2.0).contains(&checks.coverage), "{checks:?}");
        let sum_us: f64 = ledger.rows.iter().map(|row| row.us).sum();
        let whole_us = ledger.response_us + ledger.between_transactions_us;
        assert!((sum_us / whole_us - 1.0).abs() < 1e-9, "{ledger:?}");
    }
    assert!(!kinds(&run).contains(&WarningKind::NotObserved));
    theirs.assert_untouched();
    let kept = scratch.kept();
    assert!(
        !kept[0].join("server-0.log").exists(),
        "the log of an external server is not stored"
    );
    scratch.assert_nothing_left();
}

fn assert_no_secret_in(directory: &Path) {
    for entry in fs::read_dir(directory)
        .expect("the directory exists")
        .flatten()
    {
        let path = entry.path();
        if path.is_dir() {
            assert_no_secret_in(&path);
            continue;
        }
        let bytes = fs::read(&path).expect("a readable file");
        let found = bytes.windows(6).any(|part| part == b"s3cret");
        assert!(!found, "the password is in {}", path.display());
    }
}

#[test]
fn errors_of_external_servers_name_their_line() {
    let Some(theirs) = Theirs::start() else {
        return;
    };
    let scratch = Scratch::new(PROGRAM);
    let with = |role: &str, password: &str| {
        let role_at = format!("{role}@");
        let secret = format!("{role}:{password}@");
        theirs.uri(role).replace(&role_at, &secret)
    };
    let nowhere = scratch.path().display().to_string();
    for (dsn, words) in [
        (
            with("maker", "wr0ng"),
            "password authentication failed for user \\\"maker\\\"",
        ),
        (with("guest", "s3cret"), "alter role guest createdb"),
        (
            format!("host={nowhere} user=postgres"),
            "Is the server running locally",
        ),
        (
            "host=127.0.0.1 port=1 user=postgres".to_owned(),
            "Connection refused",
        ),
        (
            "host=h nonsense=1".to_owned(),
            "invalid connection option \\\"nonsense\\\"",
        ),
    ] {
        let finished = run(&scratch, &of_dsn(&dsn), &["--no-profile"]);
        assert_eq!(finished.code, Some(1), "{finished:?}");
        let said = format!("{:?}", finished.stderr);
        assert!(
            said.contains(words) && said.contains("study.toml:3:"),
            "{said}"
        );
        assert!(
            !said.contains("wr0ng") && !said.contains("s3cret"),
            "{said}"
        );
    }
    assert_eq!(scratch.kept(), Vec::<std::path::PathBuf>::new());
    let many = of_dsn(&theirs.server.conninfo()).replace("clients = [2]", "clients = [99]");
    let finished = run(&scratch, &many, &["--no-profile"]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(finished.stderr.contains("max_connections"), "{finished:?}");
    theirs.assert_untouched();
}

#[test]
fn nothing_is_left_on_it_after_an_error_and_after_ctrl_c() {
    let Some(theirs) = Theirs::start() else {
        return;
    };
    let scratch = Scratch::new(PROGRAM);
    let study = of_dsn(&theirs.server.conninfo());
    let broken = study.replace("insert into mine", "insert into nothing");
    let finished = run(&scratch, &broken, &["--no-profile"]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(finished.stderr.contains("study.toml:7:"), "{finished:?}");
    theirs.assert_untouched();
    let fails = study.replace("select note,", "select note, 1 / 0,");
    let finished = run(&scratch, &fails, &["--no-profile"]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    theirs.assert_untouched();
    let mut child = start(
        &scratch,
        &study.replace("\"2s\"", "\"1min\""),
        &["--no-profile"],
    );
    assert_eq!(theirs.databases().len(), 1);
    kill(child.id().cast_signed(), libc::SIGINT);
    assert_eq!(wait_for_exit(&mut child, Duration::from_mins(1)), Some(130));
    theirs.assert_untouched();
}

#[test]
fn requirements_are_checked_on_the_variants_server() {
    let Some(theirs) = Theirs::start() else {
        return;
    };
    let scratch = Scratch::new(PROGRAM);
    let study = of_dsn(&theirs.server.conninfo())
        + "[[variant]]\nname = \"has it\"\nrequires = { extension = \"plpgsql\" }\n\
           [[variant]]\nname = \"lacks it\"\nrequires = { extension = \"no_such\" }\n\
           [[variant]]\nname = \"not built\"\nrequires = { feature = \"no-such\" }\n";
    let run = run_of(&run(&scratch, &study, &["--no-profile", "--json"]));
    assert_eq!(run.plan.variants, ["as it is", "no index", "has it"]);
    let skipped = run
        .warnings
        .iter()
        .filter(|it| it.kind == WarningKind::Skipped);
    let words: Vec<&str> = skipped.map(|it| it.message.as_str()).collect();
    assert!(words[0].contains("no extension no_such"), "{words:?}");
    assert!(words[1].contains("without no-such"), "{words:?}");
    theirs.assert_untouched();
}

#[test]
fn counting_rejects_external_servers() {
    let scratch = Scratch::new(PROGRAM);
    let path = scratch.study(&of_dsn("host=/nowhere"));
    for arguments in [&["count"][..], &["run", "--counted"]] {
        let mut command = scratch.command();
        let output = command.args(arguments).arg(&path).output();
        let finished = Finished::of(&output.unwrap());
        assert_eq!(finished.code, Some(1), "{finished:?}");
        let said = finished.error_message();
        assert!(
            said.contains("study.toml:3:") && said.contains("valgrind"),
            "{said}"
        );
    }
}

/// A server at a non-local address may run on another machine.
mod elsewhere {
    use std::io;
    use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};

    /// A non-loopback address of this machine, if it has one. Sends nothing.
    pub fn address() -> Option<IpAddr> {
        let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
        socket.connect("192.0.2.1:9").ok()?;
        let address = socket.local_addr().ok()?.ip();
        (!address.is_loopback()).then_some(address)
    }

    /// Forwards a port at that address to a server on this machine for the duration of the test.
    pub fn forward(address: IpAddr, to: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind((address, 0)).expect("a port is free");
        let at = listener.local_addr().expect("it is bound");
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(to) else {
                    continue;
                };
                for stream in [&near, &far] {
                    stream.set_nodelay(true).expect("a socket of TCP");
                }
                let (from_near, to_near) = (near.try_clone().expect("a descriptor"), near);
                let (from_far, to_far) = (far.try_clone().expect("a descriptor"), far);
                std::thread::spawn(move || pass_on(from_near, to_far));
                std::thread::spawn(move || pass_on(from_far, to_near));
            }
        });
        at
    }

    fn pass_on(mut from: TcpStream, mut to: TcpStream) {
        // Whichever side ends first ends the other.
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(std::net::Shutdown::Both);
    }
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn it_is_reached_over_tcp_and_its_password_is_nowhere_in_the_result() {
        let Some(theirs) = Theirs::start() else {
            return;
        };
        let scratch = Scratch::new(PROGRAM);
        let with_password = theirs.uri("maker").replace("maker@", "maker:s3cret@");
        let study = of_dsn("host=/nowhere");
        let finished = run(&scratch, &study, &["--no-profile", "--dsn", &with_password]);
        assert_eq!(finished.code, Some(0), "{finished:?}");
        assert!(finished.stdout.contains("(external)"), "{finished:?}");
        // Also in the stored study text.
        let finished = run(
            &scratch,
            &of_dsn(&with_password),
            &["--no-profile", "--json"],
        );
        let run = run_of(&finished);
        let dsn = run.plan.servers[0].dsn.as_deref().unwrap();
        assert_eq!(
            dsn,
            format!(
                "user=maker host=127.0.0.1 port={} dbname=postgres",
                theirs.port()
            )
        );
        assert_eq!(run.study.server.dsn.as_deref(), Some(dsn));
        // Also if the password comes from another source.
        let by_keywords = format!(
            "host=127.0.0.1 port={} user=maker dbname=postgres",
            theirs.port()
        );
        let path = scratch.study(&of_dsn(&by_keywords));
        let output = scratch
            .command()
            .arg("run")
            .arg(&path)
            .arg("--no-profile")
            .args(["--allow-writes", "--allow-passwords"])
            .env("PGPASSWORD", "s3cret")
            .output();
        assert_eq!(Finished::of(&output.unwrap()).code, Some(0));
        let passfile = scratch.path().join("pgpass");
        fs::write(&passfile, "127.0.0.1:*:postgres:maker:s3cret\n").unwrap();
        fs::set_permissions(
            &passfile,
            std::os::unix::fs::PermissionsExt::from_mode(0o600),
        )
        .unwrap();
        let output = scratch
            .command()
            .arg("run")
            .arg(&path)
            .arg("--no-profile")
            .args(["--allow-writes", "--allow-passwords"])
            .env("PGPASSFILE", &passfile)
            .output();
        assert_eq!(Finished::of(&output.unwrap()).code, Some(0));
        theirs.assert_untouched();
        assert_eq!(scratch.kept().len(), 4);
        assert_no_secret_in(&scratch.results());
        for arguments in [&["plan"][..], &["plan", "--json"], &["show"], &["check"]] {
            scratch.study(&of_dsn(&with_password));
            let mut command = scratch.command();
            let output = command.arg("study").args(arguments).arg(&path).output();
            let finished = Finished::of(&output.unwrap());
            assert_eq!(finished.code, Some(0), "{finished:?}");
            assert!(!format!("{finished:?}").contains("s3cret"), "{finished:?}");
        }
    }

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn an_external_server_is_compared_with_a_temporary_one() {
        let Some(theirs) = Theirs::start() else {
            return;
        };
        let scratch = Scratch::new(PROGRAM);
        let study = of_dsn("DSN")
            .replace(
                "[server]\ndsn = \"DSN\"\n",
                "[server]\nsettings = { work_mem = \"8MB\" }\n",
            )
            .replace(
                "1 / (current_database() like 'pgassay\\_%')::int",
                "current_database()",
            )
            .replace(
                "session = { enable_indexscan = \"off\", enable_bitmapscan = \"off\" }",
                &format!("dsn = \"{}\"", theirs.server.conninfo()),
            );
        let run = run_of(&run(&scratch, &study, &["--offline", "--json"]));
        let ours = run.plan.servers.iter().map(|it| it.dsn.is_none());
        assert_eq!(ours.collect::<Vec<_>>(), [true, false]);
        assert_eq!(run.comparisons.len(), 1);
        assert_eq!(run.ledgers.len(), 2);
        let said = run
            .warnings
            .iter()
            .find(|it| it.kind == WarningKind::SettingsDiffer);
        let words = &said.expect("there is a warning").message;
        assert!(words.contains("work_mem = 8MB (yours: 4MB)"), "{words}");
        assert_eq!(run.profiles.len(), 2, "both are sampled, or neither");
        theirs.assert_untouched();
        scratch.assert_nothing_left();
    }

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn leftover_databases_are_reported_unless_in_use() {
        let Some(theirs) = Theirs::start() else {
            return;
        };
        let (scratch, other) = (Scratch::new(PROGRAM), Scratch::new(PROGRAM));
        let study = of_dsn(&theirs.server.conninfo());
        let mut child = start(
            &scratch,
            &study.replace("\"2s\"", "\"1min\""),
            &["--no-profile"],
        );
        let left = theirs.databases();
        assert_eq!(left.len(), 1);
        let meanwhile = run_of(&run(&other, &study, &["--no-profile", "--json"]));
        assert!(!kinds(&meanwhile).contains(&WarningKind::Leftover));
        assert_eq!(
            theirs.databases(),
            left,
            "databases of another run are not dropped"
        );
        kill(child.id().cast_signed(), libc::SIGKILL);
        wait_for_exit(&mut child, Duration::from_mins(1));
        let sql = "select count(*) from pg_stat_activity where application_name like 'pgassay%'";
        wait_until("its connections end", || {
            let found = theirs.server.connect().unwrap().value(sql).unwrap();
            // The connection of this query is one.
            found.as_deref() == Some("1")
        });
        let next = run_of(&run(&other, &study, &["--no-profile", "--json"]));
        let said = next
            .warnings
            .iter()
            .find(|it| it.kind == WarningKind::Leftover);
        let words = &said.expect("there is a warning").message;
        let remedy = format!("drop database {};", left[0]);
        assert!(words.contains(&remedy), "{words}");
        theirs.server.connect().unwrap().execute(&remedy).unwrap();
        theirs.assert_untouched();
    }

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn unreadable_data_of_a_remote_server_are_absent_with_one_warning() {
        let Some(address) = elsewhere::address() else {
            skip(
                "a remote server",
                "this machine has only loopback addresses",
            );
            return;
        };
        let Some(theirs) = Theirs::start() else {
            return;
        };
        let scratch = Scratch::new(PROGRAM);
        let at = elsewhere::forward(address, theirs.server.tcp_address().unwrap());
        let dsn = format!(
            "host={} port={} user=maker password=s3cret dbname=postgres",
            at.ip(),
            at.port()
        );
        let finished = run(&scratch, &of_dsn(&dsn), &["--json"]);
        let run = run_of(&finished);
        assert_eq!(run.comparisons.len(), 1);
        assert_eq!(run.comparisons[0].server_cpu, None);
        for trial in &run.trials {
            assert!(
                trial.server.is_none() && trial.background.is_empty(),
                "{trial:?}"
            );
            assert!(
                !trial
                    .counters
                    .names()
                    .any(|name| name.starts_with("backends."))
            );
        }
        for point in &run.points {
            assert_eq!(
                (point.server_cpu_us, point.server_run_queue_us),
                (None, None)
            );
            let commits = point
                .counters
                .iter()
                .find(|it| it.name == "pg_stat_database.xact_commit");
            assert!(commits.is_some(), "views are read on any server");
        }
        assert!(run.profiles.is_empty());
        assert_eq!(run.ledgers.len(), 2, "its activity was sampled");
        for ledger in &run.ledgers {
            assert_eq!(ledger.blocked_by, Divider::ActivityStates);
            assert!(ledger.part_us(Part::Client) > 0.0, "{ledger:?}");
            assert!(ledger.part_us(Part::OnCpu) <= 0.0, "CPU time is unknown");
            let sum_us: f64 = ledger.rows.iter().map(|row| row.us).sum();
            let whole_us = ledger.response_us + ledger.between_transactions_us;
            assert!((sum_us / whole_us - 1.0).abs() < 1e-9, "{ledger:?}");
        }
        let difference = run.comparisons[0].ledger.as_ref();
        assert!(
            difference.is_some_and(|it| !it.explained),
            "samples of pg_stat_activity alone"
        );
        let said = kinds(&run);
        let not_observed = said
            .iter()
            .filter(|kind| **kind == WarningKind::NotObserved);
        assert_eq!(not_observed.count(), 1, "{:?}", run.warnings);
        assert!(
            !said.contains(&WarningKind::NoProfile),
            "{:?}",
            run.warnings
        );
        let shown = scratch.command().args(["show", "last"]).output().unwrap();
        let shown = Finished::of(&shown);
        assert_eq!(shown.code, Some(0));
        assert!(shown.stdout.contains("All time by samples"), "{shown:?}");
        theirs.assert_untouched();
    }
}
