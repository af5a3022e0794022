//! `pgassay report`: writes the HTML report of an earlier run, or of a saved observation of a live server.

use std::path::PathBuf;

use anyhow::Result;

use crate::args::ReportArgs;
use crate::observation_file;
use crate::output::FileOutput;
use crate::output_file::{create_like, is_stdout, replace_like, write_to};
use crate::results;

/// Writes the report and prints its path.
pub fn report(args: &ReportArgs, out: &mut impl FileOutput) -> Result<()> {
    let (html, source, usual) = if let Some(observation) = observation_file::load(&args.run)? {
        let page = pgassay_report::observation_html(&observation);
        let source = PathBuf::from(&args.run);
        let usual = source.with_extension("html");
        (page, source, usual)
    } else {
        let (run, directory) = results::open_to_read(&args.results)?.load(&args.run)?;
        let (source, usual) = (directory.join("run.json"), directory.join("report.html"));
        (pgassay_report::html(&run), source, usual)
    };
    let Some(file) = &args.output else {
        replace_like(&source, &usual, html.as_bytes())?;
        return Ok(writeln!(out, "{}", usual.display())?);
    };
    if !is_stdout(file) {
        create_like(&source, file)?;
    }
    if !write_to(file, html.as_bytes(), out)? {
        writeln!(out, "{}", file.display())?;
    }
    Ok(())
}
