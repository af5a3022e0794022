//! Architecture rules, checked against the source files: which crate may depend on which, and which may
//! do I/O.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Crate → crates it may depend on. `pgassay` may depend on all; `xtask` is a tool.
const MAY_KNOW: [(&str, &[&str]); 11] = [
    ("pgassay-wire", &[]),
    ("pgassay-script", &[]),
    ("pgassay-stats", &[]),
    ("pgassay-core", &["pgassay-stats"]),
    ("pgassay-count", &["pgassay-core"]),
    ("pgassay-load", &["pgassay-wire", "pgassay-script"]),
    ("pgassay-relay", &[]),
    ("pgassay-server", &["pgassay-wire"]),
    ("pgassay-profile", &["pgassay-wire"]),
    ("pgassay-store", &["pgassay-core"]),
    ("pgassay-report", &["pgassay-core"]),
];

/// Crates without I/O.
const PURE: [&str; 5] = [
    "pgassay-wire",
    "pgassay-script",
    "pgassay-stats",
    "pgassay-core",
    "pgassay-count",
];

/// Modules that do I/O or read a clock.
const OUTSIDE: [&str; 11] = [
    "std::fs",
    "std::process",
    "std::thread",
    "std::env",
    "Instant::now",
    "SystemTime",
    "UnixStream",
    "TcpStream",
    "UdpSocket",
    "ToSocketAddrs",
    "File::open",
];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("crates/pgassay lies in crates")
        .to_owned()
}

/// The source files of a crate, without tests.
fn sources(room: &str) -> Vec<(PathBuf, String)> {
    fn collect(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
        for entry in fs::read_dir(folder).expect("a crate has sources").flatten() {
            let path = entry.path();
            if path.is_dir() {
                collect(&path, found);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = fs::read_to_string(&path).expect("sources are text");
                found.push((path, text));
            }
        }
    }
    let mut found = Vec::new();
    collect(&crates().join(room).join("src"), &mut found);
    found
}

/// The lines of a file that are neither comments nor part of its unit tests.
fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .take_while(|(_, line)| !line.starts_with("#[cfg(test)]"))
        .map(|(number, line)| (number + 1, line))
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
}

fn is_test_file(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "tests.rs")
        || path.components().any(|part| part.as_os_str() == "tests")
}

#[test]
fn crates_depend_only_on_permitted_crates() {
    let allowed: BTreeMap<&str, &[&str]> = MAY_KNOW.into();
    for (room, may_know) in allowed {
        let text = fs::read_to_string(crates().join(room).join("Cargo.toml"))
            .expect("every room has a manifest");
        let manifest: toml::Table = text.parse().expect("a manifest is TOML");
        let Some(toml::Value::Table(dependencies)) = manifest.get("dependencies") else {
            continue;
        };
        for known in dependencies
            .keys()
            .filter(|name| name.starts_with("pgassay"))
        {
            assert!(
                may_know.contains(&known.as_str()),
                "{room} may not know {known}: see ARCHITECTURE.md"
            );
        }
    }
}

#[test]
fn architecture_md_names_every_crate() {
    let map = fs::read_to_string(crates().join("../ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    for entry in fs::read_dir(crates()).expect("there are crates").flatten() {
        let name = entry
            .file_name()
            .into_string()
            .expect("crates have plain names");
        assert!(
            map.contains(&format!("| `{name}` |")),
            "{name} is not in ARCHITECTURE.md's table of rooms"
        );
    }
}

#[test]
fn pure_rooms_do_no_io_and_read_no_clock() {
    for room in PURE {
        for (path, text) in sources(room) {
            if is_test_file(&path) {
                continue;
            }
            for (number, line) in code_lines(&text) {
                let found = OUTSIDE.iter().find(|outside| line.contains(**outside));
                assert!(
                    found.is_none(),
                    "{}:{number}: I/O or a clock in a crate that must have neither: {line}",
                    path.display()
                );
            }
        }
    }
}

#[test]
fn libraries_neither_print_nor_exit() {
    for (room, _) in MAY_KNOW {
        for (path, text) in sources(room) {
            if is_test_file(&path) {
                continue;
            }
            for (number, line) in code_lines(&text) {
                let loud = ["println!(", "print!(", "process::exit("]
                    .iter()
                    .any(|word| line.contains(word));
                assert!(
                    !loud,
                    "{}:{number}: only the crate pgassay prints or exits: {line}",
                    path.display()
                );
            }
        }
    }
}

#[test]
fn files_stay_readable() {
    const LINES_MAX: usize = 600;
    for entry in fs::read_dir(crates()).expect("there are crates").flatten() {
        let name = entry
            .file_name()
            .into_string()
            .expect("crates have plain names");
        for (path, text) in sources(&name) {
            let lines = text.lines().count();
            assert!(
                lines <= LINES_MAX,
                "{} has {lines} lines: split it by nouns",
                path.display()
            );
        }
    }
}
