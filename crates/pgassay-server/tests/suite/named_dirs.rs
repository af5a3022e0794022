//! The directory of programs that the user specifies.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use pgassay_server::{FindError, Finder, Installation, InstallationSource, VersionRequest};
use pgassay_test_support::servers;

fn find(finder: &Finder, version: &str) -> Result<Installation, FindError> {
    finder.find(&VersionRequest::parse(version).unwrap(), &mut |_| {})
}

fn open_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    directory
}

/// Programs of a build that print this as their version.
fn fake_build(directory: &Path, version: &str) {
    let bin = directory.join("bin");
    fs::create_dir_all(&bin).unwrap();
    for name in ["postgres", "initdb"] {
        let program = bin.join(name);
        fs::write(&program, format!("#!/bin/sh\nprintf '{version}\\n'\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

fn finder_of(directory: &Path) -> Finder {
    let mut finder = Finder::new("/nonexistent");
    finder.named_dir = Some(directory.to_owned());
    finder
}

/// Regression: in a directory with a base and a patched build, any of the two was measured without a word.
#[test]
fn of_several_builds_of_a_version_none_is_chosen() {
    let builds = open_directory();
    let (base, patched) = (
        builds.path().join("pg-base"),
        builds.path().join("pg-patched"),
    );
    fake_build(&base, "postgres (PostgreSQL) 18.6");
    fake_build(&patched, "postgres (PostgreSQL) 18.6");
    let text = find(&finder_of(builds.path()), "latest")
        .unwrap_err()
        .to_string();
    let dirs = format!("{}/bin, {}/bin", base.display(), patched.display());
    assert!(
        text.ends_with(&format!(
            "several builds of PostgreSQL 18.6: specify one of {dirs}"
        )),
        "{text}"
    );
    // An older version is another choice, and a second name is the same build.
    fs::remove_dir_all(&patched).unwrap();
    fake_build(&builds.path().join("old"), "postgres (PostgreSQL) 17.1");
    symlink(&base, builds.path().join("current")).unwrap();
    let found = find(&finder_of(builds.path()), "latest").unwrap();
    assert_eq!(found.bin_dir, base.canonicalize().unwrap().join("bin"));
}

/// Regression: builds below the specified one were searched, too, and a newer one was used.
#[test]
fn a_build_below_the_specified_one_is_not_used() {
    let build = open_directory();
    fake_build(build.path(), "postgres (PostgreSQL) 18.5");
    fake_build(&build.path().join("other"), "postgres (PostgreSQL) 18.6");
    let found = find(&finder_of(build.path()), "latest").unwrap();
    assert_eq!(found.version.to_string(), "18.5");
}

/// Regression: the error had all that the program printed, such as a license.
#[test]
fn a_program_that_is_not_postgresql_is_described_by_one_line() {
    let build = open_directory();
    fake_build(build.path(), "true (GNU coreutils) 9.1\nCopyright");
    let text = find(&finder_of(build.path()), "latest")
        .unwrap_err()
        .to_string();
    let words =
        "bin/postgres is not PostgreSQL's server: --version prints \"true (GNU coreutils) 9.1\"";
    assert!(text.ends_with(words), "{text}");
    let file = build.path().join("bin/postgres");
    let text = find(&finder_of(&file), "latest").unwrap_err().to_string();
    assert!(text.ends_with("it is not a directory"), "{text}");
}

#[test]
fn only_the_specified_directory_is_searched() {
    let Some(installation) = servers::installation("10") else {
        return;
    };
    let prefix = installation.bin_dir.parent().unwrap();
    let mut finder = Finder::new("/nonexistent");
    for dir in [prefix, &installation.bin_dir] {
        finder.named_dir = Some(dir.to_owned());
        let named = find(&finder, "10").unwrap();
        assert_eq!(
            (&named.version, &named.source),
            (&installation.version, &InstallationSource::Named)
        );
    }
    let text = find(&finder, "18").unwrap_err().to_string();
    assert!(
        text.contains("18") && text.contains("it contains 10."),
        "{text}"
    );
    finder.named_dir = Some("/nonexistent".into());
    let text = find(&finder, "18").unwrap_err().to_string();
    assert!(
        text.contains("/nonexistent: No such file or directory"),
        "{text}"
    );
    // A directory with one directory for each version, as on Debian.
    let versions = tempfile::tempdir().unwrap();
    for version in ["9.6", "10"] {
        let Some(installation) = servers::installation(version) else {
            return;
        };
        let prefix = installation.bin_dir.parent().unwrap();
        std::os::unix::fs::symlink(prefix, versions.path().join(version)).unwrap();
    }
    finder.named_dir = Some(versions.path().to_owned());
    assert!(
        find(&finder, "9.6")
            .unwrap()
            .version
            .to_string()
            .starts_with("9.6.")
    );
    assert!(
        find(&finder, "latest")
            .unwrap()
            .version
            .to_string()
            .starts_with("10.")
    );
}
