//! Plans in two stages: intervals of a wanted half-width.

use std::collections::BTreeSet;

use pgassay_account::comparison::{
    Comparison, Inconclusive, RunningPrecision, UnitOfAnalysis, Verdict, assess,
};
use pgassay_model::plan::{Overrides, Plan, plan};
use pgassay_model::study::StudySource;
use pgassay_model::trial::{Trial, TrialKind};
use pgassay_stats::random::SplitMix64;

use crate::assess::trial;

const SERVER: &str = "[server]\nversion = \"18\"\n";
const EXTERNAL: &str = "[server]\ndsn = \"host=/nowhere\"\n";

fn planned(server: &str, conditions: usize, half_width: &str) -> Plan {
    let clients: Vec<String> = (1..=conditions).map(|it| it.to_string()).collect();
    let text = format!(
        "question = \"?\"\n{server}[[script]]\nname = \"a\"\ntext = \"select 1\"\n\
         [[variant]]\nname = \"a\"\n[[variant]]\nname = \"b\"\nprotocol = \"prepared\"\n\
         [conditions]\nclients = [{}]\n",
        clients.join(", ")
    );
    let source = StudySource {
        file: "s.toml".to_owned(),
        text,
    };
    let overrides = Overrides {
        half_width: Some(half_width.parse().expect("a percentage")),
        ..Overrides::default()
    };
    let study = source.parse().expect("the study is valid");
    plan(&study, &source, &overrides).expect("the study can be planned")
}

/// The timed trials of a block: B is faster by `effect` with a deviation of `sd` per unit.
fn block(
    plan: &Plan,
    stream: &mut SplitMix64,
    number: u32,
    open: &BTreeSet<usize>,
    (effect, sd): (f64, f64),
) -> Vec<Trial> {
    let mut trials = Vec::new();
    for &condition in open {
        // The second condition has half of the noise.
        let noise = sd / (condition + 1) as f64 * stream.next_normal();
        for variant in [0, 1].repeat(plan.schedule.timed() as usize) {
            let tps = 20_000.0 * ((effect + noise) * variant as f64).exp();
            trials.push(Trial {
                condition,
                server_start: plan.server_start(number),
                credited_transactions: Some(tps / 10.0),
                ..trial(number, variant, TrialKind::Timed, tps, 50.0)
            });
        }
    }
    trials
}

/// Runs a plan as a scheduler does; `blocks_max` stands for the time limit.
fn run(plan: &Plan, seed: u64, world: (f64, f64), blocks_max: u32) -> Vec<Trial> {
    let mut running = RunningPrecision::of(plan).expect("the plan has two stages");
    let mut stream = SplitMix64::new(seed);
    let mut open: BTreeSet<usize> = (0..plan.conditions.len()).collect();
    let (mut all, mut number) = (Vec::new(), 0);
    while !open.is_empty() && number < blocks_max {
        let trials = block(plan, &mut stream, number, &open, world);
        running.add_block(number, &trials);
        open = running.open_conditions();
        all.extend(trials);
        number += 1;
    }
    all
}

fn assessed(plan: &Plan, trials: &[Trial]) -> Vec<Comparison> {
    let majors = ["18".to_owned()];
    let assessment = assess(plan, &majors, trials, &[]).expect("valid histograms");
    assessment.comparisons
}

fn half_width(found: &Comparison) -> f64 {
    ((found.tps.high / found.tps.low).ln() / 2.0).exp_m1()
}

#[test]
fn a_run_goes_on_until_the_interval_is_narrow_whatever_the_verdict() {
    let plan = planned(SERVER, 1, "1%");
    assert_eq!((plan.schedule.blocks, plan.schedule.timed()), (12, 8));
    for (seed, effect, verdict) in [
        (1, 0.3, Verdict::Faster),
        (4, -0.3, Verdict::Slower),
        (6, 0.0, Verdict::Equivalent),
    ] {
        let trials = run(&plan, seed, (effect, 0.02), u32::MAX);
        let [found] = &assessed(&plan, &trials)[..] else {
            panic!("one comparison");
        };
        assert_eq!(found.verdict, verdict, "{found:?}");
        assert!(half_width(found) <= 0.01 + 1e-9, "{}", half_width(found));
        assert!(found.tps.low < effect.exp() && found.tps.high > effect.exp());
        assert!((found.tps.confidence_level - 0.95).abs() < 1e-9);
        let basis = found.basis.expect("there are units");
        assert_eq!(basis.unit, UnitOfAnalysis::ServerStart);
        assert_eq!((basis.first_stage_units, basis.units_max), (Some(12), None));
        // At an SD of 2%, 12 server starts give ±1.3%.
        assert!(basis.units > 12 && basis.units_needed == Some(basis.units));
        assert_eq!(found.tps.by_pair.len() as u32, basis.units);
        assert!(found.latency_mean.low.is_finite());
    }
}

#[test]
fn little_noise_ends_with_the_first_stage() {
    let plan = planned(SERVER, 1, "1%");
    let trials = run(&plan, 4, (0.01, 0.003), u32::MAX);
    let basis = assessed(&plan, &trials)[0].basis.expect("there are units");
    assert_eq!((basis.units, basis.units_needed), (12, Some(12)));
}

#[test]
fn a_run_that_is_cut_short_says_what_it_would_take() {
    let plan = planned(SERVER, 1, "1%");
    // The time is up in the second stage, in the first, and before there is an interval.
    for (blocks, verdict_reason) in [(15, None), (5, None), (1, Some(Inconclusive::OnePair))] {
        let trials = run(&plan, 5, (0.3, 0.04), blocks);
        let found = &assessed(&plan, &trials)[0];
        assert_eq!(found.inconclusive_reason, verdict_reason, "{found:?}");
        let basis = found.basis.expect("there is a unit");
        assert_eq!(basis.units, blocks);
        assert_eq!(basis.units_needed.is_none(), blocks == 1);
        assert!(blocks == 1 || basis.units_needed > Some(15), "{basis:?}");
        assert!(blocks == 1 || half_width(found) > 0.01);
    }
}

#[test]
fn conditions_end_one_by_one_and_their_intervals_hold_together() {
    let plan = planned(SERVER, 2, "1.5%");
    let trials = run(&plan, 6, (0.0, 0.04), u32::MAX);
    let last = |condition: usize| {
        let of_condition = trials.iter().filter(|it| it.condition == condition);
        of_condition.map(|it| it.block).max()
    };
    assert!(last(1) < last(0), "{:?} {:?}", last(0), last(1));
    let found = assessed(&plan, &trials);
    for comparison in &found {
        assert!(half_width(comparison) <= 0.015 + 1e-9);
        assert!((comparison.tps.confidence_level - 0.975).abs() < 1e-9);
    }
}

#[test]
fn an_external_server_has_pairs_as_units() {
    let plan = planned(EXTERNAL, 1, "1%");
    assert_eq!((plan.schedule.blocks, plan.schedule.timed()), (48, 2));
    let found = &assessed(&plan, &run(&plan, 7, (0.1, 0.05), u32::MAX))[0];
    let basis = found.basis.expect("there are units");
    assert_eq!(basis.unit, UnitOfAnalysis::Pair);
    assert!(basis.units > 48 && half_width(found) <= 0.01 + 1e-9);
}

#[test]
fn a_variant_that_stops_answering_does_not_make_a_run_endless() {
    let plan = planned(SERVER, 1, "1%");
    let mut running = RunningPrecision::of(&plan).expect("the plan has two stages");
    let (mut stream, open) = (SplitMix64::new(8), BTreeSet::from([0]));
    let mut number = 0;
    loop {
        let mut trials = block(&plan, &mut stream, number, &open, (0.0, 0.04));
        if number >= 14 {
            for trial in &mut trials {
                trial.transactions = 0;
            }
        }
        running.add_block(number, &trials);
        number += 1;
        if running.open_conditions().is_empty() {
            break;
        }
    }
    assert_eq!(number as usize, running.units_of(0));
    let [found] = running.estimates().collect::<Vec<_>>()[..] else {
        panic!("one comparison");
    };
    assert_eq!(found.units, 14);
}
