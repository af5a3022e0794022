//! Explains the statements of a point's scripts as its protocol sends them.

use std::sync::Arc;

use anyhow::Result;
use pgassay_explain::{
    ExplainOptions, PlanDifference, PlanKind, PreparedExplain, declares_cursor, kind_of,
};
use pgassay_model::plan::Point;
use pgassay_model::study::Protocol;
use pgassay_record::plans::{
    MissingPlan, MissingPlanReason, PointPlans, StatementPlan, StatementPlans, VariableValue,
};
use pgassay_script::{Capture, ParsedScript, SqlCommand, VariableNames, sql};

use super::script_settings::ScriptSettings;
use super::script_walk::ScriptWalk;
use super::session::{ExplainSession, NotExplained, SentPlan};
use crate::load::scripts;
use crate::run_context::RunContext;

/// Statements of a point that are explained: a study can repeat a line 100,000 times.
const STATEMENTS_MAX: usize = 100;
/// Since 12, `plan_cache_mode` forces a kind of plan.
const FORCES_KIND: u32 = 120_000;

/// A statement with its values, as the protocol sends it.
struct BoundStatement {
    line: u32,
    text: String,
    sql: String,
    values: Vec<VariableValue>,
    protocol: Protocol,
}

/// The plans of one statement, or why there is none.
type Plans = Result<Vec<(StatementPlan, SentPlan)>, NotExplained>;

/// Explains every statement that one execution of each script reaches. A text that repeats is explained once.
///
/// # Errors
/// If the connection is lost or the user requested a stop. `found` has the statements before that.
pub fn explain_scripts(
    session: &mut ExplainSession,
    point: &Point,
    seed: u64,
    context: &RunContext<'_>,
    found: &mut PointPlans,
) -> Result<()> {
    let parsed = scripts::parse(point, context.source())?;
    for weighted in &parsed.weighted {
        let walk = WalkedScript {
            session: &mut *session,
            point,
            seed,
            script: &weighted.script,
            names: &parsed.names,
        };
        walk.explain(context, found)?;
    }
    Ok(())
}

struct WalkedScript<'a> {
    session: &'a mut ExplainSession,
    point: &'a Point,
    seed: u64,
    script: &'a ParsedScript,
    names: &'a Arc<VariableNames>,
}

impl WalkedScript<'_> {
    fn explain(self, context: &RunContext<'_>, found: &mut PointPlans) -> Result<()> {
        let mut walk = ScriptWalk::new(self.script, self.names, self.point.scale, self.seed);
        let name = self.script.name();
        self.session.settings = ScriptSettings::default();
        while let Some((command, sql)) = walk.next_statement()? {
            for statement in bound(&walk, sql, command.line, self.point.protocol) {
                context.check()?;
                self.session.settings.note(&statement.sql);
                let is_same = |it: &StatementPlans| it.script == name && it.text == statement.text;
                if found.statements.iter().any(is_same) {
                    continue;
                }
                if found.statements.len() == STATEMENTS_MAX {
                    found.left_out += 1;
                    continue;
                }
                let plans = plans_of(self.session, &statement);
                found.statements.push(recorded(statement, name, plans)?);
            }
            let (Capture::Gset { prefix } | Capture::Aset { prefix }) = sql.capture() else {
                continue;
            };
            // Later statements need what this one sets.
            match self.session.last_row(&walk.rendered(sql)) {
                Ok(row) => {
                    for (column, value) in row {
                        walk.store(prefix, &column, value.as_deref());
                    }
                }
                Err(NotExplained::Lost(error)) => return Err(error),
                // Statements that need the variables say so themselves.
                Err(_) => {}
            }
        }
        Ok(())
    }
}

/// The statements of a command: several if they are joined by `\;` and sent as text.
fn bound(
    walk: &ScriptWalk<'_>,
    command: &SqlCommand,
    line: u32,
    protocol: Protocol,
) -> Vec<BoundStatement> {
    let value = |(name, value): (String, Option<String>)| VariableValue { name, value };
    let values: Vec<VariableValue> = walk.values(command).into_iter().map(value).collect();
    let text = String::from_utf8_lossy(command.text()).trim().to_owned();
    // PREPARE does not accept DECLARE. The server plans a cursor for its values each time.
    let protocol = match protocol {
        _ if declares_cursor(&text) => Protocol::Simple,
        other => other,
    };
    let one = |text: String, line: u32, sql: String| BoundStatement {
        line,
        text,
        sql,
        values: values.clone(),
        protocol,
    };
    if protocol != Protocol::Simple {
        let sql = String::from_utf8_lossy(command.statement()).into_owned();
        return vec![one(text, line, sql)];
    }
    let rendered = walk.rendered(command);
    match sql::statements(&rendered) {
        Ok(parts) if parts.len() > 1 => parts
            .into_iter()
            .map(|part| one(part.text.clone(), line + part.line - 1, part.text))
            .collect(),
        _ => vec![one(text, line, rendered)],
    }
}

fn plans_of(session: &mut ExplainSession, statement: &BoundStatement) -> Plans {
    let is_bound = statement.protocol != Protocol::Simple && !statement.values.is_empty();
    if !is_bound {
        let sent = session.plan(&statement.sql)?;
        return Ok(vec![recorded_plan(sent, None, true)]);
    }
    let values: Vec<Option<&str>> = statement
        .values
        .iter()
        .map(|it| it.value.as_deref())
        .collect();
    let (sql, version) = (statement.sql.as_str(), session.version());
    let of_kind = |kind: PlanKind| {
        let values = &values;
        move |options: ExplainOptions| PreparedExplain::new(sql, values, kind, version, options)
    };
    let custom = session.prepared(&of_kind(PlanKind::Custom))?;
    let parameters = statement.values.len() as u32;
    if statement.protocol == Protocol::Extended {
        // An unnamed statement is planned for its values each time, unless a setting forces a generic plan.
        let first = |options| PreparedExplain::first(sql, &values, version, options);
        let used = session.only_planned(&first)?;
        let kind = kind_of(&used.tree, parameters, &custom.tree, None);
        return Ok(match kind {
            Some(PlanKind::Generic) => vec![
                recorded_plan(custom, Some(PlanKind::Custom), false),
                recorded_plan(session.prepared(&first)?, kind, true),
            ],
            _ => vec![recorded_plan(custom, Some(PlanKind::Custom), true)],
        });
    }
    let chosen = |options| PreparedExplain::chosen(sql, &values, version, options);
    if version < FORCES_KIND {
        let used = session.prepared(&chosen)?;
        return Ok(match kind_of(&used.tree, parameters, &custom.tree, None) {
            Some(PlanKind::Custom) => vec![recorded_plan(custom, Some(PlanKind::Custom), true)],
            kind => vec![
                recorded_plan(custom, Some(PlanKind::Custom), false),
                recorded_plan(used, kind, true),
            ],
        });
    }
    let used = session.only_planned(&chosen)?;
    let generic = session.prepared(&of_kind(PlanKind::Generic))?;
    let used = kind_of(&used.tree, parameters, &custom.tree, Some(&generic.tree));
    let both = [(custom, PlanKind::Custom), (generic, PlanKind::Generic)];
    let both = both.into_iter();
    Ok(both
        .map(|(sent, kind)| recorded_plan(sent, Some(kind), used == Some(kind)))
        .collect())
}

fn recorded_plan(
    sent: SentPlan,
    kind: Option<PlanKind>,
    is_used: bool,
) -> (StatementPlan, SentPlan) {
    let plan = StatementPlan {
        kind,
        is_used,
        is_executed: sent.is_executed,
        rows_vary: sent.rows_vary,
        execution_error: sent.execution_error.clone(),
        json: sent.json.clone(),
    };
    (plan, sent)
}

/// # Errors
/// If the connection is lost.
fn recorded(statement: BoundStatement, script: &str, plans: Plans) -> Result<StatementPlans> {
    let mut found = StatementPlans {
        script: script.to_owned(),
        line: statement.line,
        text: statement.text,
        values: statement.values,
        ..StatementPlans::default()
    };
    let (reason, message) = match plans {
        Ok(plans) => {
            found.generic_difference = generic_difference(&plans);
            found.plans = plans.into_iter().map(|(plan, _)| plan).collect();
            return Ok(found);
        }
        Err(NotExplained::Refused(refusal)) => {
            (MissingPlanReason::NotExplainable, refusal.to_string())
        }
        Err(NotExplained::Failed(message)) => (MissingPlanReason::Failed, message),
        Err(NotExplained::Lost(error)) => return Err(error),
    };
    found.missing = Some(MissingPlan { reason, message });
    Ok(found)
}

/// What the generic plan does that the custom one does not. Its estimates always differ.
fn generic_difference(plans: &[(StatementPlan, SentPlan)]) -> Option<PlanDifference> {
    let [(_, custom), (_, generic)] = plans else {
        return None;
    };
    let difference = PlanDifference::between(&custom.tree, &generic.tree);
    difference.is_of_shape().then_some(difference)
}
