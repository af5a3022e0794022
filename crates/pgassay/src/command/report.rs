//! `pgassay report`: writes the HTML report of an earlier run.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};

use crate::cli::ReportArgs;
use crate::results;

/// Writes the report and prints its path.
pub fn report(args: &ReportArgs, out: &mut impl Write) -> Result<()> {
    let (run, directory) = results::open(&args.results)?.load(&args.run)?;
    let html = pgassay_report::html(&run);
    let file = args
        .output
        .clone()
        .unwrap_or_else(|| directory.join("report.html"));
    if file == Path::new("-") {
        out.write_all(html.as_bytes())?;
        return Ok(());
    }
    std::fs::write(&file, html).with_context(|| format!("cannot write {}", file.display()))?;
    writeln!(out, "{}", file.display())?;
    Ok(())
}
