//! Generic and custom plans of a prepared statement: how to get each, and which one a plan is.
//!
//! `choose_custom_plan` in `src/backend/utils/cache/plancache.c`: the first five executions have a custom
//! plan; later ones the generic plan, unless it is expected to cost more. Since 12, `plan_cache_mode`
//! forces one.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::lexeme::{LexemeKind, lexemes};
use crate::options::{ExplainOptions, ExplainRequest};
use crate::partitions::KnownPartitions;
use crate::plan::{PlanNode, QueryPlan};
use crate::share::returned_parameters;
use crate::statement::{ExplainRefusal, StatementEffect, StatementText};
use crate::step::steps;

/// Executions with a custom plan before the generic one is considered.
const CUSTOM_EXECUTIONS: usize = 5;

/// How a prepared statement was planned.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum PlanKind {
    /// Without the values of the parameters; used again.
    Generic,
    /// For the values of one execution.
    Custom,
}

/// The statements that explain a prepared statement. Send all in order on one connection, which has no
/// prepared statements of its own; the result of `explain` is the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedExplain {
    /// Begins a transaction and prepares.
    pub before: Vec<String>,
    /// EXPLAIN EXECUTE.
    pub explain: ExplainRequest,
    /// Rolls back and removes all prepared statements. Also required after an error.
    pub after: Vec<String>,
}

impl PreparedExplain {
    /// For a text with `$1` …, values for them as text or null, and the `server_version_num`.
    ///
    /// Since 12 the plan is of this kind. Before, a custom plan is too, but for a generic plan the
    /// server decides: [`plan_kind`] shows what it chose.
    pub fn new(
        sql: &str,
        values: &[Option<&str>],
        kind: PlanKind,
        version: u32,
        options: ExplainOptions,
    ) -> Result<Self, ExplainRefusal> {
        Self::executed(sql, values, Some(kind), CUSTOM_EXECUTIONS, version, options)
    }

    /// The same without a kind: the plan that the server chooses once the statement has been executed
    /// often, which [`plan_kind`] recognizes. The values of all executions are these.
    pub fn chosen(
        sql: &str,
        values: &[Option<&str>],
        version: u32,
        options: ExplainOptions,
    ) -> Result<Self, ExplainRefusal> {
        Self::executed(sql, values, None, CUSTOM_EXECUTIONS, version, options)
    }

    /// The same for the first execution, as of an unnamed statement: a custom plan, unless `plan_cache_mode` forces a
    /// generic one.
    pub fn first(
        sql: &str,
        values: &[Option<&str>],
        version: u32,
        options: ExplainOptions,
    ) -> Result<Self, ExplainRefusal> {
        Self::executed(sql, values, None, 0, version, options)
    }

    /// `executions` come before it unless the kind is forced.
    fn executed(
        sql: &str,
        values: &[Option<&str>],
        kind: Option<PlanKind>,
        executions: usize,
        version: u32,
        options: ExplainOptions,
    ) -> Result<Self, ExplainRefusal> {
        const NAME: &str = "pgassay_explain";
        let text = StatementText::read(sql)?;
        if text.parameters as usize != values.len() {
            return Err(ExplainRefusal::Values {
                parameters: text.parameters,
                values: values.len(),
            });
        }
        let values: Vec<String> = values.iter().map(|it| literal(*it)).collect();
        let execute = match values.len() {
            0 => format!("execute {NAME}"),
            _ => format!("execute {NAME}({})", values.join(", ")),
        };
        let options = ExplainOptions {
            generic_plan: false,
            ..options
        };
        let mut explain = ExplainRequest::new(&execute, version, options)?;
        explain.effect = text.effect;
        let mut before = vec![explain.begin().to_owned()];
        if let Some(kind) = kind.filter(|_| version >= 120_000) {
            let mode = match kind {
                PlanKind::Generic => "force_generic_plan",
                PlanKind::Custom => "force_custom_plan",
            };
            before.push(format!("set local plan_cache_mode = {mode}"));
        }
        before.push(format!("prepare {NAME} as {}", text.sql));
        let is_forced = version >= 120_000 || kind == Some(PlanKind::Custom);
        if kind.is_none() || !is_forced {
            // EXPLAIN without ANALYZE counts as an execution and executes nothing.
            before.extend(vec![format!("explain {execute}"); executions]);
        }
        Ok(Self {
            before,
            explain,
            after: vec![
                ExplainRequest::END.to_owned(),
                // Does not fail if PREPARE did, unlike DEALLOCATE with the name.
                "deallocate all".to_owned(),
            ],
        })
    }

    /// Whether sending it can change data: see [`ExplainRequest::writes`].
    pub fn writes(&self) -> bool {
        self.explain.is_executed && self.explain.effect != StatementEffect::Reads
    }

    /// For a server of your own: the transaction is not read only, so that functions that write are
    /// explained too.
    #[must_use]
    pub fn writable(mut self) -> Self {
        if let Some(first) = self.before.first_mut() {
            ExplainRequest::BEGIN.clone_into(first);
        }
        self
    }
}

/// A constant of unknown type.
fn literal(value: Option<&str>) -> String {
    let Some(value) = value else {
        return "null".to_owned();
    };
    let quoted = value.replace('\'', "''");
    if quoted.contains('\\') {
        format!("e'{}'", quoted.replace('\\', "\\\\"))
    } else {
        format!("'{quoted}'")
    }
}

/// Whether a plan of a statement with this many parameters is generic: its expressions contain `$1`,
/// where a custom plan has a constant.
///
/// `None` if the statement has no parameters, or if it is unclear: before 17 the results of `InitPlans` are called
/// `$1` too. EXPLAIN leaves out some expressions, such as those of LIMIT, so a plan without `$1` may be generic all the
/// same: [`kind_of`] knows more.
pub fn plan_kind(plan: &QueryPlan, parameters: u32) -> Option<PlanKind> {
    if parameters == 0 {
        return None;
    }
    let subplans = plan
        .nodes
        .iter()
        .filter_map(|it| it.subplan_name.as_deref());
    let returned: BTreeSet<u32> = subplans.flat_map(returned_parameters).collect();
    let mut is_unclear = false;
    for number in parameters_in(plan) {
        if !returned.contains(&number) && (1..=parameters).contains(&number) {
            return Some(PlanKind::Generic);
        }
        is_unclear |= returned.contains(&number) && (1..=parameters).contains(&number);
    }
    (!is_unclear).then_some(PlanKind::Custom)
}

/// The kind of a plan, by the custom plan for the same values, which has the same costs if it is the same plan, and by
/// the generic plan, if it is known.
pub fn kind_of(
    plan: &QueryPlan,
    parameters: u32,
    custom: &QueryPlan,
    generic: Option<&QueryPlan>,
) -> Option<PlanKind> {
    let is_shown = |generic: &QueryPlan| plan_kind(generic, parameters) == Some(PlanKind::Generic);
    if plan_kind(plan, parameters) == Some(PlanKind::Generic) || generic.is_some_and(is_shown) {
        return plan_kind(plan, parameters);
    }
    let costs = |plan: &QueryPlan| plan.nodes.first().map(|it| (it.plan_rows, it.total_cost));
    let is_custom = costs(plan) == costs(custom);
    Some(if is_custom {
        PlanKind::Custom
    } else {
        PlanKind::Generic
    })
}

/// All `$n` in a plan's expressions.
fn parameters_in(plan: &QueryPlan) -> BTreeSet<u32> {
    let expressions = plan.nodes.iter().flat_map(PlanNode::expressions);
    expressions
        .filter(|it| it.contains('$'))
        .filter_map(lexemes)
        .flat_map(|all| {
            let parameters = all
                .into_iter()
                .filter(|it| it.kind == LexemeKind::Parameter);
            parameters
                .filter_map(|it| it.parameter())
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Plans that do the same, with the values of their parameters aside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlanShape {
    /// The kinds of its plans. `None` if a plan does not show it.
    pub kinds: BTreeSet<Option<PlanKind>>,
    /// The positions of its plans.
    pub plans: Vec<usize>,
}

/// The plans of one prepared statement.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PreparedPlans {
    /// The kind of each plan.
    pub kinds: Vec<Option<PlanKind>>,
    /// The different shapes, by their first plan.
    pub shapes: Vec<PlanShape>,
}

impl PreparedPlans {
    /// Sorts several plans of one statement, such as one for each of several values and the generic
    /// one, by kind and shape.
    pub fn of(plans: &[QueryPlan], parameters: u32) -> Self {
        let kinds: Vec<_> = plans.iter().map(|it| plan_kind(it, parameters)).collect();
        let mut shapes: Vec<(Vec<(usize, String)>, PlanShape)> = Vec::new();
        for (at, plan) in plans.iter().enumerate() {
            let identity: Vec<(usize, String)> = steps(plan, &KnownPartitions::default())
                .into_iter()
                .map(|it| (it.depth, it.identity))
                .collect();
            match shapes.iter_mut().find(|(it, _)| *it == identity) {
                Some((_, shape)) => {
                    shape.kinds.insert(kinds[at]);
                    shape.plans.push(at);
                }
                None => shapes.push((
                    identity,
                    PlanShape {
                        kinds: [kinds[at]].into(),
                        plans: vec![at],
                    },
                )),
            }
        }
        Self {
            kinds,
            shapes: shapes.into_iter().map(|(_, shape)| shape).collect(),
        }
    }

    /// The first plan of a kind.
    pub fn first(&self, kind: PlanKind) -> Option<usize> {
        self.kinds.iter().position(|it| *it == Some(kind))
    }

    /// Whether the generic plan does something that no custom plan does. `None` without plans of both
    /// kinds.
    pub fn generic_differs(&self) -> Option<bool> {
        let generic = self.first(PlanKind::Generic)?;
        self.first(PlanKind::Custom)?;
        let shape = self.shapes.iter().find(|it| it.plans.contains(&generic))?;
        Some(!shape.kinds.contains(&Some(PlanKind::Custom)))
    }
}

impl std::fmt::Display for PreparedPlans {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let of_kind = |kind| self.kinds.iter().filter(|it| **it == kind).count();
        let shapes = |kind| {
            let with = self.shapes.iter().filter(|it| it.kinds.contains(&kind));
            match with.count() {
                1 => "1 shape".to_owned(),
                shapes => format!("{shapes} shapes"),
            }
        };
        let names = [
            (Some(PlanKind::Generic), "generic"),
            (Some(PlanKind::Custom), "custom"),
            (None, "of unknown kind"),
        ];
        let mut parts: Vec<String> = names
            .into_iter()
            .filter(|(kind, _)| of_kind(*kind) > 0)
            .map(|(kind, name)| format!("{} {name} ({})", of_kind(kind), shapes(kind)))
            .collect();
        match self.generic_differs() {
            Some(true) => parts.push("the generic plan differs from every custom plan".to_owned()),
            Some(false) => parts.push("the generic plan equals a custom plan".to_owned()),
            None => {}
        }
        f.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(filter: &str, index: Option<&str>) -> QueryPlan {
        let node = match index {
            Some(index) => format!(r#""Node Type": "Index Scan", "Index Name": "{index}""#),
            None => r#""Node Type": "Seq Scan""#.to_owned(),
        };
        let json = format!(r#"[{{"Plan": {{{node}, "Alias": "t", "Filter": "{filter}"}}}}]"#);
        QueryPlan::parse(&json).unwrap()
    }

    #[test]
    fn plans_are_sorted_by_kind_and_shape() {
        let plans = [
            scan("(t.k = 1)", None),
            scan("(t.k = 2)", None),
            scan("(t.k = 99)", Some("i")),
            scan("(t.k = $1)", Some("i")),
        ];
        let sorted = PreparedPlans::of(&plans, 1);
        assert_eq!(sorted.first(PlanKind::Generic), Some(3));
        let shapes: Vec<_> = sorted.shapes.iter().map(|it| it.plans.clone()).collect();
        assert_eq!(shapes, [vec![0, 1], vec![2, 3]]);
        assert_eq!(sorted.generic_differs(), Some(false));
        assert_eq!(
            sorted.to_string(),
            "1 generic (1 shape), 3 custom (2 shapes), the generic plan equals a custom plan"
        );
        let without = PreparedPlans::of(&[plans[0].clone(), plans[3].clone()], 1);
        assert_eq!(without.generic_differs(), Some(true));
        assert_eq!(PreparedPlans::of(&plans[..2], 1).generic_differs(), None);
    }

    #[test]
    fn the_result_of_an_init_plan_is_not_a_parameter() {
        let plan = |filter: &str| {
            let json = format!(
                r#"[{{"Plan": {{"Node Type": "Seq Scan", "Filter": "{filter}", "Plans": [
                    {{"Node Type": "Result", "Parent Relationship": "InitPlan",
                      "Subplan Name": "InitPlan 1 (returns $1)"}}]}}}}]"#
            );
            QueryPlan::parse(&json).unwrap()
        };
        assert_eq!(plan_kind(&plan("(a > 1)"), 1), Some(PlanKind::Custom));
        assert_eq!(plan_kind(&plan("(a > $1)"), 1), None);
        assert_eq!(plan_kind(&plan("(a > $1)"), 0), None);
        assert_eq!(
            plan_kind(&plan("((a > $1) AND (b = $2))"), 2),
            Some(PlanKind::Generic)
        );
    }

    /// Regression: the generic plan of `limit $1`, whose expression EXPLAIN does not print, was called custom.
    #[test]
    fn a_generic_plan_without_a_visible_parameter_is_recognized_by_its_costs() {
        let plan = |rows: u32, filter: &str| {
            let json = format!(
                r#"[{{"Plan": {{"Node Type": "Limit", "Plan Rows": {rows}, "Total Cost": {rows}.5,
                     "Filter": "{filter}"}}}}]"#
            );
            QueryPlan::parse(&json).unwrap()
        };
        let (custom, generic) = (plan(5, ""), plan(1000, ""));
        let of = |used: &QueryPlan| kind_of(used, 1, &custom, Some(&generic));
        assert_eq!(of(&generic), Some(PlanKind::Generic));
        assert_eq!(of(&custom), Some(PlanKind::Custom));
        let kind = kind_of(&generic, 1, &custom, None);
        assert_eq!(kind, Some(PlanKind::Generic));
        // A parameter that is shown decides, whatever the costs are.
        let shown = plan(5, "(a > $1)");
        assert_eq!(
            kind_of(&shown, 1, &custom, Some(&shown)),
            Some(PlanKind::Generic)
        );
        assert_eq!(
            kind_of(&plan(9, "(a > 1)"), 1, &custom, Some(&shown)),
            Some(PlanKind::Custom)
        );
    }

    #[test]
    fn values_are_quoted_and_counted() {
        let of = |values: &[Option<&str>], version| {
            PreparedExplain::new(
                "select * from t where a = $1 and b = $2;",
                values,
                PlanKind::Generic,
                version,
                ExplainOptions::default(),
            )
        };
        let explain = of(&[Some("O'Neil\\"), None], 180_000).unwrap();
        assert!(
            explain
                .explain
                .sql
                .ends_with("execute pgassay_explain(e'O''Neil\\\\', null)")
        );
        assert_eq!(
            explain.before,
            [
                "begin",
                "set local plan_cache_mode = force_generic_plan",
                "prepare pgassay_explain as select * from t where a = $1 and b = $2"
            ]
        );
        assert_eq!(explain.writable().before[0], "begin");
        let chosen = PreparedExplain::chosen(
            "select * from t where a = $1",
            &[Some("1")],
            180_000,
            ExplainOptions::default(),
        );
        let chosen = chosen.unwrap().before;
        assert_eq!(chosen.len(), 2 + CUSTOM_EXECUTIONS);
        assert_eq!(chosen[6], "explain execute pgassay_explain('1')");
        let old = of(&[None, None], 110_022).unwrap();
        assert_eq!(old.before.len(), 2 + CUSTOM_EXECUTIONS);
        assert_eq!(
            of(&[None], 180_000),
            Err(ExplainRefusal::Values {
                parameters: 2,
                values: 1
            })
        );
    }
}
