//! The order of set-up, warm-up, trials, resets, observation and tear-down, asserted exactly against a fake.

use std::fmt::Write as _;

use pgassay_lab::fake::{FakeEquipment, FakeFault, Journal};
use pgassay_lab::{
    FixedBlocks, Interrupt, Interrupted, Laboratory, LoadedStudy, NoEvents, Outcome, RunContext,
    ServerOptions,
};
use pgassay_model::plan::{Overrides, Plan, plan};
use pgassay_model::study::StudySource;

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
    let mut entries = Vec::new();
    let of = |variant: usize| plan.variants[variant].clone();
    let server = |variant: usize| plan.points[variant].server;
    for server in 0..plan.servers.len() {
        entries.push(format!("start server {server}"));
        entries.push(format!("server {server}: create postgres"));
        entries.push(format!("server {server}: create table t ()"));
    }
    let trial_ms = plan.schedule.trial_us / 1000;
    for block in 0..plan.schedule.blocks {
        if block > 0 {
            entries.extend((0..plan.servers.len()).map(|it| format!("restart server {it}")));
        }
        entries.push("open observer".to_owned());
        for round in plan.block(block) {
            for &variant in &round.warm_up {
                let clients = plan.conditions[round.condition].clients;
                entries.push(format!("{}: connect {clients} clients", of(variant)));
                let window = plan.schedule.warm_up_window_us / 1000;
                let warm_up = format!("{}: warm up {window} ms", of(variant));
                // Throughput is stable once three windows agree.
                entries.extend(std::iter::repeat_n(warm_up, 3));
            }
            let kinds = [
                ("timed", &round.timed),
                ("profiled", &round.profiled),
                ("hardware counters", &round.hardware_counters),
            ];
            for (kind, variants) in kinds {
                for &variant in variants {
                    entries.push(format!("server {}: truncate t", server(variant)));
                    entries.push(format!("{}: watch, {kind}", of(variant)));
                    entries.push(format!("{}: trial {trial_ms} ms", of(variant)));
                    entries.push(format!("{}: finish watch", of(variant)));
                }
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
