//! Results on a real file system: saved, found, listed, and rejected with a reason.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use pgassay_store::{Filter, Store, StoreError};
use pgassay_test_support::SmallDisk;
use rusqlite::Connection;

use crate::fixture::{ID, STARTED_US, STUDY, names, run, store};

fn pipe(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
}

#[test]
fn run_round_trips_through_the_store() {
    let (_root, store) = store();
    let files = [
        ("report.html".to_owned(), b"<p>".to_vec()),
        (
            "profiles/a_8_clients.folded".to_owned(),
            b"main 1\n".to_vec(),
        ),
    ];
    let directory = store.save(&run(ID), STUDY, &files).unwrap();
    assert_eq!(directory, store.root().join(ID));
    assert_eq!(
        names(&directory),
        ["profiles", "report.html", "run.json", "study.toml"]
    );
    assert_eq!(
        fs::read_to_string(directory.join("study.toml")).unwrap(),
        STUDY
    );
    assert_eq!(
        fs::read(directory.join("profiles/a_8_clients.folded")).unwrap(),
        b"main 1\n"
    );
    let (read, from) = store.load(ID).unwrap();
    assert_eq!((read, from), (run(ID), directory));
    assert_eq!(names(store.root()), [ID, "index.sqlite"]);
}

#[test]
fn a_run_is_found_by_name_beginning_last_and_path() {
    let (_root, store) = store();
    for id in [
        "20261121-100000-s",
        "20261122-100000-s",
        "20261122-110000-t",
    ] {
        store.save(&run(id), STUDY, &[]).unwrap();
    }
    let found = |wanted: &str| {
        store
            .find(wanted)
            .unwrap()
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(found("20261121-100000-s"), "20261121-100000-s");
    assert_eq!(found("20261121"), "20261121-100000-s");
    assert_eq!(found("last"), "20261122-110000-t");
    let path = store.root().join("20261122-100000-s");
    assert_eq!(store.find(path.to_str().unwrap()).unwrap(), path);
    assert_eq!(
        store.find(path.join("run.json").to_str().unwrap()).unwrap(),
        path
    );
}

#[test]
fn a_name_that_begins_another_means_itself() {
    let (_root, store) = store();
    store.save(&run(ID), STUDY, &[]).unwrap();
    store.save(&run(&format!("{ID}-2")), STUDY, &[]).unwrap();
    assert_eq!(store.find(ID).unwrap(), store.root().join(ID));
}

#[test]
fn unknown_name_lists_the_newest_runs() {
    let (_root, store) = store();
    let message = store.find("last").unwrap_err().to_string();
    assert!(message.ends_with("there are no runs yet"), "{message}");
    store.save(&run("20261121-100000-s"), STUDY, &[]).unwrap();
    store.save(&run("20261122-100000-s"), STUDY, &[]).unwrap();
    let message = store.find("nope").unwrap_err().to_string();
    assert!(
        message.contains("the newest runs are 20261122-100000-s, 20261121-100000-s"),
        "{message}"
    );
    let error = store.find("2026112").unwrap_err();
    assert!(
        matches!(&error, StoreError::Ambiguous { candidates, .. } if candidates.len() == 2),
        "{error}"
    );
    assert!(matches!(store.find(""), Err(StoreError::NotFound { .. })));
    assert!(matches!(
        store.find("./nowhere"),
        Err(StoreError::Reading { .. })
    ));
    let elsewhere = env!("CARGO_MANIFEST_DIR");
    assert!(matches!(
        store.find(elsewhere),
        Err(StoreError::NoRun { .. })
    ));
}

#[test]
fn damaged_and_newer_results_have_different_errors() {
    let (_root, store) = store();
    let directory = store.save(&run(ID), STUDY, &[]).unwrap();
    let file = directory.join("run.json");
    let text = fs::read_to_string(&file).unwrap();

    fs::write(&file, &text[..text.len() / 2]).unwrap();
    let error = store.load(ID).unwrap_err();
    assert!(
        matches!(error, StoreError::Damaged { line, .. } if line > 1),
        "{error}"
    );

    fs::write(&file, text.replace("pgassay.run/2", "pgassay.run/3")).unwrap();
    let message = store.load(ID).unwrap_err().to_string();
    assert!(
        message.contains("\"pgassay.run/2\"") && message.contains("newer version"),
        "{message}"
    );

    fs::write(&file, text.replace("pgassay.run/2", "other/1")).unwrap();
    let message = store.load(ID).unwrap_err().to_string();
    assert!(message.contains("damaged"), "{message}");
}

#[test]
fn a_save_that_fails_leaves_nothing_behind() {
    let (_root, store) = store();
    // A file cannot also be a directory: the second write fails half-way through the save.
    let files = [("a".to_owned(), Vec::new()), ("a/b".to_owned(), Vec::new())];
    let error = store.save(&run(ID), STUDY, &files).unwrap_err();
    assert!(matches!(error, StoreError::Writing { .. }), "{error}");
    assert!(
        names(store.root())
            .iter()
            .all(|name| name == "index.sqlite")
    );
}

#[test]
fn existing_runs_and_outside_paths_are_rejected() {
    let (_root, store) = store();
    store.save(&run(ID), STUDY, &[]).unwrap();
    let error = store.save(&run(ID), "other", &[]).unwrap_err();
    assert!(matches!(error, StoreError::AlreadyExists { .. }), "{error}");
    assert_eq!(
        fs::read_to_string(store.root().join(ID).join("study.toml")).unwrap(),
        STUDY
    );
    for name in ["../x", "/x", "", "run.json", "study.toml", "a/../../x"] {
        let files = [(name.to_owned(), Vec::new())];
        let error = store.save(&run("other"), STUDY, &files).unwrap_err();
        assert!(
            matches!(error, StoreError::FileName { .. }),
            "{name}: {error}"
        );
    }
    for id in ["", "last", "a/b", ".hidden"] {
        let error = store.save(&run(id), STUDY, &[]).unwrap_err();
        assert!(
            matches!(error, StoreError::FileName { .. }),
            "{id}: {error}"
        );
    }
    assert_eq!(names(store.root()), [ID, "index.sqlite"]);
}

#[test]
fn partial_run_is_ignored_and_swept() {
    let (_root, store) = store();
    let partial = store.root().join(".partial-x-1");
    fs::create_dir(&partial).unwrap();
    fs::write(partial.join("run.json"), "{").unwrap();
    fs::create_dir(store.root().join("no-run")).unwrap();
    assert_eq!(store.list().unwrap(), []);
    assert!(store.find("last").is_err());
    // A recent one may belong to a running process; one from yesterday does not.
    Store::open(store.root()).unwrap();
    assert!(partial.exists());
    let old = std::time::SystemTime::now() - std::time::Duration::from_hours(25);
    fs::File::open(&partial).unwrap().set_modified(old).unwrap();
    Store::open(store.root()).unwrap();
    assert!(!partial.exists());
}

#[test]
fn names_are_never_given_twice() {
    let (_root, store) = store();
    assert_eq!(store.new_id(STARTED_US, "s").unwrap(), ID);
    assert_eq!(store.new_id(STARTED_US, "s").unwrap(), format!("{ID}-2"));
    store.save(&run(&format!("{ID}-3")), STUDY, &[]).unwrap();
    assert_eq!(store.new_id(STARTED_US, "s").unwrap(), format!("{ID}-4"));
}

#[test]
fn a_run_of_many_variants_does_not_fill_lines_of_a_list() {
    let (_root, store) = store();
    let mut run = run(ID);
    let first = run.comparisons.first().expect("a comparison").clone();
    for variant in 2..=12 {
        let mut other = first.clone();
        other.variant = variant;
        run.plan.variants.push(format!("variant {variant}"));
        run.comparisons.push(other);
    }
    store.save(&run, STUDY, &[]).unwrap();
    let headline = &store.list().unwrap()[0].headline;
    assert_eq!(headline, "12 variants: 12 faster ×1.412 to ×1.412");
}

/// Regression: `list` printed `[0.000, 20876.646]` where `compare` prints `[3e-5, 2e4]`.
#[test]
fn a_list_has_ratios_as_results_have_them() {
    let (_root, store) = store();
    let mut run = run(ID);
    let tps = &mut run.comparisons[0].tps;
    (tps.ratio, tps.low, tps.high) = (123.456, 0.000_03, 20_876.646);
    store.save(&run, STUDY, &[]).unwrap();
    assert_eq!(
        store.list().unwrap()[0].headline,
        "b: faster ×123.5 [3e-5, 2e4]"
    );
}

#[test]
fn a_list_is_newest_first_and_may_be_narrowed() {
    let (_root, store) = store();
    for (at, study) in [(0, "s"), (1, "t"), (2, "s")] {
        let mut run = run(&format!("2026112{at}-000000-{study}"));
        run.started_us += at * 1_000_000;
        study.clone_into(&mut run.study_name);
        run.complete = at != 1;
        store.save(&run, STUDY, &[]).unwrap();
    }
    let lines = store.list().unwrap();
    let ids: Vec<&str> = lines.iter().map(|line| line.id.as_str()).collect();
    assert_eq!(
        ids,
        [
            "20261122-000000-s",
            "20261121-000000-t",
            "20261120-000000-s"
        ]
    );
    assert_eq!(lines[0].headline, "b: faster ×1.412 [1.398, 1.426]");
    assert_eq!(lines[0].question, "Is b faster than a?");
    assert!(
        lines[1].headline.starts_with("(incomplete) "),
        "{}",
        lines[1].headline
    );
    let filter = Filter {
        study: Some("s".to_owned()),
        limit: Some(1),
    };
    let narrowed = store.list_where(&filter).unwrap();
    assert_eq!(narrowed.len(), 1);
    assert_eq!(narrowed[0].id, "20261122-000000-s");
}

#[test]
fn the_views_answer_questions_over_runs() {
    let (_root, store) = store();
    store.save(&run(ID), STUDY, &[]).unwrap();
    let index = Connection::open(store.root().join("index.sqlite")).unwrap();
    let started: String = index
        .query_row("select started from runs", [], |row| row.get(0))
        .unwrap();
    assert_eq!(started, "2026-11-21 23:43:51");
    let figures: (String, i64, f64) = index
        .query_row(
            "select p.variant, p.clients, p.tps from points p where p.run_id = ?1 and p.tps > 1200",
            [ID],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )
        .unwrap();
    assert_eq!(figures, ("b".to_owned(), 8, 1412.0));
    let compared: (String, String, String, f64, Option<f64>) = index
        .query_row(
            "select variant, baseline, verdict, tps_ratio, server_cpu_ratio from comparisons",
            [],
            |row| {
                Ok((
                    row.get(0)?,
                    row.get(1)?,
                    row.get(2)?,
                    row.get(3)?,
                    row.get(4)?,
                ))
            },
        )
        .unwrap();
    assert_eq!(
        compared,
        (
            "b".to_owned(),
            "a".to_owned(),
            "faster".to_owned(),
            1.412,
            None
        )
    );
}

#[test]
fn the_index_follows_the_directories() {
    let (_root, store) = store();
    store.save(&run("20261121-000000-s"), STUDY, &[]).unwrap();
    store.save(&run("20261122-000000-s"), STUDY, &[]).unwrap();
    let ids = || -> Vec<String> { store.list().unwrap().into_iter().map(|it| it.id).collect() };
    let index = store.root().join("index.sqlite");
    // Removed by the user.
    fs::remove_file(&index).unwrap();
    assert_eq!(ids(), ["20261122-000000-s", "20261121-000000-s"]);
    // What a file system leaves of pages that were never written.
    fs::write(&index, [0; 5000]).unwrap();
    assert_eq!(ids().len(), 2);
    // Another version's.
    Connection::open(&index)
        .unwrap()
        .pragma_update(None, "user_version", 99)
        .unwrap();
    assert_eq!(ids().len(), 2);
    // A run that was moved away, and one that was damaged.
    fs::remove_dir_all(store.root().join("20261121-000000-s")).unwrap();
    assert_eq!(ids(), ["20261122-000000-s"]);
    let copied = store.root().join("20261123-000000-copied");
    fs::create_dir(&copied).unwrap();
    fs::write(copied.join("run.json"), "{").unwrap();
    assert_eq!(ids(), ["20261122-000000-s"]);
    // A copy under another name is another run.
    let original = store.root().join("20261122-000000-s/run.json");
    fs::copy(original, copied.join("run.json")).unwrap();
    assert_eq!(ids(), ["20261123-000000-copied", "20261122-000000-s"]);
    store.rebuild_index().unwrap();
    assert_eq!(ids().len(), 2);
}

/// Regression: tables of a user's database of this name were dropped, and one that pgassay could not use was removed.
#[test]
fn a_database_of_the_user_in_place_of_the_index_stays_as_it_is() {
    let (_root, store) = store();
    let index = store.root().join("index.sqlite");
    let users = Connection::open(&index).unwrap();
    let sql =
        "pragma user_version = 2; create table runs (mine text); insert into runs values ('x')";
    users.execute_batch(sql).unwrap();
    drop(users);
    for text in [fs::read(&index).unwrap(), b"no database at all".to_vec()] {
        fs::write(&index, &text).unwrap();
        store.save(&run(ID), STUDY, &[]).unwrap();
        assert_eq!(store.list().unwrap().len(), 1);
        assert!(store.rebuild_index().is_err());
        assert!(fs::read(&index).unwrap() == text, "it is as it was");
        fs::remove_dir_all(store.root().join(ID)).unwrap();
    }
    assert_eq!(names(store.root()), ["index.sqlite"]);
    // An index of an earlier version has no application ID.
    fs::remove_file(&index).unwrap();
    store.list().unwrap();
    let earlier = Connection::open(&index).unwrap();
    let sql = "pragma application_id = 0; pragma user_version = 2";
    earlier.execute_batch(sql).unwrap();
    store.save(&run(ID), STUDY, &[]).unwrap();
    let indexed: u32 = earlier
        .query_row("select count(*) from runs", [], |row| row.get(0))
        .unwrap();
    assert_eq!(indexed, 1);
}

/// Regression: `list` waited for a reader of the pipe, and created what the link names.
#[test]
fn a_pipe_or_a_link_in_place_of_the_index_is_neither_opened_nor_followed() {
    let (root, store) = store();
    store.save(&run(ID), STUDY, &[]).unwrap();
    let index = store.root().join("index.sqlite");
    fs::remove_file(&index).unwrap();
    let elsewhere = root.path().join("elsewhere");
    std::os::unix::fs::symlink(&elsewhere, &index).unwrap();
    // The directories contain everything.
    assert_eq!(store.list().unwrap().len(), 1);
    assert!(!elsewhere.exists());

    fs::remove_file(&index).unwrap();
    pipe(&index);
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || ended.send(store.list().unwrap().len()));
    let runs = end.recv_timeout(std::time::Duration::from_mins(1));
    assert_eq!(runs, Ok(1));
}

/// Regression: SQLite waited for a writer of the pipe, and executed what another user's index calls a view.
#[test]
fn a_pipe_next_to_the_index_or_an_index_of_another_user_is_not_opened() {
    let (_root, store) = store();
    store.save(&run(ID), STUDY, &[]).unwrap();
    let index = store.root().join("index.sqlite");
    let view = "drop view runs; create view runs as with recursive r (i) as (select 1 union all select i + 1 from r) \
                select i id, i study, i question, i started_us, i ended_us, i complete, i headline from r";
    let attacker = Connection::open(&index).unwrap();
    attacker.execute_batch(view).unwrap();
    drop(attacker);
    fs::set_permissions(&index, fs::Permissions::from_mode(0o622)).unwrap();
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        ended.send(store.list().unwrap().len()).unwrap();
        fs::remove_file(&index).unwrap();
        assert_eq!(store.list().unwrap().len(), 1);
        pipe(&store.root().join("index.sqlite-journal"));
        ended.send(store.list().unwrap().len()).unwrap();
    });
    for _ in 0..2 {
        let runs = end.recv_timeout(std::time::Duration::from_mins(1));
        assert_eq!(runs, Ok(1));
    }
}

/// Regression: every run waited for a writer of the pipe, even after a signal, and read an endless file until memory
/// was exhausted.
#[test]
fn a_pipe_or_an_endless_file_in_place_of_a_file_of_results_does_not_hang() {
    let (_root, store) = store();
    store.save(&run(ID), STUDY, &[]).unwrap();
    let at = |name: &str| store.root().join(name);
    for directory in ["calibration", "20261122-000000-s", "20261123-000000-s"] {
        fs::create_dir_all(at(directory)).unwrap();
    }
    pipe(&at("calibration/pipe.json"));
    std::os::unix::fs::symlink("/dev/zero", at("calibration/endless.json")).unwrap();
    pipe(&at("20261122-000000-s/trials.jsonl"));
    let endless = fs::File::create(at("20261123-000000-s/run.json")).unwrap();
    endless.set_len(1 << 40).unwrap();
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        assert!(store.calibration("0123", "0.1.0").unwrap().is_none());
        assert!(store.load("20261122-000000-s").is_err());
        assert!(store.reopen("20261122-000000-s").is_err());
        assert!(store.load("20261123-000000-s").is_err());
        ended.send(store.list().unwrap().len()).unwrap();
    });
    assert_eq!(
        end.recv_timeout(std::time::Duration::from_mins(1)).unwrap(),
        1
    );
}

#[test]
fn concurrent_saves_all_succeed() {
    let (_root, store) = store();
    let me = std::env::current_exe().unwrap();
    let children: Vec<_> = (0..4)
        .map(|_| {
            Command::new(&me)
                .args(["--exact", "store::save_as_child_process", "--ignored"])
                .env("STORE_ROOT", store.root())
                .output_in_background()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stdout)
        );
    }
    assert_eq!(store.list().unwrap().len(), 12);
    let index = Connection::open(store.root().join("index.sqlite")).unwrap();
    let points: i64 = index
        .query_row("select count(*) from points", [], |row| row.get(0))
        .unwrap();
    assert_eq!(points, 24);
}

#[test]
#[ignore = "child process of concurrent_saves_all_succeed"]
fn save_as_child_process() {
    let root = std::env::var_os("STORE_ROOT").expect("started by the other test");
    let store = Store::open(Path::new(&root)).unwrap();
    for _ in 0..3 {
        let id = store.new_id(STARTED_US, "s").unwrap();
        store.save(&run(&id), STUDY, &[]).unwrap();
    }
}

trait InBackground {
    fn output_in_background(&mut self) -> std::process::Child;
}

impl InBackground for Command {
    fn output_in_background(&mut self) -> std::process::Child {
        use std::process::Stdio;
        self.stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }
}

#[test]
fn a_full_disk_is_named_and_leaves_nothing_behind() {
    let Some(disk) = SmallDisk::mount("8m") else {
        return;
    };
    let store = Store::open(&disk.path().join("runs")).unwrap();
    let files = [("server.log".to_owned(), vec![b'x'; 64 << 20])];
    let message = store.save(&run(ID), STUDY, &files).unwrap_err().to_string();
    assert!(message.contains("free disk space"), "{message}");
    assert_eq!(names(store.root()), [""; 0]);
}

/// Written by the last version of pgassay with this format, and shortened.
const VERSION_1: &str = include_str!("fixture/run-1.json");

#[test]
fn a_run_of_schema_version_1_still_opens_and_is_listed() {
    let (_root, store) = store();
    let id = "20261123-040611-prepared-vs-simple";
    let directory = store.root().join(id);
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("run.json"), VERSION_1).unwrap();
    let (read, _) = store.load(id).unwrap();
    assert_eq!(read.schema, "pgassay.run/2");
    assert_eq!(read.fix_trials.as_ref().unwrap().schema, "pgassay.run/2");
    assert_eq!(store.list().unwrap().len(), 1);
}

#[test]
fn a_file_in_the_place_of_the_results_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("report.json");
    std::fs::write(&file, "{}").unwrap();
    for root in [file.clone(), file.join("runs")] {
        let words = Store::open(&root).unwrap_err().to_string();
        let start = format!("{} is a file, but results need a directory", file.display());
        assert!(
            words.starts_with(&start) && words.contains("--results DIR"),
            "{words}"
        );
    }
}
