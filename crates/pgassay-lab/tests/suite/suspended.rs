//! A process that is suspended (SIGSTOP, Ctrl-Z) in the middle of a run. On fake equipment.

use std::cell::RefCell;

use pgassay_lab::fake::{FakeEquipment, FakeFault, Journal};
use pgassay_lab::{
    FixedBlocks, Interrupt, LabEvent, Laboratory, LoadedStudy, Outcome, RunContext, ServerOptions,
};
use pgassay_model::plan::{Overrides, plan};
use pgassay_model::study::StudySource;

const STUDY: &str = "question = \"?\"\n[[script]]\nname = \"s\"\ntext = \"select 1;\"\n\
                     [[variant]]\nname = \"A\"\n[[variant]]\nname = \"B\"\nprotocol = \"prepared\"\n\
                     [length]\npairs = 2\n";

/// Runs the study with a suspension at this entry of the journal; returns the entries and the notes, too.
fn suspended_at(at: usize) -> (Outcome, Vec<String>, Vec<String>) {
    let source = StudySource {
        file: "study.toml".to_owned(),
        text: STUDY.to_owned(),
    };
    let parsed = source.parse().expect("the study is valid");
    let study = LoadedStudy::new("study", source, parsed).expect("the study has no secrets");
    let overrides = Overrides {
        seed: 1,
        ..Overrides::default()
    };
    let plan = plan(&study.study, &study.source, &overrides).expect("it can be planned");
    let interrupt = Interrupt::default();
    let journal = Journal::with_fault(at, FakeFault::Suspension(interrupt.clone()));
    let notes = RefCell::new(Vec::new());
    let events = |event: &LabEvent<'_>| {
        if let LabEvent::Note(note) = event {
            notes.borrow_mut().push((*note).to_owned());
        }
    };
    let mut laboratory = Laboratory {
        context: RunContext {
            study: &study,
            options: &ServerOptions::default(),
            interrupt: &interrupt,
            events: &events,
        },
        equipment: &mut FakeEquipment::recording(&journal),
    };
    let outcome = laboratory.run(&plan, &mut FixedBlocks::of(&plan));
    let outcome = outcome.expect("nothing fails");
    (outcome, journal.entries(), notes.into_inner())
}

/// Regression: the transactions of a trial that was suspended for a second counted as those of its whole time, so one
/// Ctrl-Z made a variant seem several times slower in a pair.
#[test]
fn a_trial_during_which_the_process_is_suspended_is_run_again_and_does_not_count() {
    let (clean, steps, notes) = suspended_at(usize::MAX);
    assert!(notes.is_empty(), "{notes:?}");
    let at = steps.iter().position(|it| it.contains(": trial "));
    let at = at.expect("there are trials");
    let (outcome, entries, notes) = suspended_at(at);
    assert_eq!(outcome.trials.len(), clean.trials.len());
    assert_eq!(notes.len(), 1, "{notes:?}");
    // Watched from its begin to its end, a second time.
    let again = steps[at - 1..=at + 1].to_vec();
    let expected: Vec<String> = [&steps[..=at + 1], &again, &steps[at + 2..]].concat();
    assert_eq!(entries, expected);
}

#[test]
fn a_warm_up_during_which_the_process_is_suspended_begins_anew() {
    let (clean, steps, _) = suspended_at(usize::MAX);
    let warm_up = |it: &&String| it.contains(": warm up ");
    let first = steps.iter().position(|it| warm_up(&it));
    // The second of the three windows after which throughput is stable.
    let (outcome, entries, _) = suspended_at(first.expect("there is a warm-up") + 1);
    assert_eq!(outcome.trials.len(), clean.trials.len());
    let windows = |of: &[String]| of.iter().filter(warm_up).count();
    assert_eq!(windows(&entries), windows(&steps) + 2);
}

#[test]
fn a_suspension_between_trials_repeats_nothing() {
    let (_, steps, _) = suspended_at(usize::MAX);
    let at = steps.iter().position(|it| it.starts_with("open observer"));
    let (_, entries, notes) = suspended_at(at.expect("there are observers"));
    assert_eq!((entries, notes), (steps, Vec::new()));
}
