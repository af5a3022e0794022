//! The yield of a transaction, for studies that report rates in another unit.

use std::collections::BTreeMap;

use super::expansion::Expansion;
use super::{PlannedScript, Yield};
use crate::study::StudyError;

/// The yield of the chosen scripts. It must be the same for all, or rates would depend on how often each
/// script is drawn.
pub(super) fn yield_of(
    expansion: &Expansion<'_>,
    scripts: &[PlannedScript],
    values: &BTreeMap<String, String>,
) -> Result<Option<Yield>, StudyError> {
    let mut all = Vec::new();
    for script in scripts {
        all.push(yield_of_script(expansion, script.index, values)?);
    }
    let Some(first) = all.first().cloned() else {
        return Ok(None);
    };
    match scripts.iter().zip(&all).find(|(_, gives)| **gives != first) {
        None => Ok(first),
        Some((script, _)) => Err(expansion.source.error_at(
            &["script", &script.index.to_string()],
            format!(
                "scripts that run together must have the same `gives`, but \"{}\" and \"{}\" differ",
                scripts[0].name, script.name
            ),
        )),
    }
}

fn yield_of_script(
    expansion: &Expansion<'_>,
    index: usize,
    values: &BTreeMap<String, String>,
) -> Result<Option<Yield>, StudyError> {
    let number = index.to_string();
    let mut entries = expansion.study.script[index].gives.iter();
    let Some((unit, amount)) = entries.next() else {
        return Ok(None);
    };
    let path = ["script", &number, "gives", unit];
    if entries.next().is_some() {
        let message = "`gives` must name exactly one unit, for example gives = { values = 10_000 }";
        return Err(expansion.source.error_at(&path[..3], message));
    }
    let text = expansion.fill_parameters(amount.as_str(), values, &path)?;
    match text.replace('_', "").parse() {
        Ok(per_transaction) if per_transaction > 0 => Ok(Some(Yield {
            unit: unit.clone(),
            per_transaction,
        })),
        _ => {
            let message = format!(
                "\"{text}\" is not a valid number of {unit}; use a whole number, at least 1"
            );
            Err(expansion.source.error_at(&path, message))
        }
    }
}
