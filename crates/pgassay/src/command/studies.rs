//! `pgassay studies`: what comes with the program.

use std::io::Write;

use anyhow::Result;
use serde_json::json;

use crate::catalogue;
use crate::cli::JsonArgs;

/// Prints each study's name, question and lengths.
pub fn studies(args: &JsonArgs, out: &mut impl Write) -> Result<()> {
    let mut all = Vec::new();
    for (name, _) in catalogue::STUDIES {
        let study = catalogue::find(name)?.study;
        if args.json {
            all.push(json!({ "name": name, "question": study.question, "length": study.length }));
            continue;
        }
        writeln!(
            out,
            "{name}\n    {}\n    measures for {}, or {} with --quick",
            study.question, study.length.full, study.length.quick
        )?;
    }
    if args.json {
        writeln!(
            out,
            "{}",
            serde_json::to_string_pretty(
                &json!({ "schema": "pgassay.studies/1", "studies": all })
            )?
        )?;
    }
    Ok(())
}
