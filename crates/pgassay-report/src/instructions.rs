//! Instruction counts as reports show them, next to the timed figures.

use pgassay_account::comparison::{Comparison, PointSummary};
use pgassay_account::instructions::{CountVerdict, Difference, InstructionCosts, VariantCount};
use pgassay_record::run::Run;

use crate::number;
use crate::outline::{clients, comparison, point};

/// Instruction counts and timings of a variant under a condition.
pub(crate) struct InstructionRow<'a> {
    /// The condition's title; empty if there is only one.
    pub condition: &'a str,
    /// The instruction counts.
    pub count: &'a VariantCount,
    /// The difference from the condition's baseline; `None` for the baseline itself.
    pub difference: Option<&'a Difference>,
    /// The timed figures, if there are any.
    pub timed: Option<Timed<'a>>,
}

/// The timed figures of the condition with this name and the fewest clients.
#[derive(Clone, Copy)]
pub(crate) struct Timed<'a> {
    /// Number of clients.
    pub clients: u32,
    /// The figures.
    pub point: &'a PointSummary,
    /// The comparison with the baseline.
    pub comparison: Option<&'a Comparison>,
}

/// All rows, condition by condition.
pub(crate) fn rows<'a>(
    costs: &'a InstructionCosts,
    run: Option<&'a Run>,
) -> Vec<InstructionRow<'a>> {
    let conditions = costs.counts.conditions.iter();
    conditions
        .flat_map(|condition| {
            condition.variants.iter().map(|count| InstructionRow {
                condition: &condition.title,
                count,
                difference: costs.difference(&condition.title, &count.name),
                timed: run.and_then(|run| timed(run, &condition.title, &count.name)),
            })
        })
        .collect()
}

fn timed<'a>(run: &'a Run, label: &str, name: &str) -> Option<Timed<'a>> {
    let variant = run.plan.variants.iter().position(|it| it == name)?;
    let conditions = run.plan.conditions.iter().enumerate();
    let (condition, _) = conditions
        .filter(|(_, it)| it.label == label || without_network(&it.label) == label)
        .min_by_key(|(_, it)| it.clients)?;
    Some(Timed {
        clients: clients(run, condition),
        point: point(run, condition, variant)?,
        comparison: comparison(run, condition, variant),
    })
}

/// A condition's label without its network, which instruction counting ignores.
fn without_network(label: &str) -> String {
    let parts = label.split(", ").filter(|it| !it.starts_with("network="));
    parts.collect::<Vec<_>>().join(", ")
}

/// Instructions, to a tenth below a million: `43,735.9`, `1,871,064`.
pub(crate) fn figure(value: f64) -> String {
    if value.abs() >= 1e6 {
        return number::whole(value);
    }
    let tenths = (value * 10.0).round() as i64;
    let sign = if tenths < 0 { "−" } else { "" };
    let whole = number::whole((tenths.abs() / 10) as f64);
    format!("{sign}{whole}.{}", tenths.abs() % 10)
}

/// A difference in instructions, with its sign.
pub(crate) fn signed(value: f64) -> String {
    let text = figure(value);
    if value > 0.0 && text != "0.0" {
        format!("+{text}")
    } else {
        text
    }
}

/// A ratio of counts as a change in percent, to a thousandth below 100%: `+0.367%`, `+122%`. Always, so
/// that the rows of a table can be compared.
pub(crate) fn change(ratio: f64) -> String {
    let percent = 100.0 * (ratio - 1.0);
    if percent >= 100.0 {
        return format!("+{}%", number::whole(percent));
    }
    let text = format!("{:.3}%", percent.abs());
    match percent {
        _ if text.starts_with("0.000") => text,
        cheaper if cheaper < 0.0 => format!("−{text}"),
        _ => format!("+{text}"),
    }
}

/// Why a difference cannot be claimed; `None` if it can.
pub(crate) fn no_verdict_reason(difference: &Difference) -> Option<&'static str> {
    match difference.verdict {
        CountVerdict::Differs => None,
        CountVerdict::NoDifference => Some("no difference"),
        CountVerdict::NotLinear => Some("not linear"),
        CountVerdict::TooFewRounds => Some("no verdict"),
    }
}

/// How instructions were counted, in a sentence.
pub(crate) fn method_sentence(costs: &InstructionCosts) -> String {
    let counts = &costs.counts;
    format!(
        "User-space instructions per transaction, counted by {} with one client, seed {}; ± is the range observed across rounds or, for a difference, the noise margin.",
        counts.machine.counter, counts.seed
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_have_a_tenth_until_they_run_into_millions() {
        let plain = |text: String| text.replace('\u{a0}', " ");
        assert_eq!(plain(figure(43_735.94)), "43,735.9");
        assert_eq!(plain(figure(1_871_064.3)), "1,871,064");
        assert_eq!(plain(figure(-0.04)), "0.0");
        assert_eq!(plain(signed(159.96)), "+160.0");
        assert_eq!(plain(signed(-501.92)), "−501.9");
        assert_eq!(change(1.003_67), "+0.367%");
        assert_eq!(change(0.999_999), "0.000%");
        assert_eq!(change(0.977), "−2.300%");
        assert_eq!(change(0.25), "−75.000%");
        assert_eq!(change(2.2156), "+122%");
        assert_eq!(change(23.5), "+2,250%");
    }
}
