//! Runs in two stages: which blocks they run, and that they continue where they were killed. On fake equipment,
//! whose trials are all equal: the noise that a scheduler sees is added here.

use std::cell::RefCell;

use pgassay_lab::fake::{FakeEquipment, Journal};
use pgassay_lab::{
    Block, EarlierResults, EventSink, Interrupt, LabEvent, Laboratory, LoadedStudy, RunContext,
    Scheduler, ServerOptions, scheduler_of,
};
use pgassay_model::plan::{Overrides, Plan, plan};
use pgassay_model::study::StudySource;
use pgassay_model::trial::{Trial, TrialKind};
use pgassay_record::run::ServerFacts;
use pgassay_stats::random::{SplitMix64, stream_seed};

/// Two variants under two conditions; the first is twice as noisy.
const STUDY: &str = "question = \"?\"\n[length]\nfull = \"1s\"\nhalf_width = \"1%\"\n\
                     [[script]]\nname = \"s\"\ntext = \"select 1;\"\n\
                     [[variant]]\nname = \"A\"\n[[variant]]\nname = \"B\"\nprotocol = \"prepared\"\n\
                     [conditions]\nclients = [1, 2]\n";

fn study() -> LoadedStudy {
    let source = StudySource {
        file: "study.toml".to_owned(),
        text: STUDY.to_owned(),
    };
    let parsed = source.parse().expect("the study is valid");
    LoadedStudy::new("study", source, parsed).expect("the study has no secrets")
}

fn planned(study: &LoadedStudy) -> Plan {
    let overrides = Overrides {
        seed: 1,
        ..Overrides::default()
    };
    plan(&study.study, &study.source, &overrides).expect("the study can be planned")
}

/// The trials of a block, of which B's are faster by 10% and a noise that only depends on the block.
fn with_noise(trials: &[Trial]) -> Vec<Trial> {
    let noisy = |trial: &Trial| {
        let place = [u64::from(trial.block), trial.condition as u64];
        let normal = SplitMix64::new(stream_seed(1945, &place)).next_normal();
        let log = 0.1 + 0.04 / (trial.condition + 1) as f64 * normal;
        let rate = trial.credited_transactions.expect("the fake credits them");
        Trial {
            credited_transactions: Some(rate * (log * trial.variant as f64).exp()),
            ..trial.clone()
        }
    };
    trials.iter().map(noisy).collect()
}

/// The plan's scheduler, which sees noise; remembers its blocks and what it says.
struct Noisy<'a> {
    scheduler: Box<dyn Scheduler + 'a>,
    blocks: Vec<Block>,
    notes: RefCell<Vec<String>>,
}

impl Scheduler for Noisy<'_> {
    fn next_block(&mut self) -> Option<Block> {
        let block = self.scheduler.next_block();
        self.blocks.extend(block.clone());
        block
    }

    fn block_ended(&mut self, trials: &[Trial]) {
        self.scheduler.block_ended(&with_noise(trials));
    }

    fn blocks_max(&self) -> u32 {
        self.scheduler.blocks_max()
    }

    fn progress(&self) -> Option<String> {
        let note = self.scheduler.progress();
        self.notes.borrow_mut().extend(note.clone());
        note
    }
}

/// What a program saves, and how many trials it expects.
#[derive(Default)]
struct Seen {
    trials: RefCell<Vec<Trial>>,
    servers: RefCell<Vec<ServerFacts>>,
    totals: RefCell<Vec<u64>>,
}

impl EventSink for Seen {
    fn event(&self, event: &LabEvent<'_>) {
        match event {
            LabEvent::TrialEnded(trial) => self.trials.borrow_mut().push((*trial).clone()),
            LabEvent::ServersStarted(servers) => *self.servers.borrow_mut() = servers.to_vec(),
            LabEvent::TrialsBegin { total, .. } => self.totals.borrow_mut().push(*total),
            _ => {}
        }
    }
}

/// Runs the plan after earlier trials. Returns all trials, the blocks, and what was said.
fn run(
    study: &LoadedStudy,
    plan: &Plan,
    earlier: EarlierResults,
    seen: &Seen,
) -> (Vec<Trial>, Vec<Block>, Vec<String>) {
    let mut equipment = FakeEquipment::recording(&Journal::default());
    let mut laboratory = Laboratory {
        context: RunContext {
            study,
            options: &ServerOptions::default(),
            interrupt: &Interrupt::default(),
            events: seen,
        },
        equipment: &mut equipment,
    };
    let mut scheduler = Noisy {
        scheduler: scheduler_of(plan),
        blocks: Vec::new(),
        notes: RefCell::default(),
    };
    let outcome = laboratory.resume(plan, &mut scheduler, earlier);
    let trials = outcome.expect("nothing fails").trials;
    (trials, scheduler.blocks, scheduler.notes.into_inner())
}

fn conditions(block: &Block) -> Vec<usize> {
    let mut found: Vec<usize> = block.rounds.iter().map(|it| it.condition).collect();
    found.sort_unstable();
    found
}

type TrialIdentity = (u32, usize, usize, u32, TrialKind);

fn identities(trials: &[Trial]) -> Vec<TrialIdentity> {
    let identity = |it: &Trial| (it.block, it.condition, it.variant, it.position, it.kind);
    trials.iter().map(identity).collect()
}

#[test]
fn the_second_stage_is_as_long_as_the_first_stage_says_and_samples_no_stacks() {
    let study = study();
    let plan = planned(&study);
    assert_eq!(plan.schedule.blocks, 12);
    let seen = Seen::default();
    let (trials, blocks, notes) = run(&study, &plan, EarlierResults::default(), &seen);
    let numbers: Vec<u32> = blocks.iter().map(|it| it.number).collect();
    assert_eq!(numbers, (0..blocks.len() as u32).collect::<Vec<_>>());
    // Both conditions in the first stage; the noisier one is measured longer.
    assert!(blocks[..12].iter().all(|it| conditions(it) == [0, 1]));
    let last_of_both = blocks.iter().rposition(|it| conditions(it) == [0, 1]);
    let both = last_of_both.expect("there is a first stage") + 1;
    assert!((12..blocks.len()).contains(&both), "{both}");
    assert!(blocks[both..].iter().all(|it| conditions(it) == [0]));
    for block in &blocks {
        let profiled = block.rounds.iter().map(|it| it.profiled.len());
        let expected = if block.number < 12 { 2 } else { 0 };
        assert!(profiled.into_iter().all(|it| it == expected), "{block:?}");
    }
    // Each block has a separate server start.
    let starts = trials.iter().all(|it| it.server_start == it.block);
    assert!(starts && trials.iter().map(|it| it.block).max() == numbers.last().copied());

    let [note] = &notes[..] else {
        panic!("one note: {notes:?}");
    };
    let planned = format!("within ±1% after at most {} server starts", blocks.len());
    assert!(
        note.starts_with("after 12 server starts: SD ") && note.contains(&planned),
        "{note}"
    );
    let totals = seen.totals.borrow();
    assert!(totals[..12].iter().all(|it| *it == totals[0]));
    assert!(*totals.last().expect("there are server starts") >= trials.len() as u64);
}

#[test]
fn two_stages_continue_after_any_block_and_trial_with_the_same_blocks() {
    let study = study();
    let plan = planned(&study);
    let seen = Seen::default();
    let (clean, blocks, notes) = run(&study, &plan, EarlierResults::default(), &seen);
    // Killed in the first stage, at its end, in the second, and before the last trial.
    let of_first_stage = clean.iter().filter(|it| it.block < 12).count();
    let kept = [1, 30, of_first_stage - 1, of_first_stage];
    for kept in kept
        .into_iter()
        .chain([of_first_stage + 5, clean.len() - 1, clean.len()])
    {
        let earlier = EarlierResults {
            trials: clean[..kept].to_vec(),
            details: Vec::new(),
            servers: seen.servers.borrow().clone(),
        };
        let (trials, continued, said) = run(&study, &plan, earlier, &Seen::default());
        assert_eq!(identities(&trials), identities(&clean), "{kept}");
        assert_eq!(continued, blocks, "{kept}");
        // The note of the first stage is not repeated once the second has begun.
        let is_over = kept >= of_first_stage;
        assert_eq!(said.len(), usize::from(!is_over), "{kept}: {said:?}");
        assert_eq!(notes.len(), 1);
    }
}

#[test]
fn trials_without_noise_end_after_the_first_stage_and_say_why() {
    let study = study();
    let plan = planned(&study);
    let mut scheduler = scheduler_of(&plan);
    let mut blocks = 0;
    let mut note = None;
    while let Some(block) = scheduler.next_block() {
        blocks += 1;
        let rounds = block.rounds.iter();
        let timed = rounds.flat_map(|round| round.timed.iter().map(|it| (round.condition, *it)));
        let trials: Vec<Trial> = timed
            .map(|(condition, variant)| Trial {
                block: block.number,
                condition,
                variant,
                transactions: 100,
                credited_transactions: Some(100.0),
                window_us: 1e6,
                ..Trial::empty(TrialKind::Timed)
            })
            .collect();
        scheduler.block_ended(&trials);
        note = scheduler.progress();
    }
    assert_eq!(blocks, 12);
    let note = note.expect("the first stage has ended");
    assert!(note.contains("resolution of the rates"), "{note}");
}

#[test]
fn a_time_limit_ends_either_stage() {
    let study = study();
    let mut plan = planned(&study);
    // A trial takes a second: the first stage 12 blocks of 8 timed trials each.
    for (limit_s, expected) in [(21, 3..4), (120, 13..20)] {
        plan.schedule.max_time_us = Some(limit_s * 1_000_000);
        let mut scheduler = scheduler_of(&plan);
        let (mut blocks, mut now, mut note) = (0, 0, None);
        while let Some(block) = scheduler.next_block() {
            blocks += 1;
            let rounds = block.rounds.iter();
            let timed =
                rounds.flat_map(|round| round.timed.iter().map(|it| (round.condition, *it)));
            let mut trials: Vec<Trial> = Vec::new();
            for (condition, variant) in timed {
                now += 1_000_000;
                trials.push(Trial {
                    block: block.number,
                    condition,
                    variant,
                    started_us: now,
                    transactions: 100_000,
                    credited_transactions: Some(100_000.0),
                    window_us: 1e6,
                    ..Trial::empty(TrialKind::Timed)
                });
            }
            scheduler.block_ended(&with_noise(&trials));
            note = note.or(scheduler.progress());
        }
        assert!(expected.contains(&blocks), "{limit_s} s: {blocks} blocks");
        // A block that ends closest to the limit is the last.
        let limit_us = 1_000_000 * i64::try_from(limit_s).expect("a small number");
        assert!(
            (limit_us - 4_000_000..limit_us + 4_000_000).contains(&(now - 1)),
            "{now}"
        );
        let ends_before = note.is_some_and(|it| it.contains("after 2min (--max-time)"));
        assert_eq!(ends_before, limit_s == 120);
    }
}
