//! `pgassay list`: earlier runs, newest first.

use std::io::Write;

use anyhow::Result;
use pgassay_report::printable;

use crate::args::ListArgs;
use crate::command::resume_flags::results_flag;
use crate::results;

/// Prints one line per run, or JSON.
pub fn list(args: &ListArgs, out: &mut impl Write) -> Result<()> {
    let store = results::open_to_read(&args.results)?;
    let mut runs = store.list()?;
    let is_empty = runs.is_empty();
    runs.truncate(args.limit.unwrap_or(usize::MAX));
    if args.json {
        writeln!(
            out,
            "{}",
            serde_json::to_string_pretty(
                &serde_json::json!({ "schema": "pgassay.list/1", "runs": runs })
            )?
        )?;
        return Ok(());
    }
    if is_empty {
        writeln!(
            out,
            "no runs yet in {}; try: pgassay run prepared-vs-simple",
            store.root().display()
        )?;
        return Ok(());
    }
    let results = results_flag(&args.results);
    let width = runs.iter().map(|run| run.id.len()).max().unwrap_or(0);
    for run in runs {
        let hint = if run.resumable {
            format!("; to continue: pgassay resume {}{results}", run.id)
        } else {
            String::new()
        };
        let line = format!("{:width$}  {}{hint}", run.id, run.headline);
        // Also in a pipe, which can lead to a terminal.
        writeln!(out, "{}", printable(&line))?;
    }
    Ok(())
}
