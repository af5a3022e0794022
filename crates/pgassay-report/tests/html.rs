//! The page: what it must hold, and what it must never do.
#![allow(missing_docs)]

mod fixture;

use pgassay_report::html;

/// Kept beside other build products, to be looked at in a browser.
fn keep(name: &str, page: &str) {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(path, page).unwrap();
}

#[test]
fn pages_are_kept_for_a_look() {
    keep("study.html", &html(&fixture::run()));
    keep("small.html", &html(&fixture::small_run()));
    keep("no-profile.html", &html(&fixture::run_without_profiles()));
}
