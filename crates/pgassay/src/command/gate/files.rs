//! The files of a gate: `JUnit`, Markdown, and what workflows of `GitHub` show.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use pgassay_record::run::Run;
use pgassay_report::gate::{self, GateOutcome};

use super::{GateArgs, GateDecision};
use crate::output::print_line_stderr;

/// Writes the files that were asked for. In a workflow of `GitHub`, also its summary and one annotation.
pub fn write(args: &GateArgs, run: &Run, decision: &GateDecision) -> Result<()> {
    let GateDecision {
        results,
        limit_percent,
        sentence,
    } = decision;
    if let Some(path) = &args.junit {
        let text = gate::junit(run, results, *limit_percent, args.strict)?;
        save(path, &text)?;
    }
    let markdown = || gate::markdown(results, sentence);
    if let Some(path) = &args.markdown {
        save(path, &markdown())?;
    }
    if let Some(summary) = std::env::var_os("GITHUB_STEP_SUMMARY") {
        let path = Path::new(&summary);
        let file = OpenOptions::new().append(true).create(true).open(path);
        file.and_then(|mut file| file.write_all(markdown().as_bytes()))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if std::env::var_os("GITHUB_ACTIONS").is_some() && GateOutcome::of(results) != GateOutcome::Pass
    {
        print_line_stderr(&gate::annotation(GateOutcome::of(results), sentence));
    }
    Ok(())
}

fn save(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
