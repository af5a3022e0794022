//! Text for the plans of statements and their differences, the same in the terminal and on the page.

use pgassay_explain::{PlanKind, declares_cursor, difference_sentences};
use pgassay_record::plans::{
    PointPlans, RunPlans, StatementPlan, StatementPlanDifference, StatementPlans,
    VariantPlanDifference,
};
use pgassay_record::run::Run;

use crate::number;
use crate::outline::{baseline_name, condition_title, variant_name};

/// Characters of a statement that name it.
const STATEMENT_MAX: usize = 60;

/// The variants with statements whose plans differ from the baseline's.
pub(crate) fn differing(plans: &RunPlans) -> impl Iterator<Item = &VariantPlanDifference> {
    plans
        .differences
        .iter()
        .filter(|it| !it.statements.is_empty())
}

/// `Plan of "indexed" differs from that of "plain"`, with the conditions if it does so under some only; or `Same plan
/// for "indexed" as for "plain", with different figures`.
pub(crate) fn title(run: &Run, it: &VariantPlanDifference) -> String {
    let (variant, baseline) = (
        variant_name(run, it.variant),
        baseline_name(run, it.variant),
    );
    let changes = it.statements.iter().flat_map(|it| &it.difference.changes);
    let has_same = changes.into_iter().all(|it| it.kind.is_of_figures());
    let title = match (has_same, it.statements.len()) {
        (true, 1) => {
            format!("Same plan for \"{variant}\" as for \"{baseline}\", with different figures")
        }
        (true, _) => {
            format!("Same plans for \"{variant}\" as for \"{baseline}\", with different figures")
        }
        (false, 1) => format!("Plan of \"{variant}\" differs from that of \"{baseline}\""),
        (false, _) => format!("Plans of \"{variant}\" differ from those of \"{baseline}\""),
    };
    title + &conditions(run, &it.conditions)
}

/// `, f1, 8 clients`; empty for all conditions.
pub(crate) fn conditions(run: &Run, conditions: &[usize]) -> String {
    if conditions.len() == run.plan.conditions.len() {
        return String::new();
    }
    let Some(first) = conditions.first() else {
        return String::new();
    };
    match conditions.len() {
        1 => format!(", {}", condition_title(run, *first)),
        2 => format!(", {} and 1 more condition", condition_title(run, *first)),
        many => format!(
            ", {} and {} more conditions",
            condition_title(run, *first),
            many - 1
        ),
    }
}

/// The statements of a difference: the baseline's and the variant's.
pub(crate) fn statements<'a>(
    plans: &'a RunPlans,
    of: &VariantPlanDifference,
    it: &StatementPlanDifference,
) -> Option<[&'a StatementPlans; 2]> {
    let statement = |point: usize, at: usize| plans.points.get(point)?.statements.get(at);
    Some([
        statement(of.baseline_plans, it.baseline)?,
        statement(of.variant_plans, it.variant)?,
    ])
}

/// What differs in a statement's plans in sentences, at most this many differences.
pub(crate) fn sentences(it: &StatementPlanDifference, most: usize) -> Vec<String> {
    difference_sentences(&it.difference, most)
}

/// Why a difference has no rows and blocks, if one of the statements declares a cursor.
pub(crate) fn cursor_note(sides: [&StatementPlans; 2]) -> Option<&'static str> {
    let is_cursor = |it: &StatementPlans| {
        let plans = it.plans.iter();
        declares_cursor(&it.text) && plans.into_iter().all(|it| !it.is_executed)
    };
    sides.into_iter().any(is_cursor).then_some(
        "No numbers of rows and blocks: FETCH decides how much of a cursor's query runs. Its plan is for the first \
         rows (cursor_tuple_fraction).",
    )
}

/// The beginning of a statement, on one line.
pub(crate) fn excerpt(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ");
    let line = line.strip_suffix(';').unwrap_or(&line);
    if line.chars().count() <= STATEMENT_MAX {
        return line.to_owned();
    }
    let kept: String = line.chars().take(STATEMENT_MAX - 1).collect();
    format!("{}…", kept.trim_end())
}

/// Prepared statements whose generic plan does something else than the custom one: the point, the statement, and
/// what the server does.
pub(crate) fn generic_differs(
    plans: &RunPlans,
) -> impl Iterator<Item = (&PointPlans, &StatementPlans)> {
    plans.points.iter().flat_map(|point| {
        let statements = point.statements.iter();
        let differing = statements.filter(|it| it.generic_difference.is_some());
        differing.map(move |it| (point, it))
    })
}

/// `The generic plan differs from the custom one; the server uses the generic one from the sixth execution on.`
pub(crate) fn generic_sentence(run: &Run, point: &PointPlans, it: &StatementPlans) -> String {
    let used = it.plans.iter().find(|it| it.is_used).and_then(|it| it.kind);
    let used = match used {
        Some(PlanKind::Generic) if is_generic_forced(run, point) => {
            "; plan_cache_mode makes the server use the generic plan for every execution"
        }
        Some(PlanKind::Generic) => "; the server uses the generic plan from the sixth execution on",
        Some(PlanKind::Custom) => "; the server uses the custom plan",
        None => "",
    };
    format!("The generic plan differs from the custom plan{used}")
}

/// Whether the variant's clients have `plan_cache_mode = force_generic_plan`, as settings of the session or of the
/// server.
fn is_generic_forced(run: &Run, point: &PointPlans) -> bool {
    let condition = point.conditions.first().copied().unwrap_or_default();
    let mut points = run.plan.points.iter();
    let planned = points.find(|it| it.condition == condition && it.variant == point.variant);
    let Some(planned) = planned else {
        return false;
    };
    let name = "plan_cache_mode";
    let of_session = planned.session.get(name);
    let of_server = run.effective_settings(planned.server);
    let mode = of_session.or_else(|| of_server?.get(name));
    mode.is_some_and(|it| it.eq_ignore_ascii_case("force_generic_plan"))
}

/// `generic plan`, `custom plan, used by the server`, `plan, not executed`.
pub(crate) fn kind(it: &StatementPlan) -> String {
    let kind = match it.kind {
        Some(PlanKind::Generic) => "generic plan",
        Some(PlanKind::Custom) => "custom plan",
        None => "plan",
    };
    let used = if it.kind.is_some() && it.is_used {
        ", used under load"
    } else {
        ""
    };
    let executed = match (&it.execution_error, it.is_executed) {
        (_, true) => String::new(),
        (None, false) => ", not executed".to_owned(),
        (Some(error), false) => format!(", not executed: {error}"),
    };
    format!("{kind}{used}{executed}")
}

/// A sentence for each variant with another number of plans than the baseline: some have no counterpart.
pub(crate) fn without_counterpart(run: &Run, plans: &RunPlans) -> Vec<String> {
    let count = |point: usize| {
        let statements = plans.points.get(point).map(|it| it.statements.iter());
        statements.map_or(0, |it| it.filter(|it| it.used().is_some()).count())
    };
    let sentence = |it: &VariantPlanDifference| {
        let [of_variant, of_baseline] = [it.variant_plans, it.baseline_plans].map(count);
        let plans = number::count(of_variant as u64, "query plan");
        let text = format!(
            "\"{}\" has {plans} and \"{}\" {of_baseline}{}: those without a counterpart are not compared.",
            variant_name(run, it.variant),
            baseline_name(run, it.variant),
            conditions(run, &it.conditions)
        );
        (of_variant != of_baseline).then_some(text)
    };
    plans.differences.iter().filter_map(sentence).collect()
}

/// One line for plans without a difference; `None` if there is none to state.
pub(crate) fn all_equal(plans: &RunPlans) -> Option<String> {
    let same: u32 = plans.differences.iter().map(|it| it.same).sum();
    let is_equal = same > 0 && differing(plans).next().is_none();
    is_equal.then(|| "The statements have the same plans in all variants.".to_owned())
}
