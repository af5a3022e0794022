//! Transactions that fail.

use super::*;

#[test]
fn failures_that_could_be_retried_are_counted() {
    let mut bench = Bench::new(1, QueryProtocol::Simple, &[("select 1;\nselect 2;", 1)]);
    bench.worker.driver.failing = vec![1, 4];
    bench.run(1..u64::MAX, Some(4), false).unwrap();
    let recorder = &bench.worker.recorder;
    assert_eq!((recorder.transactions_total, recorder.failed_total), (2, 2));
    assert_eq!(recorder.scripts[0].failed, 2);
    assert_eq!(recorder.scripts[0].latency_ns.len(), 2);
}

#[test]
fn a_retry_draws_the_same_numbers() {
    let text = "\\set x random(1, 1000000000)\nSELECT :x;\n";
    let mut bench = Bench::new(1, QueryProtocol::Simple, &[(text, 1)]);
    let kept = observed(&mut bench);
    bench.options.tries_max = 3;
    bench.worker.driver.failing = vec![1, 3, 4, 5];
    bench.run(1..u64::MAX, Some(2), false).unwrap();
    let (transactions, tries, _) = &*kept.0.lock().unwrap();
    let ended: Vec<_> = transactions
        .iter()
        .map(|transaction| (transaction.outcome, transaction.tries))
        .collect();
    let failed = TransactionOutcome::Failed(FailureKind::Serialization);
    assert_eq!(ended, [(TransactionOutcome::Done, 2), (failed, 3)]);
    let expected = [
        (1, FailedTryFate::Retried),
        (1, FailedTryFate::Retried),
        (2, FailedTryFate::Retried),
        (3, FailedTryFate::Failed),
    ];
    assert_eq!(tries[..], expected);
    let said = &bench.worker.driver.said[0];
    assert_eq!(said.len(), 5, "{said:?}");
    assert_eq!(said[0], said[1]);
    assert_ne!(said[1], said[2]);
    assert!(said[2] == said[3] && said[3] == said[4], "{said:?}");
}

/// Regression: as pgbench's, a transaction whose retry is refused because the time is over does not count; it was
/// counted as failed.
#[test]
fn a_transaction_that_fails_after_the_end_does_not_count() {
    for tries_max in [0, 1] {
        let mut bench = Bench::new(2, QueryProtocol::Simple, &[("select 1;", 1)]);
        let kept = observed(&mut bench);
        bench.options.tries_max = tries_max;
        bench.worker.recorder.counts_late_ends = true;
        // Transactions end at 1001, 2001 and 3001; the last one of the first client fails.
        bench.worker.driver.failing = vec![5];
        assert_eq!(bench.run(1..2_501, None, false).unwrap(), 0);
        let recorder = &bench.worker.recorder;
        assert_eq!((recorder.transactions_total, recorder.failed_total), (5, 0));
        assert_eq!(recorder.last_end_ns, 3_001);
        assert_eq!(bench.booked(), [2 * 2_500, 0, 0]);
        let (transactions, tries, _) = &*kept.0.lock().unwrap();
        let done = |it: &Transaction| it.outcome == TransactionOutcome::Done;
        assert!(transactions.len() == 5 && transactions.iter().all(done));
        assert_eq!(tries[..], [(1, FailedTryFate::Dropped)]);
    }
}

/// A trial counts what ends in its window, and the server's time for what fails after it.
#[test]
fn a_transaction_that_fails_after_a_window_has_failed() {
    let mut bench = Bench::new(1, QueryProtocol::Simple, &[("select 1;", 1)]);
    bench.worker.driver.failing = vec![3];
    bench.run(1..2_501, None, false).unwrap();
    assert_eq!(bench.worker.recorder.failed_total, 1);
}

/// Regression: after an error, the server skips the rest of a pipeline, and so what the pipeline was to prepare. The
/// retry executed an unknown statement (26000).
#[test]
fn the_retry_of_a_pipeline_executes_no_statement_that_was_never_prepared() {
    let script = "\\startpipeline\nselect 1;\nselect 2;\nselect 2;\n\\endpipeline";
    let mut bench = Bench::new(1, QueryProtocol::Prepared, &[(script, 1)]);
    bench.options.tries_max = 2;
    bench.worker.driver.failing = vec![1];
    bench.run(1..u64::MAX, Some(3), false).unwrap();
    let recorder = &bench.worker.recorder;
    assert_eq!((recorder.transactions_total, recorder.failed_total), (3, 0));
    let names = [b"P_0", b"P_1"].map(|name| (0, name.to_vec()));
    assert_eq!(bench.worker.driver.prepared, names, "each one once");
}
