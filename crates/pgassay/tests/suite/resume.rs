//! Runs that are killed, stopped or fail are continued to the same result as others.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use pgassay_model::detail::{RunDetail, TrialKey};
use pgassay_model::plan::{Plan, PointId};
use pgassay_model::trial::{Trial, TrialKind};
use pgassay_record::run::{Run, WarningKind};
use pgassay_server::ServerConfig;
use pgassay_store::{Store, UnfinishedRun};
use pgassay_test_support::os::kill;
use pgassay_test_support::{
    Finished, SMALL_STUDY, Scratch, collapse_whitespace, sampling_is_permitted, servers,
    wait_for_exit, wait_within,
};

use crate::PROGRAM;

/// A study of 36 trials in 6 rounds, with 2 server starts.
fn study() -> String {
    SMALL_STUDY
        .replace("clients = [2]", "clients = [1, 2]")
        .replace("pairs = 2", "pairs = 3\nrestart_every = 2")
}

/// Starts the program without waiting for anything.
pub fn start(scratch: &Scratch, arguments: &[&str]) -> Child {
    let stderr = fs::File::create(scratch.path().join("stderr")).expect("a file");
    let child = scratch.command().args(arguments).stderr(stderr).spawn();
    child.expect("the program runs")
}

fn store(scratch: &Scratch) -> Store {
    Store::open(&scratch.results()).expect("a store")
}

/// The directory of the only run.
fn directory(scratch: &Scratch) -> Option<PathBuf> {
    let entries = fs::read_dir(scratch.results()).ok()?.flatten();
    entries
        .map(|entry| entry.path())
        .find(|path| path.join("study.toml").exists())
}

fn id(scratch: &Scratch) -> String {
    let directory = directory(scratch).expect("there is a run");
    let name = directory.file_name().expect("a name").to_string_lossy();
    name.into_owned()
}

/// What the only run has saved; `None` before it has begun.
fn saved(scratch: &Scratch) -> Option<UnfinishedRun> {
    let directory = directory(scratch)?;
    let name = directory.file_name()?.to_str()?;
    store(scratch).unfinished(name).ok()
}

/// Waits until this many trials count, and kills the program. Returns what was saved.
pub fn kill_after(scratch: &Scratch, mut child: Child, trials: usize) -> UnfinishedRun {
    wait_within("trials are saved", Duration::from_mins(2), || {
        let has_ended = child.try_wait().expect("our child").is_some();
        assert!(!has_ended, "it ended: {}", scratch.stderr());
        saved(scratch).is_some_and(|it| it.trials.len() >= trials)
    });
    child.kill().expect("the process runs");
    assert_eq!(wait_for_exit(&mut child, Duration::from_mins(1)), None);
    saved(scratch).expect("it has begun")
}

pub fn stored(scratch: &Scratch) -> Run {
    let path = directory(scratch).expect("a run").join("run.json");
    let text = fs::read_to_string(path).expect("the run has a result");
    serde_json::from_str(&text).expect("run.json is JSON")
}

type Place = (u32, usize, u32, usize);

fn place(trial: &Trial) -> Place {
    (trial.block, trial.condition, trial.position, trial.variant)
}

/// The places of all timed and profiled trials of a plan.
fn planned(plan: &Plan) -> BTreeSet<Place> {
    let mut places = BTreeSet::new();
    for block in 0..plan.schedule.blocks {
        for round in plan.block(block) {
            let variants = round.timed.iter().chain(&round.profiled);
            let of_round = (0..).zip(variants);
            places.extend(of_round.map(|(at, variant)| (block, round.condition, at, *variant)));
        }
    }
    places
}

/// Checks that the result has every trial once, and its ratios are those of its trials.
fn assert_whole(run: &Run) {
    assert!(run.complete);
    let of_answer = |it: &&Trial| it.kind != TrialKind::HardwareCounters;
    let places: Vec<Place> = run.trials.iter().filter(of_answer).map(place).collect();
    let distinct: BTreeSet<Place> = places.iter().copied().collect();
    assert_eq!(distinct, planned(&run.plan));
    assert_eq!(places.len(), distinct.len(), "none twice");
    for comparison in &run.comparisons {
        let rate = |variant: usize, block: u32| {
            let trials = run.trials.iter().filter(|it| {
                it.kind == TrialKind::Timed
                    && (it.condition, it.variant, it.block)
                        == (comparison.condition, variant, block)
            });
            let trials: Vec<&Trial> = trials.collect();
            assert_eq!(trials.len(), run.plan.schedule.timed() as usize);
            let sum = |of: fn(&Trial) -> f64| trials.iter().map(|it| of(it)).sum::<f64>();
            sum(Trial::credited_or_counted) / sum(|it| it.window_us)
        };
        for (block, ratio) in (0..).zip(&comparison.tps.by_pair) {
            let expected = rate(comparison.variant, block) / rate(0, block);
            assert!(
                (ratio / expected - 1.0).abs() < 1e-9,
                "{ratio} and {expected}"
            );
        }
        assert_eq!(
            comparison.tps.by_pair.len() as u32,
            run.plan.schedule.blocks
        );
    }
}

/// The trials of rounds whose timed trials had all ended: they must be in the result.
fn of_whole_rounds(saved: &UnfinishedRun) -> Vec<Trial> {
    let timed_in = |trial: &Trial| {
        let same = |it: &&Trial| {
            (it.block, it.condition, it.kind) == (trial.block, trial.condition, TrialKind::Timed)
        };
        saved.trials.iter().filter(same).count()
    };
    let plan = &saved.start.plan;
    let all = plan.schedule.timed() as usize * plan.variants.len();
    let trials = saved.trials.iter().filter(|it| timed_in(it) == all);
    trials.cloned().collect()
}

/// Starts a gate with a variant that cannot run, and interrupts it after a trial.
fn interrupted_gate(scratch: &Scratch) {
    let more = "[[variant]]\nname = \"c\"\nrequires = { extension = \"no_such_extension\" }\n";
    fs::write(scratch.path().join("gate.toml"), study() + more).expect("a study");
    let limit = ["--fail-if", "slower > 90%", "--no-profile"];
    let mut child = start(
        scratch,
        &[&["gate", "--study", "gate.toml"], &limit[..]].concat(),
    );
    wait_within("a trial is saved", Duration::from_mins(1), || {
        saved(scratch).is_some_and(|it| !it.trials.is_empty())
    });
    kill(child.id().cast_signed(), libc::SIGINT);
    let code = wait_for_exit(&mut child, Duration::from_mins(2));
    assert_eq!(code, Some(130), "{}", scratch.stderr());
}

#[test]
fn a_run_is_not_continued_elsewhere_or_with_another_study() {
    if !servers::is_available("18") {
        return;
    }
    let scratch = Scratch::new(PROGRAM);
    let long = study().replace("full = \"2s\"", "full = \"30s\"");
    let child = scratch.start(&long, &[]);
    let busy = scratch.finished(&["resume"]);
    assert_eq!(busy.code, Some(1), "{busy:?}");
    assert!(
        busy.error_message().contains("is still being measured"),
        "{busy:?}"
    );
    let before = kill_after(&scratch, child, 2);

    let directory = directory(&scratch).expect("a run");
    let now = before.start.plan.schedule.seed;
    let other_seed = (
        format!("\"seed\":{now},\"blocks_per"),
        format!("\"seed\":{},\"blocks_per", now + 1),
    );
    let machine = &before.start.origin.as_ref().expect("its origin").machine;
    let facts = &before.servers[0];
    let cases = [
        (
            "trials.jsonl",
            (
                format!("\"key\":\"{}\"", machine.key),
                "\"key\":\"0\"".to_owned(),
            ),
            "the machine's ID",
        ),
        (
            "trials.jsonl",
            (
                format!("\"kernel\":\"{}\"", machine.kernel),
                "\"kernel\":\"2.6\"".to_owned(),
            ),
            "was 2.6",
        ),
        (
            "trials.jsonl",
            (
                format!("\"compiler\":{:?}", facts.compiler),
                "\"compiler\":\"tcc\"".to_owned(),
            ),
            "was tcc",
        ),
        (
            "trials.jsonl",
            other_seed,
            "another plan: plan.schedule.seed is",
        ),
        (
            "study.toml",
            ("random(1, 10)".to_owned(), "random(1, 11)".to_owned()),
            "study.toml in its directory was changed",
        ),
    ];
    for (file, (from, to), words) in cases {
        let path = directory.join(file);
        let text = fs::read_to_string(&path).expect("a text file");
        assert!(text.contains(&from), "{file} contains {from}");
        fs::write(&path, text.replacen(&from, &to, 1)).expect("the file is written");
        let refused = scratch.finished(&["resume"]);
        assert_eq!(refused.code, Some(1), "{words}: {refused:?}");
        let message = refused.error_message();
        assert!(
            message.contains(words) && message.contains("start a new run"),
            "{refused:?}"
        );
        fs::write(&path, text).expect("the file is written");
        scratch.assert_nothing_left();
    }
    // Regression: `resume` took the user of the servers, and what a study may do, from a directory that may come from
    // someone else.
    let path = directory.join("trials.jsonl");
    let text = fs::read_to_string(&path).expect("a text file");
    let forged = text.replacen("\"run_as\":null", "\"run_as\":\"games\"", 1);
    assert_ne!(forged, text);
    fs::write(&path, forged).expect("the file is written");
    let refused = scratch.finished(&["resume"]);
    let command = format!("pgassay resume {} --run-as games\n", id(&scratch));
    assert!(refused.stderr.ends_with(&command), "{refused:?}");
    fs::write(&path, text).expect("the file is written");
    let after = saved(&scratch).expect("the run is still there");
    assert_eq!(after, before);
}

/// Run by `.ci/run`, not by a plain `cargo test`.
mod slow {
    use super::*;

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_run_that_was_stopped_with_ctrl_c_is_continued() {
        if !servers::is_available("18") {
            return;
        }
        let scratch = Scratch::new(PROGRAM);
        let mut child = scratch.start(&study(), &[]);
        wait_within("a trial is saved", Duration::from_mins(1), || {
            saved(&scratch).is_some_and(|it| !it.trials.is_empty())
        });
        kill(child.id().cast_signed(), libc::SIGINT);
        let code = wait_for_exit(&mut child, Duration::from_mins(2));
        assert_eq!(code, Some(130), "{}", scratch.stderr());
        let id = id(&scratch);
        let hint = format!("saved as {id}; to continue: pgassay resume {id}");
        assert!(scratch.stderr().contains(&hint), "{}", scratch.stderr());
        let partial = stored(&scratch);
        assert!(!partial.complete && !partial.trials.is_empty());
        let list = scratch.finished(&["list"]).stdout;
        assert!(
            list.contains("(incomplete)") && list.contains("pgassay resume"),
            "{list}"
        );

        let resumed = scratch.finished(&["resume", &id[..15], "--json"]);
        assert_eq!(resumed.code, Some(0), "{resumed:?}");
        let run: Run = serde_json::from_str(&resumed.stdout).expect("JSON on stdout alone");
        assert_whole(&run);
        assert_eq!((run.id.as_str(), &run), (id.as_str(), &stored(&scratch)));
        let incomplete = run
            .warnings
            .iter()
            .find(|it| it.kind == WarningKind::Incomplete);
        assert_eq!(incomplete, None);
        assert_eq!(scratch.kept().len(), 1);
        let list = scratch.finished(&["list"]).stdout;
        assert!(
            list.lines().count() == 1 && !list.contains("(incomplete)"),
            "{list}"
        );
        assert!(
            !directory(&scratch)
                .expect("a run")
                .join("trials.jsonl")
                .exists()
        );
        scratch.assert_nothing_left();
    }

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_run_that_is_killed_again_and_again_ends_with_every_trial_once() {
        if !servers::is_available("18") {
            return;
        }
        let scratch = Scratch::new(PROGRAM);
        let path = scratch.study(&study());
        let arguments = ["run", path.to_str().expect("a plain path"), "--seed", "7"];
        let mut child = start(&scratch, &arguments);
        let mut kept: Vec<Trial> = Vec::new();
        let mut details = Vec::new();
        let mut last_starts = Vec::new();
        // Before the first trial, in the first round, in a later one, and after a restart of the server.
        for trials in [0, 3, 14, 27] {
            let saved = kill_after(&scratch, child, trials);
            let whole = of_whole_rounds(&saved);
            assert!(kept.iter().all(|it| whole.contains(it)), "a trial was lost");
            last_starts.extend(whole.iter().map(|it| it.server_start).max());
            kept = whole;
            details = store(&scratch)
                .reopen(&id(&scratch))
                .expect("a killed run")
                .details;
            let list = scratch.finished(&["list"]).stdout;
            let hint = format!("pgassay resume {}", id(&scratch));
            assert!(
                list.contains("(unfinished) ") && list.contains(&hint),
                "{list}"
            );
            // The study of a run does not depend on the file any more.
            _ = fs::remove_file(&path);
            child = start(&scratch, &["resume"]);
        }
        let code = wait_for_exit(&mut child, Duration::from_mins(2));
        assert_eq!(code, Some(0), "{}", scratch.stderr());
        scratch.assert_nothing_left();

        let run = stored(&scratch);
        assert_whole(&run);
        assert!(kept.len() >= 24 && kept.iter().all(|it| run.trials.contains(it)));
        assert_eq!(run.plan.schedule.seed, 7);
        assert_eq!(run.trials[0].started_us, kept[0].started_us);
        assert!(run.started_us <= kept[0].started_us);
        // Every process has its own server starts.
        assert!(last_starts.is_sorted_by(|a, b| a < b), "{last_starts:?}");
        let starts: Vec<u32> = run.trials.iter().map(|it| it.server_start).collect();
        assert!(
            starts.is_sorted() && starts.last() > last_starts.last(),
            "{starts:?}"
        );
        let said: Vec<&str> = run.warnings.iter().map(|it| it.message.as_str()).collect();
        assert!(
            said.iter().any(|it| it.contains("continued 4 times")),
            "{said:?}"
        );
        assert!(
            !said.iter().any(|it| it.contains("could not be saved")),
            "{said:?}"
        );
        // What profiled trials gathered before a kill is in the profiles.
        let profiled = kept.iter().filter(|it| it.kind == TrialKind::Profiled);
        let mut samples = Vec::new();
        for trial in profiled {
            let key = TrialKey::of(trial);
            let of_trial = details.iter().find_map(|it| match it {
                RunDetail::Trial(detail) if detail.trial == key => Some(detail),
                _ => None,
            });
            let profile = &of_trial.expect("it was saved").profile;
            samples.extend(profile.as_ref().map(|profile| (key, profile.total())));
        }
        assert!(!samples.is_empty() || !sampling_is_permitted());
        for (key, expected) in samples {
            let point = PointId::new(key.condition, key.variant);
            let nodes = &run.profiles[run.plan.index_of(point)].nodes;
            let of_block = nodes.iter().map(|node| node.samples[key.block as usize]);
            assert_eq!(of_block.map(u64::from).sum::<u64>(), expected, "{key:?}");
        }

        let show = scratch.finished(&["show", "last"]);
        assert_eq!(show.code, Some(0), "{show:?}");
        assert!(show.stdout.starts_with("Is prepared faster?\n"), "{show:?}");
        assert!(
            collapse_whitespace(&show.stdout).contains("continued 4 times"),
            "{show:?}"
        );
        assert_eq!(scratch.finished(&["report"]).code, Some(0));
        let list = scratch.finished(&["list"]).stdout;
        assert!(
            list.lines().count() == 1 && !list.contains("resume"),
            "{list}"
        );
        for (arguments, words) in [
            (
                vec!["resume", "last"],
                "is finished: there is nothing to continue",
            ),
            (vec!["resume"], "there is no unfinished run"),
            (vec!["resume", "nosuch"], "no run \"nosuch\""),
        ] {
            let refused = scratch.finished(&arguments);
            assert_eq!(refused.code, Some(1), "{refused:?}");
            assert!(refused.error_message().contains(words), "{refused:?}");
        }
    }

    /// Regression: the continued run did not know which variants were skipped when it began, and passed.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_gate_that_is_continued_does_not_pass_without_a_skipped_variant() {
        if !servers::is_available("18") {
            return;
        }
        let scratch = Scratch::new(PROGRAM);
        interrupted_gate(&scratch);
        let resumed = scratch.finished(&["resume", &id(&scratch)]);
        assert_eq!(resumed.code, Some(5), "{resumed:?}");
        assert!(
            resumed.stdout.starts_with("not comparable: c ")
                && resumed.stdout.contains("no extension no_such_extension"),
            "{resumed:?}"
        );
        scratch.assert_nothing_left();
    }

    /// Regression: the files and exit codes of a build that was interrupted could only be had by measuring all again.
    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_gate_that_is_continued_writes_its_files_and_has_the_exit_codes_of_bisect() {
        if !servers::is_available("18") {
            return;
        }
        let scratch = Scratch::new(PROGRAM);
        interrupted_gate(&scratch);
        let id = id(&scratch);
        let missing = scratch.finished(&["resume", &id, "--junit", "no/such/directory.xml"]);
        assert_eq!(missing.code, Some(1), "{missing:?}");
        let files = ["--junit", "gate.xml", "--strict", "--markdown", "gate.md"];
        let resumed = scratch.finished(&[&["resume", &id, "--bisect"], &files[..]].concat());
        assert_eq!(resumed.code, Some(125), "{resumed:?}");
        let file =
            |name: &str| fs::read_to_string(scratch.path().join(name)).expect("it is written");
        let junit = file("gate.xml");
        assert!(junit.contains("<error type=\"not-comparable\""), "{junit}");
        assert!(junit.contains(&format!("value=\"{id}\"")), "{junit}");
        assert!(file("gate.md").contains("not comparable: c "));
        scratch.assert_nothing_left();
    }

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn the_directory_of_a_run_gives_no_permissions_to_who_resumes_it() {
        let config = ServerConfig {
            tcp: true,
            ..servers::config()
        };
        let Some(server) = servers::start_with("18", &config) else {
            return;
        };
        let execute = |sql: &str| {
            let mut connection = server.connect().expect("connect");
            connection.execute(sql).expect("the statement succeeds");
        };
        execute("create role maker login createdb password 's3cret'");
        let address = server.tcp_address().expect("the server listens");
        let dsn = format!("dsn = \"postgresql://maker:s3cret@{address}/postgres\"");
        let scratch = Scratch::new(PROGRAM);
        let study = study().replace("version = \"18\"", &dsn);
        let child = scratch.start(&study, &["--allow-writes"]);
        let before = kill_after(&scratch, child, 3);
        let directory = directory(&scratch).expect("a run");
        for file in ["trials.jsonl", "study.toml"] {
            let text = fs::read_to_string(directory.join(file)).expect("a text file");
            assert!(text.contains("maker") && !text.contains("s3cret"), "{file}");
        }
        // Regression: the permission was that of the user who had begun the run.
        let refused = scratch.finished(&["resume"]);
        let words = "requires --allow-writes; this run has changed nothing";
        assert!(refused.error_message().contains(words), "{refused:?}");
        let resume = |password: Option<&str>| {
            let mut command = scratch.command();
            command.env_remove("PGPASSWORD").args([
                "resume",
                "--json",
                "--allow-writes",
                "--allow-passwords",
            ]);
            command.envs(password.map(|password| ("PGPASSWORD", password)));
            Finished::of(&command.output().expect("the program runs"))
        };
        let output = scratch
            .command()
            .env("PGPASSWORD", "s3cret")
            .args(["resume", "--allow-writes"])
            .output();
        let refused = Finished::of(&output.expect("the program runs"));
        let words = "add --allow-passwords";
        assert!(refused.error_message().contains(words), "{refused:?}");
        let refused = resume(None);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.error_message().contains("password"), "{refused:?}");

        let set_work_mem = |change: &str, expected: &str| {
            execute(change);
            execute("select pg_reload_conf()");
            wait_within("the setting changes", Duration::from_mins(1), || {
                let mut connection = server.connect().expect("connect");
                let value = connection.value("show work_mem").expect("a setting");
                value.as_deref() == Some(expected)
            });
        };
        set_work_mem("alter system set work_mem = '7MB'", "7MB");
        let refused = resume(Some("s3cret"));
        assert_eq!(refused.code, Some(1), "{refused:?}");
        let words = "work_mem is 7MB, was the default";
        assert!(refused.error_message().contains(words), "{refused:?}");
        assert_eq!(saved(&scratch), Some(before));

        set_work_mem("alter system reset work_mem", "4MB");
        let resumed = resume(Some("s3cret"));
        assert_eq!(resumed.code, Some(0), "{resumed:?}");
        let run: Run = serde_json::from_str(&resumed.stdout).expect("JSON on stdout alone");
        assert_whole(&run);
        // It was not restarted, so there is one server start.
        assert!(run.trials.iter().all(|it| it.server_start == 0));
        let kinds: Vec<WarningKind> = run.warnings.iter().map(|it| it.kind).collect();
        assert!(kinds.contains(&WarningKind::Resumed), "{kinds:?}");
        let mut connection = server.connect().expect("connect");
        let ours = "select count(*) from pg_database where datname like 'pgassay%'";
        let left = connection.value(ours).expect("a number");
        assert_eq!(
            left.as_deref(),
            Some("0"),
            "databases of the killed run are dropped"
        );
    }

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn a_comparison_without_a_study_file_is_continued() {
        if !servers::is_available("18") {
            return;
        }
        let scratch = Scratch::new(PROGRAM);
        fs::write(scratch.path().join("one.sql"), "select 1;\n").expect("a script");
        let arguments = [
            "compare",
            "--setup",
            "create table t ()",
            "-f",
            "one.sql",
            "select 2",
            "--length",
            "4s",
            "--pairs",
            "4",
            "--no-profile",
        ];
        let child = start(&scratch, &arguments);
        let saved = kill_after(&scratch, child, 5);
        fs::remove_file(scratch.path().join("one.sql")).expect("the script exists");
        let no_gate = scratch.finished(&["resume", "--junit", "gate.xml"]);
        assert_eq!(no_gate.code, Some(1), "{no_gate:?}");
        assert!(no_gate.stderr.contains("not one of pgassay gate"));
        let resumed = scratch.finished(&["resume", "--json"]);
        assert_eq!(resumed.code, Some(0), "{resumed:?}");
        // Which run, how much of it there is, and which study.
        let note = format!(
            "continuing {} after {} trials, with the study as it was when the run began\n",
            id(&scratch),
            saved.trials.len()
        );
        assert!(resumed.stderr.contains(&note), "{}", resumed.stderr);
        let run: Run = serde_json::from_str(&resumed.stdout).expect("JSON on stdout alone");
        assert_whole(&run);
        for trial in of_whole_rounds(&saved) {
            assert!(run.trials.contains(&trial));
        }
        scratch.assert_nothing_left();
    }
}
