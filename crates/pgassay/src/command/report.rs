//! `pgassay report`: writes the HTML report of an earlier run.

use std::io::Write;

use anyhow::Result;

use crate::args::ReportArgs;
use crate::output_file::write_to;
use crate::results;

/// Writes the report and prints its path.
pub fn report(args: &ReportArgs, out: &mut impl Write) -> Result<()> {
    let (run, directory) = results::open(&args.results)?.load(&args.run)?;
    let html = pgassay_report::html(&run);
    let file = args
        .output
        .clone()
        .unwrap_or_else(|| directory.join("report.html"));
    if !write_to(&file, html.as_bytes(), out)? {
        writeln!(out, "{}", file.display())?;
    }
    Ok(())
}
