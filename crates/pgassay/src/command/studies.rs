//! `pgassay studies`: lists the built-in studies.

use std::io::Write;

use anyhow::Result;
use pgassay_model::plan::{Plan, StoppingRule};
use serde_json::json;

use crate::args::{ChoiceArgs, JsonArgs};
use crate::catalog;
use crate::command::study::planned;
use crate::style::folded;

/// `at most about 3 min on 5 servers`, excluding setup.
fn length(plan: &Plan) -> String {
    let seconds = plan.estimated_us() as f64 / 1e6;
    let time = if seconds < 100.0 {
        format!("{seconds:.0} s")
    } else {
        format!("{:.0} min", seconds / 60.0)
    };
    let most = match plan.schedule.stopping {
        StoppingRule::Sequential => "at most ",
        StoppingRule::AllBlocks | StoppingRule::Precision => "",
    };
    match plan.servers.len() {
        1 => format!("{most}about {time} on one server"),
        servers => format!("{most}about {time} on {servers} servers"),
    }
}

/// Prints each study's name, question, and duration after setup.
pub fn studies(args: &JsonArgs, out: &mut impl Write) -> Result<()> {
    let mut all = Vec::new();
    for (name, _) in catalog::STUDIES {
        let study = catalog::find(name)?.study;
        let plan = |quick: bool| -> Result<Plan> {
            let choice = ChoiceArgs {
                quick,
                ..ChoiceArgs::default()
            };
            Ok(planned(name, &choice)?.plan)
        };
        let (full, quick) = (plan(false)?, plan(true)?);
        if args.json {
            all.push(json!({
                "name": name,
                "question": study.question,
                "source": study.source,
                "length": study.length,
                "servers": full.servers.len(),
                "estimated_us": full.estimated_us(),
                "quick_estimated_us": quick.estimated_us(),
            }));
            continue;
        }
        let text = format!(
            "{name}\n    {}\n    {}; with --quick {}\n",
            study.question,
            length(&full),
            length(&quick)
        );
        out.write_all(folded(&text).as_bytes())?;
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
