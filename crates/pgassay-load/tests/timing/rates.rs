//! One client whose transactions sleep for 30 ms, in windows of ten and a half transactions.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use pgassay_load::{ClientPool, ClientPoolConfig, IoChoice, RunLength};
use pgassay_script::{ParseOptions, ParsedScript, VariableNames};
use pgassay_test_support::{BareServer, timing_tests};
use pgassay_wire::conninfo::Target;

timing_tests! {
    two_variants_that_differ_by_3_percent_do_not_have_the_same_rate,
}

const TRIALS: u64 = 7;
const SLEEP: Duration = Duration::from_millis(30);
const MEASURE: Duration = Duration::from_millis(315);
/// Half the minimum error of an integer count: 10.4 transactions are 10 or 11.
const TOLERANCE: f64 = 0.017;

fn io() -> IoChoice {
    if module_path!().ends_with("on_uring") {
        IoChoice::Auto
    } else {
        IoChoice::Epoll
    }
}

/// Counting the transactions that ended in the window gave 10 in every trial: ×1.000 [1.000,
/// 1.000], although latencies were 3% higher. Rate times latency must equal the number of clients,
/// which is 1.
fn two_variants_that_differ_by_3_percent_do_not_have_the_same_rate() {
    let Some(server) = BareServer::trusting() else {
        return;
    };
    let mut names = VariableNames::new();
    let text = format!("select pg_sleep({});", SLEEP.as_secs_f64());
    let script = ParsedScript::parse("sleep", &text, &ParseOptions::default(), &mut names).unwrap();
    let directory = server.socket_directory();
    let target = Target::unix(directory.to_str().unwrap(), 5432, "tester", "postgres");
    let config = ClientPoolConfig {
        io: io(),
        ..ClientPoolConfig::new(target, Arc::new(script), Arc::new(names))
    };
    let mut pool = ClientPool::connect(&config, &Arc::new(AtomicBool::new(false))).unwrap();
    let (mut errors, mut credits) = (Vec::new(), Vec::new());
    for trial in 0..TRIALS {
        pool.spread_starts(SLEEP, trial);
        let measured = pool
            .run(&RunLength::Timed {
                settle: 2 * SLEEP,
                measure: MEASURE,
            })
            .unwrap();
        let latency_s = measured.latency_ns.mean() / 1e9;
        let clients = measured.credited_transactions * latency_s / MEASURE.as_secs_f64();
        errors.push((clients - 1.0).abs());
        credits.push(measured.credited_transactions);
        let ended = measured.transactions as f64;
        assert!((measured.credited_transactions - ended).abs() <= 1.0);
    }
    // Other programs may have delayed some transactions, but not most trials at their ends.
    errors.sort_by(f64::total_cmp);
    let middle = errors[errors.len() / 2];
    assert!(middle < TOLERANCE, "{errors:?} {credits:?}");
    credits.sort_by(f64::total_cmp);
    credits.dedup();
    assert!(credits.len() as u64 >= TRIALS - 1, "{credits:?}");
}
