//! What a transaction gives, where a study counts something else than transactions.

use std::collections::BTreeMap;

use super::expand::Expansion;
use super::{PlannedScript, Yield};
use crate::study::StudyError;

/// What the chosen scripts give: all the same, or a rate would depend on which were drawn.
pub(super) fn yield_of(
    expansion: &Expansion<'_>,
    scripts: &[PlannedScript],
    values: &BTreeMap<String, String>,
) -> Result<Option<Yield>, StudyError> {
    let mut all = Vec::new();
    for script in scripts {
        all.push(of_script(expansion, script.index, values)?);
    }
    let Some(first) = all.first().cloned() else {
        return Ok(None);
    };
    match scripts.iter().zip(&all).find(|(_, gives)| **gives != first) {
        None => Ok(first),
        Some((script, _)) => Err(expansion.source.error_at(
            &["script", &script.index.to_string()],
            format!(
                "scripts that run together must give the same, and \"{}\" and \"{}\" do not",
                scripts[0].name, script.name
            ),
        )),
    }
}

fn of_script(
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
        let message = "`gives` names one unit, as gives = { values = 10_000 }";
        return Err(expansion.source.error_at(&path[..3], message));
    }
    let text = expansion.filled(amount.as_str(), values, &path)?;
    match text.replace('_', "").parse() {
        Ok(per_transaction) if per_transaction > 0 => Ok(Some(Yield {
            unit: unit.clone(),
            per_transaction,
        })),
        _ => {
            let message = format!("\"{text}\" is not a whole number of {unit} of at least 1");
            Err(expansion.source.error_at(&path, message))
        }
    }
}
