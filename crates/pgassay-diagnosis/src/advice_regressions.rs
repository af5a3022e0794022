//! Regression tests: advice that did not fit what was measured.

use pgassay_record::finding::Confidence;

use super::diagnosis::findings_of_point;
use super::evidence::Evidence;
use super::lookalikes::{is_found, load};

/// Regression: "less work per transaction gains little", next to an index that made the transactions 19.77 times as fast.
#[test]
fn other_programs_on_full_cpus_do_not_make_work_per_transaction_free() {
    let remedy = |is_live: bool, other_programs: f64| {
        let evidence = Evidence {
            is_live,
            response_us: 400.0,
            run_queue_us: 178.0,
            tps: 3000.0,
            processors: Some(2.0),
            other_programs,
            ..load(
                &[],
                &[],
                &[("machine.busy_us", 400.0), ("machine.idle_us", 1.0)],
            )
        };
        let found = findings_of_point(&evidence, (None, None));
        let full = found.into_iter().find(|it| it.id == "cpu-saturation");
        full.expect("it is found").suggested_fix
    };
    for text in [remedy(false, 0.8), remedy(true, 0.0)] {
        assert!(!text.contains("less work"), "{text}");
        assert!(
            text.contains("Fewer connections will not help much"),
            "{text}"
        );
    }
}

/// Regression: the first finding of a benchmark with trials of 50 ms was that its clients, which keep their connections,
/// should keep them, for 0.9% of the response time.
#[test]
fn page_faults_of_the_connections_of_a_benchmark_are_a_hint_at_longer_trials() {
    let faults = |is_live: bool, response_us: f64| {
        let stacks = [("exc_page_fault;do_read_fault;filemap_map_pages", 30)];
        let evidence = load(&stacks, &[], &[("backends.minor_faults", 3.0)]);
        let evidence = Evidence {
            is_live,
            response_us,
            ..evidence
        };
        let found = findings_of_point(&evidence, (None, None));
        let faults = found.into_iter().find(|it| it.id == "page-faults");
        faults.expect("it is found")
    };
    let rare = faults(false, 1e9);
    assert_eq!(rare.confidence, Confidence::Hint);
    assert!(
        rare.suggested_fix.starts_with("Use a longer --length"),
        "{rare:?}"
    );
    let live = faults(true, 1e9);
    assert!(live.evidence_against.is_empty(), "{live:?}");
    assert!(
        live.suggested_fix.starts_with("Keep connections open"),
        "{live:?}"
    );
}

/// Regression: two sessions that lock two rows in opposite order were advised to shorten their transactions.
#[test]
fn deadlocks_are_not_advised_to_shorten_transactions() {
    let advice = |deadlocks: f64| {
        let counters = [
            ("pg_stat_database.tup_updated", 1.0),
            ("pg_stat_database.deadlocks", deadlocks),
        ];
        let waits = [("Lock transactionid", 800_000.0)];
        let waiting = load(&[], &waits, &counters);
        let found = findings_of_point(&waiting, (None, None));
        let rows = found.into_iter().find(|it| it.id == "hot-row");
        rows.unwrap().suggested_fix
    };
    assert!(
        advice(0.17).contains("in the same order"),
        "{}",
        advice(0.17)
    );
    // One deadlock in a hundred thousand transactions is not why rows are waited for.
    for rare in [0.0, 1e-5] {
        assert!(advice(rare).contains("Shorten"), "{}", advice(rare));
    }
}

/// Regression: after a server start, a table of 17 MB was too large for 128 MB of shared buffers.
#[test]
fn first_reads_after_a_server_start_are_not_advised_to_raise_shared_buffers() {
    let found = |evictions: Option<f64>, reuses: f64| {
        let mut counters = vec![
            ("pg_stat_database.blks_read", 5.0),
            ("pg_stat_database.blks_hit", 5.0),
        ];
        if let Some(evictions) = evictions {
            let name = |what| match what {
                "reads" => "pg_stat_io(client backend, relation).reads",
                "reuses" => "pg_stat_io(client backend, relation).reuses",
                _ => "pg_stat_io(client backend, relation).evictions",
            };
            let of_io = [("reads", 2.0), ("reuses", reuses), ("evictions", evictions)];
            counters.extend(of_io.map(|(what, value)| (name(what), value)));
        }
        let stack = [("WaitReadBuffers;mdreadv", 10)];
        let reading = load(&stack, &[("data file read", 100.0)], &counters);
        let found = findings_of_point(&reading, (None, None));
        found.into_iter().find(|it| it.id == "data-reads").unwrap()
    };
    let cold = found(Some(0.0), 0.0);
    assert_eq!(cold.confidence, Confidence::Hint, "{cold:#?}");
    assert!(
        cold.suggested_fix
            .starts_with("Shared buffers were not full")
    );
    assert!(cold.fix_variants.is_empty());
    // Evictions, the ring of a scan of a large table, or a version that counts neither.
    for full in [
        found(Some(4.0), 0.0),
        found(Some(0.0), 4.0),
        found(None, 0.0),
    ] {
        assert_eq!(full.confidence, Confidence::Likely, "{full:#?}");
        assert!(full.suggested_fix.starts_with("Raise shared_buffers"));
        assert!(!full.fix_variants.is_empty());
    }
}

/// Regression: an update of one row by 16 clients took "many round trips", because its backend waited 21 times for
/// locks, and contention on the lock table followed from them.
#[test]
fn waits_of_a_single_statement_are_not_round_trips() {
    let with = |statements: Option<f64>| Evidence {
        statements,
        ..load(
            &[],
            &[("client", 400.0)],
            &[("backends.voluntary_switches", 21.0)],
        )
    };
    assert!(!is_found("round-trips", &with(Some(1.0))));
    assert!(is_found("round-trips", &with(Some(7.0))));
    assert!(is_found("round-trips", &with(None)), "a live server");
}

/// Regression: connections that stayed open were to be kept open, so that handshakes are rare.
#[test]
fn encryption_without_handshakes_is_not_advised_to_keep_connections_open() {
    let advice = |encrypting: u32, handshakes: u32| {
        let stacks = [
            ("be_tls_write;SSL_write;libssl", encrypting),
            ("be_tls_open_server;SSL_accept;libssl", handshakes),
        ];
        let found = findings_of_point(&load(&stacks, &[], &[]), (None, None));
        let tls = found.into_iter().find(|it| it.id == "tls");
        tls.expect("it is found").suggested_fix
    };
    assert!(!advice(20, 0).contains("Keep connections open"));
    assert!(!advice(20, 2).contains("Keep connections open"));
    assert!(advice(20, 20).starts_with("Keep connections open"));
}
