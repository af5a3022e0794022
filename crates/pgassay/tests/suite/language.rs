//! The project's glossary, held against everything that people read: help, documents, studies, reports,
//! and the names and comments of the source code.
//!
//! Readers know PostgreSQL's manual, perf and statistics. A word of their own for a thing that has a name
//! already makes them ask what is meant.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::printed;

/// Words and phrases that are not used, and what is said instead.
const GLOSSARY: [(&str, &str); 58] = [
    ("unresolved", "inconclusive (a verdict), unexplained (time)"),
    ("detects ≥", "MDE"),
    ("crew", "client pool"),
    ("crews", "client pools"),
    ("looks", "samples"),
    ("foreign", "external (a server), other programs (a load)"),
    ("the user's own", "external"),
    ("of one's own", "your own"),
    ("surroundings", "system environment"),
    ("belief", "expectation"),
    ("beliefs", "expectations"),
    ("believed", "expected"),
    ("remedy", "suggested fix"),
    ("remedies", "suggested fixes"),
    ("mend", "fix"),
    ("mends", "fixes"),
    ("mended", "fixed"),
    ("set the pace", "was the bottleneck"),
    ("sets the pace", "is the bottleneck"),
    ("is to be had", "is available"),
    ("are to be had", "are available"),
    ("not to be had", "not available"),
    ("to be told", "distinguishable"),
    ("not to be told from", "inconclusive"),
    ("beside what", "compared with what"),
    ("beside it", "next to it; background processes"),
    ("beside them", "next to them; background processes"),
    ("beside the sum", "background processes"),
    ("fought over", "contended"),
    ("dear", "expensive"),
    ("throw-away", "temporary"),
    ("hypervisor gave", "CPU steal"),
    ("nobody cares", "equivalence margin"),
    ("watching kept", "profiling overhead"),
    ("no reason told", "unknown"),
    ("obey", "handle"),
    ("obeys", "follows"),
    ("bury", "reap"),
    ("blamed", "with the server's cause"),
    ("hurry", "expire"),
    ("told", "reported, described"),
    ("whoever", "the process that, the user who"),
    ("colour", "color"),
    ("licence", "license"),
    ("licences", "licenses"),
    ("behaviour", "behavior"),
    ("neighbour", "neighbor"),
    ("neighbours", "neighbors"),
    ("centre", "center"),
    ("analyse", "analyze"),
    ("initialise", "initialize"),
    ("initialised", "initialized"),
    ("recognise", "recognize"),
    ("optimise", "optimize"),
    ("normalise", "normalize"),
    ("normalised", "normalized"),
    ("summarise", "summarize"),
    ("synchronise", "synchronize"),
];

/// Terms of others that hold a word of the glossary.
const OTHERS_TERMS: [&str; 13] = [
    "foreign key",
    "foreign keys",
    "foreign table",
    "foreign tables",
    "foreign data",
    "foreign server",
    "foreign servers",
    "foreign schema",
    // A directory of PostgreSQL's source code.
    "foreign pl",
    // Kept for scripts that use it.
    "try remedies",
    "looks like",
    "looks up",
    "no remedies",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Lowercase words with single spaces between, names taken apart: `CamelCase` and `snake_case`.
fn words(line: &str) -> String {
    let mut text = String::with_capacity(line.len() + 8);
    let mut before = ' ';
    for c in line.chars() {
        if c.is_uppercase() && before.is_lowercase() {
            text.push(' ');
        }
        let is_of_word = c.is_alphanumeric() || matches!(c, '\'' | '≥');
        text.extend(if is_of_word { c } else { ' ' }.to_lowercase());
        before = c;
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    format!(" {} ", words.join(" "))
}

/// The words of [`OTHERS_TERMS`], and the entries of [`GLOSSARY`] by their words.
struct Patterns {
    others: Vec<String>,
    ours: Vec<(String, (&'static str, &'static str))>,
}

static PATTERNS: LazyLock<Patterns> = LazyLock::new(|| Patterns {
    others: OTHERS_TERMS.iter().map(|term| words(term)).collect(),
    ours: GLOSSARY
        .iter()
        .map(|entry| (words(entry.0), *entry))
        .collect(),
});

/// What a line says that the glossary says otherwise.
fn found_in(line: &str) -> Vec<(&'static str, &'static str)> {
    let mut text = words(line);
    for term in &PATTERNS.others {
        while text.contains(term) {
            text = text.replace(term, "  ");
        }
    }
    let found = PATTERNS.ours.iter().filter(|it| text.contains(&it.0));
    found.map(|it| it.1).collect()
}

/// Every place in a text where the glossary says otherwise. Program output that documents quote is of
/// the version that printed it.
fn check(name: &str, text: &str, wrong: &mut BTreeSet<String>) {
    let has_extension = |wanted: &str| Path::new(name).extension().is_some_and(|it| it == wanted);
    let (is_code, is_document) = (has_extension("rs"), has_extension("md"));
    let mut is_quoted = false;
    for (number, line) in (1..).zip(text.lines()) {
        if is_document && line.trim_start().starts_with("```") {
            is_quoted = !is_quoted;
        }
        if is_quoted {
            continue;
        }
        for (word, instead) in found_in(line) {
            // A suggested fix may be a remedy in code; its texts are in the reports' snapshots.
            if is_code && matches!(word, "remedy" | "remedies") {
                continue;
            }
            wrong.insert(format!("{name}:{number}: \"{word}\": say {instead}"));
        }
    }
}

fn files(directory: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        let is_wanted = path
            .extension()
            .is_some_and(|it| endings.iter().any(|ending| it == *ending));
        if path.is_dir() {
            files(&path, endings, found);
        } else if is_wanted {
            found.push(path);
        }
    }
}

fn check_files(paths: &[PathBuf]) {
    let mut wrong = BTreeSet::new();
    for path in paths {
        let text = fs::read_to_string(path).expect("a text file");
        let name = path.strip_prefix(root()).unwrap_or(path);
        check(&name.display().to_string(), &text, &mut wrong);
    }
    let shown: Vec<&String> = wrong.iter().take(40).collect();
    assert!(wrong.is_empty(), "{} in all: {shown:#?}", wrong.len());
}

#[test]
fn documents_and_studies_use_the_glossary() {
    let mut paths = Vec::new();
    for entry in fs::read_dir(root()).expect("the project").flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|it| it == "md") {
            paths.push(path);
        }
    }
    files(&root().join("docs"), &["md"], &mut paths);
    files(&root().join("studies"), &["toml"], &mut paths);
    assert!(paths.len() > 30, "{paths:?}");
    check_files(&paths);
}

#[test]
fn source_code_uses_the_glossary() {
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(root().join("crates"))
        .expect("the crates")
        .flatten()
    {
        let source = entry.path().join("src");
        if source.is_dir() {
            files(&source, &["rs", "css", "js", "sql"], &mut paths);
        }
    }
    assert!(paths.len() > 200, "{}", paths.len());
    // It holds the old words, to replace them in old results.
    paths.retain(|path| !path.ends_with("pgassay-store/src/upgrade.rs"));
    check_files(&paths);
}

#[test]
fn reports_use_the_glossary() {
    let mut paths = Vec::new();
    let snapshots = root().join("crates/pgassay-report/tests/suite/snapshots");
    files(&snapshots, &["txt", "html", "md", "snap"], &mut paths);
    assert!(!paths.is_empty());
    check_files(&paths);
}

#[test]
fn help_of_every_command_uses_the_glossary() {
    let mut wrong = BTreeSet::new();
    for (command, text) in printed::helps() {
        check(&format!("pgassay {command}"), &text, &mut wrong);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn words_are_found_in_names_and_text_and_terms_of_others_are_not() {
    let found = |line: &str| -> Vec<&str> { found_in(line).iter().map(|it| it.0).collect() };
    assert_eq!(found("let crewSize = old_crew;"), ["crew"]);
    assert_eq!(found("struct CrewConfig"), ["crew"]);
    assert_eq!(
        found("It is to be had, in colour."),
        ["is to be had", "colour"]
    );
    assert_eq!(found("a foreign key of a foreign load"), ["foreign"]);
    assert!(found("screwed, foreign_keys, ScrewDriver").is_empty());
}
