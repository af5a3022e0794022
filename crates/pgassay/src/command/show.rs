//! `pgassay show`: prints the result of an earlier run.

use std::io::Write;

use anyhow::Result;
use pgassay_record::run::Run;

use crate::args::{ColorWhen, ResultFormat, ShowArgs};
use crate::results;
use crate::style::style;

/// A result in a format.
pub fn printed(run: &Run, format: ResultFormat, color: ColorWhen) -> String {
    match format {
        ResultFormat::Text => pgassay_report::terminal(run, &style(color)),
        ResultFormat::Markdown => pgassay_report::comparisons_markdown(run),
        ResultFormat::Csv => pgassay_report::comparisons_csv(run),
        ResultFormat::Json => pgassay_report::json(run),
    }
}

/// Prints the result as `run` did, or in another format.
pub fn show(args: &ShowArgs, color: ColorWhen, out: &mut impl Write) -> Result<()> {
    let (run, _) = results::open(&args.results)?.load(&args.run)?;
    let text = printed(&run, args.output.chosen(), color);
    Ok(out.write_all(text.as_bytes())?)
}
