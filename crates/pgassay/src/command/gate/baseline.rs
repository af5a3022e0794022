//! Finds what a gate compares with, and writes baseline files.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use pgassay_account::instructions::{Counts, SCHEMA as COUNTS_SCHEMA};
use pgassay_record::baseline::{BASELINE_SCHEMA, GateBaseline};
use pgassay_record::run::{Run, SCHEMA as RUN_SCHEMA};
use pgassay_report::gate::GateVerdict;
use pgassay_store::StoreError;
use serde_json::Value;

use super::args::GateArgs;
use crate::input_file::read_text;
use crate::output::print_line_stderr;
use crate::results;

/// What `--against` names.
pub enum Against {
    /// Nothing: the gate compares with the baseline.
    Nothing,
    /// Something that does not exist, for this reason.
    Missing(String),
    /// A baseline.
    Found(Box<GateBaseline>),
}

/// Finds the file or the run that `--against` names.
pub fn find(args: &GateArgs) -> Result<Against> {
    let Some(name) = &args.against else {
        return Ok(Against::Nothing);
    };
    let path = Path::new(name);
    let is_json = path.extension().is_some_and(|it| it == "json");
    if args.update && !is_json {
        bail!("--update writes a baseline file: give --against a name that ends with .json");
    }
    let file = || Ok(Against::Found(Box::new(read(path, args.update)?)));
    if is_json && path.is_file() {
        return file();
    }
    if is_json {
        return Ok(Against::Missing(format!("there is no file {name}")));
    }
    match results::open(&args.question.run.results)?.load(name) {
        Ok((run, _)) => Ok(Against::Found(Box::new(GateBaseline::of_run(&run)))),
        Err(StoreError::NotFound { .. } | StoreError::NoRun { .. }) if path.is_file() => file(),
        Err(error @ (StoreError::NotFound { .. } | StoreError::NoRun { .. })) => {
            Ok(Against::Missing(error.to_string()))
        }
        Err(error) => Err(error.into()),
    }
}

/// Reads a baseline file, the `run.json` of a run, or counts that `pgassay count --save` wrote. Only the first may be
/// replaced.
fn read(path: &Path, is_replaced: bool) -> Result<GateBaseline> {
    let shown = path.display();
    let text = read_text(path).with_context(|| format!("cannot read {shown}"))?;
    let damaged = || format!("{shown} is not a baseline of pgassay");
    let value: Value = serde_json::from_str(&text).with_context(damaged)?;
    match value["schema"].as_str().unwrap_or("unknown") {
        RUN_SCHEMA | COUNTS_SCHEMA if is_replaced => bail!(
            "{shown} is no baseline file, and --update would replace it: give --against another name, or leave out \
             --update"
        ),
        BASELINE_SCHEMA => {
            let found: GateBaseline = serde_json::from_str(&text).with_context(damaged)?;
            // Another version may compute them in another way, and is not comparable anyway.
            let is_of_this = found.pgassay_version.as_deref() == Some(env!("CARGO_PKG_VERSION"));
            if is_of_this && !found.has_ratios_of_its_trials() {
                bail!(
                    "the ratios in {shown} are not those of its trials: it was edited, or an earlier version of \
                     pgassay wrote it; restore it, or remove it and write a new one with --update"
                );
            }
            Ok(found)
        }
        RUN_SCHEMA => {
            let run: Run = serde_json::from_str(&text).with_context(damaged)?;
            Ok(GateBaseline::of_run(&run))
        }
        COUNTS_SCHEMA => {
            let counts: Counts = serde_json::from_str(&text).with_context(damaged)?;
            Ok(GateBaseline::of_counts(counts, None))
        }
        other => Err(anyhow!(
            "{shown} has the schema {other}; expected {BASELINE_SCHEMA}, {RUN_SCHEMA} or {COUNTS_SCHEMA}"
        )),
    }
}

/// Writes the baseline file of a gate that passed, if the user wants that. Keys are sorted, so that two files can be
/// compared line by line.
pub fn update(
    args: &GateArgs,
    verdict: GateVerdict,
    baseline: impl FnOnce() -> GateBaseline,
) -> Result<()> {
    let Some(name) = args.against.as_ref().filter(|_| args.update) else {
        return Ok(());
    };
    if verdict != GateVerdict::Pass {
        print_line_stderr(&format!(
            "{name} is not written, because the gate did not pass"
        ));
        return Ok(());
    }
    let sorted = serde_json::to_value(baseline())?;
    let mut text = serde_json::to_string_pretty(&sorted)?;
    text.push('\n');
    // A baseline that is half written would be lost.
    let partial = format!("{name}.{}", std::process::id());
    // Never one that someone else has put there.
    let created = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&partial)
        .with_context(|| format!("cannot write {partial}"))?;
    let written = (&created)
        .write_all(text.as_bytes())
        .and_then(|()| std::fs::rename(&partial, name));
    if written.is_err() {
        _ = std::fs::remove_file(&partial);
    }
    written.with_context(|| format!("cannot write {name}"))?;
    print_line_stderr(&format!("{name} is written"));
    Ok(())
}
