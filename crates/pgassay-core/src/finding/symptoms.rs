//! Regression tests: wrong findings that occurred once.

use std::collections::BTreeMap;

use super::diagnosis::{between, judge, of_point, sort};
use super::evidence::Evidence;
use super::lookalikes::{at_major, counted, is_found, load, stacks};
use super::side::Side;
use super::{Confidence, Finding, SecondStage};
use crate::comparison::{Comparison, Ratio, Verdict};

fn ratio(ratio: f64) -> Ratio {
    Ratio {
        ratio,
        low: ratio * 0.97,
        high: ratio * 1.03,
        level: 0.95,
        pair_sd: 0.02,
        detectable: None,
        detectable_range: None,
        widened: 0.0,
        ranks_disagree: false,
        by_pair: vec![ratio; 4],
    }
}

/// A variant with 0.3 times the throughput and 3 times the latency.
fn slower(verdict: Verdict) -> Comparison {
    Comparison {
        condition: 0,
        variant: 1,
        verdict,
        inconclusive: None,
        basis: None,
        tps: ratio(0.3),
        latency_mean: ratio(3.0),
        latency_p50: ratio(3.0),
        latency_p95: ratio(3.0),
        latency_p99: ratio(3.0),
        server_cpu: None,
        cost: None,
        counted: Vec::new(),
        ledger: None,
    }
}

/// Four clients that update one row and wait for the disk, with one block per noise factor.
fn side(sync_us: f64, rows_us: f64, noise: [f64; 4]) -> Side {
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
    Side {
        whole: evidence(1.0),
        blocks,
    }
}

const QUIET: [f64; 4] = [0.98, 1.01, 1.02, 0.99];
const OTHERWISE: [f64; 4] = [1.02, 0.99, 0.97, 1.02];

fn ranked(comparison: &Comparison, baseline: &Side, variant: &Side) -> Vec<Finding> {
    let mut findings = between(comparison, baseline, variant);
    sort(&mut findings);
    findings
}

/// WAL sync takes 1200 µs instead of 300, so the three other clients wait longer for the holder of
/// the row lock: 3600 µs instead of 900.
#[test]
fn row_lock_waits_do_not_outrank_the_wal_sync_that_quadrupled() {
    let (baseline, variant) = (side(300.0, 900.0, QUIET), side(1200.0, 3600.0, OTHERWISE));
    let found = ranked(&slower(Verdict::Slower), &baseline, &variant);
    let ids: Vec<&str> = found.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(ids, ["commit-sync", "hot-row"], "{found:#?}");
    let [sync, rows] = &found[..] else {
        unreachable!()
    };
    assert!((sync.difference_us.unwrap() - 900.0).abs() < 1e-6);
    assert!((rows.difference_us.unwrap() - 2700.0).abs() < 1e-6);
    assert_eq!(sync.confidence, Confidence::Moved);
    assert_eq!(rows.confidence, Confidence::Moved);
    assert!(rows.queueing && !sync.queueing && sync.follows.is_none());
    assert_eq!(rows.follows.as_deref(), Some("commit-sync"));
}

/// 64 clients queue 63 times as long: the cause is only 1.6% of the difference in response time.
#[test]
fn a_long_queue_does_not_hide_the_service_time_that_it_follows_from() {
    let at_64 = |mut side: Side| {
        side.whole.clients = 64.0;
        side
    };
    let baseline = at_64(side(300.0, 300.0 * 63.0, QUIET));
    let variant = at_64(side(1200.0, 1200.0 * 63.0, OTHERWISE));
    let found = ranked(&slower(Verdict::Slower), &baseline, &variant);
    assert_eq!(found[0].id, "commit-sync", "{found:#?}");
    assert_eq!(found[0].confidence, Confidence::Moved);
    assert_eq!(found[1].follows.as_deref(), Some("commit-sync"));
}

#[test]
fn a_queue_beyond_what_the_clients_can_cause_is_said_to_follow_from_nothing() {
    // Three clients cannot wait 20 ms longer for a holder that takes 0.9 ms longer.
    let (baseline, variant) = (side(300.0, 900.0, QUIET), side(1200.0, 20_900.0, OTHERWISE));
    let found = ranked(&slower(Verdict::Slower), &baseline, &variant);
    let ids: Vec<&str> = found.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(ids, ["commit-sync", "hot-row"]);
    assert_eq!(found[1].follows, None);
}

#[test]
fn a_queue_alone_moves_and_follows_from_nothing() {
    let (baseline, variant) = (side(300.0, 900.0, QUIET), side(300.0, 3600.0, OTHERWISE));
    let found = ranked(&slower(Verdict::Slower), &baseline, &variant);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(found[0].confidence, Confidence::Moved);
    assert_eq!(found[0].follows, None);
}

#[test]
fn what_differs_within_its_noise_has_not_moved_with_the_verdict() {
    // Three times as much on average, due to one block of four.
    let wild = [0.1, 0.2, 0.1, 3.6];
    let (baseline, variant) = (side(300.0, 0.0, QUIET), side(900.0, 0.0, wild));
    let found = ranked(&slower(Verdict::Slower), &baseline, &variant);
    assert_eq!(found[0].id, "commit-sync");
    assert_ne!(found[0].confidence, Confidence::Moved, "{found:#?}");
    let [low, high] = found[0].difference_interval_us.unwrap();
    assert!(low < 0.0 && high > 600.0, "{low} {high}");
    // One block has no interval.
    let one = |side: Side| Side {
        blocks: side.blocks.into_iter().take(1).collect(),
        ..side
    };
    let (baseline, variant) = (one(side(300.0, 0.0, QUIET)), one(side(1200.0, 0.0, QUIET)));
    let found = ranked(&slower(Verdict::Slower), &baseline, &variant);
    assert_ne!(found[0].confidence, Confidence::Moved);
}

#[test]
fn nothing_is_confirmed_by_a_comparison_alone_nor_moved_by_an_unclear_one() {
    let (baseline, variant) = (side(300.0, 900.0, QUIET), side(1200.0, 3600.0, OTHERWISE));
    for verdict in [
        Verdict::Faster,
        Verdict::Slower,
        Verdict::Same,
        Verdict::Unresolved,
    ] {
        let found = ranked(&slower(verdict), &baseline, &variant);
        let surest = found.iter().map(|it| it.confidence).max().unwrap();
        let expected = match verdict {
            Verdict::Slower => Confidence::Moved,
            _ => Confidence::Likely,
        };
        assert_eq!(surest, expected, "{verdict:?}");
    }
}

fn stage() -> SecondStage {
    let text = "question = \"?\"\n[[script]]\nname = \"a\"\ntext = \"select 1\"\n\
                [[variant]]\nname = \"v\"\n";
    let source = crate::study::StudySource {
        file: "s.toml".to_owned(),
        text: text.to_owned(),
    };
    let overrides = crate::plan::Overrides::default();
    let study = source.parse().expect("a study");
    SecondStage {
        plan: crate::plan::plan(&study, &source, &overrides).expect("a plan"),
        variant: 2,
        ids: vec!["commit-sync".to_owned()],
        fixes: vec!["synchronous_commit=off".to_owned()],
        conditions: vec![5],
    }
}

/// A finding under `condition` after a second stage with this verdict, in which the cause shrank or
/// stayed.
fn after_the_fix(verdict: Verdict, shrank: bool, condition: usize) -> Finding {
    let point = side(1200.0, 0.0, QUIET).whole;
    let mut findings = of_point(&point, (Some(condition), Some(2)));
    findings.retain(|it| it.id == "commit-sync");
    let left = if shrank { 300.0 } else { 1200.0 };
    let (sick, treated) = (side(1200.0, 0.0, QUIET), side(left, 0.0, OTHERWISE));
    let comparison = slower(verdict);
    let found = between(&comparison, &sick, &treated);
    judge(&mut findings, &stage(), &[comparison], &found);
    findings.remove(0)
}

#[test]
fn only_a_fix_that_was_run_and_helped_confirms_its_finding_where_it_was_run() {
    let confirmed = after_the_fix(Verdict::Faster, true, 5);
    assert_eq!(confirmed.confidence, Confidence::Confirmed);
    let fix = confirmed.tried.expect("it was run");
    assert_eq!(fix.name, "synchronous_commit=off");
    // Faster, but not by this cause; run under another condition; run with an unclear result.
    for other in [
        after_the_fix(Verdict::Faster, false, 5),
        after_the_fix(Verdict::Faster, true, 4),
        after_the_fix(Verdict::Unresolved, true, 5),
    ] {
        assert_eq!(other.confidence, Confidence::Likely, "{other:?}");
    }
    let useless = after_the_fix(Verdict::Same, true, 5);
    assert_eq!(useless.confidence, Confidence::Hint);
    assert_eq!(useless.against.len(), 1);
}

#[test]
fn equal_evidence_of_checksums_is_equally_sure_on_17_and_18() {
    let read = || {
        let stack = [("WaitReadBuffers;PageIsVerified;pg_checksum_page", 10)];
        let confidence = |evidence: &Evidence| {
            let found = of_point(evidence, (None, None));
            let found = found.iter().find(|it| it.id == "checksums");
            found.expect("it is found").confidence
        };
        [17, 18].map(|major| confidence(&at_major(major, stacks(&stack))))
    };
    let [old, new] = read();
    assert_eq!(old, new);
    assert_eq!(new, super::Confidence::Hint, "stacks alone");
}

#[test]
fn full_processors_are_told_by_the_ledgers_own_share() {
    // The run queue is longer than the CPU time, and 44.5% of the response time.
    let evidence = Evidence {
        response_us: 400.0,
        run_queue_us: 178.0,
        ..counted(&[("machine.busy_us", 400.0), ("machine.idle_us", 1.0)])
    };
    let found = of_point(&evidence, (None, None));
    let full = found.iter().find(|it| it.id == "cpu-saturation");
    let share = full.expect("it is found").share;
    assert!((share - 0.445).abs() < 1e-9, "{share}");
}

#[test]
fn waits_of_inserts_for_equal_keys_are_no_hot_row_without_stacks_either() {
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
fn page_images_are_weighed_by_their_bytes_where_the_version_counts_them() {
    let counters = |fpi_bytes: Option<f64>| {
        let mut all = vec![
            ("pg_stat_wal.wal_fpi", 1.0),
            ("pg_stat_wal.wal_records", 3.0),
            ("wal.insert_bytes", 8000.0),
        ];
        all.extend(fpi_bytes.map(|bytes| ("pg_stat_wal.wal_fpi_bytes", bytes)));
        load(&[("XLogInsert", 30)], &[], &all)
    };
    let estimated = of_point(&counters(None), (None, None));
    let estimated = estimated.iter().find(|it| it.id == "full-page-images");
    let estimated = estimated.expect("it is found");
    assert!(estimated.against[0].contains("estimate"), "{estimated:?}");
    let measured = of_point(&counters(Some(6000.0)), (None, None));
    let measured = measured.iter().find(|it| it.id == "full-page-images");
    assert!(measured.expect("it is found").against.is_empty());
    // Compressed images are many and small.
    assert!(!is_found("full-page-images", &counters(Some(900.0))));
}

#[test]
fn findings_of_older_versions_open() {
    let old = r#"{"id": "hot-row", "title": "t", "condition": 0, "variant": 1, "difference_us": 2700.0,
        "confidence": "confirmed", "weight_us": 3600.0, "share": 0.5,
        "facts": [{"source": "waits", "what": "Lock tuple", "value": 1.0, "unit": "share"}],
        "remedy": "r", "manual": "m"}"#;
    let finding: Finding = serde_json::from_str(old).expect("it opens");
    assert!(!finding.queueing && finding.tried.is_none() && !finding.facts[0].context);
    let moved = serde_json::to_value(Confidence::Moved).expect("it is written");
    assert_eq!(moved, "moved");
}
