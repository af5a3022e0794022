//! Regression tests: wrong findings that occurred once.

use std::collections::BTreeMap;

use pgassay_account::comparison::{Comparison, Ratio, Verdict};
use pgassay_account::ledger::BackgroundRow;
use pgassay_model::study::Protocol;
use pgassay_record::finding::{Confidence, Finding};

use super::RemedyTrial;
use super::diagnosis::{apply_fix_results, compare_sides, findings_of_point, sort};
use super::evidence::Evidence;
use super::lookalikes::{at_major, counted, is_found, load, stacks};
use super::side::EvidenceByBlock;
use super::stacks::Stacks;
use super::stacks::tests::profile;

fn ratio(ratio: f64) -> Ratio {
    Ratio {
        ratio,
        low: ratio * 0.97,
        high: ratio * 1.03,
        confidence_level: 0.95,
        pair_sd: 0.02,
        minimum_detectable_effect: None,
        minimum_detectable_effect_range: None,
        widened: 0.0,
        ranks_disagree: false,
        by_pair: vec![ratio; 4],
    }
}

/// A variant with 0.3 times the throughput and 3 times the latency.
pub(crate) fn slower(verdict: Verdict) -> Comparison {
    Comparison {
        condition: 0,
        variant: 1,
        verdict,
        inconclusive_reason: None,
        tps_uncorrected_95: None,
        tps_sequential_p_value: None,
        basis: None,
        tps: ratio(0.3),
        latency_mean: ratio(3.0),
        latency_p50: ratio(3.0),
        latency_p95: ratio(3.0),
        latency_p99: ratio(3.0),
        server_cpu: None,
        cost: None,
        counters: Vec::new(),
        ledger: None,
    }
}

/// Four clients that update one row and wait for the disk, with one block per noise factor.
fn side(sync_us: f64, rows_us: f64, noise: [f64; 4]) -> EvidenceByBlock {
    let stack = [
        ("ExecModifyTable;heap_update;XactLockTableWait", 4),
        ("XLogFlush;issue_xlog_fsync", 4),
    ];
    let evidence = |factor: f64| {
        let waits = [
            ("WAL sync", sync_us * factor),
            ("Lock transactionid", rows_us * factor),
        ];
        Evidence {
            clients: 4.0,
            queued_us: rows_us * factor,
            ..load(&stack, &waits, &[])
        }
    };
    let blocks: BTreeMap<u32, Evidence> = (0..).zip(noise.map(evidence)).collect();
    EvidenceByBlock {
        whole: evidence(1.0),
        blocks,
    }
}

const LOW_NOISE: [f64; 4] = [0.98, 1.01, 1.02, 0.99];
const OTHER_NOISE: [f64; 4] = [1.02, 0.99, 0.97, 1.02];

fn ranked(
    comparison: &Comparison,
    baseline: &EvidenceByBlock,
    variant: &EvidenceByBlock,
) -> Vec<Finding> {
    let mut findings = compare_sides(comparison, baseline, variant);
    sort(&mut findings);
    findings
}

/// WAL sync takes 1200 µs instead of 300, so the three other clients wait longer for the holder of
/// the row lock: 3600 µs instead of 900.
#[test]
fn row_lock_waits_rank_below_the_wal_sync_that_causes_them() {
    let (baseline, variant) = (
        side(300.0, 900.0, LOW_NOISE),
        side(1200.0, 3600.0, OTHER_NOISE),
    );
    let found = ranked(&slower(Verdict::Slower), &baseline, &variant);
    let ids: Vec<&str> = found.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(ids, ["commit-sync", "hot-row"], "{found:#?}");
    let [sync, rows] = &found[..] else {
        unreachable!()
    };
    assert!((sync.difference_us.unwrap() - 900.0).abs() < 1e-6);
    assert!((rows.difference_us.unwrap() - 2700.0).abs() < 1e-6);
    assert_eq!(sync.confidence, Confidence::Correlated);
    assert_eq!(rows.confidence, Confidence::Correlated);
    assert!(rows.queueing && !sync.queueing && sync.explained_by.is_none());
    assert_eq!(rows.explained_by.as_deref(), Some("commit-sync"));
}

/// 64 clients queue 63 times as long: the cause is only 1.6% of the difference in response time.
#[test]
fn a_long_queue_does_not_hide_the_service_time_that_it_follows_from() {
    let at_64 = |mut side: EvidenceByBlock| {
        side.whole.clients = 64.0;
        side
    };
    let baseline = at_64(side(300.0, 300.0 * 63.0, LOW_NOISE));
    let variant = at_64(side(1200.0, 1200.0 * 63.0, OTHER_NOISE));
    let found = ranked(&slower(Verdict::Slower), &baseline, &variant);
    assert_eq!(found[0].id, "commit-sync", "{found:#?}");
    assert_eq!(found[0].confidence, Confidence::Correlated);
    assert_eq!(found[1].explained_by.as_deref(), Some("commit-sync"));
}

#[test]
fn a_queue_longer_than_the_clients_can_cause_has_no_cause() {
    // Three clients cannot wait 6 ms longer for a holder that takes 0.9 ms longer.
    let (baseline, variant) = (
        side(300.0, 900.0, LOW_NOISE),
        side(1200.0, 6900.0, OTHER_NOISE),
    );
    let found = ranked(&slower(Verdict::Slower), &baseline, &variant);
    let ids: Vec<&str> = found.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(ids, ["commit-sync", "hot-row"]);
    assert_eq!(found[1].explained_by, None);
}

/// Regression: with 2% of the difference, planning ranked above the row locks with 60% of it.
#[test]
fn a_small_service_time_does_not_outrank_a_long_queue_with_a_cause_of_its_own() {
    let (baseline, variant) = (
        side(300.0, 900.0, LOW_NOISE),
        side(1200.0, 20_900.0, OTHER_NOISE),
    );
    let found = ranked(&slower(Verdict::Slower), &baseline, &variant);
    let ids: Vec<&str> = found.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(ids, ["hot-row", "commit-sync"]);
    assert_eq!(found[0].explained_by, None);
}

#[test]
fn a_queue_without_a_change_in_service_time_has_no_cause() {
    let (baseline, variant) = (
        side(300.0, 900.0, LOW_NOISE),
        side(300.0, 3600.0, OTHER_NOISE),
    );
    let found = ranked(&slower(Verdict::Slower), &baseline, &variant);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(found[0].confidence, Confidence::Correlated);
    assert_eq!(found[0].explained_by, None);
}

#[test]
fn a_difference_within_noise_has_not_moved_with_the_verdict() {
    // Three times as much on average, due to one block of four.
    let wild = [0.1, 0.2, 0.1, 3.6];
    let (baseline, variant) = (side(300.0, 0.0, LOW_NOISE), side(900.0, 0.0, wild));
    let found = ranked(&slower(Verdict::Slower), &baseline, &variant);
    assert_eq!(found[0].id, "commit-sync");
    assert_ne!(found[0].confidence, Confidence::Correlated, "{found:#?}");
    let [low, high] = found[0].difference_interval_us.unwrap();
    assert!(low < 0.0 && high > 600.0, "{low} {high}");
    // One block has no interval.
    let one = |side: EvidenceByBlock| EvidenceByBlock {
        blocks: side.blocks.into_iter().take(1).collect(),
        ..side
    };
    let (baseline, variant) = (
        one(side(300.0, 0.0, LOW_NOISE)),
        one(side(1200.0, 0.0, LOW_NOISE)),
    );
    let found = ranked(&slower(Verdict::Slower), &baseline, &variant);
    assert_ne!(found[0].confidence, Confidence::Correlated);
}

#[test]
fn a_finding_of_a_single_pair_of_trials_is_never_likely() {
    let one = |side: EvidenceByBlock| EvidenceByBlock {
        blocks: side.blocks.into_iter().take(1).collect(),
        ..side
    };
    let sides = || {
        (
            side(300.0, 900.0, LOW_NOISE),
            side(1200.0, 3600.0, OTHER_NOISE),
        )
    };
    let surest = |baseline: EvidenceByBlock, variant: EvidenceByBlock| {
        let found = ranked(&slower(Verdict::Inconclusive), &baseline, &variant);
        found.iter().map(|it| it.confidence).max().unwrap()
    };
    let (baseline, variant) = sides();
    assert_eq!(surest(baseline, variant), Confidence::Likely);
    let (baseline, variant) = sides();
    assert_eq!(surest(one(baseline), one(variant)), Confidence::Hint);
}

#[test]
fn a_comparison_alone_confirms_nothing_and_an_unclear_verdict_moves_nothing() {
    let (baseline, variant) = (
        side(300.0, 900.0, LOW_NOISE),
        side(1200.0, 3600.0, OTHER_NOISE),
    );
    for verdict in [
        Verdict::Faster,
        Verdict::Slower,
        Verdict::Equivalent,
        Verdict::Inconclusive,
    ] {
        let found = ranked(&slower(verdict), &baseline, &variant);
        let surest = found.iter().map(|it| it.confidence).max().unwrap();
        let expected = match verdict {
            Verdict::Slower => Confidence::Correlated,
            _ => Confidence::Likely,
        };
        assert_eq!(surest, expected, "{verdict:?}");
    }
}

fn stage() -> RemedyTrial {
    let text = "question = \"?\"\n[[script]]\nname = \"a\"\ntext = \"select 1\"\n\
                [[variant]]\nname = \"v\"\n";
    let source = pgassay_model::study::StudySource {
        file: "s.toml".to_owned(),
        text: text.to_owned(),
    };
    let overrides = pgassay_model::plan::Overrides::default();
    let study = source.parse().expect("a study");
    RemedyTrial {
        plan: pgassay_model::plan::plan(&study, &source, &overrides).expect("a plan"),
        variant: 2,
        ids: vec!["commit-sync".to_owned()],
        fixes: vec!["synchronous_commit=off".to_owned()],
        conditions: vec![5],
    }
}

/// A finding under `condition` after a second stage with this verdict, in which the cause shrank or
/// stayed.
fn finding_after_fix(verdict: Verdict, shrank: bool, condition: usize) -> Finding {
    let point = side(1200.0, 0.0, LOW_NOISE).whole;
    let mut findings = findings_of_point(&point, (Some(condition), Some(2)));
    findings.retain(|it| it.id == "commit-sync");
    let left = if shrank { 300.0 } else { 1200.0 };
    let (affected, treated) = (side(1200.0, 0.0, LOW_NOISE), side(left, 0.0, OTHER_NOISE));
    let comparison = slower(verdict);
    let found = compare_sides(&comparison, &affected, &treated);
    apply_fix_results(&mut findings, &stage(), &[comparison], &found);
    findings.remove(0)
}

#[test]
fn only_a_fix_that_helped_confirms_its_finding_under_its_condition() {
    let confirmed = finding_after_fix(Verdict::Faster, true, 5);
    assert_eq!(confirmed.confidence, Confidence::Confirmed);
    let fix = confirmed.fix_result.expect("it was run");
    assert_eq!(fix.name, "synchronous_commit=off");
    // Faster, but not by this cause; run under another condition; run with an unclear result.
    for other in [
        finding_after_fix(Verdict::Faster, false, 5),
        finding_after_fix(Verdict::Faster, true, 4),
        finding_after_fix(Verdict::Inconclusive, true, 5),
    ] {
        assert_eq!(other.confidence, Confidence::Likely, "{other:?}");
    }
    let useless = finding_after_fix(Verdict::Equivalent, true, 5);
    assert_eq!(useless.confidence, Confidence::Hint);
    assert_eq!(useless.evidence_against.len(), 1);
}

#[test]
fn checksums_have_the_same_confidence_on_17_and_18() {
    let read = || {
        let stack = [("WaitReadBuffers;PageIsVerified;pg_checksum_page", 10)];
        let confidence = |evidence: &Evidence| {
            let found = findings_of_point(evidence, (None, None));
            let found = found.iter().find(|it| it.id == "checksums");
            found.expect("it is found").confidence
        };
        [17, 18].map(|major| confidence(&at_major(major, stacks(&stack))))
    };
    let [old, new] = read();
    assert_eq!(old, new);
    assert_eq!(
        new,
        pgassay_record::finding::Confidence::Hint,
        "stacks alone"
    );
}

#[test]
fn cpu_saturation_uses_the_share_of_the_ledger() {
    // The run queue is longer than the CPU time, and 44.5% of the response time.
    let evidence = Evidence {
        response_us: 400.0,
        run_queue_us: 178.0,
        ..counted(&[("machine.busy_us", 400.0), ("machine.idle_us", 1.0)])
    };
    let found = findings_of_point(&evidence, (None, None));
    let full = found.iter().find(|it| it.id == "cpu-saturation");
    let share = full.expect("it is found").share;
    assert!((share - 0.445).abs() < 1e-9, "{share}");
}

/// Regression: a single client was advised to set `commit_delay`, which waits for other clients' commits.
#[test]
fn a_few_clients_are_not_advised_to_wait_for_commits_of_others() {
    let advice = |clients: f64| {
        let evidence = Evidence {
            clients,
            ..side(300.0, 0.0, LOW_NOISE).whole
        };
        let found = findings_of_point(&evidence, (None, None));
        let sync = found.into_iter().find(|it| it.id == "commit-sync");
        sync.expect("it is found").suggested_fix
    };
    assert!(advice(1.0).starts_with("Group more changes into one transaction. If you"));
    assert!(advice(5.0).starts_with("Group more changes into one transaction. If you"));
    assert!(advice(6.0).contains("transaction, or set commit_delay so that"));
}

/// Regression: a single client on a machine that other programs used to 80% was advised to use a connection pooler, and
/// so were two clients on two CPUs.
#[test]
fn a_machine_that_other_programs_or_few_clients_fill_needs_no_connection_pooler() {
    let remedy = |other_programs: f64, clients: f64| {
        let evidence = Evidence {
            response_us: 400.0,
            run_queue_us: 178.0,
            other_programs,
            clients,
            tps: 5_000.0,
            ..counted(&[("machine.busy_us", 400.0), ("machine.idle_us", 1.0)])
        };
        let found = findings_of_point(&evidence, (None, None));
        let full = found.into_iter().find(|it| it.id == "cpu-saturation");
        full.expect("it is found").suggested_fix
    };
    assert!(remedy(0.8, 4.0).starts_with("Other programs use more than half of the CPU time"));
    assert!(remedy(0.2, 3.0).contains("connection pooler"));
    assert!(remedy(0.2, 2.0).contains("no more clients than CPUs"));
    // One client and its parallel workers.
    assert!(remedy(0.2, 1.0).contains("max_parallel_workers_per_gather"));
}

/// Regression: a server that used 1.5% of the CPUs had "The CPUs are saturated".
#[test]
fn a_few_wake_ups_of_a_live_server_are_no_saturated_cpus() {
    let is_found = |tps: f64| {
        let evidence = Evidence {
            is_live: true,
            response_us: 400.0,
            run_queue_us: 178.0,
            tps,
            ..stacks(&[])
        };
        let found = findings_of_point(&evidence, (None, None));
        found.iter().any(|it| it.id == "cpu-saturation")
    };
    assert_eq!([280.0, 9_000.0].map(is_found), [false, true]);
}

/// Regression: `profile` advised a connection pooler for one client that used 14% of one CPU.
#[test]
fn a_live_server_that_uses_little_of_a_full_machine_needs_no_connection_pooler() {
    let saturation = |tps: f64, processors: Option<f64>| {
        let evidence = Evidence {
            is_live: true,
            response_us: 400.0,
            run_queue_us: 178.0,
            tps,
            processors,
            ..stacks(&[])
        };
        let found = findings_of_point(&evidence, (None, None));
        let full = found.into_iter().find(|it| it.id == "cpu-saturation");
        full.expect("it is found")
    };
    // 100 µs on a CPU and 178 µs in the run queue, per transaction.
    for little in [
        saturation(3000.0, Some(2.0)),
        saturation(3000.0, None),
        saturation(9000.0, Some(2.0)),
    ] {
        assert!(
            little.suggested_fix.starts_with("Stop the other programs"),
            "{little:?}"
        );
        assert_eq!(little.confidence, Confidence::Hint);
    }
    for much in [saturation(18_000.0, Some(2.0)), saturation(18_000.0, None)] {
        assert!(much.suggested_fix.contains("connection pooler"), "{much:?}");
        assert!(much.evidence_against.is_empty());
    }
}

/// Regression: where each transaction had its own connection, the server seemed to use 1% of the CPUs, because its
/// backends were gone before their CPU time was read, and the advice was to stop other programs.
#[test]
fn a_server_whose_connections_last_a_moment_is_not_advised_to_stop_other_programs() {
    let saturation = |ended_cpu_us: f64| {
        let evidence = Evidence {
            is_live: true,
            response_us: 400.0,
            run_queue_us: 178.0,
            ended_cpu_us,
            tps: 3000.0,
            processors: Some(2.0),
            ..stacks(&[])
        };
        let found = findings_of_point(&evidence, (None, None));
        let full = found.into_iter().find(|it| it.id == "cpu-saturation");
        full.expect("it is found").suggested_fix
    };
    assert!(saturation(0.0).starts_with("Stop the other programs"));
    assert!(saturation(6000.0).contains("connection pooler"));
}

/// Regression: for inserts into the referencing table, the advice was to index the referencing columns.
#[test]
fn inserts_with_a_foreign_key_are_not_advised_to_index_the_referencing_columns() {
    let remedy = |first: &str, second: &str| {
        let found = findings_of_point(&stacks(&[(first, 20), (second, 20)]), (None, None));
        let checks = found.into_iter().find(|it| it.id == "foreign-key-checks");
        checks.expect("it is found").suggested_fix
    };
    let insert = "AfterTriggerExecute;RI_FKey_check_ins;ri_PerformCheck;SPI_execute_snapshot";
    let update = "AfterTriggerExecute;RI_FKey_check_upd;ri_PerformCheck;SPI_execute_snapshot";
    let delete = "AfterTriggerExecute;RI_FKey_noaction_del;ri_restrict;ri_PerformCheck";
    let cascade = "AfterTriggerExecute;RI_FKey_cascade_del;ri_PerformCheck";
    let unnamed = "AfterTriggerExecute;ri_PerformCheck";
    assert!(remedy(insert, update).starts_with("Add the constraint after a bulk load"));
    assert!(remedy(delete, cascade).starts_with("Index the referencing columns."));
    for both in [remedy(insert, delete), remedy(unnamed, unnamed)] {
        assert!(both.starts_with("If rows are deleted"), "{both}");
        assert!(both.contains("If rows are inserted"), "{both}");
    }
}

/// Regression: a table that is extended without waiting for its lock was to be partitioned.
#[test]
fn only_waits_for_the_extension_lock_advise_to_partition() {
    let remedy = |waits: &[(&str, f64)]| {
        let found = findings_of_point(&load(&[("mdzeroextend", 30)], waits, &[]), (None, None));
        let extension = found.into_iter().find(|it| it.id == "relation-extension");
        extension.expect("it is found").suggested_fix
    };
    assert!(remedy(&[("Lock extend", 50.0)]).contains("partition"));
    assert!(!remedy(&[("IO DataFileExtend", 50.0)]).contains("partition"));
    assert!(!remedy(&[]).contains("partition"));
}

/// Regression: round trips over a Unix-domain socket were to use a Unix-domain socket, and "dominated" a
/// response time of which they were 7%.
#[test]
fn round_trips_over_a_unix_socket_are_not_advised_to_use_one() {
    let found = |uses_unix_socket: bool| {
        let switches = [("backends.voluntary_switches", 12.0)];
        let evidence = Evidence {
            uses_unix_socket,
            ..load(&[], &[("client", 400.0)], &switches)
        };
        let found = findings_of_point(&evidence, (None, None));
        let trips = found.into_iter().find(|it| it.id == "round-trips");
        trips.expect("it is found")
    };
    assert!(!found(true).suggested_fix.contains("socket"));
    assert!(found(false).suggested_fix.contains("Unix-domain socket"));
    assert!(!found(true).title.contains("dominate"));
}

/// Regression: without samples, two seconds of waiting for deadlocks were round trips.
#[test]
fn blocked_time_of_unknown_cause_is_not_round_trips() {
    let evidence = Evidence {
        response_us: 2e6,
        ..counted(&[("backends.voluntary_switches", 8.0)])
    };
    assert!(!is_found("round-trips", &evidence));
}

#[test]
fn inserts_waiting_for_equal_keys_are_not_a_hot_row_without_stacks() {
    let waited = |counter: &str| {
        let counters = [(counter, 1.0)];
        load(&[], &[("Lock transactionid", 900.0)], &counters)
    };
    assert!(!is_found(
        "hot-row",
        &waited("pg_stat_database.tup_inserted")
    ));
    assert!(is_found("hot-row", &waited("pg_stat_database.tup_updated")));
}

#[test]
fn page_images_are_weighed_by_bytes_if_the_version_counts_them() {
    let counters = |fpi_bytes: Option<f64>| {
        let mut all = vec![
            ("pg_stat_wal.wal_fpi", 1.0),
            ("pg_stat_wal.wal_records", 3.0),
            ("wal.insert_bytes", 8000.0),
        ];
        all.extend(fpi_bytes.map(|bytes| ("pg_stat_wal.wal_fpi_bytes", bytes)));
        load(&[("XLogInsert", 30)], &[], &all)
    };
    let estimated = findings_of_point(&counters(None), (None, None));
    let estimated = estimated.iter().find(|it| it.id == "full-page-images");
    let estimated = estimated.expect("it is found");
    assert!(
        estimated.evidence_against[0].contains("estimate"),
        "{estimated:?}"
    );
    let measured = findings_of_point(&counters(Some(6000.0)), (None, None));
    let measured = measured.iter().find(|it| it.id == "full-page-images");
    assert!(measured.expect("it is found").evidence_against.is_empty());
    // Compressed images are many and small.
    assert!(!is_found("full-page-images", &counters(Some(900.0))));
}

#[test]
fn findings_of_older_versions_load() {
    let old = r#"{"id": "hot-row", "title": "t", "condition": 0, "variant": 1, "difference_us": 2700.0,
        "confidence": "confirmed", "weight_us": 3600.0, "share": 0.5,
        "evidence": [{"source": "waits", "what": "Lock tuple", "value": 1.0, "unit": "share"}],
        "suggested_fix": "r", "manual": "m"}"#;
    let finding: Finding = serde_json::from_str(old).expect("it opens");
    assert!(!finding.queueing && finding.fix_result.is_none() && !finding.evidence[0].context);
}

/// Regression: `select pg_sleep(0.003)` instead of `select 1` takes 4 ms longer. Its process sleeps, so parsing and
/// planning find cold caches and take 110 µs longer, 40% of the difference in CPU time.
#[test]
fn cold_caches_after_a_sleep_do_not_explain_the_sleep() {
    let side = |planning: u32, executing: u32, slept_us: f64| {
        let stack = [
            ("exec_simple_query;pg_plan_queries;planner", planning),
            ("exec_simple_query;PortalRun;ExecutorRun", executing),
        ];
        let cpu_us = f64::from(planning + executing);
        let evidence = |factor: f64| Evidence {
            response_us: cpu_us + slept_us,
            cpu_us: cpu_us * factor,
            work_us: cpu_us + slept_us,
            protocol: Some(Protocol::Simple),
            stacks: Stacks::new(&profile(&stack), cpu_us * factor),
            ..load(&[], &[], &[])
        };
        EvidenceByBlock {
            whole: evidence(1.0),
            blocks: (0..).zip(LOW_NOISE.map(evidence)).collect(),
        }
    };
    let slower = slower(Verdict::Slower);
    let of = |slept_us: f64| {
        let (baseline, variant) = (side(10, 30, 0.0), side(120, 185, slept_us));
        let found = ranked(&slower, &baseline, &variant);
        found.into_iter().find(|it| it.id == "parse-and-plan")
    };
    // Without the sleep, planning is what takes longer.
    assert_eq!(of(0.0).unwrap().confidence, Confidence::Correlated);
    let confidence = of(4000.0).map(|it| it.confidence);
    assert_ne!(confidence, Some(Confidence::Correlated));
}

/// Regression: in a study, only the ledger has the CPU time of workers that ended, so a query of 60 ms whose worker
/// computed as long as its leader was advised not to start it.
#[test]
fn a_worker_that_computes_and_ends_within_a_trial_is_useful() {
    let found = |worker_us: f64| {
        let background = [BackgroundRow {
            role: "ended processes".to_owned(),
            us: worker_us,
        }];
        let evidence = Evidence {
            response_us: 60_000.0,
            ..load(&[], &[("IPC BgworkerShutdown", 7_000.0)], &[])
        };
        is_found("parallel-start", &evidence.with_background(&background))
    };
    assert!(found(8_000.0));
    assert!(!found(50_000.0));
}
