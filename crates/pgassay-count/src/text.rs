//! Prints instruction counts: the answer first, then the functions that explain it.

use std::fmt::Write;

use pgassay_account::instructions::margin::Family;
use pgassay_account::instructions::{
    Build, CallTally, ConditionCount, CountVerdict, Counts, Difference, VariantCount, base_name,
    is_clock_function,
};

use crate::against::{VariantComparison, VariantOutcome};
use crate::call_changes;
use crate::method::how;

/// Default number of rows in each table of functions.
pub const ROWS: usize = 12;

/// With more variants than this besides the baseline, only their totals are printed.
const EXPLAINED_MAX: usize = 3;

/// The columns of a variant's figures, with and without the number of system calls, and of a verdict.
const FIGURE_COLUMNS: [usize; 2] = [69, 58];
const VERDICT_COLUMNS: usize = 15;

/// How the rows of a table of variants fit into the columns of a terminal.
struct RowLayout {
    /// The width of the longest name.
    name_width: usize,
    /// Whether the numbers of system calls fit, too.
    has_system_calls: bool,
    /// Whether figures follow their variant's name on its line, or go below it.
    is_one_line: bool,
}

impl RowLayout {
    fn of(longest_name: usize, columns: usize) -> Self {
        let name_width = longest_name.max("variant".len());
        let [full, narrow] =
            FIGURE_COLUMNS.map(|figures| 4 + name_width + figures + VERDICT_COLUMNS);
        Self {
            name_width,
            has_system_calls: full <= columns,
            is_one_line: narrow <= columns,
        }
    }

    fn row(&self, name: &str, figures: &str) -> String {
        if self.is_one_line {
            format!("  {name:width$}  {figures}\n", width = self.name_width)
        } else {
            format!("  {name}\n    {figures}\n")
        }
    }

    /// The number of system calls, with the gap before it.
    fn system_calls(&self, figure: &str) -> String {
        if self.has_system_calls {
            format!("  {figure:>9}")
        } else {
            String::new()
        }
    }
}

/// The whole report, with up to `rows` functions in each table, whose tables of variants fit into `columns`.
pub fn answer(counts: &Counts, rows: usize, columns: usize) -> String {
    let mut out = format!("{}\n", counts.question);
    let _ = writeln!(
        out,
        "User-space instructions per transaction, one client; counted by {}, seed {}.",
        counts.machine.counter, counts.seed
    );
    for what in &counts.ignored {
        let _ = writeln!(out, "Left out: {what}.");
    }
    for condition in &counts.conditions {
        out.push('\n');
        one_condition(&mut out, counts, condition, (rows, columns));
    }
    out
}

fn one_condition(
    out: &mut String,
    counts: &Counts,
    condition: &ConditionCount,
    (rows, columns): (usize, usize),
) {
    if !condition.title.is_empty() {
        let _ = writeln!(out, "{}", condition.title);
    }
    let names = condition.variants.iter().map(|it| it.name.chars().count());
    let layout = RowLayout::of(names.max().unwrap_or(0), columns);
    let heads = format!(
        "{:>13}  {:>8}{}  {:>12}  {:>8}  {:>9}",
        "instructions",
        "±",
        layout.system_calls("syscalls"),
        "difference",
        "±",
        "change"
    );
    out.push_str(&layout.row("variant", &heads));
    let Some((baseline, others)) = condition.variants.split_first() else {
        return;
    };
    out.push_str(&layout.row(&baseline.name, &cost(baseline, &layout)));
    let others = in_order(baseline, others, &counts.family(condition));
    for (variant, difference) in &others {
        let figures = format!("{}  {}", cost(variant, &layout), change(difference));
        out.push_str(&layout.row(&variant.name, &figures));
    }
    not_linear(out, condition, others.iter().map(|(_, it)| it.verdict));
    for sentence in how(baseline, counts).split_inclusive(". ") {
        let _ = writeln!(out, "  {}", sentence.trim_end());
    }
    builds(out, &condition.variants);
    if others.is_empty() {
        one_variant(out, baseline, rows);
    }
    if others.len() > EXPLAINED_MAX {
        let _ = writeln!(
            out,
            "  To see the functions behind a difference, select two variants (--variant) or use --json."
        );
        return;
    }
    for (variant, difference) in &others {
        if difference.verdict != CountVerdict::NoDifference {
            explanation(
                out,
                &format!("{} vs {}", variant.name, baseline.name),
                difference,
                rows,
            );
            system_calls(out, baseline, variant);
        }
    }
}

/// A few variants, or several builds, keep the study's order. Many variants of one build are sorted
/// by cost, the most expensive first and those without a difference last.
fn in_order<'a>(
    baseline: &VariantCount,
    others: &'a [VariantCount],
    family: &Family,
) -> Vec<(&'a VariantCount, Difference)> {
    let mut rows: Vec<_> = others
        .iter()
        .map(|variant| (variant, Difference::between(baseline, variant, family)))
        .collect();
    let one_build = others.iter().all(|variant| variant.build == baseline.build);
    if one_build && others.len() > EXPLAINED_MAX {
        rows.sort_by(|(_, a), (_, b)| {
            let none = |difference: &Difference| difference.verdict == CountVerdict::NoDifference;
            let by_cost = b.per_transaction.total_cmp(&a.per_transaction);
            none(a).cmp(&none(b)).then(by_cost)
        });
    }
    rows
}

fn cost(variant: &VariantCount, layout: &RowLayout) -> String {
    let spread = match variant.repeats.len() {
        // One round has no range.
        0 | 1 => "–".to_owned(),
        _ => grouped(variant.spread()),
    };
    format!(
        "{:>13}  {spread:>8}{}",
        grouped(variant.cost()),
        layout.system_calls(&format!("{:.2}", variant.system_calls_per_transaction()))
    )
}

fn change(difference: &Difference) -> String {
    let margin = match difference.verdict {
        CountVerdict::TooFewRounds => "–".to_owned(),
        _ => grouped(difference.margin),
    };
    let words = format!(
        "{:>12}  {margin:>8}  {:>9}",
        signed(difference.per_transaction),
        ratio(difference.ratio)
    );
    match difference.verdict {
        CountVerdict::Differs => words,
        CountVerdict::NoDifference => format!("{words}  no difference"),
        CountVerdict::NotLinear => format!("{words}  not linear"),
        CountVerdict::TooFewRounds => format!("{words}  no verdict"),
    }
}

/// Says which costs depend on the run length, and whether their differences do.
fn not_linear(
    out: &mut String,
    condition: &ConditionCount,
    verdicts: impl ExactSizeIterator<Item = CountVerdict>,
) {
    let bent = || condition.variants.iter().filter(|it| !it.is_linear());
    for variant in bent() {
        let _ = writeln!(
            out,
            "  \"{}\" is not linear: the cost of a transaction changes by {:+.2}% in the second half of a run, so its count depends on the run length",
            variant.name,
            100.0 * variant.bend()
        );
    }
    let has_differences = verdicts.len() > 0;
    let have_verdicts = { verdicts }.all(|it| it != CountVerdict::NotLinear);
    if bent().next().is_some() && has_differences && have_verdicts {
        let _ = writeln!(
            out,
            "  The costs change alike, so their differences hardly depend on it."
        );
    }
}

fn builds(out: &mut String, variants: &[VariantCount]) {
    let mut said: Vec<&Build> = Vec::new();
    for variant in variants {
        if !said.contains(&&variant.build) {
            said.push(&variant.build);
            let build = &variant.build;
            let level = build
                .cflags
                .split_whitespace()
                .rfind(|flag| flag.starts_with("-O"));
            let _ = writeln!(
                out,
                "  PostgreSQL {}: {} {}",
                build.version,
                build.compiler,
                level.unwrap_or("(flags not recorded)")
            );
        }
    }
}

/// Functions, subsystems and system calls of one variant.
fn one_variant(out: &mut String, variant: &VariantCount, rows: usize) {
    let _ = writeln!(
        out,
        "\n  {:>12}  {:>7}  subsystem (self instructions per transaction)",
        "self", "share"
    );
    let share = |sum: i64| 100.0 * sum as f64 / variant.instructions as f64;
    for row in &variant.subsystems {
        let _ = writeln!(
            out,
            "  {:>12}  {:>6.2}%  {}",
            grouped(variant.per_transaction(row.instructions)),
            share(row.instructions),
            row.name
        );
    }
    let _ = writeln!(
        out,
        "  {:>12}  {:>6.2}%  total",
        grouped(variant.cost()),
        100.0
    );
    let _ = writeln!(
        out,
        "\n  {:>12}  {:>7}  {:>12}  {:>9}  function (per transaction)",
        "self", "share", "inclusive", "calls"
    );
    for function in variant.functions.iter().take(rows) {
        let _ = writeln!(
            out,
            "  {:>12}  {:>6.2}%  {:>12}{} {:>9.2}  {} [{}]",
            grouped(variant.per_transaction(function.instructions)),
            share(function.instructions),
            grouped(variant.per_transaction(function.inclusive)),
            if function.recursive { '~' } else { ' ' },
            variant.per_transaction(function.calls),
            function.name,
            base_name(&function.object)
        );
    }
    let others = &variant.functions[rows.min(variant.functions.len())..];
    let rest: i64 = others.iter().map(|function| function.instructions).sum();
    let _ = writeln!(
        out,
        "  {:>12}  {:>6.2}%  {:>12}  {:>9}  {} other functions",
        grouped(variant.per_transaction(rest)),
        share(rest),
        "",
        "",
        others.len()
    );
    list_system_calls(out, variant);
}

fn list_system_calls(out: &mut String, variant: &VariantCount) {
    let calls: Vec<String> = variant
        .system_calls_by_name
        .iter()
        .map(|row| (variant.per_transaction(row.count), &row.name))
        .filter(|(count, _)| count.abs() >= 0.005)
        .map(|(count, name)| {
            let clock = if is_clock_function(name) {
                " (a system call only under valgrind)"
            } else {
                ""
            };
            format!("{name} {count:.2}{clock}")
        })
        .collect();
    let _ = writeln!(
        out,
        "\n  system calls per transaction: {}",
        calls.join(", ")
    );
}

/// The subsystems and functions that make up a difference.
pub fn explanation(out: &mut String, title: &str, difference: &Difference, rows: usize) {
    let _ = writeln!(
        out,
        "\n  {title}: {} instructions per transaction, by subsystem",
        signed(difference.per_transaction)
    );
    let per = |sum: i64| signed(difference.per_transaction_of(sum));
    let shown = &difference.subsystems[..rows.min(difference.subsystems.len())];
    for row in shown {
        let _ = writeln!(out, "  {:>12}  {}", per(row.instructions), row.name);
    }
    let others = &difference.subsystems[shown.len()..];
    if !others.is_empty() {
        let rest = others.iter().map(|row| row.instructions).sum();
        let _ = writeln!(
            out,
            "  {:>12}  {} other subsystems",
            per(rest),
            others.len()
        );
    }
    let _ = writeln!(out, "  {:>12}  total", per(difference.instructions));
    let _ = writeln!(out, "\n  {:>12}  {:>12}  by function", "self", "inclusive");
    let shown = &difference.functions[..rows.min(difference.functions.len())];
    for row in shown {
        let _ = writeln!(
            out,
            "  {:>12}  {:>12}  {} [{}]  {}",
            per(row.instructions),
            per(row.inclusive),
            row.name,
            row.object,
            row.subsystem
        );
    }
    let others = &difference.functions[shown.len()..];
    if !others.is_empty() {
        let rest = others.iter().map(|row| row.instructions).sum();
        let _ = writeln!(
            out,
            "  {:>12}  {:>12}  {} other functions",
            per(rest),
            "",
            others.len()
        );
    }
    let _ = writeln!(
        out,
        "  {:>12}  {:>12}  total",
        per(difference.instructions),
        ""
    );
}

fn system_calls(out: &mut String, baseline: &VariantCount, variant: &VariantCount) {
    let counts = [baseline, variant].map(|of| {
        let rows = of.system_calls_by_name.iter();
        let counts = rows.map(|row| (row.name.as_str(), of.per_transaction(row.count)));
        counts.collect::<Vec<_>>()
    });
    for line in call_changes::lines([&counts[0], &counts[1]]) {
        let _ = writeln!(out, "  {line}");
    }
}

/// A function's callers above it and its callees below, with the cost of each per transaction.
pub fn around(variant: &VariantCount, name: &str) -> Option<String> {
    let index = variant
        .functions
        .iter()
        .position(|function| function.name == name)?;
    let function = &variant.functions[index];
    let mut out = format!("\n  {}: calls of {name}, per transaction\n", variant.name);
    let _ = writeln!(out, "  {:>12}  {:>9}", "inclusive", "calls");
    let mut rows = |mark: &str, of: &dyn Fn(&CallTally) -> Option<usize>| {
        let mut calls: Vec<_> = variant
            .calls
            .iter()
            .filter_map(|call| Some((of(call)?, call)))
            .collect();
        calls.sort_by_key(|(_, call)| std::cmp::Reverse(call.inclusive));
        for (other, call) in calls {
            let _ = writeln!(
                out,
                "  {:>12}  {:>9.2}  {mark} {}",
                grouped(variant.per_transaction(call.inclusive)),
                variant.per_transaction(call.count),
                variant.functions[other].name
            );
        }
    };
    rows("<", &|call| (call.callee == index).then_some(call.caller));
    let own = format!(
        "  {:>12}  {:>9.2}  * {name} (self {})\n",
        grouped(variant.per_transaction(function.inclusive)),
        variant.per_transaction(function.calls),
        grouped(variant.per_transaction(function.instructions))
    );
    let callers = std::mem::take(&mut out);
    let mut rows = String::new();
    let mut calls: Vec<_> = variant
        .calls
        .iter()
        .filter(|call| call.caller == index)
        .collect();
    calls.sort_by_key(|call| std::cmp::Reverse(call.inclusive));
    for call in calls {
        let _ = writeln!(
            rows,
            "  {:>12}  {:>9.2}  > {}",
            grouped(variant.per_transaction(call.inclusive)),
            variant.per_transaction(call.count),
            variant.functions[call.callee].name
        );
    }
    Some(format!("{callers}{own}{rows}"))
}

/// The outcome of comparing with earlier counts, with the functions that changed where the cost
/// exceeds the tolerance.
pub fn comparisons(all: &[VariantComparison], tolerance: f64, rows: usize) -> String {
    let mut out = String::new();
    for VariantComparison { title, outcome } in all {
        match outcome {
            VariantOutcome::NotComparable(reason) => {
                let _ = writeln!(out, "{title}: not comparable: {reason}");
            }
            VariantOutcome::Inconclusive(reason) => {
                let _ = writeln!(out, "{title}: inconclusive: {reason}");
            }
            VariantOutcome::Within(difference) => {
                let _ = writeln!(
                    out,
                    "{title}: {} ± {} instructions ({}), within {}%",
                    signed(difference.per_transaction),
                    grouped(difference.margin),
                    ratio(difference.ratio),
                    100.0 * tolerance
                );
            }
            VariantOutcome::Over(difference) => {
                let _ = writeln!(
                    out,
                    "{title}: {} ± {} instructions ({}), over {}%",
                    signed(difference.per_transaction),
                    grouped(difference.margin),
                    ratio(difference.ratio),
                    100.0 * tolerance
                );
                explanation(&mut out, "now vs then", difference, rows);
            }
        }
    }
    out
}

/// A ratio as a change in percent: always, so that the rows of an output can be compared.
pub(crate) fn ratio(ratio: f64) -> String {
    let percent = 100.0 * (ratio - 1.0);
    if percent < 100.0 {
        let text = format!("{percent:+.3}%").replace('-', "−");
        let is_none = text.ends_with("0.000%") && text.chars().count() == "+0.000%".len();
        return if is_none { "0.000%".to_owned() } else { text };
    }
    let whole = grouped(percent.round());
    format!("+{}%", whole.trim_end_matches(".0"))
}

pub(crate) fn signed(value: f64) -> String {
    match grouped(value) {
        none if none == "0.0" => none,
        less if value < 0.0 => less,
        more => format!("+{more}"),
    }
}

/// One decimal, digits in groups of three.
pub(crate) fn grouped(value: f64) -> String {
    let text = format!("{:.1}", value.abs());
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, "0"));
    let mut out = String::new();
    for (position, digit) in whole.chars().enumerate() {
        if position > 0 && (whole.len() - position) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    // What rounds to zero is not negative.
    let sign = if value < 0.0 && text != "0.0" {
        "−"
    } else {
        ""
    };
    format!("{sign}{out}.{fraction}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_is_too_wide_leaves_out_system_calls_and_then_goes_on_below_its_name() {
        let row = |name: &str, columns: usize| {
            let layout = RowLayout::of(name.chars().count(), columns);
            layout.row(name, &format!("figures{}", layout.system_calls("6.30")))
        };
        assert_eq!(row("jit=off", 100), "  jit=off  figures       6.30\n");
        assert_eq!(row("jit=off", 90), "  jit=off  figures\n");
        assert_eq!(row("jit=off", 80), "  jit=off\n    figures\n");
    }

    #[test]
    fn numbers_are_grouped_and_signed() {
        assert_eq!(grouped(61_872.34), "61,872.3");
        assert_eq!(grouped(1_871_064.0), "1,871,064.0");
        assert_eq!(signed(-524.04), "−524.0");
        assert_eq!(signed(524.04), "+524.0");
        // Regression: a function whose cost is the same was listed with −0.0.
        assert_eq!(signed(-0.04), "0.0");
        assert_eq!(grouped(-0.04), "0.0");
        assert_eq!(ratio(0.999_999), "0.000%");
        assert_eq!(ratio(1.001_85), "+0.185%");
        assert_eq!(ratio(0.25), "−75.000%");
        assert_eq!(ratio(2.25), "+125%");
        assert_eq!(ratio(26.7), "+2,570%");
    }
}
