//! `pgassay doctor`: what limits measurement accuracy on this machine.

use std::io::Write;

use anyhow::Result;

use crate::args::JsonArgs;
use crate::checks;

/// Prints each check and, where one is known, the command that removes the limitation.
pub fn doctor(args: &JsonArgs, out: &mut impl Write) -> Result<()> {
    let mut checks = checks::all();
    checks.push(checks::capabilities());
    checks.extend(checks::load());
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
        let mark = if check.limitation.is_some() {
            "limits"
        } else {
            "ok"
        };
        writeln!(out, "{mark:6}  {}: {}", check.title(), check.value)?;
        if let Some(limits) = &check.limitation {
            writeln!(out, "        {limits}")?;
        }
        if let Some(fix) = &check.fix {
            writeln!(out, "        to fix it: {fix}")?;
        }
    }
    Ok(())
}
