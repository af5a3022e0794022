//! Directories that another user replaces while a run is measured: what the run writes goes nowhere else.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use pgassay_model::detail::{RunDetail, UnsteadyWarmUp};
use pgassay_model::trial::{Trial, TrialKind};
use pgassay_store::RunWriter;
use rusqlite::Connection;

use crate::fixture::{ID, STUDY, names, run, start, store};

fn trial() -> Trial {
    Trial::empty(TrialKind::Timed)
}

fn not_steady() -> RunDetail {
    RunDetail::NotSteady(UnsteadyWarmUp {
        condition: 0,
        variant: 0,
        block: 0,
    })
}

/// Exchanges what two paths name.
fn exchange(left: &Path, right: &Path) {
    let [left, right] = [left, right].map(|it| CString::new(it.as_os_str().as_bytes()).unwrap());
    let (at, flags) = (libc::AT_FDCWD, libc::RENAME_EXCHANGE);
    // SAFETY: both are strings that end with NUL.
    unsafe { libc::renameat2(at, left.as_ptr(), at, right.as_ptr(), flags) };
}

/// Regression: root wrote into a third directory if its link took the place of the run's right after the check.
#[test]
fn a_link_that_comes_and_goes_while_a_run_is_saved_is_never_followed() {
    const RUNS: usize = 40;
    let (root, store) = store();
    let (elsewhere, link) = (root.path().join("elsewhere"), root.path().join("link"));
    for number in 0..RUNS {
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join("trials.jsonl"), "").unwrap();
        symlink(&elsewhere, &link).unwrap();
        let writer = store.create(start(), STUDY).unwrap();
        let (directory, is_over) = (writer.directory().to_owned(), AtomicBool::new(false));
        let run = run(writer.id());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    exchange(&directory, &link);
                }
            });
            let report = [("report.html".to_owned(), b"<p>".to_vec())];
            // It is an error, or the files are where the run's directory is now.
            _ = if number % 2 == 0 {
                writer.finish(&run, &report).map(drop)
            } else {
                writer.discard();
                Ok(())
            };
            is_over.store(true, Ordering::Relaxed);
        });
        assert_eq!(names(&elsewhere), ["trials.jsonl"], "{number}");
        fs::remove_dir_all(&elsewhere).unwrap();
        let left = [&directory, &link].into_iter().filter(|it| it.is_symlink());
        left.for_each(|it| fs::remove_file(it).unwrap());
        _ = fs::remove_dir_all(&link);
    }
}

/// Regression: root replaced the result of an older run, which the owner of the results directory had renamed.
#[test]
fn another_directory_in_place_of_a_runs_directory_stays_as_it_is() {
    let (root, store) = store();
    let older = root.path().join("older");
    fs::create_dir(&older).unwrap();
    fs::write(older.join("run.json"), "older").unwrap();
    let in_place_of = |writer: &RunWriter| {
        let moved = tempfile::tempdir_in(root.path()).unwrap().keep();
        fs::rename(writer.directory(), &moved).unwrap();
        fs::rename(&older, writer.directory()).unwrap();
        (writer.directory().to_owned(), moved)
    };
    let mut writer = store.create(start(), STUDY).unwrap();
    writer.append(&trial()).unwrap();
    let (path, moved) = in_place_of(&writer);
    let error = writer.finish(&run(ID), &[]).unwrap_err();
    let words = format!(
        "cannot write {}: it was replaced since the run began, so nothing is written to it; \
         the 1 trials measured so far are in {}/trials.jsonl",
        path.display(),
        moved.display()
    );
    // It was said that the trials are in the older directory.
    assert_eq!(error.to_string(), words);
    assert_eq!(names(&path), ["run.json"]);
    assert_eq!(fs::read_to_string(path.join("run.json")).unwrap(), "older");

    // Nor is it removed.
    fs::rename(&path, &older).unwrap();
    let writer = store.create(start(), STUDY).unwrap();
    let (path, _) = in_place_of(&writer);
    writer.discard();
    assert_eq!(names(&path), ["run.json"]);
}

/// Regression: the run to which a link led after the check was continued, and its files were cut.
#[test]
fn a_link_that_comes_and_goes_while_a_run_is_reopened_is_never_followed() {
    const TIMES: usize = 300;
    let (root, store) = store();
    let mut writer = store.create(start(), STUDY).unwrap();
    writer.append(&trial()).unwrap();
    let directory = writer.directory().to_owned();
    drop(writer);
    let (elsewhere, link) = (root.path().join("elsewhere"), root.path().join("link"));
    fs::create_dir(&elsewhere).unwrap();
    for name in ["study.toml", "trials.jsonl"] {
        fs::copy(directory.join(name), elsewhere.join(name)).unwrap();
    }
    // Its last line is incomplete.
    let trials = elsewhere.join("trials.jsonl");
    let mut before = fs::read(&trials).unwrap();
    before.extend(b"{");
    fs::write(&trials, &before).unwrap();
    symlink(&elsewhere, &link).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                exchange(&directory, &link);
            }
        });
        for _ in 0..TIMES {
            // It is an error, or the run itself.
            _ = store.reopen(ID);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(names(&elsewhere), ["study.toml", "trials.jsonl"]);
    assert!(fs::read(&trials).unwrap() == before);
}

/// Regression: root's `list` wrote its tables into another database, to which a link led after the check.
#[test]
fn a_link_that_comes_and_goes_in_place_of_the_index_is_never_followed() {
    const LISTS: usize = 300;
    let (root, store) = store();
    store.save(&run(ID), STUDY, &[]).unwrap();
    let (other, link) = (root.path().join("other"), root.path().join("link"));
    Connection::open(&other)
        .and_then(|it| it.execute_batch("create table theirs (i int)"))
        .unwrap();
    let before = fs::read(&other).unwrap();
    symlink(&other, &link).unwrap();
    let (index, is_over) = (store.root().join("index.sqlite"), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                exchange(&index, &link);
            }
        });
        for _ in 0..LISTS {
            // SQLite may find the wrong file locked, but the run is listed.
            assert_eq!(store.list().map(|it| it.len()).ok(), Some(1));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(fs::read(&other).unwrap() == before);
}

/// Regression: the same, with a hard link.
#[test]
fn a_hard_link_in_place_of_the_index_is_not_opened() {
    let (root, store) = store();
    store.save(&run(ID), STUDY, &[]).unwrap();
    let (index, other) = (store.root().join("index.sqlite"), root.path().join("other"));
    fs::remove_file(&index).unwrap();
    fs::write(&other, "").unwrap();
    fs::hard_link(&other, &index).unwrap();
    assert_eq!(store.list().unwrap().len(), 1);
    store.save(&run("second"), STUDY, &[]).unwrap();
    assert!(fs::read(&other).unwrap().is_empty());
}

/// Regression: in a directory in which others can replace the index, or put a transaction next to it, it was used.
#[test]
fn there_is_no_index_where_other_users_can_put_files() {
    let (_root, store) = store();
    for mode in [0o777, 0o1777] {
        fs::set_permissions(store.root(), fs::Permissions::from_mode(mode)).unwrap();
        let id = format!("run-{mode}");
        store.save(&run(&id), STUDY, &[]).unwrap();
        assert!(store.list().unwrap().iter().any(|it| it.id == id));
        assert!(!store.root().join("index.sqlite").exists(), "{mode:o}");
    }
    let error = store.rebuild_index().unwrap_err().to_string();
    assert!(error.contains("another user can replace it"), "{error}");
    // Others read the directory, but cannot write to it.
    fs::set_permissions(store.root(), fs::Permissions::from_mode(0o775)).unwrap();
    assert_eq!(store.list().unwrap().len(), 2);
    assert!(store.root().join("index.sqlite").exists());
}

/// Regression: the files of a run went to the directory to which a link above the results directory led.
#[test]
fn a_link_above_the_results_directory_does_not_lead_a_run_elsewhere() {
    let (root, store) = store();
    let (moved, theirs) = (root.path().join("moved"), root.path().join("theirs"));
    let mut writer = store.create(start(), STUDY).unwrap();
    fs::create_dir_all(theirs.join(ID)).unwrap();
    fs::rename(store.root(), &moved).unwrap();
    symlink(&theirs, store.root()).unwrap();
    writer.append(&trial()).unwrap();
    assert!(writer.append_detail(&not_steady()).is_err());
    let error = writer.finish(&run(ID), &[]).unwrap_err();
    assert!(error.to_string().contains("it was replaced"), "{error}");
    assert_eq!(names(&theirs.join(ID)), [""; 0]);

    // It is not made again in another results directory.
    fs::remove_file(store.root()).unwrap();
    fs::rename(&moved, store.root()).unwrap();
    let writer = store.create(start(), STUDY).unwrap();
    fs::rename(store.root(), &moved).unwrap();
    symlink(&theirs, store.root()).unwrap();
    let error = writer.finish(&run(&format!("{ID}-2")), &[]).unwrap_err();
    assert!(error.to_string().contains("it was replaced"), "{error}");
    assert_eq!(names(&theirs), [ID]);
}

/// Files are written through the open directory, whose path says nothing to a user.
#[test]
fn errors_name_the_path_that_the_user_knows() {
    let (_root, store) = store();
    let mut writer = store.create(start(), STUDY).unwrap();
    let path = writer.directory().join("details.jsonl");
    fs::create_dir(&path).unwrap();
    let error = writer.append_detail(&not_steady()).unwrap_err();
    let beginning = format!("cannot write {}: ", path.display());
    assert!(error.to_string().starts_with(&beginning), "{error}");
    let path = writer.directory().join("run.json");
    fs::create_dir(&path).unwrap();
    let error = writer.finish(&run(ID), &[]).unwrap_err();
    let beginning = format!("cannot write {}: ", path.display());
    assert!(error.to_string().starts_with(&beginning), "{error}");
}
