//! Runs whose transactions take long have shorter rounds, which count and continue like any other. On fake equipment.

use std::cell::RefCell;
use std::time::Duration;

use pgassay_account::comparison::RunningComparisons;
use pgassay_lab::fake::{FakeEquipment, Journal};
use pgassay_lab::{
    EarlierResults, EventSink, Interrupt, LabEvent, Laboratory, LoadedStudy, Outcome, RunContext,
    RunIdentity, ServerOptions, assemble, scheduler_of,
};
use pgassay_model::plan::{Overrides, Plan, plan};
use pgassay_model::study::StudySource;
use pgassay_model::trial::{Trial, TrialKind};
use pgassay_record::run::ServerFacts;

const STUDY: &str = "question = \"?\"\n[[script]]\nname = \"s\"\ntext = \"select 1;\"\n\
                     [[variant]]\nname = \"A\"\n[[variant]]\nname = \"B\"\nprotocol = \"prepared\"\n";

fn study() -> LoadedStudy {
    let source = StudySource {
        file: "study.toml".to_owned(),
        text: STUDY.to_owned(),
    };
    let parsed = source.parse().expect("the study is valid");
    LoadedStudy::new("study", source, parsed).expect("the study has no secrets")
}

/// What a program saves, and the number of trials that were left out.
#[derive(Default)]
struct Seen {
    trials: RefCell<Vec<Trial>>,
    servers: RefCell<Vec<ServerFacts>>,
    left_out: RefCell<usize>,
}

impl EventSink for Seen {
    fn event(&self, event: &LabEvent<'_>) {
        match event {
            LabEvent::TrialEnded(trial) => self.trials.borrow_mut().push((*trial).clone()),
            LabEvent::ServersStarted(servers) => *self.servers.borrow_mut() = servers.to_vec(),
            LabEvent::TrialsLeftOut(count) => *self.left_out.borrow_mut() += count,
            _ => {}
        }
    }
}

fn run(study: &LoadedStudy, plan: &Plan, earlier: EarlierResults, seen: &Seen) -> Vec<Trial> {
    let mut equipment = FakeEquipment::recording(&Journal::default());
    equipment.has_hardware_counters = true;
    equipment.transaction = Some(Duration::from_secs(1));
    run_on(equipment, (study, plan), earlier, seen).trials
}

fn run_on(
    mut equipment: FakeEquipment,
    (study, plan): (&LoadedStudy, &Plan),
    earlier: EarlierResults,
    seen: &Seen,
) -> Outcome {
    let mut laboratory = Laboratory {
        context: RunContext {
            study,
            options: &ServerOptions::default(),
            interrupt: &Interrupt::default(),
            events: seen,
        },
        equipment: &mut equipment,
    };
    let mut scheduler = scheduler_of(plan);
    let outcome = laboratory.resume(plan, &mut *scheduler, earlier);
    outcome.expect("nothing fails")
}

fn identities(trials: &[Trial]) -> Vec<(u32, usize, u32, TrialKind)> {
    let identity = |it: &Trial| (it.block, it.variant, it.position, it.kind);
    trials.iter().map(identity).collect()
}

#[test]
fn slow_transactions_make_rounds_shorter_and_a_run_of_them_continues_after_any_trial() {
    let study = study();
    let plan = plan(&study.study, &study.source, &Overrides::default()).expect("it can be planned");
    assert_eq!(
        (plan.schedule.repeats, plan.schedule.profiled),
        (4, 2),
        "a round has 20 trials"
    );
    let seen = Seen::default();
    let clean = run(&study, &plan, EarlierResults::default(), &seen);
    assert!(
        clean.iter().all(|it| it.repeats == Some(1)),
        "six trials per round, and two for hardware counters in two rounds"
    );
    let blocks = clean.last().expect("there are trials").block + 1;
    let mut running = RunningComparisons::of(&plan).expect("verdicts end the run");
    for block in 0..blocks {
        running.add_block(block, clean.iter().filter(|it| it.block == block));
    }
    assert!(running.analyses() > 0, "the short rounds are complete");
    assert_eq!(clean.len() as u32, 6 * blocks + 4);
    assert_eq!(*seen.left_out.borrow(), 14 * blocks as usize);

    for kept in 0..=15 {
        let earlier = EarlierResults {
            trials: clean[..kept].to_vec(),
            details: Vec::new(),
            servers: seen.servers.borrow().clone(),
        };
        let continued = run(&study, &plan, earlier, &Seen::default());
        assert_eq!(
            identities(&continued),
            identities(&clean),
            "killed after {kept} trials"
        );
    }
}

/// Regression: the window of a stall was left out of the rate, so that a load that stalls half of the time seemed not
/// to stall at all; and the server's CPU time of all windows was divided by the transactions of the last.
#[test]
fn a_load_that_stalls_does_not_seem_as_fast_as_one_that_does_not() {
    let study = study();
    let plan = plan(&study.study, &study.source, &Overrides::default()).expect("it can be planned");
    let clients = u64::from(plan.conditions[0].clients);
    let trials = |stalls: bool| {
        let mut equipment = FakeEquipment::recording(&Journal::default());
        equipment.stalls = stalls;
        let seen = Seen::default();
        run_on(equipment, (&study, &plan), EarlierResults::default(), &seen).trials
    };
    let (stalled, even) = (trials(true), trials(false));
    for (stalled, even) in stalled.iter().zip(&even) {
        // A window with half a transaction of each client, and one that is four times as long.
        assert!((stalled.window_us - 5.0 * even.window_us).abs() < 1e-9);
        assert!((stalled.tps() / even.tps() - 0.8).abs() < 1e-3);
        assert_eq!(stalled.transactions_total, stalled.transactions + clients);
    }
}

/// Regression: a run with `--pairs` on a busy machine, where each statement took long, had all its pairs and was
/// called unfinished.
#[test]
fn a_run_of_fixed_pairs_with_shorter_rounds_is_complete() {
    let study = study();
    let overrides = Overrides {
        pairs: Some(4),
        ..Overrides::default()
    };
    let plan = plan(&study.study, &study.source, &overrides).expect("it can be planned");
    assert!(plan.schedule.repeats > 1, "{:?}", plan.schedule);
    let mut equipment = FakeEquipment::recording(&Journal::default());
    equipment.transaction = Some(Duration::from_secs(1));
    let outcome = run_on(
        equipment,
        (&study, &plan),
        EarlierResults::default(),
        &Seen::default(),
    );
    assert!(outcome.ended_early.is_none());
    assert!(outcome.trials.iter().all(|it| it.repeats == Some(1)));
    let run = assemble(&study, plan, outcome, None, RunIdentity::default()).expect("a run");
    assert!(run.complete);
    assert_eq!(run.comparisons[0].tps.by_pair.len(), 4);
}
