//! The functions of a PostgreSQL source tree, read with universal-ctags.
//!
//! This includes static and inline functions; headers and grammars are parsed as C. Release tarballs
//! also contain the output of bison and flex (`gram.c` for `gram.y`), which is left out, so that a
//! tarball and a checkout produce the same table. Parsed as C, the first function after the rules of
//! a grammar (such as `base_yyerror`) is lost; pgassay-knowledge recognizes these by prefix.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The folders whose code can run in a server.
const FOLDERS: [&str; 8] = [
    "src/backend",
    "src/common",
    "src/port",
    "src/timezone",
    "src/include",
    "src/pl/plpgsql",
    "contrib/pg_stat_statements",
    "contrib/auto_explain",
];

/// Whether universal-ctags is installed. Exuberant Ctags has no custom output format.
pub fn has_universal_ctags() -> bool {
    let version = Command::new("ctags")
        .arg("--version")
        .stderr(Stdio::null())
        .output();
    version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("Universal Ctags"))
}

/// All functions of the tree as (symbol, path), sorted, without duplicates.
pub fn functions(tree: &Path) -> Result<Vec<(String, String)>> {
    if !tree.join("src/backend").is_dir() {
        bail!(
            "{} is not a PostgreSQL source tree: it has no src/backend",
            tree.display()
        );
    }
    if !has_universal_ctags() {
        bail!("universal-ctags is required to read C sources (Debian package `universal-ctags`)");
    }
    let present = FOLDERS.iter().filter(|folder| tree.join(folder).is_dir());
    let output = Command::new("ctags")
        .current_dir(tree)
        .args([
            "-x",
            "--_xformat=%N\t%F",
            "--sort=no",
            "--languages=C",
            "--kinds-C=f",
        ])
        .args(["--map-C=+.h", "--map-C=+.y", "--map-C=+.l", "-R"])
        .args(present)
        .output()
        .context("cannot run ctags")?;
    if !output.status.success() {
        bail!(
            "ctags failed on {}: {}",
            tree.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let mut functions = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let (symbol, path) = line
            .split_once('\t')
            .with_context(|| format!("unexpected output of ctags: `{line}`"))?;
        if !is_generated(tree, path) {
            functions.push((symbol.to_owned(), path.to_owned()));
        }
    }
    functions.sort();
    functions.dedup();
    Ok(functions)
}

/// Whether a C file was generated from a grammar or scanner in the same folder.
fn is_generated(tree: &Path, path: &str) -> bool {
    let source = tree.join(path);
    source.extension().is_some_and(|ending| ending == "c")
        && ["y", "l"]
            .iter()
            .any(|ending| source.with_extension(ending).is_file())
}
