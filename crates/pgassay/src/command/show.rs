//! `pgassay show`: prints the result of an earlier run, or a saved observation of a live server.

use std::io::Write;

use anyhow::{Result, bail};
use pgassay_record::run::Run;
use pgassay_report::scalability_text;

use crate::args::{ColorWhen, ResultFormat, ShowArgs};
use crate::command::curve::stored;
use crate::observation_file;
use crate::results;
use crate::style::style;

/// A result in a format.
pub fn printed(run: &Run, format: ResultFormat, color: ColorWhen) -> String {
    match format {
        ResultFormat::Text => pgassay_report::terminal(run, &style(color)),
        ResultFormat::Markdown => pgassay_report::comparisons_markdown(run),
        ResultFormat::Csv => pgassay_report::comparisons_csv(run),
        ResultFormat::Json => pgassay_report::json(run),
        ResultFormat::Benchstat => pgassay_report::benchstat(run),
    }
}

/// Prints the result as `run` did, or in another format.
pub fn show(args: &ShowArgs, color: ColorWhen, out: &mut impl Write) -> Result<()> {
    if let Some(observation) = observation_file::load(&args.run)? {
        let text = match args.output.chosen() {
            ResultFormat::Text => pgassay_report::observation_text(&observation, &style(color)),
            ResultFormat::Json => pgassay_report::observation_json(&observation),
            ResultFormat::Markdown | ResultFormat::Csv | ResultFormat::Benchstat => bail!(
                "{} is an observation of a live server, which has no comparisons: use --format text \
                 or json",
                args.run
            ),
        };
        return Ok(out.write_all(text.as_bytes())?);
    }
    let (run, directory) = results::open_to_read(&args.results)?.load(&args.run)?;
    let format = args.output.chosen();
    let mut text = String::new();
    if format == ResultFormat::Text
        && let Some(found) = stored::curve(&directory)
    {
        text = scalability_text(&found, &style(color)) + "\n";
    }
    text += &printed(&run, format, color);
    Ok(out.write_all(text.as_bytes())?)
}
