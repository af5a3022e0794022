//! SECURITY.md names the test of each promise; every test that it names exists.

use std::fs;
use std::path::Path;

/// Appends the text of every source file below a directory.
fn append_sources(directory: &Path, text: &mut String) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            append_sources(&path, text);
        } else if path.extension().is_some_and(|end| end == "rs") {
            text.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn every_promise_is_kept_by_a_test_or_marked_as_a_gap() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let document = fs::read_to_string(crates.join("../SECURITY.md")).unwrap();
    let mut sources = String::new();
    append_sources(crates, &mut sources);
    let mut rows = document.lines().peekable();
    let mut promises = 0;
    while let Some(line) = rows.next() {
        if line != "| promise | test |" {
            continue;
        }
        rows.next();
        while let Some(row) = rows.next_if(|row| row.starts_with('|')) {
            promises += 1;
            let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
            let (promise, tests) = (cells[0].trim(), cells.get(1).map_or("", |cell| cell.trim()));
            if promise.starts_with("**Gap:**") {
                continue;
            }
            assert!(!tests.is_empty(), "no test: {promise}");
            for name in tests.split('`').skip(1).step_by(2) {
                assert!(sources.contains(&format!("fn {name}()")), "no test {name}");
            }
        }
    }
    assert!(promises > 20, "found only {promises} promises");
}
