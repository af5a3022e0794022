//! The comparison that a study wants explained.

use super::parse::parse_comparison;
use crate::plan::Plan;
use crate::study::Study;

/// Whether the study's `explain` selects this variant under this condition, both given by their indices
/// in the plan. Always `false` if the study leaves the choice to the report.
pub fn is_explained(study: &Study, plan: &Plan, condition: usize, variant: usize) -> bool {
    let wanted = study.explain.as_deref().map(parse_comparison);
    // Names were checked when the plan was made from the study.
    let Some(Ok((name, wanted))) = wanted else {
        return false;
    };
    let is_named = plan.variants.get(variant).is_some_and(|it| *it == name);
    let condition = plan.conditions.get(condition);
    is_named && condition.is_some_and(|it| wanted.iter().all(|wanted| wanted.holds(it)))
}
