//! Compares the committed table with the source of Debian's PostgreSQL 15.
//!
//! `.ci/postgresql-source` downloads the source, unless `PGASSAY_POSTGRES15_SOURCE` names a folder
//! with it. It is not part of this repository.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use pgassay_test_support::skip;
use xtask::presence::Major;
use xtask::source_tree;
use xtask::tables;

const WHAT: &str = "comparison with Debian's source of 15";
/// Debian may have a later minor release than the table's 15.18, with a few functions more.
const DIFFERENT_MAX: f64 = 0.005;

/// The source tree and its temporary folder, or the reason why there is none.
fn source() -> Result<(PathBuf, Option<tempfile::TempDir>), String> {
    if let Some(folder) = std::env::var_os("PGASSAY_POSTGRES15_SOURCE") {
        return Ok((folder.into(), None));
    }
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.ci/postgresql-source");
    let fetched = Command::new(script)
        .arg("15")
        .arg(folder.path())
        .output()
        .map_err(|error| error.to_string())?;
    let words = String::from_utf8_lossy(&fetched.stdout);
    match fetched.status.code() {
        Some(0) => Ok((folder.path().join("source"), Some(folder))),
        Some(77) => Err(words.lines().last().unwrap_or_default().to_owned()),
        _ => panic!("{}", String::from_utf8_lossy(&fetched.stderr)),
    }
}

/// The functions of 15 in the committed table.
fn shipped() -> BTreeSet<(String, String)> {
    let packed = std::fs::read(tables::data_folder().join("functions.zlib"));
    let rows = tables::dump_functions(&packed.expect("it is committed")).expect("it is valid");
    let wanted = Major::parse("15").expect("a major");
    let of_15 = |row: &str| {
        let fields: Vec<&str> = row.split('\t').collect();
        let [symbol, path, first, last] = fields[..] else {
            panic!("not four columns: {row}");
        };
        let major = |text| Major::parse(text).expect("a major");
        let is_there = (major(first)..=major(last)).contains(&wanted);
        is_there.then(|| (symbol.to_owned(), path.to_owned()))
    };
    rows.lines().skip(1).filter_map(of_15).collect()
}

#[test]
fn debians_source_of_15_reproduces_the_committed_table() {
    if !source_tree::has_universal_ctags() {
        return skip(WHAT, "universal-ctags is not installed");
    }
    let (tree, _folder) = match source() {
        Ok(found) => found,
        Err(why) => return skip(WHAT, &why),
    };
    let made: BTreeSet<(String, String)> = source_tree::functions(&tree)
        .expect("a release's source")
        .into_iter()
        .collect();
    let shipped = shipped();
    let missing: Vec<_> = made.difference(&shipped).collect();
    let gone: Vec<_> = shipped.difference(&made).collect();
    let limit = (made.len() as f64 * DIFFERENT_MAX) as usize;
    assert!(made.len() > 15_000, "{} functions", made.len());
    assert!(
        missing.len() + gone.len() <= limit,
        "of {} functions, {} are not in the table, such as {:?}; {} of the table are not in the source, such as {:?}",
        made.len(),
        missing.len(),
        &missing[..missing.len().min(20)],
        gone.len(),
        &gone[..gone.len().min(20)],
    );
}
