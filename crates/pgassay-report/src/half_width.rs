//! What a run in two stages aimed at, and what it reached.

use pgassay_account::comparison::{Basis, Comparison};
use pgassay_record::run::Run;

use crate::number;

/// How the number of units was decided, and whether the wanted half-width was reached; `None` for other runs.
pub(crate) fn basis(run: &Run, all: &[Basis]) -> Option<String> {
    let wanted = run.plan.schedule.half_width_percent?;
    let first = all.first()?;
    let units = first.first_stage_units?;
    let first_stage = number::count(u64::from(units), first.unit.name());
    let stages = if all.iter().all(|it| it.units < units) {
        format!("the run ended in the first stage, which takes {first_stage}.")
    } else {
        format!(
            "the standard deviation of the first {first_stage} alone decided how many there are."
        )
    };
    let mut text = format!(
        "Measured in two stages for intervals within \u{b1}{wanted}%: {stages} Nothing ended at a verdict, so the \
         ratios are not biased by an early end."
    );
    if first.comparisons > 1 {
        let together = format!(
            " The {} intervals together contain their true ratios in 95% of runs.",
            first.comparisons
        );
        text.push_str(&together);
    }
    if let Some(missed) = missed(run, wanted) {
        text = format!("{missed} {text}");
    }
    Some(text)
}

/// `Not within ±1%: the widest interval is within ±1.6%, from 14 server starts. …`; `None` if all intervals are as
/// narrow as wanted.
fn missed(run: &Run, wanted: f64) -> Option<String> {
    // A single unit has no interval.
    let reached = |it: &Comparison, basis: Basis| match basis.units {
        0 | 1 => f64::INFINITY,
        _ => 100.0 * ((it.tps.high / it.tps.low).ln() / 2.0).exp_m1(),
    };
    let all = run.comparisons.iter();
    let widths = all.filter_map(|it| Some((reached(it, it.basis?), it.basis?)));
    // Apart from rounding.
    let wider = widths.filter(|(reached, _)| *reached > wanted * (1.0 + 1e-6));
    let (widest, basis) = wider.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    let unit = basis.unit.name();
    if widest.is_infinite() {
        return Some(format!(
            "No interval within \u{b1}{wanted}%: the run ended before there were two {unit}s."
        ));
    }
    let found = format!(
        "Not within \u{b1}{wanted}%: the widest interval is within \u{b1}{}%, from {}.",
        number::decimals(widest, 2),
        number::count(u64::from(basis.units), unit)
    );
    let Some(needed) = basis.units_needed.filter(|it| *it > basis.units) else {
        return Some(format!(
            "{found} The resolution of the rates is too coarse for less; longer trials (--length) improve it."
        ));
    };
    let elapsed_us = run.elapsed_us();
    let each_us = elapsed_us / f64::from(basis.units);
    Some(format!(
        "{found} \u{b1}{wanted}% takes about {} in all: about {} more.",
        number::count(u64::from(needed), unit),
        number::duration(f64::from(needed - basis.units) * each_us)
    ))
}
