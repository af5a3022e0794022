//! One line per comparison: `prepared  faster  tps ×1.412 [1.396, 1.428]  6 pairs, …`.

use pgassay_account::comparison::{Comparison, Verdict};
use pgassay_record::run::Run;

use super::style::{Style, clients, heading};
use super::table::{Alignment, NAME_WIDTH, Table, TextStyle, cell, inked, wrap};
use super::variant_names::short_names;
use crate::outline::{ThroughputUnit, baseline_of_all, comparison, groups};
use crate::{number, outlook, reliability, sentence};

/// The section; empty without comparisons.
pub(super) fn section(run: &Run, style: Style) -> String {
    if run.comparisons.is_empty() {
        return String::new();
    }
    let intervals = sentence::levels(run).map(|it| format!(", with {it} CI"));
    let explanation = format!(
        "throughput relative to {}{}; SD of the pairs",
        baseline_of_all(run),
        intervals.unwrap_or_default()
    );
    // From the longest to the shortest: the first that fits is printed.
    let forms = [
        PairDetail::Words,
        PairDetail::Short,
        PairDetail::Figures,
        PairDetail::None,
    ]
    .map(|noise| table(run, noise));
    let fitting = forms.iter().find(|form| form.width() <= style.columns());
    let table = fitting.unwrap_or(&forms[3]);
    let mut out = heading("ANSWER", &explanation, style);
    out.push_str(&table.render(style.color));
    out.push_str(&footer(run, style));
    out
}

/// How much to print about the pairs.
#[derive(Clone, Copy)]
enum PairDetail {
    Words,
    Short,
    Figures,
    None,
}

/// One row per comparison; the condition is named on its first row.
fn table(run: &Run, noise: PairDetail) -> Table {
    let unit = ThroughputUnit::of(run);
    let mut table = Table::new(&[
        Alignment::Right,
        Alignment::Left,
        Alignment::Left,
        Alignment::Left,
        Alignment::Left,
    ]);
    let names = short_names(&run.plan.variants, NAME_WIDTH);
    for group in groups(run) {
        let shown = |it: &Comparison| group.conditions.contains(&it.condition);
        if !group.label.is_empty() && run.comparisons.iter().any(shown) {
            table.across(cell(group.label));
        }
        for condition in group.conditions {
            let mut title = clients(run, condition);
            for (variant, name) in names.iter().enumerate().skip(1) {
                let Some(comparison) = comparison(run, condition, variant) else {
                    continue;
                };
                table.row(vec![
                    cell(std::mem::take(&mut title)),
                    cell(name.as_str()),
                    inked(
                        sentence::verdict_word(comparison.verdict),
                        ink(comparison.verdict),
                    ),
                    cell(format!(
                        "{} {}",
                        unit.rate(),
                        sentence::throughput_in_words(comparison)
                    )),
                    inked(pairs(comparison, noise), TextStyle::Faint),
                ]);
            }
        }
    }
    table
}

/// The color of a verdict.
pub(super) fn ink(verdict: Verdict) -> TextStyle {
    match verdict {
        Verdict::Faster => TextStyle::Good,
        Verdict::Slower => TextStyle::Bad,
        Verdict::Equivalent => TextStyle::Strong,
        Verdict::Inconclusive => TextStyle::Caution,
    }
}

/// The pairs' noise and the minimum detectable effect, as far as there is room.
fn pairs(comparison: &Comparison, noise: PairDetail) -> String {
    let tps = &comparison.tps;
    let pairs = number::count(tps.by_pair.len() as u64, "pair");
    if tps.by_pair.len() < 2 {
        return match noise {
            PairDetail::None => String::new(),
            _ => "descriptive only".to_owned(),
        };
    }
    let sd = number::noise(tps.pair_sd);
    let detectable = reliability::detectable(tps);
    let detectable = detectable.map_or(String::new(), |it| format!(", {it}"));
    // A mark refers to a footnote below the table.
    let mark = reliability::mark(comparison);
    match noise {
        PairDetail::Words => format!("{pairs}, pair SD {sd}{detectable}{mark}"),
        PairDetail::Short => format!("{pairs}, SD {sd}{detectable}{mark}"),
        PairDetail::Figures => format!("SD {sd}{detectable}{mark}"),
        PairDetail::None => mark.trim().to_owned(),
    }
}

/// The lines below the table: how many pairs inconclusive comparisons need, the footnotes, and what the
/// verdicts rest on.
fn footer(run: &Run, style: Style) -> String {
    let mut out = String::new();
    if let Some(meaning) = outlook::inconclusive(run) {
        let text = format!("inconclusive: {meaning}");
        out.push_str(&wrap(&text, style.columns(), "  ", "  "));
    }
    let has_effect = |it: &Comparison| reliability::detectable(&it.tps).is_some();
    if run.comparisons.iter().any(has_effect) {
        let text = "MDE (minimum detectable effect): what another run like this one detects in 80% of cases. It is a \
                    range, because few pairs give only a rough SD.";
        out.push_str(&wrap(text, style.columns(), "  ", "  "));
    }
    for note in reliability::footnotes(run)
        .iter()
        .chain(&reliability::basis(run))
    {
        out.push_str(&wrap(note, style.columns(), "  ", "  "));
    }
    out
}
