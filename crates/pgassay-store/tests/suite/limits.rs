//! Files that another user can have planted take no memory and time without limit, and do not count.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use pgassay_account::calibration::{AaComparison, Calibration, SCHEMA};
use pgassay_account::comparison::Verdict;
use pgassay_model::trial::{Trial, TrialKind};
use pgassay_store::{Store, StoreError};

use crate::fixture::{ID, STUDY, run, start, store};

fn calibration() -> Calibration {
    Calibration {
        schema: SCHEMA.to_owned(),
        pgassay_version: "0.1.0".to_owned(),
        machine: "a CPU".to_owned(),
        machine_key: "0123".to_owned(),
        started_us: 1,
        ended_us: 2,
        seed: 0,
        pairs: 10,
        trial_us: 1000,
        other_load: 0.0,
        comparisons: vec![AaComparison {
            load: "select".to_owned(),
            clients: 1,
            servers: 1,
            ratio: 1.0,
            low: 0.9,
            high: 1.1,
            pair_sd: 0.01,
            verdict: Verdict::Inconclusive,
        }],
    }
}

/// Lets others write to a file, as if another user had written it.
fn open_to_others(path: &Path) {
    fs::set_permissions(path, Permissions::from_mode(0o622)).unwrap();
}

/// Inserts blanks before a part of a file.
fn pad(path: &Path, before: &str, bytes: usize) {
    let text = fs::read_to_string(path).unwrap();
    let at = text.rfind(before).unwrap();
    let mut file = File::create(path).unwrap();
    file.write_all(&text.as_bytes()[..at]).unwrap();
    file.write_all(&vec![b' '; bytes]).unwrap();
    file.write_all(&text.as_bytes()[at..]).unwrap();
}

/// Regression: calibrations that another user had forged were in root's results, and large ones delayed each run.
#[test]
fn a_calibration_that_another_user_can_have_written_or_of_megabytes_does_not_count() {
    let (root, store) = store();
    assert!(store.calibration("0123", "0.1.0").unwrap().is_none());
    store.save_calibration(&calibration()).unwrap();
    let directory = store.root().join("calibration");
    let path = directory.join("0123-1.json");
    let count = || {
        let summary = store.calibration("0123", "0.1.0").unwrap();
        summary.map(|it| it.comparisons)
    };
    assert_eq!(count(), Some(1));
    open_to_others(&path);
    assert_eq!(count(), None);
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    assert_eq!(count(), Some(1));
    pad(&path, "}", 16 << 20);
    assert_eq!(count(), None);

    // A link to a directory elsewhere.
    fs::rename(&directory, root.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(root.path().join("elsewhere"), &directory).unwrap();
    assert!(store.calibration("0123", "0.1.0").is_err());
}

/// A run with one trial whose process ended; the path of its file of trials.
fn interrupted(store: &Store) -> PathBuf {
    let mut writer = store.create(start(), STUDY).unwrap();
    writer.append(&Trial::empty(TrialKind::Timed)).unwrap();
    writer.directory().join("trials.jsonl")
}

/// Regression: a line without an end, of which the disk has only a hole, took `list` a gigabyte of memory.
#[test]
fn a_line_of_trials_is_read_up_to_a_limit() {
    const TOO_LONG: usize = 64 << 20;
    let (_root, store) = store();
    let path = interrupted(&store);
    let text = fs::read(&path).unwrap();
    pad(&path, "{", TOO_LONG);
    // Not a last line that was not written completely: those after it would be removed.
    let error = store.reopen(ID).unwrap_err();
    let is_damaged = matches!(error, StoreError::Damaged { line: 2, .. });
    assert!(is_damaged, "{error}");
    assert_eq!(store.unfinished(ID).unwrap().trials.len(), 0);

    let first_line: Vec<u8> = text
        .split_inclusive(|it| *it == b'\n')
        .next()
        .unwrap()
        .into();
    fs::write(&path, first_line).unwrap();
    pad(&path, "}", TOO_LONG);
    let error = store.unfinished(ID).unwrap_err().to_string();
    let words = format!(
        "cannot read {}: a line has more than 64 MiB",
        path.display()
    );
    assert_eq!(error, words);
    assert_eq!(store.list().unwrap(), []);
}

/// Regression: `list` read a gigabyte of each file that another user had planted.
#[test]
fn a_large_file_of_another_user_in_place_of_a_result_is_not_read() {
    let (_root, store) = store();
    store.save(&run("other"), STUDY, &[]).unwrap();
    let trials = interrupted(&store);
    let result = store.root().join("20261122-000000-s/run.json");
    fs::create_dir(result.parent().unwrap()).unwrap();
    fs::write(&result, "{}").unwrap();
    for path in [&trials, &result] {
        let file = OpenOptions::new().append(true).open(path).unwrap();
        file.set_len((256 << 20) + 1).unwrap();
    }
    let message = || {
        let of_trials = store.unfinished(ID).err().map(|it| it.to_string());
        let of_result = store.load("20261122-000000-s").unwrap_err().to_string();
        [of_trials.unwrap_or_default(), of_result]
    };
    // Those of this user may be that large, but this is not a result.
    assert!(message().iter().all(|it| !it.contains("256 MiB")));
    for path in [&trials, &result] {
        open_to_others(path);
    }
    for (message, path) in message().iter().zip([&trials, &result]) {
        let beginning = format!("cannot read {}: it has more than 256 MiB", path.display());
        assert!(message.starts_with(&beginning), "{message}");
    }
    let listed = store.list().unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].id, "other");
}
