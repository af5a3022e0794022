//! `pgassay show`: prints the result of an earlier run.

use std::io::Write;

use anyhow::Result;

use crate::args::ShowArgs;
use crate::results;
use crate::style::style;

/// Prints the result as `run` did, or as JSON.
pub fn show(args: &ShowArgs, color: crate::args::ColorWhen, out: &mut impl Write) -> Result<()> {
    let (run, _) = results::open(&args.results)?.load(&args.run)?;
    if args.json {
        out.write_all(pgassay_report::json(&run).as_bytes())?;
    } else {
        out.write_all(pgassay_report::terminal(&run, &style(color)).as_bytes())?;
    }
    Ok(())
}
