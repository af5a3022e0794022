//! One policy for tests that cannot run on a machine.
//!
//! A skipped test prints a line that begins with `SKIPPED`, past the test harness, which would
//! capture it, and counts as passed. Where everything is installed and permitted, a skip would hide
//! a test that no longer runs, so there it is a failure.

use std::env;
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};

static SKIPPED: AtomicU32 = AtomicU32::new(0);

/// Skips a test, or a part of one, because a server, a right or a program is missing.
///
/// # Panics
/// With `CI=true`.
pub fn skip(what: &str, why: &str) {
    assert!(
        env::var("CI").as_deref() != Ok("true"),
        "{what} must not be skipped in CI: {why}"
    );
    report(what, why);
}

/// Skips a comparison with a program of PostgreSQL or Linux that is not installed. This is no
/// failure in CI, since `.ci/run` hides PostgreSQL from most of its steps.
///
/// # Panics
/// If `PGASSAY_NO_SKIP` is set.
pub fn skip_comparison(what: &str, why: &str) {
    assert!(
        env::var_os("PGASSAY_NO_SKIP").is_none(),
        "{what} must not be skipped with PGASSAY_NO_SKIP: {why}"
    );
    report(what, why);
}

/// Skips a test of a case that cannot occur on this machine, although nothing is missing: a refused
/// right where everyone has it, a counter that the processor lacks.
pub fn not_applicable(what: &str, why: &str) {
    report(what, why);
}

fn report(what: &str, why: &str) {
    let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
    let line = format!("SKIPPED ({count} in this program): {what}: {why}\n");
    // Ignores a closed standard error.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
