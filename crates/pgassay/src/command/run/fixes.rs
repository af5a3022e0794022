//! `--try-fix_trials`: the second stage of a run, which benchmarks the suggested fixes as variants.

use anyhow::Result;
use pgassay_core::finding::{confirm, remedy_trial};
use pgassay_core::run::{Run, Warning, WarningKind};
use pgassay_store::Store;

use super::assemble;
use crate::catalog::FoundStudy;
use crate::cli::RunArgs;
use crate::exit::Interrupted;
use crate::interrupt::Interrupt;
use crate::laboratory;
use crate::progress::ProgressDisplay;

/// Runs the second stage, if there is one, and stores it in the run. A failure of the second stage
/// is only a warning, because the result of the first stage is complete.
///
/// # Errors
/// If the second stage's trials cannot be assessed. Ctrl-C ends the stage without an error.
pub fn attempt(
    run: &mut Run,
    found: &FoundStudy,
    args: &RunArgs,
    interrupt: &Interrupt,
    store: &Store,
) -> Result<()> {
    let mut progress = ProgressDisplay::on_stderr();
    let Some(stage) = remedy_trial(run) else {
        let message = if run.findings.is_empty() {
            "no suggested fix was tried: there are no findings"
        } else {
            "no suggested fix was tried: none changes a setting, the protocol or the version in a \
             way that the study does not already cover"
        };
        warn(run, message.to_owned());
        return Ok(());
    };
    progress.note(&format!(
        "trying {} on \"{}\": about {:.0} s plus setup",
        stage.plan.variants[1..].join("; "),
        stage.plan.variants[0],
        stage.plan.estimated_us() as f64 / 1e6,
    ));
    let outcome = laboratory::run(&stage.plan, found, &args.server, interrupt, &mut progress);
    progress.finish();
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) if error.is::<Interrupted>() => {
            warn(
                run,
                "suggested fixes were not tried: interrupted".to_owned(),
            );
            return Ok(());
        }
        Err(error) => {
            warn(run, format!("cannot try suggested fixes: {error:#}"));
            return Ok(());
        }
    };
    let (mut tried, ..) = assemble(found, stage.plan.clone(), outcome, store)?;
    tried.study.question = format!(
        "Do the suggested fixes help \"{}\"?",
        stage.plan.variants[0]
    );
    run.fix_trials = Some(Box::new(tried));
    confirm(run, &stage);
    Ok(())
}

fn warn(run: &mut Run, message: String) {
    run.warnings.push(Warning {
        kind: WarningKind::Fixes,
        message,
    });
}
