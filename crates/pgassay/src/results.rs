//! Opens the directory of results.

use std::path::PathBuf;

use anyhow::{Context, Result};
use pgassay_store::Store;

use crate::args::ResultsArgs;

/// The store in `--results`, or in the default directory.
pub fn open(args: &ResultsArgs) -> Result<Store> {
    Ok(Store::open(&root(args)?)?)
}

/// The same for commands that only read: they create nothing.
pub fn open_to_read(args: &ResultsArgs) -> Result<Store> {
    Ok(Store::open_to_read(&root(args)?)?)
}

fn root(args: &ResultsArgs) -> Result<PathBuf> {
    args.results.clone().or_else(usual).context(
        "no directory for results: set PGASSAY_RESULTS, XDG_DATA_HOME or HOME, or use --results",
    )
}

/// `$XDG_DATA_HOME/pgassay/runs`; the default is under `~/.local/share` (XDG Base Directory
/// Specification).
fn usual() -> Option<PathBuf> {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let data = set("XDG_DATA_HOME").or_else(|| Some(set("HOME")?.join(".local/share")))?;
    Some(data.join("pgassay").join("runs"))
}
