//! The terminal's report, as a reader sees it.
//!
//! The expected texts lie under `snapshots`; `UPDATE_SNAPSHOTS=1 cargo test` writes them anew, and
//! the change is then read in the diff.
#![allow(missing_docs)]

mod fixture;

use pgassay_report::{Style, terminal};

const PLAIN: Style = Style {
    color: false,
    width: 100,
};

fn check(name: &str, text: &str) {
    let path = format!("{}/tests/snapshots/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        text, expected,
        "differs from {path}; UPDATE_SNAPSHOTS=1 accepts it"
    );
}

#[test]
fn a_whole_study_is_told_on_one_screen_or_two() {
    let text = terminal(&fixture::run(), &PLAIN);
    check("study", &text);
}
