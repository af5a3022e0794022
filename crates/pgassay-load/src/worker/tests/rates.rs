//! Rates: what a window credits, and clients that start at different times.

use super::*;

#[test]
fn a_window_counts_what_ends_in_it() {
    let mut bench = Bench::new(3, QueryProtocol::Simple, &[("select 1;", 1)]);
    // Transactions end at 1001, 2001, …; the window contains the ends at 2001 … 9001.
    assert_eq!(bench.run(2_001..10_001, None, false).unwrap(), 0);
    let recorder = &bench.worker.recorder;
    assert_eq!(recorder.clients, [8, 8, 8]);
    assert_eq!(recorder.settle_transactions, 3);
    // Those that end at 10001 end outside the window, and none begins then.
    assert_eq!(recorder.transactions_total, 3 * 10);
    assert_eq!(bench.worker.driver.requests, 30);
    let latency = &recorder.scripts[0].latency_ns;
    assert_eq!(
        (latency.min(), latency.max(), latency.len()),
        (SERVICE_NS, SERVICE_NS, 24)
    );
    assert_eq!(bench.booked(), [3 * 8_000, 0, 0]);
}

#[test]
fn rate_is_independent_of_window_phase() {
    for offset_ns in [0, 1, 250, 999] {
        let mut bench = Bench::new(3, QueryProtocol::Simple, &[("select 1;", 1)]);
        // 8.5 transactions per client, of which 8 or 9 end in the window.
        let begin_ns = 2_001 + offset_ns;
        bench.run(begin_ns..begin_ns + 8_500, None, false).unwrap();
        let credited = bench.worker.recorder.credited_transactions();
        assert!(
            (credited - 3.0 * 8.5).abs() < 1e-9,
            "{offset_ns}: {credited}"
        );
    }
}

#[test]
fn spread_starts_spread_ends() {
    let mut bench = Bench::new(4, QueryProtocol::Simple, &[("select 1;", 1)]);
    let kept = observed(&mut bench);
    bench.starts = vec![0, 250, 500, 750];
    bench.run(2_001..10_001, None, false).unwrap();
    let transactions = &kept.0.lock().unwrap().0;
    for (client, start_ns) in (0..).zip(&bench.starts) {
        let mut of_client = transactions.iter().filter(|it| it.client == client);
        assert_eq!(of_client.next().unwrap().begin_ns, 1 + start_ns);
    }
    let credited = bench.worker.recorder.credited_transactions();
    assert!((credited - 4.0 * 8.0).abs() < 1e-9, "{credited}");
    assert_eq!(bench.booked(), [4 * 8_000, 0, 0]);
    assert_eq!(
        bench.worker.recorder.timer_lag.wakeups, 0,
        "no client slept"
    );
}

/// If the other clients were idle, the transactions that straddle the window's end would be faster
/// and count too much.
#[test]
fn clients_run_until_straddling_transactions_end() {
    let text = "\\if :client_id = 1\n\\sleep 6 us\n\\endif\nSELECT 1;\n";
    for (starts, begun_after) in [(vec![], 0), (vec![0, 0], 6)] {
        let mut bench = Bench::new(2, QueryProtocol::Simple, &[(text, 1)]);
        for client in &mut bench.worker.clients {
            let id = pgassay_script::ScriptValue::Int(i64::from(client.run.id));
            client.run.set_variable(VariableNames::CLIENT_ID, id);
        }
        let kept = observed(&mut bench);
        bench.starts = starts;
        // The second client's transactions end at 7001 and 14001.
        assert_eq!(bench.run(1..9_001, None, false).unwrap(), 0);
        let transactions = &kept.0.lock().unwrap().0;
        let after = transactions.iter().filter(|it| it.begin_ns >= 9_001);
        assert!(
            after
                .clone()
                .all(|it| it.client == 0 && it.begin_ns <= 14_001)
        );
        assert_eq!(after.count(), begun_after);
        let credited = bench.worker.recorder.credited_transactions();
        assert!((credited - (9.0 + 9.0 / 7.0)).abs() < 1e-9, "{credited}");
    }
}

#[test]
fn stop_ends_postponed_clients() {
    let mut bench = Bench::new(2, QueryProtocol::Simple, &[("select 1;", 1)]);
    bench.starts = vec![0, 60_000_000_000];
    assert_eq!(bench.run(1..u64::MAX, None, true).unwrap(), 0);
    assert_eq!(
        bench.worker.driver.now_ns, 1,
        "the run ended without waiting for them"
    );
    bench.starts = Vec::new();
    bench.run(1..5_001, None, false).unwrap();
    assert_eq!(bench.worker.recorder.clients, [4, 4]);
}

/// Regression: `-R 1000000000 -L 1 -T 5` never ended, because all transactions are due at once.
#[test]
fn a_rate_at_which_all_transactions_are_late_goes_on_until_the_end_only() {
    for (end_ns, stop, skipped) in [(100_001, false, 256), (u64::MAX, true, 512)] {
        let mut bench = Bench::new(2, QueryProtocol::Simple, &[("select 1;", 1)]);
        bench.worker.pace = Some((Rng::from_seed(7), 0.2));
        bench.options.latency_limit = Some(std::time::Duration::from_micros(1));
        // The first client begins before the end, and has skipped some when it reads the clock again.
        bench.worker.driver.reading_ns = 90_000;
        assert_eq!(bench.run(1..end_ns, None, stop).unwrap(), 0);
        let recorder = &bench.worker.recorder;
        assert_eq!(
            (recorder.skipped, recorder.transactions_total),
            (skipped, 0)
        );
    }
}

/// Regression: after a run with a rate far beyond what the server can do, 100 million gaps were drawn, for seconds.
#[test]
fn unserved_transactions_of_a_rate_that_cannot_be_reached_are_not_all_drawn() {
    let mut bench = Bench::new(1, QueryProtocol::Simple, &[("select 1;", 1)]);
    // Ten million in 1 ms.
    bench.worker.pace = Some((Rng::from_seed(7), 1e-4));
    assert_eq!(bench.run(1..1_000_001, None, false).unwrap(), 0);
    let unserved = bench.worker.recorder.unserved;
    assert!((9_900_000..10_000_001).contains(&unserved), "{unserved}");
    assert_eq!(bench.worker.recorder.transactions_total, 1_000);
    // Drawn in part.
    bench.worker.pace = Some((Rng::from_seed(7), 2.0));
    bench.worker.recorder.reset(1, u64::MAX);
    bench.worker.due_ns = 1;
    bench.worker.count_unserved(10_000_000_001);
    let unserved = bench.worker.recorder.unserved;
    assert!((4_900_000..5_100_000).contains(&unserved), "{unserved}");
}

/// Regression: nothing was executed. All of the time was spent with drawing when transactions were due.
#[test]
fn late_transactions_of_a_rate_that_cannot_be_reached_are_skipped_at_once() {
    for (counted, end_ns) in [(None, 1_000_001), (Some(5_000_000), u64::MAX)] {
        let mut bench = Bench::new(1, QueryProtocol::Simple, &[("select 1;", 1)]);
        // Ten million in 1 ms.
        bench.worker.pace = Some((Rng::from_seed(7), 1e-4));
        bench.options.latency_limit = Some(std::time::Duration::from_micros(10));
        assert_eq!(bench.run(1..end_ns, counted, false).unwrap(), 0);
        let recorder = &bench.worker.recorder;
        let (done, skipped) = (recorder.transactions_total, recorder.skipped);
        if let Some(counted) = counted {
            assert_eq!(done + skipped, counted);
        } else {
            assert_eq!(done, 1_000);
            assert!((9_800_000..9_910_000).contains(&skipped), "{skipped}");
        }
    }
}
