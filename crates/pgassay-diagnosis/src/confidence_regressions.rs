//! Regression tests: findings that were too sure, or ranked above their cause.

use pgassay_account::comparison::Verdict;
use pgassay_record::finding::{Confidence, Finding, TriedFix};

use super::diagnosis::{findings_of_point, findings_of_side, sort};
use super::evidence::Evidence;
use super::lookalikes::load;
use super::measured_fixes::note_fix_result;
use super::side::EvidenceByBlock;

const AT: (Option<usize>, Option<usize>) = (Some(0), Some(0));

fn of(id: &str, findings: &[Finding]) -> Option<Finding> {
    findings.iter().find(|it| it.id == id).cloned()
}

fn confidence(id: &str, evidence: &Evidence) -> Confidence {
    let found = findings_of_point(evidence, AT);
    of(id, &found).expect("it is found").confidence
}

/// Clients that update one row and wait for the disk.
fn updates(sync_us: f64, rows_us: f64) -> Evidence {
    let stacks = [
        ("ExecModifyTable;heap_update;XactLockTableWait", 4),
        ("XLogFlush;issue_xlog_fsync", 10),
    ];
    let waits = [("WAL sync", sync_us), ("Lock transactionid", rows_us)];
    load(&stacks, &waits, &[])
}

/// Regression: without a comparison, "Transactions wait for row locks" came before the WAL sync that their holders
/// waited for.
#[test]
fn a_queue_of_one_point_ranks_below_the_service_time_of_that_point() {
    let ids = |sync_us: f64, rows_us: f64| {
        let mut found = findings_of_point(&updates(sync_us, rows_us), AT);
        // A smaller finding elsewhere is not above either of them.
        let elsewhere = (Some(1), Some(0));
        found.extend(findings_of_point(
            &load(&[("s_lock", 5)], &[], &[]),
            elsewhere,
        ));
        sort(&mut found);
        let likely = found
            .into_iter()
            .filter(|it| it.confidence == Confidence::Likely);
        likely.map(|it| it.id).collect::<Vec<_>>()
    };
    assert_eq!(ids(1200.0, 3600.0), ["commit-sync", "hot-row"]);
    // A fiftieth of the queue is not what it waits for; it is not 20% of the time either.
    assert_eq!(ids(70.0, 3600.0), ["hot-row"]);
}

/// Regression: "throughput did not rise with the suggested fix" although its interval was above 1: with a fixed number
/// of pairs, such a small rise is called equivalent.
#[test]
fn a_small_rise_is_a_rise() {
    let noted = |interval: [f64; 2], has_shrunk: bool| {
        let found = findings_of_point(&updates(1200.0, 0.0), AT);
        let mut finding = of("commit-sync", &found).expect("it is found");
        let fix = TriedFix {
            name: "fix".to_owned(),
            tps_ratio: f64::midpoint(interval[0], interval[1]),
            interval,
        };
        note_fix_result(&mut finding, fix, Verdict::Equivalent, has_shrunk);
        (finding.confidence, finding.evidence_against.len())
    };
    assert_eq!(noted([1.003, 1.015], true), (Confidence::Confirmed, 0));
    assert_eq!(noted([1.003, 1.015], false), (Confidence::Likely, 0));
    assert_eq!(noted([0.997, 1.009], true), (Confidence::Hint, 1));
}

/// Regression: a queue ranked below causes of other points that cost a tenth of what its cause did.
#[test]
fn a_queue_comes_right_after_its_cause() {
    let mut found = findings_of_point(&updates(1200.0, 3600.0), AT);
    let small = load(
        &[("XLogFlush;issue_xlog_fsync", 2)],
        &[("WAL sync", 26.0)],
        &[],
    );
    found.extend(findings_of_point(&small, (Some(1), Some(0))));
    sort(&mut found);
    let places: Vec<_> = found
        .iter()
        .map(|it| (it.id.as_str(), it.condition))
        .collect();
    let expected = [
        ("commit-sync", Some(0)),
        ("hot-row", Some(0)),
        ("commit-sync", Some(1)),
    ];
    assert_eq!(places, expected);
}

/// Regression: one reading of a wait event, of 44, was a finding.
#[test]
fn a_single_reading_of_a_wait_event_is_no_finding() {
    let pinned = |readings: f64| {
        let waits = [
            ("BufferPin BufferPin", 20.0 * readings),
            ("IO WALWrite", 300.0),
        ];
        let evidence = Evidence {
            us_per_reading: 20.0,
            ..load(&[], &waits, &[])
        };
        of("buffer-pin", &findings_of_point(&evidence, AT))
    };
    assert_eq!(pinned(1.0), None);
    assert_eq!(pinned(4.0), None);
    assert!(pinned(5.0).is_some());
}

/// Regression: four readings and the CPU time that any load spends on WAL syncs were two sources.
#[test]
fn few_readings_of_wait_events_are_no_source() {
    let synced = |us_per_reading: f64| Evidence {
        us_per_reading,
        ..updates(400.0, 0.0)
    };
    assert_eq!(confidence("commit-sync", &synced(100.0)), Confidence::Hint);
    assert_eq!(confidence("commit-sync", &synced(80.0)), Confidence::Likely);
}

/// Regression: a single stall of the disk, in one of six blocks, was a likely finding: "Each commit waits for the
/// disk".
#[test]
fn what_happened_in_one_block_is_at_most_a_hint() {
    let found = |of_blocks: [f64; 6]| {
        let mean_us = of_blocks.iter().sum::<f64>() / 6.0;
        let side = EvidenceByBlock {
            whole: updates(mean_us, 0.0),
            blocks: (0..).zip(of_blocks.map(|us| updates(us, 0.0))).collect(),
        };
        of("commit-sync", &findings_of_side(&side, AT)).expect("it is found")
    };
    let stalled = found([0.0, 0.0, 1800.0, 0.0, 0.0, 0.0]);
    assert_eq!(stalled.confidence, Confidence::Hint);
    let lasting = found([250.0, 120.0, 600.0, 310.0, 90.0, 430.0]);
    assert_eq!(lasting.confidence, Confidence::Likely);
}

/// Regression: figures that any load has were the second source of these.
#[test]
fn a_figure_that_any_load_has_is_no_source() {
    let read = [("pg_stat_database.blks_read", 3.0)];
    let updated = [("pg_stat_database.tup_updated", 1.0)];
    let checked = [("WaitReadBuffers;PageIsVerified;pg_checksum_page", 10)];
    let pruned = [("heap_page_prune_opt;heap_page_prune", 30)];
    let mapping = [("LWLock BufferMapping", 100.0)];
    let content = [("LWLock BufferContent", 100.0)];
    let table = [("LWLock LockManager", 100.0)];
    let sync = [("WAL sync", 500.0)];
    let locking = |percent| [("LockAcquireExtended", percent)];
    let syncs = |count| [("pg_stat_wal.wal_sync", count)];
    for (id, evidence) in [
        ("checksums", load(&checked, &[], &read)),
        ("pruning", load(&pruned, &[], &updated)),
        (
            "buffer-mapping",
            load(&[("BufferAlloc", 2)], &mapping, &read),
        ),
        ("hot-page", load(&[("heap_update", 6)], &content, &[])),
        ("lock-manager", load(&locking(2), &table, &[])),
        ("commit-sync", load(&[], &sync, &syncs(0.01))),
    ] {
        assert_eq!(confidence(id, &evidence), Confidence::Hint, "{id}");
    }
    for (id, evidence) in [
        ("lock-manager", load(&locking(20), &table, &[])),
        ("commit-sync", load(&[], &sync, &syncs(0.9))),
        // Eight clients whose commits share one sync.
        ("commit-sync", load(&[], &sync, &syncs(0.125))),
    ] {
        assert_eq!(confidence(id, &evidence), Confidence::Likely, "{id}");
    }
}
