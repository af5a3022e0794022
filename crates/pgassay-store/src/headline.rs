//! A run in one line, as lists print it.

use pgassay_account::comparison::{Comparison, Verdict};
use pgassay_model::wording::{grouped, interval, ratio};
use pgassay_record::run::Run;

/// More variants than this are summarized together, so that a list has lines of a bearable length.
const NAMED_MAX: usize = 3;

/// `prepared: 6 faster ×1.245 to ×1.284; extended: 5 slower, 1 equivalent ×0.961 to ×0.990`.
pub(crate) fn headline(run: &Run) -> String {
    let text = compared(run).unwrap_or_else(|| {
        let greatest = greatest(run);
        greatest.unwrap_or_else(|| "no verdict".to_owned())
    });
    if run.complete {
        text
    } else {
        format!("(incomplete) {text}")
    }
}

/// The variants with their verdicts; `None` if nothing was compared.
fn compared(run: &Run) -> Option<String> {
    let of_all: Vec<&Comparison> = run.comparisons.iter().collect();
    let mut variants: Vec<usize> = of_all.iter().map(|it| it.variant).collect();
    variants.sort_unstable();
    variants.dedup();
    if variants.len() > NAMED_MAX {
        let number = variants.len();
        return Some(format!("{number} variants: {}", summarize(&of_all)));
    }
    let mut parts = Vec::new();
    for (variant, name) in run.plan.variants.iter().enumerate().skip(1) {
        let of_variant: Vec<&Comparison> = run
            .comparisons
            .iter()
            .filter(|it| it.variant == variant)
            .collect();
        match of_variant[..] {
            [] => {}
            [only] => parts.push(format!(
                "{name}: {} {}",
                word(only.verdict),
                throughput(only)
            )),
            _ => parts.push(format!("{name}: {}", summarize(&of_variant))),
        }
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// The greatest throughput of a run with one variant, such as a curve.
fn greatest(run: &Run) -> Option<String> {
    if run.plan.variants.len() != 1 {
        return None;
    }
    let points = run.points.iter().filter(|it| it.trials > 0);
    let most = points.max_by(|a, b| a.tps.total_cmp(&b.tps))?;
    let clients = run.plan.conditions.get(most.condition)?.clients;
    let plural = if clients == 1 { "" } else { "s" };
    Some(format!(
        "up to {} tps, with {clients} client{plural}",
        grouped(most.tps)
    ))
}

/// The throughput ratio with its interval, which neither a single pair has nor a comparison before its first analysis.
fn throughput(comparison: &Comparison) -> String {
    let tps = &comparison.tps;
    let measured = ratio(tps.ratio);
    if tps.by_pair.len() < 2 {
        format!("{measured} (one pair)")
    } else if !comparison.has_interval() {
        format!("{measured} (no interval yet)")
    } else {
        format!("{measured} {}", interval(tps.low, tps.high))
    }
}

fn summarize(comparisons: &[&Comparison]) -> String {
    let counts: Vec<String> = [
        Verdict::Faster,
        Verdict::Slower,
        Verdict::Equivalent,
        Verdict::Inconclusive,
    ]
    .into_iter()
    .map(|verdict| {
        (
            verdict,
            comparisons
                .iter()
                .filter(|it| it.verdict == verdict)
                .count(),
        )
    })
    .filter(|(_, count)| *count > 0)
    .map(|(verdict, count)| format!("{count} {}", word(verdict)))
    .collect();
    let ratios = || comparisons.iter().map(|it| it.tps.ratio);
    let low = ratios().fold(f64::INFINITY, f64::min);
    let high = ratios().fold(f64::NEG_INFINITY, f64::max);
    format!("{} {} to {}", counts.join(", "), ratio(low), ratio(high))
}

/// The word for a verdict, in headlines and in the index.
pub(crate) fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Faster => "faster",
        Verdict::Slower => "slower",
        Verdict::Equivalent => "equivalent",
        Verdict::Inconclusive => "inconclusive",
    }
}
