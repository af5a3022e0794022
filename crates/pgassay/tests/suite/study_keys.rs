//! Effects of study file keys on a real server.

use pgassay_model::plan::PointId;
use pgassay_model::study::DriverKind;
use pgassay_record::expectation::CheckOutcome;
use pgassay_record::run::{Run, WarningKind};
use pgassay_test_support::{Scratch, servers};

use crate::PROGRAM;

/// A study with separate databases, networks and requirements.
const MANY_KEYS: &str = r#"question = "Do the keys of a study file do what they say?"
floor = "shared"
explain = "tcp where clients = 2"
watch_functions = ["PostgresMain", "no_such_function"]
[server]
version = "18"
[parameters]
rows = 3
most = 3
insert = "insert into t values (0);"
[data]
setup = "create table t(i int); insert into t select generate_series(1, ${rows});"
[[script]]
name = "count"
text = "select 1 / (max(i) = ${most})::int from t;"
[[script]]
name = "write"
text = '''
\startpipeline
${insert * 5}
\endpipeline
'''
gives = { inserts = 5 }
[[variant]]
name = "shared"
script = "count"
[[variant]]
name = "own data"
script = "count"
setup = "insert into t values (100);"
parameters = { most = 100 }
reset = "vacuum t;"
[[variant]]
name = "tcp"
script = "count"
network = "tcp"
protocol = "prepared"
[[variant]]
name = "far"
script = "count"
network = { delay = "3ms" }
[[variant]]
name = "no such extension"
script = "count"
requires = { extension = "no_such_extension" }
[conditions]
clients = [2]
[length]
full = "2s"
pairs = 2
[[expect]]
that = "the relay's delay is in every round trip"
check = "far.latency_ms > 3 + tcp.latency_ms / 2"
[[expect]]
that = "one is a thousand times as fast as itself"
check = "shared.tps_ratio > 1000 where clients = 2"
[[expect]]
that = "what is not run is not measured"
check = "'no such extension'.tps > 1"
[reference]
source = "a test"
base = "near"
row = [
  { name = "near", was = 100.0, is = "shared.tps" },
  { name = "far", was = 10.0, is = "far.tps where clients = 2" },
  { name = "its latency", was = 3.0, is = "far.latency_ms where clients = 2" },
]
"#;

fn ran(study: &str, arguments: &[&str]) -> Run {
    let scratch = Scratch::new(PROGRAM);
    let arguments: Vec<&str> = arguments.iter().copied().chain(["--json"]).collect();
    let finished = scratch.run(study, &arguments);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    scratch.assert_nothing_left();
    serde_json::from_str(&finished.stdout).expect("JSON on stdout alone")
}

const WITH_REDIS: &str = r#"question = "How does Redis do next to it?"
[[script]]
name = "one"
text = "select 1;"
[[script]]
name = "incr"
text = "${incr * 50}"
gives = { values = 50 }
[parameters]
incr = "INCR counter"
[[variant]]
name = "PostgreSQL"
script = "one"
[[variant]]
name = "Redis"
driver = "redis"
script = "incr"
[conditions]
clients = [4]
[length]
full = "1s"
pairs = 2
"#;

/// The first variant has several statements without a pipeline, the last has one statement.
const STATEMENTS: &str = r#"question = "What does each statement take?"
[parameters]
sleep = "select pg_sleep(0.001);"
[[script]]
name = "apart"
text = "begin; ${sleep * 2} end;"
[[script]]
name = "pipeline"
text = '''
\set x 1
\startpipeline
${sleep * 10}
\endpipeline
'''
[[script]]
name = "one"
text = "select 1;"
[[variant]]
name = "apart"
script = "apart"
[[variant]]
name = "pipeline"
script = "pipeline"
[[variant]]
name = "one"
script = "one"
[conditions]
protocol = ["extended"]
clients = [4]
[length]
full = "9s"
pairs = 2
"#;

/// A study whose variant has these session settings.
fn with_session(setup: &str, session: &str) -> String {
    format!(
        "question = \"Do session settings matter?\"\n[data]\nsetup = \"{setup}\"\n[[script]]\nname = \"one\"\n\
         text = \"select 1;\"\n[[variant]]\nname = \"plain\"\n[[variant]]\nname = \"set\"\nsession = {{ {session} }}\n\
         [length]\nfull = \"400ms\"\npairs = 2\n"
    )
}

/// Regression: the setup, which may take hours, came first.
#[test]
fn a_wrong_session_setting_is_found_before_the_setup() {
    if !servers::is_available("18") {
        return;
    }
    for (session, words) in [
        ("work_men = \"64MB\"", "\"work_men\""),
        ("work_mem = \"64XB\"", "64XB"),
        ("shared_buffers = \"1GB\"", "restarting the server"),
    ] {
        let scratch = Scratch::new(PROGRAM);
        let finished = scratch.run(&with_session("select 1/0;", session), &[]);
        assert_eq!(finished.code, Some(1), "{finished:?}");
        let is_named =
            finished.stderr.contains("study.toml:11:") && finished.stderr.contains(words);
        assert!(is_named, "{}", finished.stderr);
        assert!(!finished.stderr.contains("division"), "{finished:?}");
        scratch.assert_nothing_left();
    }
    let role = with_session("create role reader;", "role = \"reader\"");
    assert_eq!(ran(&role, &["--no-profile"]).comparisons.len(), 1);
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn data_ways_and_requirements_are_as_the_study_says() {
        if !servers::is_available("18") {
            return;
        }
        let run = ran(MANY_KEYS, &[]);
        assert_eq!(run.servers.len(), 1, "all share a server");
        assert_eq!(run.plan.variants, ["shared", "own data", "tcp", "far"]);
        let skipped = run
            .warnings
            .iter()
            .find(|it| it.kind == WarningKind::Skipped);
        let words = &skipped.expect("the requirement is not met").message;
        assert!(
            words.contains("no extension no_such_extension") && words.contains("--binaries"),
            "{words}"
        );
        let latency_us = |variant: usize| run.points[variant].latency_mean_us;
        assert!(
            latency_us(0) < 3000.0 && latency_us(3) > 3000.0,
            "{:?}",
            run.points
        );
        let outcomes: Vec<Option<CheckOutcome>> =
            run.expectations.iter().map(|it| it.outcome).collect();
        // With two blocks on a busy machine the first may be inconclusive, but not missed.
        let [Some(delayed), Some(CheckOutcome::NotMet), None] = outcomes[..] else {
            panic!("{:?}", run.expectations)
        };
        assert_ne!(delayed, CheckOutcome::NotMet, "{:?}", run.expectations);
        let rows = &run.reference.as_ref().expect("the study has one").rows;
        assert_eq!(
            (rows[1].published_ratio, rows[0].measured_ratio),
            (Some(0.1), Some(1.0))
        );
        let far = rows[1].measured_ratio.expect("the ratio was measured");
        assert!((far / (run.points[3].tps / run.points[0].tps) - 1.0).abs() < 1e-9);
        let latency = (
            rows[2].measured,
            rows[2].published_ratio,
            rows[2].measured_ratio,
        );
        assert!(
            matches!(latency, (Some(_), None, None)),
            "a latency over a rate means nothing: {latency:?}"
        );
        if !run.profiles.is_empty() {
            assert!(
                run.watched_functions[0].shares[0] > Some(50.0),
                "{:?}",
                run.watched_functions
            );
            assert_eq!(run.watched_functions[1].shares[0], Some(0.0));
        }
        let [relay] = run.relays[..] else {
            panic!("one relay: {:?}", run.relays)
        };
        assert!(relay.relayed_us > relay.direct_us + 3000.0, "{relay:?}");
    }

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn redis_runs_next_to_postgresql_where_it_is_installed() {
        if !servers::is_available("18") {
            return;
        }
        let run = ran(WITH_REDIS, &[]);
        if run.plan.variants.len() == 1 {
            let words = &run
                .warnings
                .iter()
                .find(|it| it.kind == WarningKind::Skipped);
            assert!(
                words.is_some_and(|it| it.message.contains("redis-server")),
                "{words:?}"
            );
            return;
        }
        assert_eq!(run.plan.point(PointId::new(0, 1)).driver, DriverKind::Redis);
        let redis = &run.points[1];
        assert!(
            redis.tps > 100.0 && redis.server_cpu_us.is_some_and(|us| us > 0.0),
            "{redis:?}"
        );
        let ratio = &run.comparisons[0].tps;
        let values = redis.tps * 50.0 / run.points[0].tps;
        assert!(
            (ratio.ratio / values - 1.0).abs() < 0.01,
            "values are compared with values: {ratio:?}"
        );
    }

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn each_statement_of_a_transaction_is_timed_in_a_pipeline_too() {
        if !servers::is_available("18") {
            return;
        }
        let run = ran(STATEMENTS, &[]);
        let [apart, pipeline] = &run.statements[..] else {
            panic!("of those that have several: {:?}", run.statements)
        };
        let texts: Vec<&str> = apart.statements.iter().map(|it| it.text.as_str()).collect();
        let sleep = "select pg_sleep(0.001);";
        assert_eq!(texts, ["begin;", sleep, sleep, "end;"]);
        let wait_us = |it: &pgassay_model::statement::StatementLatency| it.p50_us;
        for it in &apart.statements {
            // On a busy machine the others may take as long.
            assert!(it.text != sleep || wait_us(it) >= 1000.0, "{it:?}");
            assert!(it.timed > 20 && it.p99_us >= it.p50_us, "{it:?}");
        }
        // One statement in fifty is timed, so one of them may be missing.
        let pipelined: Vec<_> = pipeline.pipelined().collect();
        assert!(pipelined.len() >= 6, "{pipeline:?}");
        // Each waits only for those before it: the last ends with the pipeline.
        for it in &pipelined {
            let until = f64::from(it.line - 2);
            assert!(wait_us(it) >= 1000.0 * until, "{until}: {it:?}");
        }
        let [.., last] = &pipeline.statements[..] else {
            panic!("it has an end")
        };
        assert_eq!(
            (last.text.as_str(), last.in_pipeline),
            ("\\endpipeline", false)
        );
        assert!(wait_us(pipelined[0]) < wait_us(last), "{pipeline:?}");
        assert!(
            last.timed > pipelined.iter().map(|it| it.timed).sum(),
            "{last:?}"
        );
    }
}
