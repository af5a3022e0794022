//! `--try-fixes`: the second stage of a run, which benchmarks the suggested fixes as variants.

use anyhow::Result;
use pgassay_diagnosis::{confirm, remedy_trial};
use pgassay_lab::{Interrupted, Laboratory, Outcome, RunContext, assemble};
use pgassay_model::plan::Plan;
use pgassay_record::run::{Run, Warning, WarningKind};
use pgassay_store::Store;

use super::identity;
use crate::exit::text_of;
use crate::progress::ProgressDisplay;

/// Runs the second stage, if there is one, and stores it in the run. A failure of the second stage
/// or an interrupt of it is only a warning, because the result of the first stage is complete.
pub fn attempt(run: &mut Run, context: &RunContext<'_>, store: &Store) {
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
        return;
    };
    progress.note(&format!(
        "trying {} on \"{}\": about {:.0} s plus setup",
        stage.plan.variants[1..].join("; "),
        stage.plan.variants[0],
        stage.plan.estimated_us() as f64 / 1e6,
    ));
    let outcome = Laboratory::run_plan(&stage.plan, context);
    progress.finish();
    let tried = outcome.and_then(|outcome| assessed(stage.plan.clone(), outcome, &context, store));
    let mut tried = match tried {
        Ok(tried) => tried,
        Err(error) => {
            let reason = if error.is::<Interrupted>() {
                "suggested fixes were not tried: interrupted".to_owned()
            } else {
                format!("cannot try suggested fixes: {}", text_of(&error))
            };
            warn(run, reason);
            return;
        }
    };
    tried.study.question = format!(
        "Do the suggested fixes help \"{}\"?",
        stage.plan.variants[0]
    );
    run.fix_trials = Some(Box::new(tried));
    confirm(run, &stage);
}

fn assessed(
    plan: Plan,
    mut outcome: Outcome,
    context: &RunContext<'_>,
    store: &Store,
) -> Result<Run> {
    let id = store.new_id(outcome.span_us.0, &context.study.name)?;
    let ended_early = outcome.ended_early.take();
    let identity = identity(id, store, context.options);
    assemble(context.study, plan, outcome, ended_early.as_ref(), identity)
}

fn warn(run: &mut Run, message: String) {
    run.warnings.push(Warning {
        kind: WarningKind::Fixes,
        variant: None,
        message,
    });
}
