//! The plans of the scripts' statements, taken with EXPLAIN.
//!
//! They are taken once, after the last trial of the run and before the servers stop: nothing is measured then, so
//! neither EXPLAIN ANALYZE nor its dead rows and cached pages affect a trial, and the data are as the trials left
//! them. Where a study has a `reset`, it runs before, as before each trial.
//!
//! Servers that pgassay started execute the statements (EXPLAIN ANALYZE), in a transaction that is rolled back. An
//! external server only plans them: nothing is executed there.
//!
//! Each script is evaluated once, by its own rules and from one seed, so that all variants get the same values.
//! Conditions that differ only in their clients share their plans.
//!
//! Invariant: a statement that cannot be explained is recorded with its reason and never fails the run. Only
//! Ctrl-C ends it.

mod differences;
mod explaining;
mod row_counts;
mod script_settings;
mod script_walk;
mod session;
mod taken_plans;

use std::fmt::Write as _;

use anyhow::Result;
use pgassay_model::plan::{Plan, Point};
use pgassay_model::study::{DriverKind, Network};
use pgassay_record::plans::{MissingPlanReason, PointPlans};
use pgassay_record::run::{Warning, WarningKind};

pub use differences::{differences, row_counts};
pub use row_counts::StatementRows;
pub use taken_plans::TakenPlans;

use crate::host::{Servers, reset};
use crate::interrupt::Interrupted;
use crate::run_context::RunContext;
use explaining::explain_scripts;
use session::ExplainSession;

/// Takes the plans of all points of a plan; none if the plan does not want them.
///
/// # Errors
/// [`Interrupted`] only.
pub fn take(plan: &Plan, servers: &Servers, context: &RunContext<'_>) -> Result<TakenPlans> {
    let mut taken = TakenPlans::default();
    if !plan.schedule.plans {
        return Ok(taken);
    }
    context.stage("running EXPLAIN on the statements");
    for (point, conditions) in distinct_points(plan) {
        context.check()?;
        let mut of_point = PointPlans {
            variant: point.variant,
            conditions,
            ..PointPlans::default()
        };
        let result = explain_point(plan, point, servers, context, &mut of_point);
        let mut problem = problem_of(&of_point);
        match result {
            Ok(()) => {}
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => problem = Some(format!("{error:#}")),
        }
        if let Some(problem) = problem {
            let variant = &plan.variants[point.variant];
            let warning = Warning {
                kind: WarningKind::NoPlan,
                variant: None,
                message: format!("no plan of \"{variant}\": {problem}"),
            };
            if !taken.warnings.contains(&warning) {
                taken.warnings.push(warning);
            }
        }
        taken.points.push(of_point);
    }
    Ok(taken)
}

fn explain_point(
    plan: &Plan,
    point: &Point,
    servers: &Servers,
    context: &RunContext<'_>,
    found: &mut PointPlans,
) -> Result<()> {
    let place = servers.place(point);
    reset(&place, &point.resets, context)?;
    let is_own = plan.servers[point.server].dsn.is_none();
    let mut session = ExplainSession::open(&place, point, plan.schedule.trial_us, is_own)?;
    let seed = plan.schedule.seed;
    explain_scripts(&mut session, point, seed, context, found)
}

/// The first statement that EXPLAIN failed on, and how many others.
fn problem_of(point: &PointPlans) -> Option<String> {
    let mut failed = point.statements.iter().filter_map(|it| {
        let missing = it.missing.as_ref()?;
        (missing.reason == MissingPlanReason::Failed).then_some((it, missing))
    });
    let (statement, missing) = failed.next()?;
    let mut text = format!(
        "script \"{}\", line {}: {}",
        statement.script, statement.line, missing.message
    );
    match failed.count() {
        0 => {}
        1 => text.push_str(", and 1 more statement"),
        more => _ = write!(text, ", and {more} more statements"),
    }
    Some(text)
}

/// The points of PostgreSQL whose statements are planned differently, with the conditions that share them,
/// ordered by variant.
fn distinct_points(plan: &Plan) -> Vec<(&Point, Vec<usize>)> {
    let mut found: Vec<(&Point, Point, Vec<usize>)> = Vec::new();
    let postgres = plan
        .points
        .iter()
        .filter(|it| it.driver == DriverKind::Postgres);
    for point in postgres {
        // Neither the number of clients nor the network affects a plan.
        let identity = Point {
            condition: 0,
            network: Network::Unix,
            reconnects: false,
            gives: None,
            ..point.clone()
        };
        match found.iter_mut().find(|(_, other, _)| *other == identity) {
            Some((_, _, conditions)) => conditions.push(point.condition),
            None => found.push((point, identity, vec![point.condition])),
        }
    }
    found.sort_by_key(|(point, ..)| point.variant);
    let points = found.into_iter();
    points
        .map(|(point, _, conditions)| (point, conditions))
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use pgassay_model::plan::{Overrides, plan};
    use pgassay_model::study::StudySource;

    use super::*;

    #[test]
    fn conditions_that_differ_only_in_clients_share_their_plans() {
        let text = r#"question = "?"
[[script]]
name = "one"
text = "select ${n};"
[[variant]]
name = "a"
[[variant]]
name = "b"
session = { work_mem = "1MB" }
[conditions]
clients = [1, 4]
parameters = { n = [1, 2] }
"#;
        let source = StudySource {
            file: "study.toml".to_owned(),
            text: text.to_owned(),
        };
        let study = source.parse().unwrap();
        let plan = plan(&study, &source, &Overrides::default()).unwrap();
        let points = distinct_points(&plan);
        let all: Vec<(usize, &str, Vec<usize>)> = points
            .into_iter()
            .map(|(point, at)| (point.variant, point.scripts[0].text.as_str(), at))
            .collect();
        let of = |text: &str| -> Vec<usize> {
            let conditions = plan.conditions.iter().enumerate();
            let with = conditions.filter(|(at, _)| {
                let id = pgassay_model::plan::PointId::new(*at, 0);
                plan.point(id).scripts[0].text == text
            });
            with.map(|(at, _)| at).collect()
        };
        let [one, two] = ["select 1;", "select 2;"].map(|text| (text, of(text)));
        assert_eq!((one.1.len(), two.1.len()), (2, 2));
        let expected = [
            (0, one.0, one.1.clone()),
            (0, two.0, two.1.clone()),
            (1, one.0, one.1),
            (1, two.0, two.1),
        ];
        assert_eq!(all, expected);
    }
}
