//! Figures of one report that seem to contradict each other have a sentence that says why they do not.

use pgassay_record::run::{Warning, WarningKind};
use pgassay_report::html;

use crate::fixture::{descriptive_run, small_run, words};

/// Regression: the page had a p95 that fell from 0.314 to 0.286 ms and, below, its ratio of ×1.186.
#[test]
fn ratios_of_percentiles_say_that_they_are_means_over_the_pairs() {
    let page = html(&small_run());
    let figures = page.find("id=\"figures\"").expect("it has figures");
    let note = page[figures..]
        .find("Ratios are geometric means over the pairs.")
        .expect("it says so");
    let ratios = page[figures..].find("Ratios to").expect("it has ratios");
    assert!(note < ratios);
}

/// Regression: one variant had mean latencies of 48, 41.03 and 48.40 µs, and nothing said that one was of profiled trials
/// or that another was a mean of another kind.
#[test]
fn a_ledger_says_why_its_response_time_is_not_the_mean_latency() {
    let kind = "averaged over the blocks. The mean latency in the figures is the geometric mean of the blocks";
    let slower = "Profiled trials apportion it, and were up to 47.4% slower.";
    let run = small_run();
    for ledger in &run.ledgers {
        let overhead = 1.0 - ledger.checks.profiled_tps_ratio.unwrap_or(1.0);
        assert!(overhead < 0.2, "{overhead}");
    }
    assert!(!words(&run).contains(slower));

    let mut profiled = small_run();
    profiled.ledgers[1].checks.profiled_tps_ratio = Some(0.526);
    for text in [words(&profiled), html(&profiled)] {
        assert!(text.contains(slower), "{text}");
    }
    // Not next to trials that seem to be faster because they are profiled.
    profiled.ledgers[0].checks.profiled_tps_ratio = Some(1.353);
    assert!(!words(&profiled).contains("Profiled trials apportion it"));
    let mut means = small_run();
    for point in &mut means.points {
        let mut ledgers = means.ledgers.iter();
        let is_its = |it: &&_| -> bool {
            let it: &pgassay_account::ledger::Ledger = it;
            (it.condition, it.variant) == (point.condition, point.variant)
        };
        if let Some(ledger) = ledgers.find(is_its) {
            point.latency_mean_us = ledger.response_us * 1.01;
        }
    }
    assert!(!words(&means).contains(kind), "{}", words(&means));
    means.points[0].latency_mean_us *= 1.17;
    for text in [words(&means), html(&means)] {
        assert!(text.contains(kind), "{text}");
    }
    // Regression: a variant of whose transactions 70% failed differed by a factor of 4 for that reason.
    for trial in &mut means.trials {
        trial.failed = trial.transactions;
    }
    let failed = "and includes the time of transactions that failed, per successful one.";
    assert!(words(&means).contains(failed), "{}", words(&means));
}

/// Regression: two lines of checks that had passed, for every variant.
#[test]
fn only_failed_checks_of_a_ledger_are_printed() {
    let mut run = small_run();
    for ledger in &mut run.ledgers {
        ledger.checks.coverage = 1.0;
        ledger.checks.little_error = 0.0;
        ledger.checks.machine_error = None;
        ledger.checks.samples_error = None;
    }
    let text = words(&run);
    assert!(
        text.contains("All rows add up to their totals (the HTML report has the checks)."),
        "{text}"
    );
    assert!(!text.contains("rows add up to 1"), "{text}");
    assert!(html(&run).contains("rows add up to 100.0%"));
    run.ledgers[0].checks.coverage = 1.5;
    let text = words(&run);
    assert!(
        text.contains("rows add up to 150.0% of the clients' time (must be"),
        "{text}"
    );
    assert!(!text.contains("All sums are consistent"), "{text}");
}

/// Regression: of a study with three variants of which two could not run, a report said that there was only one.
#[test]
fn a_report_of_the_one_variant_that_could_run_says_how_many_there_were() {
    let mut run = descriptive_run();
    assert!(words(&run).contains("There is only one variant"));
    for name in ["default costs", "always"] {
        run.warnings.push(Warning {
            kind: WarningKind::Skipped,
            message: format!("variant \"{name}\" skipped"),
            variant: Some(name.to_owned()),
        });
    }
    for report in [words(&run), html(&run).replace('\u{a0}', " ")] {
        assert!(
            report.contains("of 3 variants, only one could run"),
            "{report}"
        );
        assert!(!report.contains("There is only one variant"));
    }
}

/// Regression: a variant that inserts 1,000 rows per transaction had a price of 645 times the WAL.
#[test]
fn the_price_of_a_load_whose_transactions_yield_something_is_per_unit() {
    let mut run = small_run();
    run.comparisons[0].counters = vec![pgassay_account::counters::CounterDifference {
        name: "wal.insert_bytes".to_owned(),
        baseline: 112.0,
        variant: 72_300.0,
        difference: 72_188.0,
        low: 72_100.0,
        high: 72_200.0,
        differs: true,
    }];
    let text = words(&run);
    assert!(text.contains("blocks per transaction") && text.contains("WAL 112 B → 72.3 kB"));
    for (point, per_transaction) in run.plan.points.iter_mut().zip([1, 1000]) {
        point.gives = Some(pgassay_model::plan::Yield {
            unit: "rows".to_owned(),
            per_transaction,
        });
    }
    let text = words(&run);
    assert!(
        text.contains("temporary files and blocks per row"),
        "{text}"
    );
    assert!(text.contains("WAL 112 B → 72.3 B"), "{text}");
    assert!(text.contains("mean latency of a transaction ×"), "{text}");
    // Regression: ledger and statistics, which are per transaction, did not say what a transaction yields.
    let heading = "statistics per transaction (1 row in simple, 1,000 rows in prepared): ";
    assert!(text.contains(heading), "{text}");
    let page = html(&run);
    assert!(page.contains("µs per transaction (1 row in simple, 1,000 rows in prepared)"));
    // Regression: the table of functions, which is per unit, was "per transaction".
    assert!(page.contains("By function, self time only, µs per row. "));
    // What is the same per unit is no price.
    run.comparisons[0].counters[0].variant = 112_500.0;
    assert!(!words(&run).contains("WAL 112"), "{}", words(&run));
}
