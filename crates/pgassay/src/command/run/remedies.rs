//! `--try-remedies`: the second stage of a run, in which findings' remedies are variants.

use anyhow::Result;
use pgassay_core::finding::{confirm, second_stage};
use pgassay_core::run::{Run, Warning, WarningKind};
use pgassay_store::Store;

use super::assemble;
use crate::catalogue::Found;
use crate::cli::RunArgs;
use crate::exit::Interrupted;
use crate::interrupt::Interrupt;
use crate::laboratory;
use crate::progress::Progress;

/// Runs the second stage, if there is one, and keeps it within the run. That it fails is a warning:
/// the first stage has its answer.
///
/// # Errors
/// A damaged result of its own making; Ctrl-C ends it and is no error.
pub fn attempt(
    run: &mut Run,
    found: &Found,
    args: &RunArgs,
    interrupt: &Interrupt,
    store: &Store,
) -> Result<()> {
    let mut progress = Progress::on_stderr();
    let Some(stage) = second_stage(run) else {
        let message = if run.findings.is_empty() {
            "no remedy was tried: there are no findings"
        } else {
            "no remedy was tried: no finding's remedy is a setting, a protocol or a version that \
             the study does not have already"
        };
        warn(run, message.to_owned());
        return Ok(());
    };
    progress.note(&format!(
        "trying {} on \"{}\": about {:.0} s once the data are set up",
        stage.plan.variants[1..].join("; "),
        stage.plan.variants[0],
        stage.plan.estimated_us() as f64 / 1e6,
    ));
    let outcome = laboratory::run(&stage.plan, found, &args.server, interrupt, &mut progress);
    progress.finish();
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) if error.is::<Interrupted>() => {
            warn(run, "the remedies were not tried: interrupted".to_owned());
            return Ok(());
        }
        Err(error) => {
            warn(run, format!("the remedies could not be tried: {error:#}"));
            return Ok(());
        }
    };
    let (mut tried, ..) = assemble(found, stage.plan.clone(), outcome, store)?;
    tried.study.question = format!("Do the remedies help \"{}\"?", stage.plan.variants[0]);
    run.remedies = Some(Box::new(tried));
    confirm(run, &stage);
    Ok(())
}

fn warn(run: &mut Run, message: String) {
    run.warnings.push(Warning {
        kind: WarningKind::Remedies,
        message,
    });
}
