//! The shipped table against the source that Debian builds its PostgreSQL 15 from.
//!
//! The source is fetched as `.ci/pgbench-tap` fetches it, or taken from the folder that
//! `PGASSAY_POSTGRES15_SOURCE` names, and is never kept in this repository.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use xtask::presence::Major;
use xtask::source_tree;
use xtask::tables;

/// Debian's may be a later minor release than the table's 15.18: fixes add a function now and then.
const DIFFERENT_MAX: f64 = 0.005;

fn skip(why: &str) {
    let line =
        format!("SKIPPED (1 in this program): the table against Debian's source of 15: {why}\n");
    // Not `eprintln!`: that would be captured, and a skip has to be seen.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// The tree, and the folder that goes with it; the reason where there is none.
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

/// The functions of 15 in the table that is shipped.
fn shipped() -> BTreeSet<(String, String)> {
    let packed = std::fs::read(tables::data_folder().join("functions.zlib"));
    let rows = tables::dump_functions(&packed.expect("it is committed")).expect("it is whole");
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
fn the_generator_makes_the_shipped_table_from_debians_source_of_15() {
    if !source_tree::has_universal_ctags() {
        return skip("universal-ctags is not installed");
    }
    let (tree, _folder) = match source() {
        Ok(found) => found,
        Err(why) => return skip(&why),
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
        "of {} functions {} are not in the table, as {:?}, and {} of it not in the source, as {:?}",
        made.len(),
        missing.len(),
        &missing[..missing.len().min(20)],
        gone.len(),
        &gone[..gone.len().min(20)],
    );
}
