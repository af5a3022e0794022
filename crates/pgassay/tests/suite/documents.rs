//! Every path, link and anchor in the documents exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Directories of the project that documents name files in.
const DIRECTORIES: [&str; 7] = [
    "crates/",
    "docs/",
    "benchmarks/",
    "studies/",
    "fuzz/",
    ".ci/",
    ".github/",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn documents() -> Vec<PathBuf> {
    let directories = [root(), root().join("docs"), root().join("fuzz")];
    let mut found = Vec::new();
    for directory in directories {
        for entry in fs::read_dir(directory).expect("a directory").flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|it| it == "md") {
                found.push(path);
            }
        }
    }
    assert!(found.len() > 30, "{found:?}");
    found
}

/// A document's lines outside of blocks of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// As GitHub makes them from headings: lowercase, spaces as hyphens, no punctuation.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| -> String {
        let title = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = title
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

/// The targets of links, `[text](target)`.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
}

/// Text between single backticks.
fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

#[test]
fn links_and_anchors_resolve() {
    let mut wrong = Vec::new();
    for document in documents() {
        let text = fs::read_to_string(&document).expect("a text file");
        let directory = document.parent().expect("it is in a directory");
        let targets = prose(&text).flat_map(links);
        for target in targets.filter(|it| !it.contains("://") && !it.starts_with("mailto:")) {
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if path.is_empty() {
                document.clone()
            } else {
                directory.join(path)
            };
            let is_found = file.exists()
                && (anchor.is_empty()
                    || fs::read_to_string(&file).is_ok_and(|it| anchors(&it).contains(anchor)));
            if !is_found {
                wrong.push(format!("{}: {target}", document.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn paths_in_code_spans_exist() {
    let mut wrong = Vec::new();
    for document in documents() {
        let text = fs::read_to_string(&document).expect("a text file");
        for span in prose(&text).flat_map(code_spans) {
            let path = span.split([' ', ':']).next().unwrap_or_default();
            let is_path = DIRECTORIES.iter().any(|it| path.starts_with(it))
                && !path.contains(['*', '{', '<', '…']);
            // CONTRIBUTING.md tells where files go that a change adds.
            let is_new = document.ends_with("CONTRIBUTING.md")
                && ["chrome", "work-mem"].iter().any(|it| path.contains(it));
            if is_path && !is_new && !root().join(path).exists() {
                wrong.push(format!("{}: {path}", document.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
