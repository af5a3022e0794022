//! Roles whose `search_path` finds other users' objects before the catalog's, or objects that fit better.

use crate::PROGRAM;
use crate::external_server::{ALLOWED, Theirs};
use crate::profiling::observed;
use crate::waits::connect_as;
use pgassay_profile::{ActivitySampler, WaitLog};
use pgassay_test_support::{Scratch, servers};

/// Functions, an operator and a view with the names of the catalog's. All of them fail.
const SHADOWS: &str = "\
    create role watcher superuser login password 'secret'; create schema shadow; \
    create function shadow.fail() returns int language plpgsql as $$ begin raise 'shadow was executed'; end $$; \
    create function shadow.current_setting(text) returns text language sql as 'select shadow.fail()::text'; \
    create function shadow.pg_backend_pid() returns int language sql as 'select shadow.fail()'; \
    create function shadow.pg_is_in_recovery() returns bool language sql as 'select shadow.fail() = 0'; \
    create function shadow.pg_stat_get_activity(int) returns int language sql as 'select shadow.fail()'; \
    create function shadow.to_jsonb(pg_stat_database) returns jsonb language sql as \
      'select to_jsonb(shadow.fail())'; \
    create function shadow.equal(name, text) returns bool language sql as 'select shadow.fail() = 0'; \
    create operator shadow.= (procedure = shadow.equal, leftarg = name, rightarg = text); \
    create view shadow.pg_stat_activity as select shadow.fail(); \
    create view shadow.pg_stat_database as select shadow.fail(); \
    alter role watcher set search_path = shadow, pg_catalog";

/// Regression: the transactions were counted with the functions that the user's `search_path` found first, which anyone
/// may have created.
#[test]
fn a_profile_executes_nothing_that_a_search_path_finds_before_the_catalog() {
    for version in ["10", "18"] {
        let Some(server) = servers::start(version) else {
            continue;
        };
        let mut connection = server.connect().expect("a connection");
        connection.execute(SHADOWS).expect("it is created");
        let dsn = format!("{} user=watcher password=secret", server.conninfo());
        let scratch = Scratch::new(PROGRAM);
        let arguments = ["profile", "--dsn", &dsn, "--duration", "1s", "--json"];
        let seen = observed(&scratch.finished(&arguments));
        assert!(seen.transactions.is_some(), "{version}");
        assert!(seen.activity.is_some_and(|it| it.sweeps > 0), "{version}");
        let log = std::fs::read_to_string(server.log_path()).expect("a log");
        assert!(!log.contains("shadow was executed"), "{version}: {log}");
        server.stop().expect("the server stops");
    }
}

/// Regression: a study on a running server read the waits of its trials with the role's `search_path`.
#[test]
fn waits_are_read_with_nothing_that_a_search_path_finds_before_the_catalog() {
    for version in ["10", "18"] {
        let Some(server) = servers::start(version) else {
            continue;
        };
        let mut connection = server.connect().expect("a connection");
        connection.execute(SHADOWS).expect("it is created");
        let exchange = connect_as(&server, " user=watcher password=secret");
        let mut activity = ActivitySampler::open(exchange, true).expect("it is readable");
        let pid = connection.backend_pid().expect("a PID").cast_unsigned();
        let mut log = WaitLog::default();
        log.ask(&mut activity, &[pid]).expect("the query succeeds");
        assert_eq!(log.unreadable, 0, "{version}");
        server.stop().expect("the server stops");
    }
}

/// Functions and an operator in `public` whose arguments fit those of pgassay's statements better than the catalog's.
/// All of them fail.
const PLANTED: &str = "\
    create function public.fail() returns int language plpgsql as $$ begin raise 'it was executed'; end $$; \
    create function public.concat_ws(text, name, bool, int, aclitem[]) returns text language sql as \
      'select public.fail()::text'; \
    create function public.concat_ws(text, text, text, text, text) returns text language sql as \
      'select public.fail()::text'; \
    create function public.greater(numeric, int) returns bool language sql as 'select public.fail() = 0'; \
    create operator public.> (procedure = public.greater, leftarg = numeric, rightarg = int)";

/// Regression: the state of the server before and after a run was read with the role's `search_path`. What another user
/// had created in `public` ran with the rights of pgassay's role, a superuser.
#[test]
fn a_run_by_a_superuser_executes_nothing_that_another_user_has_planted() {
    let Some(theirs) = Theirs::start() else {
        return;
    };
    let mut connection = theirs.server.connect().expect("a connection");
    connection.execute(PLANTED).expect("it is created");
    let scratch = Scratch::new(PROGRAM);
    let dsn = theirs.superuser();
    let log = compared(&scratch, &theirs, &dsn);
    assert!(!log.contains("it was executed"), "{log}");
}

/// A view, a function and an operator with the names of the catalog's, in a schema that the role's `search_path` finds
/// before it. All of them fail.
const BEFORE_THE_CATALOG: &str = "\
    create role watcher superuser login password 'secret'; create schema shadow; \
    create function shadow.fail() returns int language plpgsql as $$ begin raise 'it was executed'; end $$; \
    create function shadow.set_config(text, text, bool) returns text language sql as 'select shadow.fail()::text'; \
    create view shadow.pg_settings as select 'client_connection_check_interval' as name, shadow.fail(); \
    create function shadow.equal(text, text) returns bool language sql as 'select shadow.fail() = 0'; \
    create operator shadow.= (procedure = shadow.equal, leftarg = text, rightarg = text); \
    alter role watcher set search_path = shadow, pg_catalog, public";

/// Regression: the connections of a study's setup and reset asked for the server's settings with the role's
/// `search_path`.
#[test]
fn a_run_by_a_superuser_executes_nothing_that_its_search_path_finds_before_the_catalog() {
    let Some(theirs) = Theirs::start() else {
        return;
    };
    let mut connection = theirs.server.connect().expect("a connection");
    connection
        .execute(BEFORE_THE_CATALOG)
        .expect("it is created");
    let scratch = Scratch::new(PROGRAM);
    let dsn = format!("{} user=watcher password=secret", theirs.server.conninfo());
    let log = compared(&scratch, &theirs, &dsn);
    assert!(!log.contains("it was executed"), "{log}");
}

/// The log of a server on which a short comparison with a setup succeeded.
fn compared(scratch: &Scratch, theirs: &Theirs, dsn: &str) -> String {
    let compare = [
        "compare",
        "--dsn",
        dsn,
        "--setup",
        "create table public.t (a int)",
    ];
    let rest = [
        "--vs",
        "jit=off",
        "select 1",
        "--length",
        "1s",
        "--pairs",
        "2",
        "--no-profile",
    ];
    let output = scratch.finished(&[&compare[..], &rest, &ALLOWED].concat());
    assert_eq!(output.code, Some(0), "{output:?}");
    std::fs::read_to_string(theirs.server.log_path()).expect("a log")
}
