//! Server requirements of variants on real servers: idle connections, checksums, features.

use pgassay_record::run::Run;
use pgassay_test_support::{Finished, Scratch, servers};

use crate::PROGRAM;

/// Each script divides by zero, and so fails the run, unless its server is as specified.
const STUDY: &str = r#"question = "Are servers as their variants ask?"
[server]
version = "18"
settings = { autovacuum = false }
[[script]]
name = "as asked"
text = """
select 1 / (count(*) = ${idle})::int from pg_stat_activity where application_name = 'pgassay' and state = 'idle' and query like '%pg_class%';
select 1 / (current_setting('data_checksums') = '${checksums}')::int;
"""
[[variant]]
name = "default"
parameters = { idle = 0, checksums = "on" }
[[variant]]
name = "idle"
idle_connections = 7
parameters = { idle = 7, checksums = "on" }
[[variant]]
name = "no checksums"
data_checksums = false
parameters = { idle = 0, checksums = "off" }
[[variant]]
name = "environment"
environment = { MALLOC_ARENA_MAX = "${arenas}" }
parameters = { idle = 0, checksums = "on", arenas = 3 }
setup = """
create table variable (line text);
copy variable from program 'env';
select 1 / count(*) from variable where line = 'MALLOC_ARENA_MAX=3';
select 1 / (count(*) = 0)::int from variable where line like 'PGASSAY%' or line like 'OTHER%';
"""
[[variant]]
name = "another environment"
environment = { OTHER = "two words" }
parameters = { idle = 0, checksums = "on" }
setup = """
create table variable (line text);
copy variable from program 'env';
select 1 / count(*) from variable where line = 'OTHER=two words';
select 1 / (count(*) = 0)::int from variable where line like 'MALLOC%';
"""
[[variant]]
name = "nowhere"
requires = { feature = "no-such-thing" }
parameters = { idle = 0, checksums = "on" }
[conditions]
clients = [1]
[length]
full = "1s"
pairs = 2
"#;

#[test]
fn variables_that_would_point_the_server_elsewhere_are_refused_with_their_line() {
    let scratch = Scratch::new(PROGRAM);
    for (name, words) in [
        ("PGDATA", "settings"),
        ("'A=B'", "is not a valid environment variable name"),
    ] {
        let study = STUDY.replace("MALLOC_ARENA_MAX =", &format!("{name} ="));
        let output = scratch
            .command()
            .arg("study")
            .arg("check")
            .arg(scratch.study(&study))
            .output();
        let finished = Finished::of(&output.expect("the program runs"));
        assert_eq!(finished.code, Some(1), "{finished:?}");
        let line = 1 + study
            .lines()
            .position(|it| it.contains(name))
            .expect("the study contains the name");
        let said = &finished.stderr;
        assert!(
            said.contains(words) && said.contains(&format!(":{line}:")),
            "{said}"
        );
    }
}

/// The scripts fail unless encryption and number of their connections are as specified.
const TLS: &str = r#"question = "Is TLS on where it is asked for, and only there?"
[server]
version = "18"
settings = { autovacuum = false }
[parameters]
ssl = "f"
[data]
setup = "create sequence connections"
[[script]]
name = "keeps"
text = "select 1 / (ssl = '${ssl}')::int from pg_stat_ssl where pid = pg_backend_pid();"
[[script]]
name = "reconnects"
reconnects = true
text = """
select 1 / (ssl = '${ssl}')::int from pg_stat_ssl where pid = pg_backend_pid();
select 1 / (coalesce(current_setting('my.seen', true), '') = '')::int;
set my.seen = 'yes';
"""
[[variant]]
name = "unix"
[[variant]]
name = "tcp"
network = "tcp"
[[variant]]
name = "tls"
network = "tls"
parameters = { ssl = "t" }
[conditions]
script = ["keeps", "reconnects"]
clients = [2]
[length]
full = "1s"
pairs = 2
"#;

#[test]
fn idle_connections_are_refused_where_they_would_not_count() {
    let scratch = Scratch::new(PROGRAM);
    let path = scratch.study(STUDY);
    let output = scratch.command().arg("count").arg(path).output();
    let finished = Finished::of(&output.expect("the program runs"));
    assert_eq!(finished.code, Some(1), "{finished:?}");
    // Without valgrind, that error comes first.
    let said = finished.error_message();
    assert!(
        said.contains("idle_connections") || said.contains("valgrind"),
        "{said}"
    );
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn servers_are_as_their_variants_ask() {
        if !servers::is_available("18") {
            return;
        }
        let scratch = Scratch::new(PROGRAM);
        let finished = scratch.run(STUDY, &["--no-profile", "--offline"]);
        assert_eq!(finished.code, Some(0), "{finished:?}");
        let left_out = "variant \"nowhere\" skipped: ";
        assert!(finished.stdout.contains(left_out), "{}", finished.stdout);
        assert!(
            finished.stdout.contains("without no-such-thing"),
            "{}",
            finished.stdout
        );
        scratch.assert_nothing_left();
    }

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn tls_is_on_where_it_is_asked_for_and_each_run_may_have_a_connection_of_its_own() {
        if !servers::is_available("18") {
            return;
        }
        let scratch = Scratch::new(PROGRAM);
        let finished = scratch.run(TLS, &["--no-profile", "--offline", "--json"]);
        assert_eq!(finished.code, Some(0), "{finished:?}");
        let run: pgassay_record::run::Run = serde_json::from_str(&finished.stdout).expect("JSON");
        assert_eq!(run.servers.len(), 1, "they share a server");
        // Starting a backend takes much longer than a query.
        let cpu_us = |condition: usize, variant: usize| {
            let of = |point: &&pgassay_account::comparison::PointSummary| {
                (point.condition, point.variant) == (condition, variant)
            };
            run.points
                .iter()
                .find(of)
                .expect("every point")
                .server_cpu_us
                .expect("a local server")
        };
        for variant in 0..3 {
            let (keeps, reconnects) = (cpu_us(0, variant), cpu_us(1, variant));
            assert!(reconnects > 2.0 * keeps, "{keeps} and {reconnects} us");
        }
        scratch.assert_nothing_left();
    }

    /// Regression: `settings-cost` failed in its second block, because a connection of its variant
    /// `idle_session_timeout=60s` waited for more than a minute while 50 other variants warmed up.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_session_that_waits_for_its_trial_is_not_ended_by_idle_session_timeout() {
        if !servers::is_available("18") {
            return;
        }
        let scratch = Scratch::new(PROGRAM);
        let finished = scratch.run(IDLE_LIMIT, &["--no-profile", "--json"]);
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        scratch.assert_nothing_left();
        let run: Run = serde_json::from_str(&finished.stdout).expect("JSON on stdout alone");
        // What sets and resets the limit between trials is no transaction of the load.
        for trial in &run.trials {
            let commits = trial.counters.get("pg_stat_database.xact_commit");
            assert_eq!(commits, Some(trial.transactions_total as f64), "{trial:?}");
        }
    }
}

/// Before each trial, both connections are idle for longer than the server permits.
const IDLE_LIMIT: &str = r#"question = "Is a session that waits for its trial kept?"
[server]
version = "18"
settings = { autovacuum = false }
[data]
reset = "select pg_sleep(1.3)"
[[script]]
name = "as set"
text = "select 1 / (current_setting('idle_session_timeout') = '${limit}')::int;"
[[variant]]
name = "of the session"
session = { idle_session_timeout = "1s" }
parameters = { limit = "1s" }
[[variant]]
name = "of the server"
settings = { idle_session_timeout = "1s" }
parameters = { limit = "1s" }
[[variant]]
name = "none"
parameters = { limit = "0" }
[conditions]
clients = [2]
[length]
full = "300ms"
pairs = 2
"#;
