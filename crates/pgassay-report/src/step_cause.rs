//! What changed most from one variant of a chain to the next.

use pgassay_account::comparison::{Comparison, Verdict};
use pgassay_account::cost_row::{Change, CostRow};
use pgassay_account::ledger::Part;
use pgassay_record::run::Run;

use crate::ledger::group_name;
use crate::number;
use crate::outline::yields;

/// `Largest change: lock manager, +3.10 µs per transaction.` For a step of a chain that is faster or slower under all
/// of its conditions, if the same row changed most under all of them; the interval of each row excludes 0.
pub(crate) fn of(run: &Run, comparisons: &[&Comparison]) -> Option<String> {
    let (first, rest) = comparisons.split_first().filter(|_| run.plan.stepwise)?;
    let is_opposite = rest.iter().any(|it| it.verdict != first.verdict);
    // CPU time by subsystem is then per unit, and the ledger per transaction.
    let has_units = comparisons.iter().any(|it| !yields(run, it).is_empty());
    if is_opposite || has_units {
        return None;
    }
    let (name, first_us) = largest_change(first)?;
    let (mut least_us, mut most_us) = (first_us, first_us);
    for comparison in rest {
        let (_, us) = largest_change(comparison).filter(|(other, _)| *other == name)?;
        (least_us, most_us) = (least_us.min(us), most_us.max(us));
    }
    let [least, most] = [least_us, most_us].map(number::signed_micros);
    let range = if least == most {
        least
    } else {
        format!("{least} to {most}")
    };
    Some(format!(
        "Largest change: {name}, {range}\u{a0}µs per transaction."
    ))
}

/// The row with the largest significant difference in the direction of the verdict, and that difference: of CPU time by
/// subsystem, if there is such a breakdown, and of time that is not on a CPU.
fn largest_change(comparison: &Comparison) -> Option<(String, f64)> {
    let is_slower = match comparison.verdict {
        Verdict::Slower => true,
        Verdict::Faster => false,
        Verdict::Equivalent | Verdict::Inconclusive => return None,
    };
    let subsystems = comparison.cost.iter().flat_map(|it| &it.subsystems);
    let subsystems = subsystems.map(|row| (format!("CPU in {}", row.name), row));
    let has_subsystems = comparison
        .cost
        .as_ref()
        .is_some_and(|it| !it.subsystems.is_empty());
    let groups = comparison.ledger.iter().flat_map(|it| &it.groups);
    let groups = groups
        .filter(|it| !(has_subsystems && it.part == Part::OnCpu))
        .map(|it| (group_name(it.part, &it.cost.name), &it.cost));
    let excludes_zero = |row: &CostRow| {
        if is_slower {
            row.low_us > 0.0
        } else {
            row.high_us < 0.0
        }
    };
    subsystems
        .chain(groups)
        .filter(|(_, row)| row.change != Change::Inconclusive && excludes_zero(row))
        .max_by(|(_, a), (_, b)| a.difference_us.abs().total_cmp(&b.difference_us.abs()))
        .map(|(name, row)| (name, row.difference_us))
}
