//! Findings on live servers, each provoked; see `live_findings.rs`.

use pgassay_test_support::timing;

use crate::{live_findings, live_statements};

/// What is slow to provoke twice: `cargo test --test timing -- --ignored` does it on 12, too.
mod on_12 {
    use super::{live_findings, live_statements, timing};

    #[test]
    #[ignore = "the same as on 18"]
    fn sessions_that_block_others_are_named() {
        timing(|| live_findings::sessions_that_block_others_are_named("12"));
    }

    #[test]
    #[ignore = "the same as on 18"]
    fn tables_and_indexes_that_cost_are_named() {
        timing(|| live_findings::tables_and_indexes_that_cost_are_named("12"));
    }

    #[test]
    #[ignore = "the same as on 18"]
    fn statements_that_cost_more_than_they_must_are_named() {
        timing(|| live_statements::statements_that_cost_more_than_they_must_are_named("12"));
    }

    #[test]
    #[ignore = "the same as on 18"]
    fn what_sessions_wait_for_together_is_named() {
        timing(|| live_findings::what_sessions_wait_for_together_is_named("12"));
    }

    #[test]
    #[ignore = "the same as on 18"]
    fn what_the_server_suffers_from_is_named() {
        timing(|| live_findings::what_the_server_suffers_from_is_named("12"));
    }

    #[test]
    #[ignore = "the same as on 18"]
    fn wraparound_ahead_and_what_prevents_freezing_are_named() {
        timing(|| live_findings::wraparound_ahead_and_what_prevents_freezing_are_named("12"));
    }

    #[test]
    #[ignore = "the same as on 18"]
    fn healthy_loads_have_no_findings_for_operators() {
        timing(|| live_findings::healthy_loads_have_no_findings_for_operators("12"));
    }
}

#[test]
fn sessions_that_block_others_are_named() {
    timing(|| live_findings::sessions_that_block_others_are_named("18"));
}

#[test]
fn tables_and_indexes_that_cost_are_named() {
    timing(|| live_findings::tables_and_indexes_that_cost_are_named("18"));
}

#[test]
fn statements_that_cost_more_than_they_must_are_named() {
    timing(|| live_statements::statements_that_cost_more_than_they_must_are_named("18"));
}

#[test]
fn what_sessions_wait_for_together_is_named() {
    timing(|| live_findings::what_sessions_wait_for_together_is_named("18"));
}

#[test]
fn what_the_server_suffers_from_is_named() {
    timing(|| live_findings::what_the_server_suffers_from_is_named("18"));
}

#[test]
fn wraparound_ahead_and_what_prevents_freezing_are_named() {
    timing(|| live_findings::wraparound_ahead_and_what_prevents_freezing_are_named("18"));
}

#[test]
fn healthy_loads_have_no_findings_for_operators() {
    timing(|| live_findings::healthy_loads_have_no_findings_for_operators("18"));
}
