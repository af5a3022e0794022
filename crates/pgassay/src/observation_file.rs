//! Observations of live servers that were saved: by `pgassay profile --json` and by `pgassay top`.

use std::path::Path;

use anyhow::{Context, Result, bail};
use pgassay_record::observation::{Observation, SCHEMA};
use pgassay_store::read_regular;

/// The observation in a file; `None` if the name is not that of a `.json` file, or that of a run's, and so names a run.
pub fn load(name: &str) -> Result<Option<Observation>> {
    let path = Path::new(name);
    let is_json = path.extension().is_some_and(|it| it == "json");
    if !is_json || !path.is_file() {
        return Ok(None);
    }
    let text = read_regular(path).with_context(|| format!("cannot read {name}"))?;
    let content: serde_json::Value =
        serde_json::from_slice(&text).with_context(|| format!("{name} is not JSON"))?;
    match content["schema"].as_str() {
        Some(SCHEMA) => {}
        Some(other) if other.starts_with("pgassay.run/") => return Ok(None),
        Some(other) => bail!("{name} has the format {other}, and this version reads {SCHEMA}"),
        None => bail!("{name} is not an observation: write one with pgassay profile --json"),
    }
    let observation = serde_json::from_value(content)
        .with_context(|| format!("{name} is not a valid observation"))?;
    Ok(Some(observation))
}
