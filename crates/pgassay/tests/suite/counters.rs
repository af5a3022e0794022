//! Server statistics of whole runs on real servers match what the load engine did.

use std::collections::BTreeMap;

use pgassay_model::trial::{Trial, TrialKind};
use pgassay_record::run::Run;
use pgassay_test_support::{Scratch, servers};

use crate::PROGRAM;

/// Each transaction reads two rows and writes one; the server has no other load.
const STUDY: &str = r#"question = "Is prepared faster?"
[server]
version = "VERSION"
settings = { autovacuum = false, checkpoint_timeout = "1h", log_min_duration_statement = 0 }
[data]
setup = """
create table t (id int primary key, n int);
insert into t select g, 0 from generate_series(1, 100) g;
vacuum analyze t;
"""
[[script]]
name = "s"
text = '''
\set id random(1, 100)
begin;
select n from t where id = :id;
update t set n = n + 1 where id = :client_id + 1;
end;
'''
[[variant]]
name = "simple"
protocol = "simple"
[[variant]]
name = "prepared"
protocol = "prepared"
[conditions]
clients = [3]
[length]
full = "3s"
pairs = 2
"#;

fn run(version: &str) -> Option<Run> {
    servers::installation(version)?;
    let scratch = Scratch::new(PROGRAM);
    let finished = scratch.run(&STUDY.replace("VERSION", version), &["--json"]);
    assert_eq!(finished.code, Some(0), "{version}: {finished:?}");
    scratch.assert_nothing_left();
    Some(serde_json::from_str(&finished.stdout).expect("JSON on stdout alone"))
}

fn per_transaction(trial: &Trial, name: &str) -> f64 {
    let counted = trial.counters.get(name);
    let counted = counted.unwrap_or_else(|| panic!("{name} in {:?}", trial.counters));
    counted / trial.transactions_total as f64
}

/// Compares with the load engine's transaction count, which would reveal statistics reported late.
fn server_statistics_match_the_load(version: &str) {
    let Some(run) = run(version) else { return };
    let (of_processor, others): (Vec<&Trial>, Vec<&Trial>) = run
        .trials
        .iter()
        .partition(|trial| trial.kind == TrialKind::HardwareCounters);
    let is_of_processor = |name: &str| name.starts_with("cpu.");
    for trial in of_processor {
        assert!(trial.counters.names().all(is_of_processor), "{trial:?}");
    }
    // Hardware counters would cost most of the throughput in other trials.
    for trial in &others {
        assert!(!trial.counters.names().any(is_of_processor), "{trial:?}");
    }
    let is_late = matches!(version, "9.6" | "10" | "14");
    let all = others.len();
    let counted = others.into_iter().filter(|it| !it.counters.is_empty());
    let counted: Vec<&Trial> = counted.collect();
    // Versions that report late have statistics in the last trial of each variant in two blocks.
    assert_eq!(counted.len(), if is_late { 4 } else { all }, "{version}");
    for trial in &counted {
        for (name, expected) in [
            ("pg_stat_database.xact_commit", 1.0),
            ("pg_stat_database.tup_updated", 1.0),
        ] {
            let found = per_transaction(trial, name);
            let tolerance = 1.0 / trial.transactions_total as f64 + 1e-9;
            assert!(
                (found - expected).abs() <= tolerance,
                "{version}: {name} {found} of {} transactions",
                trial.transactions_total
            );
        }
        assert!(
            per_transaction(trial, "wal.insert_bytes") > 50.0,
            "{version}: {trial:?}"
        );
        assert!(per_transaction(trial, "backends.voluntary_switches") > 0.5);
        let lines = per_transaction(trial, "log.lines");
        let prepared = trial.variant == 1;
        // A line for each of four statements; of prepared ones a line for Bind and one for Execute,
        // and a second one each for the parameters of two of them.
        let expected = if prepared { 12.0 } else { 4.0 };
        assert!(
            (lines - expected).abs() < 0.05,
            "{version}: {lines} lines, {expected} expected"
        );
    }
    let by_name: BTreeMap<&str, bool> = run.comparisons[0]
        .counters
        .iter()
        .map(|row| (row.name.as_str(), row.differs))
        .collect();
    assert!(by_name["log.lines"], "{version}: {by_name:?}");
    assert!(
        !by_name["pg_stat_database.tup_updated"],
        "{version}: {by_name:?}"
    );
    let since_14 = version == "14" || !is_late;
    assert_eq!(
        by_name.contains_key("pg_stat_wal.wal_records"),
        since_14,
        "{version}"
    );
    assert_eq!(
        run.points[0]
            .counters
            .iter()
            .any(|it| it.name.starts_with("pg_stat_io(client backend")),
        version == "18",
        "{version}"
    );
}

#[test]
fn what_was_counted_is_what_was_done_on_18() {
    server_statistics_match_the_load("18");
}

/// Results of older versions without statistics can be read and shown.
#[test]
fn results_without_counters_still_load() {
    let Some(run) = run("18") else { return };
    let mut older = serde_json::to_value(&run).expect("JSON");
    for trial in older["trials"].as_array_mut().expect("trials") {
        trial.as_object_mut().expect("a trial").remove("counters");
    }
    for list in ["points", "comparisons"] {
        for item in older[list].as_array_mut().expect("a list") {
            item.as_object_mut().expect("an item").remove("counters");
        }
    }
    let older: Run = serde_json::from_value(older).expect("an older result");
    assert!(older.trials.iter().all(|trial| trial.counters.is_empty()));
    assert!(!pgassay_report::html(&older).contains("Server and kernel statistics per transaction"));
    assert!(pgassay_report::html(&run).contains("Server and kernel statistics per transaction"));
}

/// Regression: from 15 on, a backend that has used no table keeps its counters even if it is asked to flush
/// them. No transaction of `select 1` was counted, and the server's clock said that none took any time.
fn transactions_without_tables_are_counted(version: &str) {
    if servers::installation(version).is_none() {
        return;
    }
    let study = STUDY.replace("VERSION", version);
    let begin = study.find("text = '''").expect("the script");
    let end = study.find("[[variant]]").expect("the first variant");
    let study = format!("{}text = \"select 1\"\n{}", &study[..begin], &study[end..]);
    let scratch = Scratch::new(PROGRAM);
    let finished = scratch.run(&study, &["--json", "--no-profile"]);
    assert_eq!(finished.code, Some(0), "{version}: {finished:?}");
    let run: Run = serde_json::from_str(&finished.stdout).expect("JSON on stdout alone");
    for trial in run.trials.iter().filter(|it| it.kind == TrialKind::Timed) {
        for (name, least, most) in [
            ("pg_stat_database.xact_commit", 0.99, 1.01),
            ("pg_stat_database.active_time", 1e-4, f64::MAX),
            ("pg_stat_database.tup_returned", 0.0, 0.01),
            ("pg_stat_database.blks_hit", 0.0, 0.01),
        ] {
            let found = per_transaction(trial, name);
            assert!((least..=most).contains(&found), "{version}: {name} {found}");
        }
    }
}

#[test]
fn transactions_without_tables_are_counted_on_18() {
    transactions_without_tables_are_counted("18");
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn what_was_counted_is_what_was_done_on_10() {
        server_statistics_match_the_load("10");
    }

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn what_was_counted_is_what_was_done_on_14() {
        server_statistics_match_the_load("14");
    }

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn what_was_counted_is_what_was_done_on_15() {
        server_statistics_match_the_load("15");
    }

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn what_was_counted_is_what_was_done_on_9_6() {
        server_statistics_match_the_load("9.6");
    }

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn transactions_without_tables_are_counted_on_15() {
        transactions_without_tables_are_counted("15");
    }
}
