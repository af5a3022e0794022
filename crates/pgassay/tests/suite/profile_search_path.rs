//! `pgassay profile` as a user whose `search_path` finds other objects before the catalog's.

use crate::PROGRAM;
use crate::profiling::observed;
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
