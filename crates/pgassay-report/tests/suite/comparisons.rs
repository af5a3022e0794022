//! The comparisons as CSV and as Markdown.

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
