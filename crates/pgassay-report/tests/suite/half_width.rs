//! What reports say of a run in two stages.

use pgassay_account::comparison::UnitOfAnalysis;
use pgassay_model::plan::StoppingRule;
use pgassay_record::run::Run;
use pgassay_report::{html, json};

use crate::fixture::words;

/// A run of one comparison that aimed at ±1%, took `units` server starts of the `needed` ones in 60 s, and reached
/// this half-width.
fn run(units: u32, needed: Option<u32>, half_width: f64) -> Run {
    let mut run = crate::fixture::small_run();
    run.plan.schedule.stopping = StoppingRule::Precision;
    run.plan.schedule.half_width_percent = Some(1.0);
    run.ended_us = run.started_us + 60_000_000;
    run.comparisons.truncate(1);
    let comparison = &mut run.comparisons[0];
    let ratio = comparison.tps.ratio;
    comparison.tps.low = ratio / half_width;
    comparison.tps.high = ratio * half_width;
    let basis = comparison.basis.as_mut().unwrap();
    basis.unit = UnitOfAnalysis::ServerStart;
    basis.comparisons = 1;
    (basis.units, basis.server_starts) = (units, units);
    (basis.first_stage_units, basis.units_needed) = (Some(12), needed);
    run
}

#[test]
fn a_run_in_two_stages_says_how_its_number_of_server_starts_was_decided() {
    let run = run(20, Some(20), 1.0099);
    let text = words(&run);
    let rule = "Measured in two stages for intervals within ±1%: the standard deviation of the first 12 \
                server starts alone decided how many there are.";
    assert!(text.contains(rule), "{text}");
    assert!(!text.contains("Not within"), "{text}");
    assert!(!text.contains("Analyzed after each server start"), "{text}");
    assert!(html(&run).contains("Measured in two stages"));
    let data: serde_json::Value = serde_json::from_str(&json(&run)).unwrap();
    assert_eq!(data["plan"]["schedule"]["stopping"], "precision");
    assert_eq!(data["plan"]["schedule"]["half_width_percent"], 1.0);
    assert_eq!(data["comparisons"][0]["basis"]["first_stage_units"], 12);
}

#[test]
fn a_half_width_that_was_not_reached_is_said_first_with_what_it_takes() {
    // 15 server starts in 60 s, 30 needed.
    let late = run(15, Some(30), 1.0142);
    let text = words(&late);
    let missed = "Not within ±1%: the widest interval is within ±1.42%, from 15 server starts. ±1% takes about \
                  30 server starts in all: about 60 s more. Measured in two stages";
    assert!(text.contains(missed), "{text}");
    assert!(html(&late).contains("Not within ±1%"));
    // More trials do not help against their resolution.
    let text = words(&run(12, None, 1.03));
    assert!(
        text.contains("within ±3.00%, from 12 server starts. The resolution"),
        "{text}"
    );
    // A single one has no interval, and its ends are equal.
    let text = words(&run(1, None, 1.0));
    assert!(
        text.contains("before there were two server starts"),
        "{text}"
    );
}

/// Regression: after 10 of 12 server starts, when --max-time ended the run, "the standard deviation of the first 12
/// server starts alone decided how many there are".
#[test]
fn a_run_that_ended_in_the_first_stage_does_not_say_what_that_stage_decided() {
    let text = words(&run(10, Some(14), 1.2951));
    let ended = "the run ended in the first stage, which takes 12 server starts.";
    assert!(text.contains(ended), "{text}");
    assert!(!text.contains("alone decided"), "{text}");
}
