//! The order of set-up, warm-up, trials, resets, observation and tear-down, asserted exactly against a fake.

use std::cell::RefCell;
use std::fmt::Write as _;

use pgassay_lab::fake::{FakeEquipment, FakeFault, Journal};
use pgassay_lab::{
    Block, EarlierResults, EventSink, FixedBlocks, Interrupt, Interrupted, LabEvent, Laboratory,
    LoadedStudy, NoEvents, Outcome, RunContext, Scheduler, ServerOptions,
};
use pgassay_model::detail::RunDetail;
use pgassay_model::plan::{Overrides, Plan, Round, plan};
use pgassay_model::study::StudySource;
use pgassay_model::trial::{Trial, TrialKind};
use pgassay_record::run::{ServerFacts, WarningKind};

/// A study of `variants` variants that write; the last has a server of its own.
fn study(variants: usize) -> LoadedStudy {
    let mut text = String::from(
        "question = \"?\"\n\
         [length]\nfull = \"1s\"\nquick = \"1s\"\npairs = 2\nrestart_every = 1\n\
         [data]\nsetup = \"create table t ()\"\nreset = \"truncate t\"\n\
         [[script]]\nname = \"s\"\ntext = \"select 1;\"\n",
    );
    for number in 0..variants {
        let name = char::from(b'A' + number as u8);
        _ = writeln!(text, "[[variant]]\nname = \"{name}\"");
        if number + 1 == variants {
            text += "settings = { jit = \"off\" }\n";
        } else {
            _ = writeln!(text, "session = {{ work_mem = \"{}MB\" }}", number + 1);
        }
    }
    let source = StudySource {
        file: "study.toml".to_owned(),
        text,
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

/// Runs the plan on fake equipment.
fn run(
    study: &LoadedStudy,
    plan: &Plan,
    journal: &Journal,
    interrupt: &Interrupt,
) -> anyhow::Result<Outcome> {
    let mut equipment = FakeEquipment::recording(journal);
    equipment.has_hardware_counters = true;
    let mut laboratory = Laboratory {
        context: RunContext {
            study,
            options: &ServerOptions::default(),
            interrupt,
            events: &NoEvents,
        },
        equipment: &mut equipment,
    };
    laboratory.run(plan, &mut FixedBlocks::of(plan))
}

/// The journal of a run in which nothing fails, written from the plan alone.
fn expected(plan: &Plan) -> Vec<String> {
    expected_after(plan, &[])
}

/// The same for a run that continues after these trials, the first of a run of the plan.
fn expected_after(plan: &Plan, earlier: &[Trial]) -> Vec<String> {
    let mut entries = Vec::new();
    let of = |variant: usize| plan.variants[variant].clone();
    let server = |variant: usize| plan.points[variant].server;
    // A server that does not start is found before any is filled.
    for server in 0..plan.servers.len() {
        entries.push(format!("start server {server}"));
    }
    for server in 0..plan.servers.len() {
        entries.push(format!("server {server}: create postgres"));
        entries.push(format!("server {server}: create table t ()"));
    }
    let trial_ms = plan.schedule.trial_us / 1000;
    let mut is_first = true;
    for block in 0..plan.schedule.blocks {
        let of_round = |round: &Round| -> Vec<(&str, usize)> {
            let kinds = [
                ("timed", &round.timed),
                ("profiled", &round.profiled),
                ("hardware counters", &round.hardware_counters),
            ];
            let all = kinds
                .iter()
                .flat_map(|(kind, variants)| variants.iter().map(|variant| (*kind, *variant)));
            let place = (block, round.condition);
            let ended = earlier
                .iter()
                .filter(|it| (it.block, it.condition) == place);
            let ended = ended.count();
            // A pair must not span the pause.
            all.skip(if ended < round.timed.len() { 0 } else { ended })
                .collect()
        };
        let rounds = plan.block(block);
        if rounds.iter().all(|round| of_round(round).is_empty()) {
            continue;
        }
        if !std::mem::take(&mut is_first) {
            entries.extend((0..plan.servers.len()).map(|it| format!("restart server {it}")));
        }
        entries.push("open observer".to_owned());
        for round in &rounds {
            let trials = of_round(round);
            if trials.is_empty() {
                continue;
            }
            for &variant in &round.warm_up {
                let clients = plan.conditions[round.condition].clients;
                entries.push(format!("{}: connect {clients} clients", of(variant)));
                let window = plan.schedule.warm_up_window_us / 1000;
                let warm_up = format!("{}: warm up {window} ms", of(variant));
                // Throughput is stable once three windows agree.
                entries.extend(std::iter::repeat_n(warm_up, 3));
            }
            for (kind, variant) in trials {
                entries.push(format!("server {}: truncate t", server(variant)));
                entries.push(format!("{}: watch, {kind}", of(variant)));
                entries.push(format!("{}: trial {trial_ms} ms", of(variant)));
                entries.push(format!("{}: finish watch", of(variant)));
            }
            entries.extend((0..plan.variants.len()).map(|it| format!("{}: disconnect", of(it))));
        }
    }
    entries.extend((0..plan.servers.len()).map(|it| format!("stop server {it}")));
    entries
}

fn is_tear_down(entry: &str) -> bool {
    ["disconnect", "abandon watch", "stop server"]
        .iter()
        .any(|end| entry.contains(end))
}

/// What is open after these entries: servers, connected clients, watches.
fn open(entries: &[String]) -> Vec<String> {
    let mut open: Vec<String> = Vec::new();
    for entry in entries {
        if let Some(server) = entry.strip_prefix("start server ") {
            open.push(format!("server {server}"));
        } else if let Some(server) = entry.strip_prefix("stop server ") {
            open.retain(|it| *it != format!("server {server}"));
        } else if let Some((variant, rest)) = entry.split_once(": ") {
            if rest.starts_with("connect ") {
                open.push(format!("clients {variant}"));
            } else if rest == "disconnect" {
                open.retain(|it| *it != format!("clients {variant}"));
            } else if rest.starts_with("watch, ") {
                open.push(format!("watch {variant}"));
            } else if rest == "finish watch" || rest == "abandon watch" {
                open.retain(|it| *it != format!("watch {variant}"));
            }
        }
    }
    open
}

#[test]
fn set_up_warm_up_trials_resets_and_tear_down_come_in_the_planned_order() {
    for variants in [2, 5] {
        let study = study(variants);
        let plan = planned(&study);
        let journal = Journal::default();
        let outcome = run(&study, &plan, &journal, &Interrupt::default()).expect("nothing fails");
        assert_eq!(journal.entries(), expected(&plan));
        assert_eq!(outcome.trials.len() as u64, plan.trials());
        assert!(outcome.ended_early.is_none());
        let starts: Vec<u32> = outcome.trials.iter().map(|it| it.server_start).collect();
        assert!(starts.is_sorted() && starts.last() == Some(&1));
    }
}

/// Runs the plan once per entry of its journal, with a fault there. Returns the number of runs.
fn sweep(
    variants: usize,
    fault: impl Fn(&Interrupt) -> FakeFault,
    check: impl Fn(&Sweep<'_>),
) -> usize {
    let study = study(variants);
    let plan = planned(&study);
    let clean = expected(&plan);
    for at in 0..clean.len() {
        // Nothing fails while it is torn down.
        if is_tear_down(&clean[at]) {
            continue;
        }
        let interrupt = Interrupt::default();
        let fault = fault(&interrupt);
        let step_fails = !matches!(fault, FakeFault::Stop(_));
        let journal = Journal::with_fault(at, fault);
        let result = run(&study, &plan, &journal, &interrupt);
        let mut entries = journal.entries();
        let case = format!("fault at {at}, \"{}\"", clean[at]);
        assert_eq!(entries[..=at], clean[..=at], "{case}");
        let after = entries[at + 1..].to_vec();
        let finished = entries[..at]
            .iter()
            .filter(|it| it.ends_with("finish watch"));
        let trials_before = finished.count();
        // A step that failed has opened nothing, and has ended nothing either.
        if step_fails && !clean[at].ends_with("finish watch") {
            entries.remove(at);
        }
        let left = open(&entries);
        assert!(left.is_empty(), "{case}: {left:?} left");
        check(&Sweep {
            case: &case,
            after: &after,
            trials_before,
            result,
        });
    }
    clean.len()
}

struct Sweep<'a> {
    case: &'a str,
    /// The entries after the fault.
    after: &'a [String],
    /// Trials that had ended before it.
    trials_before: usize,
    result: anyhow::Result<Outcome>,
}

impl Sweep<'_> {
    /// The trials that are returned, and why the run ended.
    fn trials_and_reason(&self) -> (usize, &anyhow::Error) {
        match &self.result {
            Ok(outcome) => {
                let reason = outcome.ended_early.as_ref();
                (outcome.trials.len(), reason.expect("the run ended early"))
            }
            Err(error) => (0, error),
        }
    }
}

#[test]
fn a_death_or_a_timeout_at_any_step_is_named_and_keeps_the_trials_before_it() {
    for variants in [2, 5] {
        for fault in [FakeFault::Death, FakeFault::Timeout] {
            sweep(
                variants,
                |_| fault.clone(),
                |sweep| {
                    let case = sweep.case;
                    assert!(sweep.after.iter().all(|it| is_tear_down(it)), "{case}");
                    let (trials, reason) = sweep.trials_and_reason();
                    assert_eq!(trials, sweep.trials_before, "{case}");
                    assert!(!reason.is::<Interrupted>(), "{case}");
                    // A server that fails to start says so itself.
                    if matches!(fault, FakeFault::Death) && !case.contains("\"start server") {
                        assert!(format!("{reason:#}").contains("died"), "{case}: {reason:#}");
                    }
                },
            );
        }
    }
}

#[test]
fn a_stop_at_any_step_starts_no_further_load_and_leaves_nothing() {
    for variants in [2, 5] {
        sweep(
            variants,
            |interrupt| FakeFault::Stop(interrupt.clone()),
            |sweep| {
                let case = sweep.case;
                let is_load = |it: &String| {
                    [
                        ": warm up",
                        ": trial",
                        ": connect",
                        "start server",
                        "restart server",
                    ]
                    .iter()
                    .any(|part| it.contains(part))
                };
                assert!(
                    !sweep.after.iter().any(is_load),
                    "{case}: {:?}",
                    sweep.after
                );
                // The step in which the stop was requested may be the last of its trial.
                let is_last = sweep.case.contains("finish watch");
                let (trials, reason) = match &sweep.result {
                    // The very last step of the run: nothing is missing.
                    Ok(outcome) if outcome.ended_early.is_none() => {
                        assert!(
                            is_last && sweep.after.iter().all(|it| is_tear_down(it)),
                            "{case}"
                        );
                        return;
                    }
                    _ => sweep.trials_and_reason(),
                };
                assert!(reason.is::<Interrupted>(), "{case}: {reason:#}");
                assert_eq!(trials, sweep.trials_before + usize::from(is_last), "{case}");
            },
        );
    }
}

/// What a program saves of a run, and the servers' facts.
#[derive(Default)]
struct Saved {
    trials: RefCell<Vec<Trial>>,
    /// Each with the number of trials saved before it.
    details: RefCell<Vec<(usize, RunDetail)>>,
    servers: RefCell<Vec<ServerFacts>>,
}

impl EventSink for Saved {
    fn event(&self, event: &LabEvent<'_>) {
        match event {
            LabEvent::TrialEnded(trial) => self.trials.borrow_mut().push((*trial).clone()),
            LabEvent::Detail(detail) => {
                let before = self.trials.borrow().len();
                self.details.borrow_mut().push((before, (*detail).clone()));
            }
            LabEvent::ServersStarted(servers) => *self.servers.borrow_mut() = servers.to_vec(),
            _ => {}
        }
    }
}

impl Saved {
    /// What is on disk if the process is killed after this many trials.
    fn after(&self, trials: usize) -> EarlierResults {
        let details = self.details.borrow();
        let before = details.iter().filter(|(before, _)| *before <= trials);
        EarlierResults {
            trials: self.trials.borrow()[..trials].to_vec(),
            details: before.map(|(_, detail)| detail.clone()).collect(),
            servers: self.servers.borrow().clone(),
        }
    }
}

/// A scheduler that records what it is given.
struct RecordingScheduler<'a> {
    blocks: FixedBlocks<'a>,
    ended: Vec<Vec<TrialIdentity>>,
}

impl Scheduler for RecordingScheduler<'_> {
    fn next_block(&mut self) -> Option<Block> {
        self.blocks.next_block()
    }

    fn block_ended(&mut self, trials: &[Trial]) {
        self.ended.push(identities(trials));
    }

    fn blocks_max(&self) -> u32 {
        self.blocks.blocks_max()
    }
}

type TrialIdentity = (u32, usize, usize, u32, TrialKind);

fn identities(trials: &[Trial]) -> Vec<TrialIdentity> {
    let identity = |it: &Trial| (it.block, it.condition, it.variant, it.position, it.kind);
    trials.iter().map(identity).collect()
}

/// Continues a run on fake equipment. Returns the outcome, the journal, and what the scheduler was given.
fn resume(
    study: &LoadedStudy,
    plan: &Plan,
    earlier: EarlierResults,
    events: &dyn EventSink,
) -> (
    anyhow::Result<Outcome>,
    Vec<String>,
    Vec<Vec<TrialIdentity>>,
) {
    let journal = Journal::default();
    let mut equipment = FakeEquipment::recording(&journal);
    equipment.has_hardware_counters = true;
    let mut laboratory = Laboratory {
        context: RunContext {
            study,
            options: &ServerOptions::default(),
            interrupt: &Interrupt::default(),
            events,
        },
        equipment: &mut equipment,
    };
    let mut scheduler = RecordingScheduler {
        blocks: FixedBlocks::of(plan),
        ended: Vec::new(),
    };
    let outcome = laboratory.resume(plan, &mut scheduler, earlier);
    (outcome, journal.entries(), scheduler.ended)
}

#[test]
fn a_run_continues_after_any_trial_with_all_trials_and_none_twice() {
    for variants in [2, 3] {
        let study = study(variants);
        let plan = planned(&study);
        let saved = Saved::default();
        let (clean, _, ended) = resume(&study, &plan, EarlierResults::default(), &saved);
        let clean = clean.expect("nothing fails").trials;
        assert_eq!(clean.len() as u64, plan.trials());
        for kept in 0..=clean.len() {
            let case = format!("{variants} variants, killed after {kept} trials");
            let (outcome, journal, ended_after) =
                resume(&study, &plan, saved.after(kept), &NoEvents);
            let outcome = outcome.expect("nothing fails");
            assert_eq!(journal, expected_after(&plan, &clean[..kept]), "{case}");
            assert_eq!(identities(&outcome.trials), identities(&clean), "{case}");
            // The scheduler comes to the same state as in a run that was not killed.
            assert_eq!(ended_after, ended, "{case}");
            assert!(
                outcome.ended_early.is_none() && outcome.warnings.is_empty(),
                "{case}"
            );

            let earlier = &clean[..kept];
            let highest = earlier.iter().map(|it| it.server_start).max();
            for (now, before) in outcome.trials.iter().zip(&clean) {
                let is_kept = now.started_us == before.started_us;
                let is_new = highest.is_none_or(|highest| now.server_start > highest);
                assert!(is_new || is_kept, "{case}: a server start has one number");
            }
            let starts: Vec<u32> = outcome.trials.iter().map(|it| it.server_start).collect();
            assert!(starts.is_sorted(), "{case}: {starts:?}");
            for block in 0..plan.schedule.blocks {
                let timed = outcome
                    .trials
                    .iter()
                    .filter(|it| it.kind == TrialKind::Timed);
                let mut starts: Vec<_> = timed
                    .filter(|it| it.block == block)
                    .map(|it| (it.condition, it.server_start))
                    .collect();
                starts.dedup();
                assert_eq!(starts.len(), plan.conditions.len(), "{case}: {starts:?}");
            }
        }
    }
}

#[test]
fn a_run_that_is_killed_after_every_block_ends_with_one_server_start_for_each() {
    let study = study(2);
    let plan = planned(&study);
    let mut earlier = EarlierResults::default();
    for block in 0..plan.schedule.blocks {
        let saved = Saved::default();
        let (outcome, ..) = resume(&study, &plan, earlier, &saved);
        let trials = outcome.expect("nothing fails").trials;
        let starts: Vec<u32> = trials.iter().map(|it| it.server_start).collect();
        assert_eq!(
            starts.last(),
            Some(&(plan.schedule.blocks - 1)),
            "{starts:?}"
        );
        // As if it had been killed at the end of this block.
        earlier = EarlierResults {
            trials: trials.into_iter().filter(|it| it.block <= block).collect(),
            ..saved.after(0)
        };
    }
}

#[test]
fn a_run_is_not_continued_on_another_build_or_with_trials_of_another_plan() {
    let study = study(2);
    let plan = planned(&study);
    let saved = Saved::default();
    let (clean, ..) = resume(&study, &plan, EarlierResults::default(), &saved);
    let clean = clean.expect("nothing fails").trials;
    let mut other = saved.after(4);
    other.servers[1].version = "17.0".to_owned();
    let (refused, journal, _) = resume(&study, &plan, other, &NoEvents);
    let words = refused.expect_err("another version").to_string();
    assert!(words.contains("version 18.0, was 17.0"), "{words}");
    assert!(
        !journal.iter().any(|it| it.contains("connect")),
        "{journal:?}"
    );
    assert_eq!(open(&journal), Vec::<String>::new());

    let mut other = saved.after(4);
    other.trials[2].variant = 1 - clean[2].variant;
    let (outcome, journal, _) = resume(&study, &plan, other, &NoEvents);
    let words = outcome.expect_err("another plan").to_string();
    assert!(words.contains("trial 3 of block 1"), "{words}");
    assert!(
        !journal.iter().any(|it| it.contains("connect")),
        "{journal:?}"
    );
}

#[test]
fn profiles_that_were_not_saved_are_counted() {
    let study = study(2);
    let plan = planned(&study);
    let saved = Saved::default();
    let (clean, ..) = resume(&study, &plan, EarlierResults::default(), &saved);
    let trials = clean.expect("nothing fails").trials.len();
    let mut earlier = saved.after(trials);
    earlier.details.truncate(1);
    let (outcome, ..) = resume(&study, &plan, earlier, &NoEvents);
    let warnings = outcome.expect("nothing fails").warnings;
    assert_eq!(warnings[0].kind, WarningKind::ProfileQuality);
    let profiled = 2 * plan.schedule.blocks;
    let words = format!(
        "the profiles of {} of the {profiled} profiled",
        profiled - 1
    );
    assert!(
        warnings[0].message.starts_with(&words),
        "{}",
        warnings[0].message
    );
}
