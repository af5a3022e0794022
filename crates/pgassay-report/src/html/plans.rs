//! The plans of the statements: what differs between variants, both trees, and all plans.

use maud::{Markup, html};
use pgassay_explain::{difference_text, plan_text};
use pgassay_record::plans::{
    RunPlans, StatementPlan, StatementPlanDifference, StatementPlans, VariantPlanDifference,
};
use pgassay_record::run::Run;

use crate::outline::{baseline_name, variant_name};
use crate::plans::{
    all_equal, conditions, cursor_note, differing, generic_differs, generic_sentence, kind,
    sentences, statements, title, without_counterpart,
};

/// Columns of a tree.
const WIDTH: usize = 100;
/// A longer plan is in `run.json` only.
const JSON_MAX_BYTES: usize = 100_000;
/// Sentences about one statement.
const DIFFERENCES: usize = 12;

/// The section; empty if no plans were taken.
pub(super) fn section(run: &Run) -> Markup {
    html! {
        @if let Some(plans) = &run.plans {
            section #plans {
                h2 { "Query plans" }
                p.lead {
                    "Taken with EXPLAIN after the last trial, with the same values for all variants. "
                    "Rows are per execution of the statement, blocks without those of the nodes below. "
                    "Statements were executed on servers that pgassay started, and rolled back. Cursors, and all "
                    "statements on an external server, were only planned."
                }
                @if let Some(text) = all_equal(plans) { p { (text) } }
                @for text in without_counterpart(run, plans) { p { (text) } }
                @for it in differing(plans) { (variant(run, plans, it)) }
                @for (point, statement) in generic_differs(plans) {
                    @if let Some(difference) = &statement.generic_difference {
                        h3 { (variant_name(run, point.variant)) (conditions(run, &point.conditions)) }
                        p { code { (statement.text) } }
                        p { (generic_sentence(run, point, statement)) "." }
                        pre { (difference_text(difference, ("custom", "generic"), WIDTH)) }
                    }
                }
                details {
                    summary { "All plans" }
                    @for point in &plans.points {
                        h3 { (variant_name(run, point.variant)) (conditions(run, &point.conditions)) }
                        @for statement in &point.statements { (all_of(statement)) }
                        @if point.left_out > 0 {
                            p.faint { (point.left_out) " more statements were not explained." }
                        }
                    }
                }
            }
        }
    }
}

fn variant(run: &Run, plans: &RunPlans, it: &VariantPlanDifference) -> Markup {
    html! {
        h3 { (title(run, it)) }
        @for statement in &it.statements {
            @if let Some(sides) = statements(plans, it, statement) {
                (difference(run, it, statement, sides))
            }
        }
    }
}

/// What differs, both plans as one tree, and each plan on its own.
fn difference(
    run: &Run,
    it: &VariantPlanDifference,
    statement: &StatementPlanDifference,
    sides: [&StatementPlans; 2],
) -> Markup {
    let names = [
        baseline_name(run, it.variant),
        variant_name(run, it.variant),
    ];
    let [before, after] = sides;
    html! {
        p { code { (after.text) } @if before.text != after.text { " instead of " code { (before.text) } } }
        ul { @for line in sentences(statement, DIFFERENCES) { li { (line) } } }
        @if let Some(note) = cursor_note(sides) { p.faint { (note) } }
        pre { (difference_text(&statement.difference, (names[0], names[1]), WIDTH)) }
        details {
            summary { "Both plans" }
            @for (name, side) in names.iter().zip(sides) {
                @if let Some(plan) = side.used() {
                    p { b { (name) } ", " (kind(plan)) }
                    (tree(plan))
                }
            }
        }
    }
}

fn all_of(statement: &StatementPlans) -> Markup {
    html! {
        p {
            code { (statement.text) } " "
            span.faint {
                (statement.script) ", line " (statement.line)
                @for it in &statement.values {
                    "; " (it.name) " = " (it.value.as_deref().unwrap_or("null"))
                }
            }
        }
        @if let Some(missing) = &statement.missing { p.faint { "No plan: " (missing.message) } }
        @for plan in &statement.plans {
            @if statement.plans.len() > 1 || !plan.is_executed { p.faint { (kind(plan)) } }
            (tree(plan))
            @if plan.json.len() <= JSON_MAX_BYTES {
                details {
                    summary { "Plan as JSON, for plan viewers" }
                    pre { (plan.json) }
                }
            }
        }
    }
}

fn tree(plan: &StatementPlan) -> Markup {
    html! { @if let Some(tree) = plan.tree() { pre { (plan_text(&tree, WIDTH)) } } }
}
