//! What a study changes on an external server: it needs permission, is undone, and ends with the
//! program that started it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use pgassay_record::run::{Run, WarningKind};
use pgassay_test_support::os::kill;
use pgassay_test_support::{Finished, Scratch, wait_for_exit, wait_until};

use crate::PROGRAM;
use crate::external_server::{ALLOWED, Theirs, of_dsn, run_of};

/// Changes settings in all ways, with and without a value before, and creates a role.
const CHANGES: &str = "alter system set work_mem = '77MB';\n\
    alter system set jit = off;\n\
    alter role maker set search_path = pg_catalog;\n\
    alter role maker set work_mem = '78MB';\n\
    alter database postgres set work_mem = '79MB';\n\
    select pg_reload_conf();\n\
    create role extra;\n";
/// Values of the settings that [`CHANGES`] changes.
pub const SETTINGS: &str = "select name, setting from pg_file_settings \
        where sourcefile like '%auto.conf' \
    union all select coalesce(rolname, datname), entry \
        from (select setrole, setdatabase, unnest(setconfig) as entry from pg_db_role_setting) s \
        left join pg_roles r on r.oid = setrole left join pg_database d on d.oid = setdatabase \
    union all select name, reset_val from pg_settings where name in ('jit', 'work_mem') \
    order by 1, 2";
const SLEEPERS: &str = "select count(*) from pg_stat_activity \
    where query like '%pg_sleep(600)%' and state = 'active' and pid <> pg_backend_pid()";

/// An external server with its own settings.
fn theirs() -> Option<Theirs> {
    let theirs = Theirs::start()?;
    theirs.ask("alter system set work_mem = '5MB'");
    theirs.ask("alter role maker set search_path = \"$user\", public, 'a,b'");
    theirs.ask("select pg_reload_conf()");
    wait_until("the server reloads", || {
        theirs.ask("show work_mem") == [[Some("5MB".to_owned())]]
    });
    Some(theirs)
}

/// The study of [`of_dsn`] with more setup before its own.
pub fn study(dsn: &str, more: &str) -> String {
    of_dsn(dsn).replace("setup = '''\n", &format!("setup = '''\n{more}"))
}

/// Starts a study, with permission for changes, and does not wait.
pub fn start(scratch: &Scratch, study: &str, arguments: &[&str]) -> Child {
    let stderr = fs::File::create(scratch.path().join("stderr")).unwrap();
    let mut command = scratch.command();
    command
        .arg("run")
        .arg(scratch.study(study))
        .arg("--no-profile");
    command.args(ALLOWED).args(arguments).stderr(stderr);
    command.spawn().unwrap()
}

pub fn sleepers(theirs: &Theirs) -> String {
    theirs.ask(SLEEPERS)[0][0].clone().unwrap()
}

pub fn journals(scratch: &Scratch) -> Vec<PathBuf> {
    let directory = scratch.results().join(".external-servers");
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn changes(run: &Run) -> &str {
    let mut warnings = run.warnings.iter();
    let found = warnings.find(|it| it.kind == WarningKind::ServerChanged);
    &found.expect("there is a warning").message
}

/// Regression: the advice was to increase `max_connections`, which does not help.
#[test]
fn a_roles_connection_limit_is_named_where_a_study_needs_more() {
    let Some(theirs) = Theirs::start() else {
        return;
    };
    theirs.ask("alter role maker connection limit 3");
    let scratch = Scratch::new(PROGRAM);
    let dsn = format!("{}?password=s3cret", theirs.uri("maker"));
    let finished = scratch.run(&of_dsn(&dsn), &ALLOWED);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let said = &finished.stderr;
    assert!(said.contains("role maker may have 3 connections"), "{said}");
    assert!(said.contains("the role's connection limit"), "{said}");
    // Regression: it did not say why one client needs 12 connections.
    assert!(
        said.contains("10 are for setup, statistics and other sessions"),
        "{said}"
    );
}

/// Regression: a study's script became a superuser with `SET ROLE`, without `--allow-superuser`.
#[test]
fn a_role_that_can_become_a_superuser_is_refused_as_one() {
    let Some(theirs) = theirs() else {
        return;
    };
    let scratch = Scratch::new(PROGRAM);
    let superuser = theirs.superuser();
    let guest = format!("{}?password=s3cret", theirs.uri("guest"));
    theirs.ask(&format!("grant {} to guest", theirs.server.superuser()));
    for dsn in [format!("{superuser} options='-c role=maker'"), guest] {
        let reading = of_dsn(&dsn).replace("create table", "-- ");
        let finished = scratch.run(&reading, &["--allow-writes"]);
        assert_eq!(finished.code, Some(1), "{finished:?}");
        let said = &finished.stderr;
        assert!(
            said.contains("can become a superuser (with SET ROLE)"),
            "{said}"
        );
        assert!(said.contains("requires --allow-superuser;"), "{said}");
    }
}

#[test]
fn a_study_that_alters_the_server_is_refused_line_by_line() {
    let Some(theirs) = theirs() else {
        return;
    };
    let scratch = Scratch::new(PROGRAM);
    let before = theirs.ask(SETTINGS);
    let altering = study(&theirs.server.conninfo(), CHANGES);
    let lines = [
        "creates a database named pgassay_…, drops it after the run",
        "study.toml:6: alter system set work_mem = '77MB' (setting of the server; put back after \
         the run)",
        "study.toml:8: alter role maker set search_path = pg_catalog (setting of a role; put back \
         after the run)",
        "study.toml:10: alter database postgres set work_mem = '79MB' (setting of a database; put \
         back after the run)",
        "study.toml:11: select pg_reload_conf() (other sessions or processes of the server; not undone)",
        "study.toml:12: create role extra (role; not undone)",
    ];
    for (allowed, flag) in [
        (&[][..], "--allow-writes"),
        (&["--allow-superuser"], "--allow-writes"),
        (&["--allow-writes"], "--allow-superuser"),
    ] {
        let finished = scratch.run(&altering, allowed);
        assert_eq!(finished.code, Some(1), "{finished:?}");
        let said = &finished.stderr;
        assert!(said.contains(&format!("requires {flag};")), "{said}");
        assert!(said.contains("study.toml:3:"), "{said}");
        for line in lines {
            assert!(said.contains(line), "{line}\n{said}");
        }
    }
    // Nor by a superuser who only reads.
    let reading = altering.replace(CHANGES, "").replace("create table", "-- ");
    let finished = scratch.run(&reading, &["--allow-writes"]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let output = scratch
        .command()
        .args(["study", "plan"])
        .arg(scratch.study(&altering))
        .output();
    let planned = Finished::of(&output.unwrap());
    for line in lines {
        assert!(planned.stdout.contains(line), "{planned:?}");
    }
    assert_eq!(theirs.ask(SETTINGS), before);
    assert_eq!(
        theirs
            .ask("select 1 from pg_roles where rolname = 'extra'")
            .len(),
        0
    );
    assert!(scratch.kept().is_empty() && journals(&scratch).is_empty());
    theirs.assert_untouched();
}

#[test]
fn every_command_asks_before_it_changes_an_external_server() {
    let Some(theirs) = Theirs::start() else {
        return;
    };
    let scratch = Scratch::new(PROGRAM);
    let dsn = theirs.uri("maker").replace("maker@", "maker:s3cret@");
    let of_dsn = ["-S", "--dsn", &dsn];
    for command in [
        &["compare", "--vs", "jit=off"][..],
        &["gate", "--vs", "jit=off"],
        &["curve", "-c", "1..4"],
    ] {
        let finished = scratch.finished(&[command, &of_dsn].concat());
        assert_eq!(finished.code, Some(1), "{command:?}: {finished:?}");
        let said = &finished.stderr;
        assert!(
            said.contains("requires --allow-writes;"),
            "{command:?}: {said}"
        );
        assert!(!said.contains("s3cret"), "{said}");
        theirs.assert_untouched();
    }
}

#[test]
fn what_a_study_changes_is_reported_and_its_settings_are_put_back() {
    let Some(theirs) = theirs() else {
        return;
    };
    let scratch = Scratch::new(PROGRAM);
    let before = theirs.ask(SETTINGS);
    let altering = study(&theirs.server.conninfo(), CHANGES);
    let run = run_of(&scratch.run(
        &altering,
        &[&ALLOWED[..], &["--no-profile", "--json"]].concat(),
    ));
    let said = changes(&run);
    for change in [
        "role extra added",
        "setting work_mem of ALTER SYSTEM changed and put back",
        "setting jit of ALTER SYSTEM added and put back",
        "setting search_path of role maker changed and put back",
        "setting work_mem of role maker added and put back",
        "setting work_mem of database postgres added and put back",
    ] {
        assert!(said.contains(change), "{change}: {said}");
    }
    assert!(!said.contains("role extra added and"), "{said}");
    assert_eq!(theirs.ask(SETTINGS), before);
    assert!(journals(&scratch).is_empty());
    // What changes nothing outside of its database is not reported.
    theirs.ask("drop role extra");
    let quiet = study(&theirs.server.conninfo(), "");
    let run = run_of(&scratch.run(
        &quiet,
        &[&ALLOWED[..], &["--no-profile", "--json"]].concat(),
    ));
    let mut warnings = run.warnings.iter();
    assert!(
        warnings.all(|it| it.kind != WarningKind::ServerChanged),
        "{:?}",
        run.warnings
    );
    theirs.assert_untouched();
}

#[test]
fn a_value_that_may_be_a_password_is_neither_kept_nor_changed() {
    let Some(theirs) = Theirs::start() else {
        return;
    };
    theirs.ask("alter system set primary_conninfo = 'host=primary password=s3cret'");
    let before = theirs.ask(SETTINGS);
    let scratch = Scratch::new(PROGRAM);
    let altering = study(
        &theirs.server.conninfo(),
        "alter system set primary_conninfo = 'host=other';\n",
    );
    let finished = scratch.run(&altering, &ALLOWED);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let said = &finished.stderr;
    assert!(said.contains("may contain a password"), "{said}");
    assert!(!said.contains("s3cret"), "{said}");
    assert_eq!(theirs.ask(SETTINGS), before);
    assert!(journals(&scratch).is_empty());
    theirs.assert_untouched();
}

#[test]
fn the_next_run_undoes_what_a_killed_run_left_on_an_external_server() {
    let Some(theirs) = theirs() else {
        return;
    };
    let scratch = Scratch::new(PROGRAM);
    let before = theirs.ask(SETTINGS);
    let dsn = theirs.superuser();
    let sleeping = study(
        "host=/nowhere",
        &format!("{CHANGES}select pg_sleep(600);\n"),
    );
    let mut child = start(&scratch, &sleeping, &["--dsn", &dsn]);
    wait_until("the setup sleeps", || sleepers(&theirs) == "1");
    // Regression: another run took the changed values for the server's, and they stayed.
    let changed = theirs.ask(SETTINGS);
    let altering = study(&dsn, "alter system set work_mem = '66MB';\n");
    let refused = Scratch::new(PROGRAM).run(&altering, &ALLOWED);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let said = &refused.stderr;
    assert!(
        said.contains("another run of pgassay is changing"),
        "{said}"
    );
    assert_eq!(theirs.ask(SETTINGS), changed);
    kill(child.id().cast_signed(), libc::SIGKILL);
    wait_for_exit(&mut child, Duration::from_mins(1));
    // Since 14, the server notices that its client is gone.
    wait_until("the setup's statement ends", || sleepers(&theirs) == "0");
    assert_ne!(theirs.ask(SETTINGS), before);
    assert_eq!(theirs.databases().len(), 1);
    let left = journals(&scratch);
    assert_eq!(left.len(), 1);
    let mode = fs::metadata(&left[0]).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let text = fs::read_to_string(&left[0]).unwrap();
    assert!(text.contains("search_path"), "{text}");
    assert!(!text.contains(theirs.server.password().reveal()), "{text}");

    // Without the password it is not possible: the journal is kept. The study fails, too.
    let finished = scratch.run(&of_dsn("host=/nowhere user=me"), &ALLOWED);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let said = &finished.stderr;
    assert!(
        said.contains("cannot undo what a killed run left"),
        "{said}"
    );
    assert_eq!(journals(&scratch), left);
    assert_ne!(theirs.ask(SETTINGS), before);

    let finished = scratch.run(
        &study("host=/nowhere", ""),
        &[&ALLOWED[..], &["--no-profile", "--dsn", &dsn]].concat(),
    );
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let said = &finished.stderr;
    assert!(said.contains("undid what a killed run left"), "{said}");
    assert_eq!(theirs.ask(SETTINGS), before);
    assert_eq!(sleepers(&theirs), "0");
    assert!(journals(&scratch).is_empty());
    theirs.assert_untouched();
}

#[test]
fn ctrl_c_in_a_long_setup_statement_leaves_no_active_backend() {
    let Some(theirs) = theirs() else {
        return;
    };
    let scratch = Scratch::new(PROGRAM);
    let before = theirs.ask(SETTINGS);
    let setup = format!("{CHANGES}select pg_sleep(600);\n");
    let mut child = start(&scratch, &study(&theirs.server.conninfo(), &setup), &[]);
    wait_until("the setup sleeps", || sleepers(&theirs) == "1");
    kill(child.id().cast_signed(), libc::SIGINT);
    assert_eq!(wait_for_exit(&mut child, Duration::from_mins(1)), Some(130));
    assert_eq!(sleepers(&theirs), "0");
    assert_eq!(theirs.ask(SETTINGS), before);
    assert!(journals(&scratch).is_empty());
    theirs.assert_untouched();
}

#[test]
fn ctrl_c_in_a_long_reset_statement_leaves_no_active_backend() {
    let Some(theirs) = Theirs::start() else {
        return;
    };
    let scratch = Scratch::new(PROGRAM);
    let study = of_dsn(&theirs.server.conninfo()).replace(
        "update mine set note = 'reset' where id = 1",
        "select pg_sleep(600)",
    );
    let mut child = start(&scratch, &study, &[]);
    wait_until("the reset sleeps", || sleepers(&theirs) == "1");
    kill(child.id().cast_signed(), libc::SIGINT);
    assert_eq!(wait_for_exit(&mut child, Duration::from_mins(1)), Some(130));
    assert_eq!(sleepers(&theirs), "0");
    theirs.assert_untouched();
}

/// No setup: the load runs in the existing database, whose sessions pgassay does not terminate.
#[test]
fn ctrl_c_in_long_statements_of_the_load_leaves_no_active_backend() {
    let Some(theirs) = Theirs::start_with("18", true) else {
        return;
    };
    let over_tls = format!("{} sslmode=require", theirs.superuser());
    for dsn in [theirs.server.conninfo(), over_tls] {
        let scratch = Scratch::new(PROGRAM);
        let study = format!(
            "question = \"?\"\n[server]\ndsn = \"{dsn}\"\n[[script]]\nname = \"s\"\n\
             text = \"select pg_sleep(600);\"\n[[variant]]\nname = \"v\"\n\
             [conditions]\nclients = [2]\n",
        );
        let mut child = start(&scratch, &study, &[]);
        wait_until("the clients sleep", || sleepers(&theirs) == "2");
        kill(child.id().cast_signed(), libc::SIGINT);
        assert_eq!(wait_for_exit(&mut child, Duration::from_mins(1)), Some(130));
        wait_until("no backend is active", || sleepers(&theirs) == "0");
    }
    theirs.assert_untouched();
}

/// A study whose setup on a server of pgassay does not end.
fn long_setup_on_a_temporary_server() -> String {
    study("DSN", "select pg_sleep(600);\n")
        .replace("[server]\ndsn = \"DSN\"\n", "[server]\nversion = \"18\"\n")
}

#[test]
fn ctrl_c_ends_a_long_setup_statement_on_a_temporary_server() {
    if !pgassay_test_support::servers::is_available("18") {
        return;
    }
    let scratch = Scratch::new(PROGRAM);
    let study = long_setup_on_a_temporary_server();
    let mut child = start(&scratch, &study, &["--offline"]);
    wait_until("the setup begins", || {
        scratch.stderr().contains("setting up the data")
    });
    kill(child.id().cast_signed(), libc::SIGINT);
    assert_eq!(wait_for_exit(&mut child, Duration::from_mins(1)), Some(130));
    scratch.assert_nothing_left();
}

#[test]
fn ctrl_c_ends_the_setup_of_a_stopped_temporary_server() {
    if !pgassay_test_support::servers::is_available("18") {
        return;
    }
    let scratch = Scratch::new(PROGRAM);
    let study = long_setup_on_a_temporary_server();
    let mut child = start(&scratch, &study, &["--offline"]);
    // The title of a backend names its command.
    let processes = |title: &str| -> Vec<i32> {
        let all = pgassay_test_support::os::processes_in(scratch.servers());
        let is_wanted = |pid: &i32| {
            fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|it| it.contains(title))
        };
        all.into_iter().filter(is_wanted).collect()
    };
    wait_until("the setup sleeps", || processes(" SELECT").len() == 1);
    for pid in processes("postgres") {
        kill(pid, libc::SIGSTOP);
    }
    kill(child.id().cast_signed(), libc::SIGINT);
    assert_eq!(wait_for_exit(&mut child, Duration::from_mins(2)), Some(130));
    scratch.assert_nothing_left();
}

#[test]
fn a_study_that_only_reads_needs_no_permission_and_cannot_write() {
    let Some(theirs) = Theirs::start() else {
        return;
    };
    theirs.ask("grant all on mine to guest");
    // A function can write; the text of the script does not show it.
    theirs.ask(
        "create function writes() returns int language sql as \
         'insert into mine values (''new'') returning 1'",
    );
    let scratch = Scratch::new(PROGRAM);
    let dsn = theirs.uri("guest").replace("guest@", "guest:s3cret@");
    let study = format!(
        "question = \"?\"\n[server]\ndsn = \"{dsn}\"\n[[script]]\nname = \"s\"\n\
         text = \"select note, 1 / (current_database() = 'postgres')::int from mine;\"\n\
         [[variant]]\nname = \"v\"\n[[variant]]\nname = \"w\"\nsession = {{ jit = false }}\n\
         [conditions]\nclients = [1]\n[length]\nfull = \"1s\"\npairs = 2\n"
    );
    let run = run_of(&scratch.run(&study, &["--json"]));
    assert!(run.complete && run.comparisons.len() == 1);
    let finished = scratch.run(&study.replace("select note", "select writes(), note"), &[]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let said = &finished.stderr;
    assert!(said.contains("read-only transaction"), "{said}");
    assert!(journals(&scratch).is_empty());
    theirs.assert_untouched();
}

#[test]
fn statements_outside_of_the_load_have_time_limits_on_an_external_server() {
    let Some(theirs) = Theirs::start() else {
        return;
    };
    let scratch = Scratch::new(PROGRAM);
    let setup = "create table limits as select current_setting('lock_timeout') as lock, \
                 current_setting('statement_timeout') as statement;\n";
    // Each transaction fails unless the limits are those expected.
    let study = study(&theirs.server.conninfo(), setup).replace(
        "from mine where",
        ", 1 / (lock = '1min' and statement = '1h' and current_setting('lock_timeout') = '0' \
         and current_setting('statement_timeout') = '0')::int from limits, mine where",
    );
    let finished = scratch.run(&study, &[&ALLOWED[..], &["--no-profile"]].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    // The first statement of a study's setup can raise the limits.
    let short = study.replace(
        "create table limits",
        "set statement_timeout = '50ms';\nselect pg_sleep(600);\ncreate table limits",
    );
    let finished = scratch.run(&short, &[&ALLOWED[..], &["--no-profile"]].concat());
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(
        finished.stderr.contains("statement timeout"),
        "{finished:?}"
    );
    theirs.assert_untouched();
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn ctrl_c_ends_a_run_on_a_stopped_server() {
        let Some(theirs) = Theirs::start() else {
            return;
        };
        let scratch = Scratch::new(PROGRAM);
        let setup = "select pg_sleep(600);\n";
        let dsn = theirs.server.conninfo();
        let mut child = start(&scratch, &study(&dsn, setup), &[]);
        wait_until("the setup sleeps", || sleepers(&theirs) == "1");
        // First the postmaster: it then starts no process, and reaps none that ends on its own.
        let postmaster = theirs.server.postmaster_pid();
        kill(postmaster, libc::SIGSTOP);
        let processes = theirs.server.processes().into_iter().map(|it| it.pid);
        let mut processes: Vec<i32> = processes.filter(|pid| *pid != postmaster).collect();
        for pid in &processes {
            kill(*pid, libc::SIGSTOP);
        }
        // Continued last, for the same reason.
        processes.push(postmaster);
        kill(child.id().cast_signed(), libc::SIGINT);
        let code = wait_for_exit(&mut child, Duration::from_mins(2));
        for pid in &processes {
            kill(*pid, libc::SIGCONT);
        }
        assert_eq!(code, Some(130), "{}", scratch.stderr());
        assert_eq!(journals(&scratch).len(), 1);
        let finished = scratch.run(
            &study(&dsn, ""),
            &[&ALLOWED[..], &["--no-profile"]].concat(),
        );
        assert_eq!(finished.code, Some(0), "{finished:?}");
        assert!(journals(&scratch).is_empty());
        theirs.assert_untouched();
    }

    /// Regression: roles and replication slots of a killed run were named by no later one.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn the_next_run_names_roles_and_slots_that_a_killed_run_left() {
        let Some(theirs) = Theirs::start() else {
            return;
        };
        theirs.ask("select pg_create_physical_replication_slot('theirs')");
        let scratch = Scratch::new(PROGRAM);
        let dsn = theirs.server.conninfo();
        let setup = "create role \"Extra role\";\n\
                     select pg_create_physical_replication_slot('extra');\n\
                     select pg_sleep(600);\n";
        let mut child = start(&scratch, &study(&dsn, setup), &[]);
        wait_until("the setup sleeps", || sleepers(&theirs) == "1");
        kill(child.id().cast_signed(), libc::SIGKILL);
        wait_for_exit(&mut child, Duration::from_mins(1));
        wait_until("the setup's statement ends", || sleepers(&theirs) == "0");

        let quiet = study(&dsn, "");
        let arguments = [&ALLOWED[..], &["--no-profile", "--json"]].concat();
        let run = run_of(&scratch.run(&quiet, &arguments));
        let mut warnings = run.warnings.iter();
        let left = warnings.find(|it| it.kind == WarningKind::Leftover);
        let said = &left.expect("there is a warning").message;
        let (names, statements) = said.split_once("; unless others").unwrap();
        assert!(
            names.ends_with(": replication slot extra, role Extra role"),
            "{said}"
        );
        let (_, statements) = statements.split_once("with: ").unwrap();
        assert_eq!(
            statements,
            "select pg_drop_replication_slot('extra'); drop role \"Extra role\";"
        );
        for statement in statements.split_inclusive(';') {
            theirs.ask(statement);
        }
        let slots = "select slot_name from pg_replication_slots";
        assert_eq!(theirs.ask(slots), [[Some("theirs".to_owned())]]);
        let run = run_of(&scratch.run(&quiet, &arguments));
        let mut warnings = run.warnings.iter();
        assert!(warnings.all(|it| it.kind != WarningKind::Leftover));
        assert!(journals(&scratch).is_empty());
        theirs.assert_untouched();
    }
}
