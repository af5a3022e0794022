//! Opens the directory of results.

use anyhow::{Context, Result};
use pgassay_store::Store;

use crate::args::ResultsArgs;

/// The store in `--results`, or in the default directory.
pub fn open(args: &ResultsArgs) -> Result<Store> {
    let root = match &args.results {
        Some(root) => root.clone(),
        None => usual().context(
            "no directory for results: set PGASSAY_RESULTS, XDG_DATA_HOME or HOME, or use --results",
        )?,
    };
    Ok(Store::open(&root)?)
}

/// `$XDG_DATA_HOME/pgassay/runs`; the default is under `~/.local/share` (XDG Base Directory
/// Specification).
fn usual() -> Option<std::path::PathBuf> {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(std::path::PathBuf::from)
    };
    let data = set("XDG_DATA_HOME").or_else(|| Some(set("HOME")?.join(".local/share")))?;
    Some(data.join("pgassay").join("runs"))
}
