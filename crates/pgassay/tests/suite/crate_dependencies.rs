//! Architecture rules, checked against the source files: which crate may depend on which, and which may
//! do I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Crate → crates it may depend on. `pgassay` may depend on all; `xtask` is a tool.
const MAY_KNOW: [(&str, &[&str]); 20] = [
    ("pgassay-wire", &[]),
    ("pgassay-script", &[]),
    ("pgassay-stats", &[]),
    ("pgassay-model", &["pgassay-stats"]),
    ("pgassay-knowledge", &[]),
    (
        "pgassay-account",
        &["pgassay-stats", "pgassay-model", "pgassay-knowledge"],
    ),
    (
        "pgassay-record",
        &[
            "pgassay-model",
            "pgassay-knowledge",
            "pgassay-account",
            "pgassay-explain",
        ],
    ),
    (
        "pgassay-diagnosis",
        &[
            "pgassay-stats",
            "pgassay-model",
            "pgassay-knowledge",
            "pgassay-account",
            "pgassay-record",
            "pgassay-script",
        ],
    ),
    ("pgassay-count", &["pgassay-knowledge", "pgassay-account"]),
    ("pgassay-explain", &[]),
    ("pgassay-rights", &[]),
    (
        "pgassay-load",
        &["pgassay-rights", "pgassay-wire", "pgassay-script"],
    ),
    ("pgassay-ranks", &[]),
    ("pgassay-relay", &[]),
    (
        "pgassay-server",
        &["pgassay-knowledge", "pgassay-rights", "pgassay-wire"],
    ),
    (
        "pgassay-profile",
        &["pgassay-knowledge", "pgassay-rights", "pgassay-wire"],
    ),
    (
        "pgassay-store",
        &[
            "pgassay-rights",
            "pgassay-model",
            "pgassay-account",
            "pgassay-record",
        ],
    ),
    (
        "pgassay-report",
        &[
            "pgassay-model",
            "pgassay-account",
            "pgassay-record",
            "pgassay-explain",
            "pgassay-script",
        ],
    ),
    (
        "pgassay-lab",
        &[
            "pgassay-model",
            "pgassay-knowledge",
            "pgassay-account",
            "pgassay-record",
            "pgassay-diagnosis",
            "pgassay-count",
            "pgassay-explain",
            "pgassay-load",
            "pgassay-profile",
            "pgassay-relay",
            "pgassay-rights",
            "pgassay-script",
            "pgassay-server",
            "pgassay-stats",
            "pgassay-wire",
        ],
    ),
    (
        TEST_SUPPORT,
        &["pgassay-profile", "pgassay-server", "pgassay-wire"],
    ),
];

/// Only a dev-dependency of others.
const TEST_SUPPORT: &str = "pgassay-test-support";

/// Crates without I/O.
const PURE: [&str; 10] = [
    "pgassay-wire",
    "pgassay-script",
    "pgassay-stats",
    "pgassay-model",
    "pgassay-knowledge",
    "pgassay-account",
    "pgassay-record",
    "pgassay-diagnosis",
    "pgassay-count",
    "pgassay-explain",
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
    rust_files(&crates().join(room).join("src"))
}

/// The Rust files below a directory; none if it does not exist.
fn rust_files(directory: &Path) -> Vec<(PathBuf, String)> {
    fn collect(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
        for entry in fs::read_dir(folder).expect("a directory").flatten() {
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
    if directory.exists() {
        collect(directory, &mut found);
    }
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

/// Regression: in a clone below a directory named `tests`, all files were those of tests.
fn is_test_file(path: &Path) -> bool {
    let path = path.strip_prefix(crates()).expect("a file of a crate");
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

/// Regression: a crate had a new dependency, and the fuzz targets, which are another workspace, could no longer be built
/// with --locked.
#[test]
fn the_lock_file_of_the_fuzz_targets_has_the_dependencies_of_our_crates() {
    let parse = |path: PathBuf| -> toml::Table {
        let text = fs::read_to_string(&path).expect("a file");
        text.parse().expect("it is TOML")
    };
    let lock = parse(crates().join("../fuzz/Cargo.lock"));
    let packages = lock["package"].as_array().expect("packages");
    let name = |package: &toml::Value| package["name"].as_str().unwrap_or_default().to_owned();
    let ours = packages.iter().filter(|it| it.get("source").is_none());
    let ours: Vec<_> = ours.filter(|it| name(it) != "pgassay-fuzz").collect();
    assert!(ours.len() > 5, "{ours:?}");
    for package in ours {
        let locked = package.get("dependencies").and_then(toml::Value::as_array);
        let locked: BTreeSet<&str> = locked
            .into_iter()
            .flatten()
            // A version follows if there are several.
            .filter_map(|it| it.as_str()?.split(' ').next())
            .collect();
        let manifest = parse(crates().join(name(package)).join("Cargo.toml"));
        let required = manifest.get("dependencies").and_then(toml::Value::as_table);
        let required: BTreeSet<&str> = required
            .into_iter()
            .flatten()
            .map(|(it, _)| &**it)
            .collect();
        assert_eq!(
            locked,
            required,
            "{}: cargo update --workspace --manifest-path fuzz/Cargo.toml",
            name(package)
        );
    }
}

#[test]
fn test_support_is_only_a_dev_dependency() {
    for name in all_crates() {
        let text = fs::read_to_string(crates().join(&name).join("Cargo.toml"))
            .expect("every crate has a manifest");
        let manifest: toml::Table = text.parse().expect("a manifest is TOML");
        for kind in ["dependencies", "build-dependencies"] {
            let known = manifest.get(kind).and_then(|it| it.get(TEST_SUPPORT));
            assert!(known.is_none(), "{name}: {TEST_SUPPORT} in {kind}");
        }
    }
}

/// Shared helpers belong to that crate. Only tests that run twice, once per driver, have paths.
#[test]
fn tests_include_no_files_of_other_tests() {
    for name in all_crates() {
        let tests = crates().join(&name).join("tests");
        for (path, text) in rust_files(&tests) {
            let foreign = text
                .lines()
                .find(|line| line.trim_start().starts_with("#[path") && line.contains('/'));
            assert_eq!(foreign, None, "{}", path.display());
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

/// `.ci/run` selects the slow tier by the name of this module.
#[test]
fn slow_tests_are_in_modules_named_slow() {
    let mut slow = 0;
    for name in all_crates() {
        for (path, text) in rust_files(&crates().join(&name).join("tests")) {
            let before = text.split("\nmod slow {").next().unwrap_or_default();
            let mark = "#[ignore = \"slow";
            assert!(!before.contains(mark), "{}", path.display());
            slow += text.matches(mark).count();
        }
    }
    assert!(slow > 30, "{slow}");
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

/// The names of all crates.
fn all_crates() -> Vec<String> {
    let entries = fs::read_dir(crates()).expect("there are crates").flatten();
    let names = entries.map(|entry| entry.file_name().into_string());
    names
        .map(|name| name.expect("crates have plain names"))
        .collect()
}

/// Code of the crates without tests: the path and the lines of each file.
fn product_code() -> Vec<(PathBuf, Vec<(usize, String)>)> {
    let mut found = Vec::new();
    for name in all_crates() {
        for (path, text) in sources(&name) {
            if !is_test_file(&path) {
                let lines = code_lines(&text).map(|(number, line)| (number, line.to_owned()));
                found.push((path, lines.collect()));
            }
        }
    }
    found
}

/// The name after a keyword at the beginning of a line, past its visibility.
fn declared<'a>(line: &'a str, keywords: &[&str]) -> Option<&'a str> {
    let mut rest = line.trim_start();
    if let Some(after) = rest.strip_prefix("pub") {
        rest = match after.strip_prefix('(') {
            Some(scope) => scope.split_once(')')?.1,
            None => after,
        }
        .trim_start();
    }
    for qualifier in ["const ", "unsafe ", "async "] {
        rest = rest.strip_prefix(qualifier).unwrap_or(rest);
    }
    let found = keywords
        .iter()
        .find_map(|keyword| rest.strip_prefix(keyword))?;
    let end = found.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    Some(&found[..end]).filter(|name| !name.is_empty())
}

#[test]
fn functions_stay_readable() {
    const LINES_MAX: usize = 70;
    // A table of cases.
    const TABLES: [&str; 1] = ["of_statements"];
    let mut long = Vec::new();
    for (path, lines) in product_code() {
        for (at, (number, line)) in lines.iter().enumerate() {
            let Some(name) = declared(line, &["fn "]) else {
                continue;
            };
            // As rustfmt writes it, a body ends with a brace in the column of its first line.
            let indent = &line[..line.len() - line.trim_start().len()];
            let end = lines[at..]
                .iter()
                .find(|(_, line)| *line == format!("{indent}}}"));
            let length = end.map_or(0, |(end, _)| end - number + 1);
            if length > LINES_MAX && !TABLES.contains(&name) {
                long.push(format!("{}:{number}: {name}: {length}", path.display()));
            }
        }
    }
    assert!(long.is_empty(), "longer than {LINES_MAX} lines: {long:#?}");
}

#[test]
fn a_type_name_has_one_meaning() {
    let mut known: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, lines) in product_code() {
        for (number, line) in &lines {
            let keywords = ["struct ", "enum ", "trait ", "union "];
            if let Some(name) = declared(line, &keywords) {
                let place = format!("{}:{number}", path.display());
                known.entry(name.to_owned()).or_default().insert(place);
            }
        }
    }
    assert!(known.len() > 500, "{}", known.len());
    known.retain(|_, places| places.len() > 1);
    assert!(known.is_empty(), "{known:#?}");
}

/// `thread::spawn` panics if the system refuses a thread, and `Command::output` if it refuses to poll.
#[test]
fn threads_and_programs_are_started_without_a_panic() {
    const PANICKING: [&str; 4] = [
        "thread::spawn(",
        "scope.spawn(",
        "wait_with_output(",
        ").output()",
    ];
    let mut found = Vec::new();
    for (path, lines) in product_code() {
        if ["xtask", "test-support"]
            .iter()
            .any(|it| path.display().to_string().contains(it))
        {
            continue;
        }
        for (number, line) in lines {
            let is_chain = line.trim_start().starts_with(".output()");
            if is_chain || PANICKING.iter().any(|it| line.contains(it)) {
                found.push(format!("{}:{number}: {}", path.display(), line.trim()));
            }
        }
    }
    assert!(
        found.is_empty(),
        "use thread::Builder, or read a pipe: {found:#?}"
    );
}
