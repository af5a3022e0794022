//! The functions of a PostgreSQL source tree, read with universal-ctags.
//!
//! Static and inline functions count; headers and grammars are read as C. Release tarballs also
//! hold what bison and flex made (`gram.c` beside `gram.y`): those copies are left out, so that a
//! tarball and a checkout give the same table. Read as C, a grammar's first function after its
//! rules (`base_yyerror` and its kin) is lost; pgassay-core knows those by prefix.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The parts of the tree whose code may run inside a server.
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

/// Whether universal-ctags is installed (exuberant-ctags has no format of its own choice).
pub fn has_universal_ctags() -> bool {
    let version = Command::new("ctags")
        .arg("--version")
        .stderr(Stdio::null())
        .output();
    version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("Universal Ctags"))
}

/// All functions of the tree as (symbol, path), sorted, each once.
pub fn functions(tree: &Path) -> Result<Vec<(String, String)>> {
    if !tree.join("src/backend").is_dir() {
        bail!(
            "{} is no PostgreSQL source tree: it has no src/backend",
            tree.display()
        );
    }
    if !has_universal_ctags() {
        bail!("universal-ctags is needed to read C sources; Debian's package is `universal-ctags`");
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
            .with_context(|| format!("ctags wrote `{line}`"))?;
        if !is_generated(tree, path) {
            functions.push((symbol.to_owned(), path.to_owned()));
        }
    }
    functions.sort();
    functions.dedup();
    Ok(functions)
}

/// Whether a C file was made from a grammar or scanner that lies beside it.
fn is_generated(tree: &Path, path: &str) -> bool {
    let source = tree.join(path);
    source.extension().is_some_and(|ending| ending == "c")
        && ["y", "l"]
            .iter()
            .any(|ending| source.with_extension(ending).is_file())
}
