//! The comparisons as CSV and as Markdown.

use pgassay_account::calibration::CalibrationSummary;
use pgassay_account::comparison::Verdict;
use pgassay_account::cost_row::Change;
use pgassay_model::trial::TrialKind;
use pgassay_record::run::Run;
use pgassay_report::{benchstat, comparisons_csv, comparisons_markdown};

use crate::fixture;

#[test]
fn csv_has_one_record_per_comparison_whatever_the_names_contain() {
    let mut run = fixture::run();
    run.plan.variants[1] = "a \"quoted\", name\nin two lines".to_owned();
    let text = comparisons_csv(&run);
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let headers = reader.headers().unwrap().clone();
    let column = |name: &str| headers.iter().position(|it| it == name).unwrap();
    let records: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    assert_eq!(records.len(), run.comparisons.len());
    for (record, it) in records.iter().zip(&run.comparisons) {
        assert_eq!(&record[column("variant")], run.plan.variants[it.variant]);
        let ratio: f64 = record[column("tps_ratio")].parse().unwrap();
        assert!((ratio - it.tps.ratio).abs() < 1e-12);
    }
}

/// Regression: a spreadsheet executed the name of a variant of a run from someone else.
#[test]
fn a_name_is_no_formula_in_a_spreadsheet() {
    let mut run = fixture::run();
    for name in ["=1+1", "@SUM(1)", "+1", "-1", "\ta"] {
        run.plan.variants[1] = name.to_owned();
        let text = comparisons_csv(&run);
        assert!(text.contains(&format!(",'{name},")), "{text}");
    }
    run.plan.variants[1] = "a=1".to_owned();
    assert!(comparisons_csv(&run).contains(",a=1,"));
}

#[test]
fn markdown_has_the_answers_and_a_row_per_comparison() {
    let mut run = fixture::run();
    run.plan.variants[1] = "a|b".to_owned();
    let text = comparisons_markdown(&run);
    assert!(
        text.starts_with("**Do prepared statements pay off"),
        "{text}"
    );
    let rows = text
        .lines()
        .filter(|it| it.starts_with("| ") && it.contains('×'));
    assert_eq!(rows.count(), run.comparisons.len(), "{text}");
    assert!(text.contains("| a\\|b |"), "{text}");
}

/// Regression: only the progress on stderr said so, so a stored or shared result did not.
#[test]
fn an_a_a_comparison_is_one_in_every_report() {
    let mut run = fixture::small_run();
    let reports = |run: &Run| {
        [
            fixture::words(run),
            pgassay_report::html(run),
            comparisons_markdown(run),
        ]
    };
    let sentence = "are identical: this is an A/A comparison, and any difference is noise.";
    for text in reports(&run) {
        assert!(!text.contains(sentence), "{text}");
    }
    let mut same = run.plan.points[0].clone();
    same.variant = 1;
    run.plan.points[1] = same;
    run.calibration = Some(CalibrationSummary {
        comparisons: 200,
        false_positives: 9,
        low: 0.0207,
        high: 0.0837,
        ended_us: 0,
    });
    for text in reports(&run) {
        assert!(text.contains(sentence), "{text}");
        let on_machine = "A/A tests on this machine: 9 of 200 comparisons differed";
        assert!(text.contains(on_machine), "{text}");
    }
}

/// Regression: a variant whose transactions failed in 70% of cases was "faster than okay" in the headline, in Markdown
/// and in CSV, and only NOTES had the share.
#[test]
fn an_answer_says_that_most_transactions_of_a_variant_failed() {
    let mut run = fixture::small_run();
    let caution = "of its transactions failed, and none of those of simple: throughput and latency are those of the \
                   successful ones only.";
    assert!(!fixture::words(&run).contains(caution));
    for trial in run.trials.iter_mut().filter(|it| it.variant == 1) {
        trial.failed = 3 * trial.transactions;
    }
    for text in [
        fixture::words(&run),
        pgassay_report::html(&run),
        comparisons_markdown(&run),
    ] {
        let text = text.replace('\u{a0}', " ");
        assert!(text.contains(&format!("But 75.0% {caution}")), "{text}");
    }
    let csv = comparisons_csv(&run);
    let columns = csv.lines().map(|it| it.rsplitn(3, ',').collect::<Vec<_>>());
    let columns: Vec<_> = columns
        .map(|it| [it[0].to_owned(), it[1].to_owned()])
        .collect();
    assert_eq!(columns[0], ["baseline_failed_share", "failed_share"]);
    assert_eq!(columns[1], ["0", "0.75"]);
    // Of many conditions, the one with the greatest difference is named.
    let mut run = fixture::run();
    for trial in run.trials.iter_mut().filter(|it| it.variant == 1) {
        trial.failed = trial.transactions * u64::from(trial.condition != 2);
    }
    let text = comparisons_markdown(&run);
    let many = "But in 5 conditions, transactions failed unequally: with ";
    assert!(text.contains(many), "{text}");
}

/// Regression: neither was in any report.
#[test]
fn the_sequential_p_value_and_the_uncorrected_interval_are_in_csv_and_markdown() {
    let mut run = fixture::small_run();
    run.comparisons[0].tps_uncorrected_95 = Some([1.25, 1.5]);
    run.comparisons[0].tps_sequential_p_value = Some(0.003_21);
    let csv = comparisons_csv(&run);
    assert!(csv.contains(",1.25,1.5,0.00321,"), "{csv}");
    let shown = |run: &Run| comparisons_markdown(run).contains("| [1.250, 1.500] | 0.0033 |");
    assert!(shown(&run), "{}", comparisons_markdown(&run));
    for (p_value, text) in [(1.0, "| > 0.1 |"), (1e-7, "| < 0.00001 |")] {
        run.comparisons[0].tps_sequential_p_value = Some(p_value);
        assert!(comparisons_markdown(&run).contains(text));
    }
}

#[test]
fn benchstat_gets_a_line_of_five_or_more_fields_for_each_timed_trial() {
    let mut run = fixture::small_run();
    run.plan.variants[1] = "work_mem = 64 MB".to_owned();
    let text = benchstat(&run);
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("Unit tx/s better=higher"));
    let timed = run.trials.iter().filter(|it| it.kind == TrialKind::Timed);
    assert_eq!(lines.clone().count(), timed.count());
    for line in lines.clone() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [name, iterations, ns, "ns/op", tps, "tx/s"] = fields[..] else {
            panic!("{line}");
        };
        assert!(name.starts_with("Benchmark"), "{line}");
        assert!(iterations.parse::<u64>().is_ok_and(|it| it > 0), "{line}");
        assert!(ns.parse::<f64>().is_ok() && tps.parse::<f64>().is_ok());
    }
    assert!(text.contains("/variant=work_mem_=_64_MB "), "{text}");
}

/// Regression: `--stepwise` said that a release was slower, and not where its time went.
#[test]
fn a_step_of_a_chain_names_its_largest_significant_change() {
    let mut run = fixture::small_run();
    let cause = "Largest change: ";
    assert!(!comparisons_markdown(&run).contains(cause));
    run.plan.stepwise = true;
    run.comparisons[0].verdict = Verdict::Faster;
    run.comparisons[0].ledger = None;
    let cost = run.comparisons[0]
        .cost
        .as_mut()
        .expect("the fixture has it");
    for row in &mut cost.subsystems {
        row.change = Change::Inconclusive;
    }
    assert!(!comparisons_markdown(&run).contains(cause));
    let cost = run.comparisons[0]
        .cost
        .as_mut()
        .expect("the fixture has it");
    let row = &mut cost.subsystems[0];
    "locks".clone_into(&mut row.name);
    row.change = Change::Decreased;
    (row.low_us, row.difference_us, row.high_us) = (-4.0, -3.1, -2.2);
    let text = comparisons_markdown(&run).replace('\u{a0}', " ");
    let expected = "Largest change: CPU in locks, −3.10 µs per transaction.";
    assert!(text.contains(expected), "{text}");
    // A saving is no cause of a slowdown, and neither is a row whose interval contains 0.
    run.comparisons[0].verdict = Verdict::Slower;
    assert!(!comparisons_markdown(&run).contains(cause));
    run.comparisons[0].verdict = Verdict::Faster;
    let cost = run.comparisons[0]
        .cost
        .as_mut()
        .expect("the fixture has it");
    cost.subsystems[0].high_us = 0.5;
    assert!(!comparisons_markdown(&run).contains(cause));
}
