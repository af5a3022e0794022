//! Runs that are continued: found, locked, read, and finished under their name.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use pgassay_model::detail::{RunDetail, TrialDetail, TrialKey, UnsteadyWarmUp};
use pgassay_model::plan::Overrides;
use pgassay_model::trial::{Trial, TrialKind};
use pgassay_record::run::{Run, ServerFacts};
use pgassay_store::{MachineIdentity, RunOrigin, RunStart, RunWriter, Store, StoreError};

use crate::fixture::{ID, STUDY, names, run, start, store};

/// The start of a run that can be continued.
fn resumable() -> RunStart {
    RunStart {
        origin: Some(Box::new(RunOrigin {
            study: run(ID).study,
            study_file: "s.toml".to_owned(),
            overrides: Overrides {
                length: Some("90s".parse().unwrap()),
                seed: 7,
                ..Overrides::default()
            },
            seed: Some(7),
            machine: MachineIdentity {
                name: "a CPU, 2 CPUs".to_owned(),
                key: "0123".to_owned(),
                kernel: "6.12".to_owned(),
            },
            cache: Some("/cache".to_owned()),
            run_as: None,
            data_parent: None,
            counted: false,
            try_fixes: true,
            warnings: Vec::new(),
        })),
        ..start()
    }
}

/// A trial of a process that measured at this time.
fn trial(block: u32, condition: usize, position: u32, started_us: i64) -> Trial {
    Trial {
        block,
        condition,
        position,
        started_us,
        transactions: 100,
        ..Trial::empty(TrialKind::Timed)
    }
}

fn detail(trial: &Trial) -> RunDetail {
    RunDetail::Trial(Box::new(TrialDetail {
        trial: TrialKey::of(trial),
        profile: None,
        statements: Vec::new(),
    }))
}

fn finished(trials: &[Trial], complete: bool) -> Run {
    Run {
        trials: trials.to_vec(),
        complete,
        ..run(ID)
    }
}

fn servers() -> Vec<ServerFacts> {
    vec![ServerFacts {
        version: "18.1".to_owned(),
        origin: "cache".to_owned(),
        configure: String::new(),
        cflags: String::new(),
        compiler: String::new(),
        executable: None,
        settings: [("jit".to_owned(), "off".to_owned())].into(),
    }]
}

fn append_text(path: &Path, text: &str) {
    let mut file = OpenOptions::new().append(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

/// A run with three trials whose process was killed while it wrote.
fn killed(store: &Store) -> [Trial; 3] {
    let mut writer = store.create(resumable(), STUDY).unwrap();
    writer.servers_started(&servers()).unwrap();
    let trials = [trial(0, 0, 0, 1), trial(0, 0, 1, 2), trial(0, 0, 2, 3)];
    for trial in &trials {
        writer.append_detail(&detail(trial)).unwrap();
        writer.append(trial).unwrap();
    }
    writer.sync().unwrap();
    let directory = writer.directory().to_owned();
    drop(writer);
    append_text(&directory.join("trials.jsonl"), "{\"block\":0,\"cond");
    append_text(&directory.join("details.jsonl"), "{\"trial\":{\"tr");
    trials
}

/// Regression: the sum of a forged number and others ended `resume` with a panic, after it had measured the rest.
#[test]
fn a_trial_with_a_number_that_no_run_has_is_damaged() {
    let (_root, store) = store();
    killed(&store);
    let path = store.root().join(ID).join("trials.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    for (number, forged) in [
        (
            "\"transactions\":100",
            "\"transactions\":18446744073709551615",
        ),
        // The next process continued with the number after it.
        ("\"server_start\":0", "\"server_start\":4294967295"),
    ] {
        let forged = text.replacen(number, forged, 1);
        assert_ne!(forged, text);
        fs::write(&path, forged).unwrap();
        let error = store.reopen(ID).unwrap_err();
        let is_damaged = matches!(error, StoreError::Damaged { line: 3, .. });
        assert!(is_damaged, "{error}");
    }
}

/// Regression: users who may write to the directory decided what is executed, with the rights of the user who resumes.
#[test]
fn a_run_that_others_can_have_written_is_not_continued() {
    let (_root, store) = store();
    killed(&store);
    let at = |name: &str| store.root().join(name);
    let allow = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let trials = format!("{ID}/trials.jsonl");
    for (name, mode, before) in [
        (ID, 0o770, 0o700),
        (&*trials, 0o622, 0o600),
        ("", 0o777, 0o700),
    ] {
        allow(&at(name), mode);
        let error = store.reopen(ID).unwrap_err();
        assert!(matches!(error, StoreError::OfOthers { .. }), "{error}");
        let error = store.find_unfinished(None).unwrap_err();
        assert!(
            matches!(error, StoreError::NoneUnfinished { .. }),
            "{error}"
        );
        assert!(!store.list().unwrap()[0].resumable);
        allow(&at(name), before);
    }
    fs::rename(at(ID), at("elsewhere")).unwrap();
    std::os::unix::fs::symlink("elsewhere", at(ID)).unwrap();
    assert!(matches!(store.reopen(ID), Err(StoreError::OfOthers { .. })));
    fs::remove_file(at(ID)).unwrap();
    fs::rename(at("elsewhere"), at(ID)).unwrap();
    // In a directory as /tmp, others cannot replace it.
    allow(&at(""), 0o1777);
    assert_eq!(store.reopen(ID).unwrap().unfinished.trials.len(), 3);
}

#[test]
fn a_killed_run_is_continued_and_finished_under_its_name() {
    let (_root, store) = store();
    let trials = killed(&store);
    let lines = store.list().unwrap();
    assert!(lines[0].unfinished && lines[0].resumable);
    assert_eq!(lines[0].headline, "(unfinished) 3 trials saved, no result");
    let error = store.load(ID).unwrap_err().to_string();
    // Regression: with `--results`, `pgassay resume ID` did not find the run.
    let path = store.root().join(ID);
    let resume = format!("pgassay resume {}", path.display());
    assert!(error.ends_with(&resume), "{error}");
    // Regression: by its path, it was said to contain no run.
    let of_path = store.load(path.to_str().unwrap()).unwrap_err();
    assert_eq!(of_path.to_string(), error);
    // Regression: a run that was moved elsewhere was said to be none.
    let other = Store::open(&store.root().join("other")).unwrap();
    let elsewhere = other.find_unfinished(path.to_str()).unwrap_err();
    assert!(
        matches!(elsewhere, StoreError::Elsewhere { .. }),
        "{elsewhere}"
    );

    assert_eq!(store.find_unfinished(None).unwrap(), ID);
    let mut reopened = store.reopen(ID).unwrap();
    assert_eq!(reopened.unfinished.start, resumable());
    assert_eq!(reopened.unfinished.trials, trials);
    assert_eq!(reopened.unfinished.servers, servers());
    assert!(!reopened.unfinished.is_running);
    assert_eq!(reopened.details, trials.each_ref().map(detail));
    assert_eq!(reopened.study_text, STUDY);

    // It is locked meanwhile.
    let error = store.reopen(ID).unwrap_err();
    assert!(matches!(error, StoreError::Running { .. }), "{error}");
    let error = store.find_unfinished(None).unwrap_err();
    assert!(matches!(error, StoreError::Running { .. }), "{error}");
    let lines = store.list().unwrap();
    assert!(lines[0].unfinished && !lines[0].resumable);

    // The incomplete lines are gone, and the next ones follow the complete ones.
    let writer = &mut reopened.writer;
    writer.resumed(9).unwrap();
    let fourth = trial(0, 0, 3, 10);
    writer.append_detail(&detail(&fourth)).unwrap();
    writer.append(&fourth).unwrap();
    let all = [&trials[..], &[fourth]].concat();
    let found = store.unfinished(ID).unwrap();
    assert_eq!(found.trials, all);
    assert_eq!((found.resumed, found.repeated), (1, 0));
    assert_eq!(reopened.writer.trials(), 4);

    let result = finished(&all, true);
    let directory = reopened.writer.finish(&result, &[]).unwrap();
    assert_eq!(names(&directory), ["run.json", "study.toml"]);
    assert_eq!(store.load(ID).unwrap().0, result);
    for wanted in [ID, "last", "2026", directory.to_str().unwrap()] {
        let error = store.find_unfinished(Some(wanted)).unwrap_err();
        let expected = format!("run \"{ID}\" is finished: there is nothing to continue");
        assert_eq!(error.to_string(), expected, "{wanted}");
    }
    let error = store.reopen(ID).unwrap_err();
    assert!(matches!(error, StoreError::Finished { .. }), "{error}");
    let error = store.find_unfinished(None).unwrap_err();
    assert!(
        matches!(error, StoreError::NoneUnfinished { .. }),
        "{error}"
    );
}

fn append_all(writer: &mut RunWriter, trials: &[Trial]) {
    for trial in trials {
        writer.append(trial).unwrap();
    }
}

#[test]
fn a_repeated_round_replaces_the_trials_of_an_earlier_process() {
    let (_root, store) = store();
    killed(&store);
    let other = [trial(0, 1, 0, 4), trial(0, 1, 1, 5)];
    let mut first = store.reopen(ID).unwrap().writer;
    append_all(&mut first, &other);
    drop(first);

    let mut second = store.reopen(ID).unwrap().writer;
    second.resumed(10).unwrap();
    let repeated = [trial(0, 0, 0, 11), trial(0, 0, 1, 12)];
    append_all(&mut second, &repeated[..1]);
    // Killed in the middle of the repetition: what it has repeated so far does not mix with the rest.
    let found = store.unfinished(ID).unwrap();
    assert_eq!(found.trials, [&other[..], &repeated[..1]].concat());
    append_all(&mut second, &repeated[1..]);
    drop(second);

    // A trial in a place where none was measured leaves the others of its round.
    let mut third = store.reopen(ID).unwrap().writer;
    third.resumed(20).unwrap();
    let more = trial(0, 1, 2, 21);
    third.append(&more).unwrap();
    let found = store.unfinished(ID).unwrap();
    let expected = [&other[..], &repeated, &[more]].concat();
    assert_eq!(found.trials, expected);
    assert_eq!((found.resumed, found.repeated), (2, 3));
    let line = &store.list().unwrap()[0];
    assert_eq!(line.headline, "(running) 5 trials saved");
}

#[test]
fn a_run_that_ended_early_keeps_its_trials_and_can_be_continued() {
    let (_root, store) = store();
    let mut writer = store.create(resumable(), STUDY).unwrap();
    let trials = [trial(0, 0, 0, 1), trial(0, 0, 1, 2)];
    writer.append(&trials[0]).unwrap();
    let unsteady = RunDetail::NotSteady(UnsteadyWarmUp {
        condition: 0,
        variant: 1,
        block: 0,
    });
    writer.append_detail(&unsteady).unwrap();
    let report = |text: &str| [("report.html".to_owned(), text.as_bytes().to_vec())];
    let partial = finished(&trials[..1], false);
    let directory = writer.finish(&partial, &report("partial")).unwrap();
    let expected = [
        "details.jsonl",
        "report.html",
        "run.json",
        "study.toml",
        "trials.jsonl",
    ];
    assert_eq!(names(&directory), expected);
    let line = &store.list().unwrap()[0];
    assert!(!line.unfinished && !line.complete && line.resumable);
    assert!(
        line.headline.starts_with("(incomplete) "),
        "{}",
        line.headline
    );
    assert_eq!(store.load(ID).unwrap().0, partial);

    assert_eq!(store.find_unfinished(Some(ID)).unwrap(), ID);
    let reopened = store.reopen(ID).unwrap();
    assert_eq!(reopened.unfinished.trials, trials[..1]);
    assert_eq!(reopened.details, [unsteady]);
    let mut writer = reopened.writer;
    writer.resumed(9).unwrap();
    writer.append(&trials[1]).unwrap();
    let complete = finished(&trials, true);
    writer.finish(&complete, &report("complete")).unwrap();
    assert_eq!(names(&directory), ["report.html", "run.json", "study.toml"]);
    let text = fs::read_to_string(directory.join("report.html")).unwrap();
    assert_eq!(text, "complete");
    assert_eq!(store.load(ID).unwrap().0, complete);
    let lines = store.list().unwrap();
    assert_eq!(lines.len(), 1);
    assert!(lines[0].complete && !lines[0].resumable);
    assert!(
        !lines[0].headline.contains("incomplete"),
        "the index has the new result"
    );
}

#[test]
fn a_damaged_line_in_the_middle_is_an_error_and_nothing_is_cut_off() {
    let (_root, store) = store();
    killed(&store);
    let path = store.root().join(ID).join("trials.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let damaged = text.replacen("\"position\":1", "\"position\":?", 1);
    fs::write(&path, &damaged).unwrap();
    let error = store.reopen(ID).unwrap_err();
    assert!(
        matches!(error, StoreError::Damaged { line: 4, .. }),
        "{error}"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), damaged);
}

/// Regression: `list` removed a run from yesterday if the lines after its first could not be read.
#[test]
fn an_unfinished_run_whose_trials_cannot_be_read_is_not_removed() {
    let (_root, store) = store();
    killed(&store);
    let directory = store.root().join(ID);
    let path = directory.join("trials.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let (first, _) = text.split_once('\n').unwrap();
    let age = || {
        let old = std::time::SystemTime::now() - std::time::Duration::from_hours(25);
        let opened = fs::File::open(&directory).unwrap();
        opened.set_modified(old).unwrap();
        Store::open(store.root()).unwrap();
        directory.exists()
    };
    let markers = "{\"resumed\":{\"at_us\":1}}\n";
    for kept in [
        format!("{first}\n{{\"of a later version\":1}}\n"),
        format!("{first}\n{{\"block\":0,\"cond"),
        format!("{first}\n").replace("pgassay.trials/1", "pgassay.trials/9"),
    ] {
        fs::write(&path, &kept).unwrap();
        assert!(age(), "{}", &kept[first.len()..]);
    }
    fs::write(&path, format!("{first}\n{markers}")).unwrap();
    assert!(!age(), "one without trials is removed");
}

#[test]
fn without_a_name_the_newest_run_that_is_not_measured_is_continued() {
    let (_root, store) = store();
    killed(&store);
    let measured = store.create(resumable(), STUDY).unwrap();
    assert_eq!(measured.id(), format!("{ID}-2"));
    assert_eq!(store.find_unfinished(None).unwrap(), ID);
    assert_eq!(store.find_unfinished(Some("last")).unwrap(), measured.id());
    drop(measured);
    assert_eq!(store.find_unfinished(None).unwrap(), format!("{ID}-2"));
    let error = store.find_unfinished(Some("2025")).unwrap_err();
    assert!(matches!(error, StoreError::NotFound { .. }), "{error}");
    let error = store.find_unfinished(Some("20261121")).unwrap_err();
    assert!(matches!(error, StoreError::Ambiguous { .. }), "{error}");
}
