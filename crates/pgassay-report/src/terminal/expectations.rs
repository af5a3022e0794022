//! The source's figures, the study's expectations, and the functions that the study watches.

use pgassay_model::plan::PointId;
use pgassay_record::expectation::{CheckOutcome, ExpectationOutcome};
use pgassay_record::run::Run;

use super::style::{Style, heading};
use super::table::{Alignment, Table, TextStyle, cell, inked, paint, wrap};
use crate::outline::{condition_title, variant_name};
use crate::{expectations, number};

/// The source's figures next to this run's; empty if the study names none.
pub(super) fn reference(run: &Run, style: Style) -> String {
    let (Some(found), Some(reference)) = (&run.reference, &run.study.reference) else {
        return String::new();
    };
    let mut has_ratios = reference.base.is_some();
    let mut sides = vec![Alignment::Left];
    sides.extend([Alignment::Right; 5]);
    let mut table = Table::new(&sides);
    let this_run = expectations::this_run(run);
    let titles = ["", "source", "", this_run.as_str(), "", "run ÷ source"];
    table.row(titles.map(|title| inked(title, TextStyle::Faint)).to_vec());
    for row in &found.rows {
        let figure = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), number::plain);
        let ratio = |value: Option<f64>| value.map_or_else(String::new, number::ratio);
        let between = row.measured.zip(row.published).map(|(is, was)| is / was);
        table.row(vec![
            cell(&row.name),
            cell(figure(row.published)),
            inked(ratio(row.published_ratio), TextStyle::Faint),
            cell(figure(row.measured)),
            cell(ratio(row.measured_ratio)),
            inked(ratio(between), TextStyle::Faint),
        ]);
    }
    // The source's machine differs from this one, so the last column says least.
    if table.width() > style.columns() {
        table.remove_column(5);
        has_ratios &= table.width() <= style.columns();
    }
    if !has_ratios {
        table.remove_column(4);
        table.remove_column(2);
    }
    let mut out = heading("SOURCE", &reference.source, style);
    out.push_str(&table.render(style.color));
    if let Some(base) = reference.base.as_ref().filter(|_| has_ratios) {
        let text = format!("× is the ratio to \"{base}\" of the same column.");
        out.push_str(&wrap(&text, style.columns(), "  ", "  "));
    }
    if run.plan.conditions.len() > 1 {
        out.push_str(&wrap(expectations::MEANS, style.columns(), "  ", "  "));
    }
    if let Some(differs) = &reference.differs {
        out.push_str(&wrap(differs, style.columns(), "  ", "  "));
    }
    out
}

/// Every expectation with its outcome.
pub(super) fn expectations(run: &Run, style: Style) -> String {
    if run.expectations.is_empty() {
        return String::new();
    }
    let explanation = "the study's expectations and the measured figures; met or not met if the whole interval agrees, \
         otherwise inconclusive";
    let mut out = heading("EXPECTED", explanation, style);
    for it in &run.expectations {
        out.push_str(&expectation(run, it, style));
    }
    out
}

fn expectation(run: &Run, it: &ExpectationOutcome, style: Style) -> String {
    let ink = match it.outcome() {
        Some(CheckOutcome::Met) => TextStyle::Good,
        Some(CheckOutcome::NotMet) => TextStyle::Bad,
        Some(CheckOutcome::Inconclusive) => TextStyle::Caution,
        None => TextStyle::Faint,
    };
    let word = format!("{:<12}", expectations::word(it));
    let text = format!(
        "{} ({}): {}",
        it.that,
        it.check,
        expectations::readings(run, it)
    );
    let indent = " ".repeat(word.len() + 4);
    let text = wrap(&text, style.columns(), "  ____________  ", &indent);
    text.replacen("____________", &paint(&word, ink, style.color), 1)
}

/// The watched functions, for each condition and the variant that spends the most in them; the page has
/// all variants.
pub(super) fn watched(run: &Run, style: Style) -> String {
    let variants = run.plan.variants.len();
    let mut lines = String::new();
    for condition in 0..run.plan.conditions.len() {
        let points = (0..variants)
            .map(|variant| (variant, run.plan.index_of(PointId::new(condition, variant))));
        let share = |index: usize| {
            let shares = run
                .watched_functions
                .iter()
                .filter_map(|it| *it.shares.get(index)?);
            shares.fold(0.0, f64::max)
        };
        let most = points.max_by(|a, b| share(a.1).total_cmp(&share(b.1)));
        let Some((variant, index)) = most.filter(|(_, index)| share(*index) > 0.0) else {
            continue;
        };
        let parts: Vec<String> = run
            .watched_functions
            .iter()
            .filter_map(|it| Some((&it.name, (*it.shares.get(index)?)?)))
            .filter(|(_, share)| *share >= 0.05)
            .map(|(name, share)| format!("{name}\u{a0}{}%", number::decimals(share, 1)))
            .collect();
        let text = format!(
            "{}, {}: {}",
            condition_title(run, condition),
            variant_name(run, variant),
            parts.join(", ")
        );
        lines.push_str(&wrap(&text, style.columns(), "  ", "    "));
    }
    if lines.is_empty() {
        return lines;
    }
    let explanation = "share of the server's CPU time in a function and its callees, for the variant that spends \
                       the most in them";
    heading("WATCHED", explanation, style) + &lines
}
