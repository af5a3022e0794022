//! The comparisons as CSV and as Markdown.

use pgassay_account::calibration::CalibrationSummary;
use pgassay_record::run::Run;
use pgassay_report::{comparisons_csv, comparisons_markdown};

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
