//! `pgassay doctor`: what limits measurements on this machine.

use std::io::Write;

use anyhow::Result;

use crate::checks;
use crate::cli::JsonArgs;

/// Prints one line a check, and the command that mends what can be mended.
pub fn doctor(args: &JsonArgs, out: &mut impl Write) -> Result<()> {
    let checks = checks::all();
    if args.json {
        writeln!(
            out,
            "{}",
            serde_json::to_string_pretty(
                &serde_json::json!({ "schema": "pgassay.doctor/1", "checks": checks })
            )?
        )?;
        return Ok(());
    }
    for check in checks {
        let mark = if check.limits.is_some() {
            "limits"
        } else {
            "ok"
        };
        writeln!(out, "{mark:6}  {}: {}", check.name, check.value)?;
        if let Some(limits) = &check.limits {
            writeln!(out, "        {limits}")?;
        }
        if let Some(mend) = &check.mend {
            writeln!(out, "        mend it: {mend}")?;
        }
    }
    Ok(())
}
