//! `pgassay report`: writes the HTML report of an earlier run, or of a saved observation of a live server.

use std::io::Write;
use std::path::Path;

use anyhow::Result;

use crate::args::ReportArgs;
use crate::observation_file;
use crate::output_file::{create_like, is_stdout, write_to};
use crate::results;

/// Writes the report and prints its path.
pub fn report(args: &ReportArgs, out: &mut impl Write) -> Result<()> {
    let mut source = None;
    let (html, usual) = if let Some(observation) = observation_file::load(&args.run)? {
        let page = pgassay_report::observation_html(&observation);
        source = Some(Path::new(&args.run));
        (page, Path::new(&args.run).with_extension("html"))
    } else {
        let (run, directory) = results::open_to_read(&args.results)?.load(&args.run)?;
        (pgassay_report::html(&run), directory.join("report.html"))
    };
    let file = args.output.clone().unwrap_or(usual);
    if let Some(source) = source.filter(|_| !is_stdout(&file)) {
        create_like(source, &file)?;
    }
    if !write_to(&file, html.as_bytes(), out)? {
        writeln!(out, "{}", file.display())?;
    }
    Ok(())
}
