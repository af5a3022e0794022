//! `--try-fixes`: the second stage of a run, which benchmarks the suggested fixes as variants.

use anyhow::Result;
use pgassay_diagnosis::{confirm, remedy_trial};
use pgassay_lab::{Interrupted, Laboratory, RunContext, assemble};
use pgassay_record::run::{Run, Warning, WarningKind};
use pgassay_store::Store;

use super::identity;
use crate::exit::text_of;
use crate::progress::ProgressDisplay;

/// Runs the second stage, if there is one, and stores it in the run. A failure of the second stage
/// is only a warning, because the result of the first stage is complete.
///
/// # Errors
/// If the second stage's trials cannot be assessed. Ctrl-C ends the stage without an error.
pub fn attempt(run: &mut Run, context: &RunContext<'_>, store: &Store) -> Result<()> {
    let progress = ProgressDisplay::on_stderr();
    let context = RunContext {
        events: &progress,
        ..*context
    };
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
    let outcome = Laboratory::run_plan(&stage.plan, context);
    progress.finish();
    let mut outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) if error.is::<Interrupted>() => {
            warn(
                run,
                "suggested fixes were not tried: interrupted".to_owned(),
            );
            return Ok(());
        }
        Err(error) => {
            warn(
                run,
                format!("cannot try suggested fixes: {}", text_of(&error)),
            );
            return Ok(());
        }
    };
    let id = store.new_id(outcome.span_us.0, &context.study.name)?;
    let identity = identity(id, store);
    let ended_early = outcome.ended_early.take();
    let plan = stage.plan.clone();
    let mut tried = assemble(context.study, plan, outcome, ended_early.as_ref(), identity)?;
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
        variant: None,
        message,
    });
}
