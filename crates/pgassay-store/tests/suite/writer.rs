//! Runs that are saved while they are measured: on full, read-only and vanishing directories, with a
//! locked or damaged index, and through the end of the process.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use pgassay_model::detail::{RunDetail, UnsteadyWarmUp};
use pgassay_model::trial::Trial;
use pgassay_record::run::Run;
use pgassay_store::{RunWriter, Store, StoreError};
use rusqlite::Connection;

use crate::fixture::{ID, STARTED_US, STUDY, names, run, start, store};

fn trial(position: u32) -> Trial {
    serde_json::from_value(serde_json::json!({
        "block": 0, "condition": 0, "variant": 0, "position": position, "kind": "timed",
        "started_us": STARTED_US, "window_us": 50_000.0, "transactions": 100,
        "transactions_total": 120, "latency": { "hdr_v2_ns": "" },
        "client": {
            "cpu_us": 100.0, "run_queue_us": 1.5, "in_transaction_us": 40_000.0,
            "between_transactions_us": 10_000.0, "sleep_us": 0.0, "client_limited": false,
        },
        "cpu_steal": 0.0, "other_programs": 0.1,
    }))
    .unwrap()
}

fn finished(id: &str) -> Run {
    Run {
        trials: (0..3).map(trial).collect(),
        ..run(id)
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn trials_are_saved_as_they_come() {
    let (_root, store) = store();
    let mut writer = store.create(start(), STUDY).unwrap();
    assert_eq!(writer.id(), ID);
    writer.append(&trial(0)).unwrap();
    writer.append(&trial(1)).unwrap();

    // Another process sees it.
    let lines = store.list().unwrap();
    assert_eq!(lines.len(), 1);
    assert_eq!((lines[0].id.as_str(), lines[0].unfinished), (ID, true));
    assert_eq!(lines[0].headline, "(running) 2 trials saved");
    let found = store.unfinished(ID).unwrap();
    assert_eq!(found.trials, [trial(0), trial(1)]);
    assert_eq!((found.start, found.is_running), (start(), true));
    assert_eq!((found.resumed, found.repeated), (0, 0));
    let error = store.load(ID).unwrap_err();
    assert!(
        matches!(error, StoreError::Unfinished { trials: 2, .. }),
        "{error}"
    );

    writer.append(&trial(2)).unwrap();
    let files = [("report.html".to_owned(), b"<p>".to_vec())];
    let directory = writer.finish(&finished(ID), &files).unwrap();
    assert_eq!(names(&directory), ["report.html", "run.json", "study.toml"]);
    assert_eq!(store.load(ID).unwrap().0, finished(ID));
    let lines = store.list().unwrap();
    assert_eq!(lines.len(), 1);
    assert!(!lines[0].unfinished && lines[0].complete);
}

#[test]
fn names_are_given_once_without_an_index() {
    let (_root, store) = store();
    fs::write(store.root().join("index.sqlite"), [7; 5000]).unwrap();
    let reserved = store.new_id(STARTED_US, "s").unwrap();
    assert_eq!(reserved, ID);
    let first = store.create(start(), STUDY).unwrap();
    let second = store.create(start(), STUDY).unwrap();
    assert_eq!(first.id(), format!("{ID}-2"));
    assert_eq!(second.id(), format!("{ID}-3"));
    first.discard();
    assert!(!store.root().join(format!("{ID}-2")).exists());
    store.save(&run(ID), STUDY, &[]).unwrap();
}

#[test]
fn others_cannot_read_results() {
    let (_root, store) = store();
    let mut writer = store.create(start(), STUDY).unwrap();
    writer.append(&trial(0)).unwrap();
    assert_eq!(mode(&writer.directory().join("trials.jsonl")), 0o600);
    let files = [("server/log".to_owned(), b"select 'secret'".to_vec())];
    let created = writer.finish(&finished(ID), &files).unwrap();
    let saved = store.save(&run("saved"), STUDY, &files).unwrap();
    for directory in [created, saved] {
        assert_eq!(mode(&directory), 0o700);
        assert_eq!(mode(&directory.join("server")), 0o700);
        for file in ["run.json", "study.toml", "server/log"] {
            assert_eq!(mode(&directory.join(file)), 0o600, "{file}");
        }
    }
    assert_eq!(mode(store.root()), 0o700);
    assert_eq!(mode(&store.root().join("index.sqlite")), 0o600);
}

#[test]
fn a_locked_index_loses_and_hides_no_run() {
    let (_root, store) = store();
    store.save(&run("20261120-000000-s"), STUDY, &[]).unwrap();
    let index = Connection::open(store.root().join("index.sqlite")).unwrap();
    index.execute_batch("begin exclusive").unwrap();
    let mut writer = store.create(start(), STUDY).unwrap();
    writer.append(&trial(0)).unwrap();
    writer.finish(&finished(ID), &[]).unwrap();
    assert_eq!(store.list().unwrap().len(), 2);
    index.execute_batch("rollback").unwrap();
    assert_eq!(store.list().unwrap().len(), 2);
    let indexed: u32 = index
        .query_row("select count(*) from runs", [], |row| row.get(0))
        .unwrap();
    assert_eq!(indexed, 2);
}

/// Regression: a run that was resumed while another program had locked the index stayed incomplete in `list`.
#[test]
fn a_resumed_run_is_complete_after_the_index_was_locked() {
    let (_root, store) = store();
    let mut interrupted = run("20261120-000000-s");
    interrupted.complete = false;
    let directory = store.save(&interrupted, STUDY, &[]).unwrap();
    assert!(!store.list().unwrap()[0].complete);
    let whole = run("20261120-000000-s");
    let json = serde_json::to_string(&whole).unwrap();
    fs::write(directory.join("run.json"), json).unwrap();
    assert!(store.list().unwrap()[0].complete);
}

#[test]
fn a_damaged_page_of_the_index_is_repaired() {
    const PAGE_BYTES: usize = 4096;
    let (_root, store) = store();
    for number in 10..22 {
        let id = format!("202611{number}-000000-s");
        store.save(&run(&id), STUDY, &[]).unwrap();
    }
    let path = store.root().join("index.sqlite");
    let intact = fs::read(&path).unwrap();
    let pages = intact.len() / PAGE_BYTES;
    assert!(pages >= 7, "{pages}");
    for page in 0..pages {
        // Zeros are what a file system leaves of a page that was never written.
        let fill = [0, 0xff][page % 2];
        let mut damaged = intact.clone();
        damaged[page * PAGE_BYTES..][..PAGE_BYTES].fill(fill);
        fs::write(&path, &damaged).unwrap();
        // Saving does not mind, and the list repairs it.
        if page < 2 {
            let id = format!("20261200-{page}-s");
            store.save(&run(&id), STUDY, &[]).unwrap();
        }
        let listed = store.list().unwrap().len();
        assert!(listed >= 12 + page.min(1), "page {page}: {listed}");
        let index = Connection::open(&path).unwrap();
        let points: usize = index
            .query_row("select count(*) from points", [], |row| row.get(0))
            .unwrap();
        assert_eq!(points, 2 * listed, "page {page}");
    }
}

#[test]
fn a_directory_that_vanishes_is_made_again() {
    let (_root, store) = store();
    let mut writer = store.create(start(), STUDY).unwrap();
    writer.append(&trial(0)).unwrap();
    fs::remove_dir_all(writer.directory()).unwrap();
    writer.append(&trial(1)).unwrap();
    let directory = writer.finish(&finished(ID), &[]).unwrap();
    assert_eq!(names(&directory), ["run.json", "study.toml"]);
    assert_eq!(store.load(ID).unwrap().0.trials.len(), 3);
}

/// Regression: the result was written to whatever the link led to, with the rights of root, maybe.
#[test]
fn a_link_in_place_of_a_runs_directory_is_not_followed() {
    let (root, store) = store();
    let mut writer = store.create(start(), STUDY).unwrap();
    writer.append(&trial(0)).unwrap();
    let (moved, elsewhere) = (root.path().join("moved"), root.path().join("elsewhere"));
    fs::rename(writer.directory(), &moved).unwrap();
    fs::create_dir(&elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, writer.directory()).unwrap();
    assert!(writer.append_detail(&not_steady()).is_err());
    let error = writer.finish(&finished(ID), &[]).unwrap_err();
    assert!(error.to_string().contains("it was replaced"), "{error}");
    assert_eq!(names(&elsewhere), [""; 0]);
    assert!(moved.join("trials.jsonl").exists());
}

fn not_steady() -> RunDetail {
    RunDetail::NotSteady(UnsteadyWarmUp {
        condition: 0,
        variant: 0,
        block: 0,
    })
}

/// A results directory that vanished is made again, too.
#[test]
fn a_results_directory_that_vanishes_is_made_again() {
    let (_root, store) = store();
    let mut writer = store.create(start(), STUDY).unwrap();
    writer.append(&trial(0)).unwrap();
    fs::remove_dir_all(store.root()).unwrap();
    let directory = writer.finish(&finished(ID), &[]).unwrap();
    assert_eq!(directory, store.root().join(ID));
    assert_eq!(names(&directory), ["run.json", "study.toml"]);
}

/// Regression: root removed all files older than a week from the directory to which another user's link led.
#[test]
fn a_link_in_place_of_the_directory_of_names_is_not_followed() {
    let (root, store) = store();
    let elsewhere = root.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("old"), "").unwrap();
    age(&elsewhere.join("old"));
    let of_names = store.root().join(".names");
    std::os::unix::fs::symlink(&elsewhere, &of_names).unwrap();
    let error = store.create(start(), STUDY).unwrap_err();
    assert!(error.to_string().contains(".names"), "{error}");
    assert_eq!(names(&elsewhere), ["old"]);

    // Of a real one, only reservations are forgotten.
    fs::remove_file(&of_names).unwrap();
    fs::create_dir(&of_names).unwrap();
    for (name, text) in [("reserved", ""), ("other", "text")] {
        fs::write(of_names.join(name), text).unwrap();
        age(&of_names.join(name));
    }
    store.create(start(), STUDY).unwrap();
    assert_eq!(names(&of_names), ["other"]);
}

/// Regression: root removed the directory of a third user to which another user's link led by then.
#[test]
fn what_a_dead_process_left_is_removed_only_where_no_other_user_can_replace_it() {
    let (root, store) = store();
    let of_run = |writer: RunWriter| {
        let directory = writer.directory().to_owned();
        drop(writer);
        age(&directory);
        directory
    };
    let left = of_run(store.create(start(), STUDY).unwrap());
    let elsewhere = root.path().join("elsewhere");
    fs::rename(&left, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &left).unwrap();
    age(&elsewhere);
    Store::open_to_read(store.root()).unwrap();
    assert!(elsewhere.exists() && left.is_symlink());
    fs::remove_file(&left).unwrap();

    let left = of_run(store.create(start(), STUDY).unwrap());
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    for (of_store, of_left, is_kept) in [
        (0o777, 0o700, true),
        (0o1777, 0o722, true),
        (0o1777, 0o700, false),
    ] {
        mode(store.root(), of_store).unwrap();
        mode(&left, of_left).unwrap();
        Store::open_to_read(store.root()).unwrap();
        assert_eq!(left.exists(), is_kept, "{of_store:o} {of_left:o}");
    }
}

/// Lets a file or directory be as old as one that is no longer needed.
fn age(path: &Path) {
    let old = SystemTime::now() - Duration::from_hours(30 * 24);
    fs::File::open(path).unwrap().set_modified(old).unwrap();
}

#[test]
fn a_file_that_cannot_be_written_does_not_prevent_the_result() {
    let (_root, store) = store();
    let writer = store.create(start(), STUDY).unwrap();
    // A file cannot also be a directory.
    let files = [("a".to_owned(), Vec::new()), ("a/b".to_owned(), Vec::new())];
    let error = writer.finish(&finished(ID), &files).unwrap_err();
    assert!(matches!(error, StoreError::FilesMissing { .. }), "{error}");
    assert_eq!(store.load(ID).unwrap().0, finished(ID));
}

#[test]
fn another_runs_result_is_rejected_and_the_trials_stay() {
    let (_root, store) = store();
    let mut writer = store.create(start(), STUDY).unwrap();
    writer.append(&trial(0)).unwrap();
    let error = writer.finish(&finished("other"), &[]).unwrap_err();
    assert!(
        matches!(error, StoreError::Unsaved { trials: 1, .. }),
        "{error}"
    );
    assert_eq!(store.unfinished(ID).unwrap().trials.len(), 1);
}

/// Runs one of the ignored tests below in a process of its own, in `directory`; returns whether it
/// succeeded, and its output.
fn run_child(command: &mut Command, test: &str, directory: &Path) -> (bool, String) {
    let output = command
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            &format!("writer::{test}"),
            "--ignored",
            "--nocapture",
        ])
        .env("STORE_ROOT", directory)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

fn child_root() -> PathBuf {
    std::env::var_os("STORE_ROOT")
        .expect("started by another test")
        .into()
}

#[test]
fn trials_survive_the_end_of_the_process() {
    let (_root, store) = store();
    let (ended_well, _) = run_child(&mut Command::new("env"), "measure_and_abort", store.root());
    assert!(!ended_well, "it aborts");
    let lines = store.list().unwrap();
    assert_eq!(lines[0].headline, "(unfinished) 3 trials saved, no result");
    // It was writing a fourth one.
    let path = store.root().join(ID).join("trials.jsonl");
    let mut text = fs::read_to_string(&path).unwrap();
    text.push_str("{\"block\":0,\"cond");
    fs::write(&path, &text).unwrap();
    let found = store.unfinished(ID).unwrap();
    assert_eq!((found.trials.len(), found.is_running), (3, false));
    // After a day, the reserved space is freed, and the trials stay.
    let directory = store.root().join(ID);
    assert!(directory.join(".reserved").exists());
    let old = std::time::SystemTime::now() - std::time::Duration::from_hours(25);
    let opened = fs::File::open(&directory).unwrap();
    opened.set_modified(old).unwrap();
    Store::open(store.root()).unwrap();
    assert_eq!(names(&directory), ["study.toml", "trials.jsonl"]);
    // A first line that is not one is an error, and hides no other run.
    fs::write(&path, "{\"schema\":1}\n").unwrap();
    let error = store.unfinished(ID).unwrap_err();
    assert!(
        matches!(error, StoreError::Damaged { line: 1, .. }),
        "{error}"
    );
    store.save(&run("other"), STUDY, &[]).unwrap();
    assert_eq!(store.list().unwrap().len(), 1);
}

#[test]
#[ignore = "child process of trials_survive_the_end_of_the_process"]
fn measure_and_abort() {
    let store = Store::open(&child_root()).unwrap();
    let mut writer = store.create(start(), STUDY).unwrap();
    for position in 0..3 {
        writer.append(&trial(position)).unwrap();
    }
    std::process::abort();
}

/// A shell that runs its arguments in a mount namespace of its own, with a small file system in the
/// directory; `None` if this machine does not allow it.
fn on_small_disk(size: &str, directory: &Path) -> Option<Command> {
    let script = format!("mount -t tmpfs -o size={size} tmpfs \"$0\" && exec \"$@\"");
    let shell = |command: &mut Command| {
        command.args(["sh", "-c", &script]).arg(directory);
    };
    for options in [&["--mount"][..], &["--mount", "--map-root-user"]] {
        let mut command = Command::new("unshare");
        command.args(options);
        shell(&mut command);
        let tried = command.arg("true").output();
        if tried.is_ok_and(|output| output.status.success()) {
            let mut command = Command::new("unshare");
            command.args(options);
            shell(&mut command);
            return Some(command);
        }
    }
    assert!(
        std::env::var_os("PGASSAY_NO_SKIP").is_none(),
        "no mount namespaces"
    );
    eprintln!("skipped: this machine allows no mount namespaces");
    None
}

fn passes_on_small_disk(size: &str, test: &str) {
    let directory = tempfile::tempdir().unwrap();
    let Some(mut command) = on_small_disk(size, directory.path()) else {
        return;
    };
    let (ended_well, text) = run_child(&mut command, test, directory.path());
    assert!(ended_well && text.contains("1 passed"), "{text}");
}

#[test]
fn a_full_directory_is_found_before_the_first_trial() {
    passes_on_small_disk("2m", "create_on_a_full_disk");
}

#[test]
#[ignore = "child process of a_full_directory_is_found_before_the_first_trial"]
fn create_on_a_full_disk() {
    let store = Store::open(&child_root().join("runs")).unwrap();
    let message = store.create(start(), STUDY).unwrap_err().to_string();
    assert!(message.contains("free disk space"), "{message}");
    assert_eq!(names(store.root()), [".names"]);
}

#[test]
fn a_disk_that_fills_up_loses_no_trial() {
    passes_on_small_disk("8m", "measure_on_a_disk_that_fills_up");
}

#[test]
#[ignore = "child process of a_disk_that_fills_up_loses_no_trial"]
fn measure_on_a_disk_that_fills_up() {
    let root = child_root();
    let store = Store::open(&root.join("runs")).unwrap();
    let mut writer = store.create(start(), STUDY).unwrap();
    writer.append(&trial(0)).unwrap();
    let filler = root.join("filler");
    assert!(fs::write(&filler, vec![1; 16 << 20]).is_err());
    let mut appended = 1;
    let message = loop {
        match writer.append(&trial(appended)) {
            Ok(()) => appended += 1,
            Err(error) => break error.to_string(),
        }
        assert!(appended < 100_000, "the disk is not full");
    };
    assert!(message.contains("free disk space"), "{message}");
    assert_eq!(store.unfinished(ID).unwrap().trials.len() as u32, appended);
    assert_eq!(store.list().unwrap().len(), 1);
    // The reserved space is enough for the result.
    let log = ("server.log".to_owned(), vec![b'x'; 16 << 20]);
    let error = writer.finish(&finished(ID), &[log]).unwrap_err();
    assert!(matches!(error, StoreError::FilesMissing { .. }), "{error}");
    assert_eq!(store.load(ID).unwrap().0, finished(ID));
    assert_eq!(names(&store.root().join(ID)), ["run.json", "study.toml"]);
}

#[test]
fn a_read_only_directory_is_found_before_the_first_trial() {
    passes_on_small_disk("8m", "create_in_a_read_only_directory");
}

#[test]
#[ignore = "child process of a_read_only_directory_is_found_before_the_first_trial"]
fn create_in_a_read_only_directory() {
    let root = child_root();
    let store = Store::open(&root.join("runs")).unwrap();
    store.save(&run("20261120-000000-s"), STUDY, &[]).unwrap();
    let remounted = Command::new("mount")
        .args(["-o", "remount,ro"])
        .arg(&root)
        .status();
    assert!(remounted.unwrap().success());
    let store = Store::open(&root.join("runs")).unwrap();
    let message = store.create(start(), STUDY).unwrap_err().to_string();
    assert!(message.contains("writable directory"), "{message}");
    assert_eq!(store.list().unwrap().len(), 1);
}
