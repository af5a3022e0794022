//! Instruction counts as Markdown tables, for documentation.
//!
//! Variants of one build are listed by cost, those without a difference in a line of their own.
//! Several builds become columns, with a row per condition.

use std::fmt::Write;

use pgassay_account::instructions::{
    Build, ConditionCount, CountVerdict, Counts, Difference, VariantCount,
};

use crate::against::{VariantComparison, VariantOutcome};
use crate::method::how;
use crate::text::{grouped, ratio, signed};

/// The table of a comparison with earlier counts.
pub fn comparisons(all: &[VariantComparison], tolerance: f64) -> String {
    let mut out = format!(
        "| compared with earlier counts | instructions | ± | change | tolerance {}% |\n|---|--:|--:|--:|---|\n",
        100.0 * tolerance
    );
    for VariantComparison { title, outcome } in all {
        let title = cell(title);
        let _ = match outcome {
            VariantOutcome::Within(it) => writeln!(out, "| {title} | {} | within |", figures(it)),
            VariantOutcome::Over(it) => writeln!(out, "| {title} | {} | **over** |", figures(it)),
            VariantOutcome::Inconclusive(reason) => {
                writeln!(out, "| {title} | | | | inconclusive: {} |", cell(reason))
            }
            VariantOutcome::NotComparable(reason) => {
                writeln!(out, "| {title} | | | | not comparable: {} |", cell(reason))
            }
        };
    }
    out
}

fn figures(difference: &Difference) -> String {
    format!(
        "{} | {} | {}",
        signed(difference.per_transaction),
        grouped(difference.margin),
        ratio(difference.ratio)
    )
}

/// The tables of all conditions.
pub fn tables(counts: &Counts) -> String {
    let mut out = builds(counts);
    let are_builds = counts.conditions.iter().any(|condition| {
        let mut variants = condition.variants.iter();
        let first = variants.next().map(|it| &it.build);
        variants.any(|it| Some(&it.build) != first)
    });
    if are_builds {
        builds_table(&mut out, counts);
    } else {
        for condition in &counts.conditions {
            listed(&mut out, counts, condition);
        }
    }
    out
}

/// How the counts were made, and the builds.
fn builds(counts: &Counts) -> String {
    let mut out = format!(
        "User-space instructions per transaction, one client; counted by {}, seed {}.\n\n",
        counts.machine.counter, counts.seed
    );
    let mut said: Vec<&Build> = Vec::new();
    let variants = counts.conditions.iter().flat_map(|it| &it.variants);
    for build in variants.map(|it| &it.build) {
        if !said.contains(&build) {
            said.push(build);
            let mut flags = build.cflags.split_whitespace();
            let level = flags.rfind(|flag| flag.starts_with("-O"));
            let level = level.unwrap_or("flags not recorded");
            // Writing to a String cannot fail.
            _ = writeln!(
                out,
                "- PostgreSQL {}: {}, `{level}`",
                build.version, build.compiler
            );
        }
    }
    out
}

/// The variants of one build, the most expensive first.
fn listed(out: &mut String, counts: &Counts, condition: &ConditionCount) {
    let Some((baseline, others)) = condition.variants.split_first() else {
        return;
    };
    if !condition.title.is_empty() {
        _ = writeln!(out, "\n### {}", condition.title);
    }
    _ = writeln!(
        out,
        "\n{}: {} ± {} instructions. {}\n",
        code(&baseline.name),
        grouped(baseline.cost()),
        grouped(baseline.spread()),
        how(baseline, counts)
    );
    let family = counts.family(condition);
    let mut rows: Vec<(&VariantCount, Difference)> = others
        .iter()
        .map(|variant| (variant, Difference::between(baseline, variant, &family)))
        .collect();
    rows.sort_by(|(_, a), (_, b)| b.per_transaction.total_cmp(&a.per_transaction));
    let (none, some): (Vec<_>, Vec<_>) = rows
        .into_iter()
        .partition(|(_, difference)| difference.verdict == CountVerdict::NoDifference);
    _ = writeln!(
        out,
        "| variant | difference | ± | change |\n|---|---:|---:|---:|"
    );
    for (variant, difference) in &some {
        _ = writeln!(
            out,
            "| {}{} | {} | {} | {} |",
            code(&variant.name),
            match difference.verdict {
                CountVerdict::NotLinear => "\\*",
                CountVerdict::TooFewRounds => " (no verdict)",
                CountVerdict::Differs | CountVerdict::NoDifference => "",
            },
            signed(difference.per_transaction),
            grouped(difference.margin),
            ratio(difference.ratio)
        );
    }
    let largest = none.iter().map(|(_, it)| it).max_by(|a, b| {
        let (a, b) = (a.per_transaction.abs(), b.per_transaction.abs());
        a.total_cmp(&b)
    });
    if let Some(largest) = largest {
        let mut names: Vec<String> = none.iter().map(|(it, _)| code(&it.name)).collect();
        names.sort();
        _ = writeln!(
            out,
            "\n**No difference** beyond the variation across rounds (largest: {} ± {}): {}.",
            signed(largest.per_transaction),
            grouped(largest.margin),
            names.join(", ")
        );
    }
    not_linear(out, [condition].into_iter());
}

/// Builds as columns, conditions as rows.
fn builds_table(out: &mut String, counts: &Counts) {
    let Some(first) = counts.conditions.first() else {
        return;
    };
    let names: Vec<String> = first.variants.iter().map(|it| cell(&it.name)).collect();
    _ = writeln!(out, "\n| | {} | largest ± |", names.join(" | "));
    _ = writeln!(out, "|---|{}---:|", "---:|".repeat(names.len()));
    for condition in &counts.conditions {
        let cells: Vec<String> = condition
            .variants
            .iter()
            .map(|it| {
                let mark = if it.is_linear() { "" } else { "\\*" };
                let cost = grouped(it.cost().round());
                format!("{}{mark}", cost.trim_end_matches(".0"))
            })
            .collect();
        let shares = condition.variants.iter().map(|it| it.spread() / it.cost());
        let largest = shares.fold(0.0, f64::max);
        _ = writeln!(
            out,
            "| {} | {} | {:.3}% |",
            cell(&condition.title),
            cells.join(" | "),
            100.0 * largest
        );
    }
    not_linear(out, counts.conditions.iter());
}

/// A name in a cell of a table: a bar or a new line would end it.
fn cell(name: &str) -> String {
    let name = name.replace('|', "\\|");
    name.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The same as code, where a backtick would end it.
fn code(name: &str) -> String {
    format!("`{}`", cell(name).replace('`', "'"))
}

fn not_linear<'a>(out: &mut String, conditions: impl Iterator<Item = &'a ConditionCount>) {
    let bent: Vec<String> = conditions
        .flat_map(|condition| condition.variants.iter().map(move |it| (condition, it)))
        .filter(|(_, variant)| !variant.is_linear())
        .map(|(condition, variant)| {
            let bend = 100.0 * variant.bend();
            format!("{} {} ({bend:+.1}%)", condition.title, variant.name)
        })
        .collect();
    if !bent.is_empty() {
        _ = writeln!(
            out,
            "\n\\* Not linear: the cost per transaction changes in the second half of a run, so the count depends on the run length: {}.",
            bent.join("; ")
        );
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pgassay_account::instructions::{Machine, Repeat, SCHEMA};

    use super::*;

    fn variant(name: &str, version: &str, cost: u64) -> VariantCount {
        let repeat = Repeat {
            instructions: [100, 200, 400].map(|count| 1_000 + count * cost),
            position: 1,
        };
        VariantCount {
            name: name.to_owned(),
            build: Build {
                version: version.to_owned(),
                configure: String::new(),
                cflags: "-g -O2".to_owned(),
                compiler: "gcc 12".to_owned(),
            },
            settings: BTreeMap::new(),
            load: None,
            segments: [100, 200, 400],
            repeats: vec![repeat; 3],
            transactions: 300,
            instructions: 300 * cost.cast_signed(),
            system_calls: 0,
            system_calls_by_name: Vec::new(),
            subsystems: Vec::new(),
            functions: Vec::new(),
            calls: Vec::new(),
            tree: None,
        }
    }

    fn counts(variants: Vec<VariantCount>) -> Counts {
        Counts {
            schema: SCHEMA.to_owned(),
            question: "?".to_owned(),
            seed: 1,
            machine: Machine {
                counter: "valgrind-3.19.0".to_owned(),
                cpu: String::new(),
                cpu_features: Vec::new(),
            },
            ignored: Vec::new(),
            conditions: vec![ConditionCount {
                title: "look-up".to_owned(),
                variants,
            }],
        }
    }

    #[test]
    fn settings_are_listed_by_cost_and_those_without_a_difference_last() {
        let text = tables(&counts(vec![
            variant("defaults", "18.6", 40_000),
            variant("a=1", "18.6", 39_000),
            variant("b=1", "18.6", 40_000),
            variant("c=1", "18.6", 90_000),
        ]));
        let most = text.find("| `c=1` | +50,000.0 | 0.5 | +125% |").unwrap();
        let least = text.find("| `a=1` | −1,000.0 | 0.5 | −2.500% |").unwrap();
        assert!(most < least);
        assert!(text.ends_with("(largest: 0.0 ± 0.5): `b=1`.\n"), "{text}");
        assert!(text.contains("- PostgreSQL 18.6: gcc 12, `-O2`\n"));
    }

    /// Regression: a name with a bar, as a setting's value can have, moved all figures of its row by one column.
    #[test]
    fn a_name_with_a_bar_a_backtick_or_two_lines_stays_in_its_cell() {
        let name = "search_path=a|b`c\nd";
        let of_one = tables(&counts(vec![
            variant("defaults", "18.6", 40_000),
            variant(name, "18.6", 90_000),
        ]));
        let row = "| `search_path=a\\|b'c d` | +50,000.0 |";
        assert!(of_one.contains(row), "{of_one}");
        let of_builds = tables(&counts(vec![
            variant("17", "17.11", 40_000),
            variant(name, "18.6", 90_000),
        ]));
        assert!(
            of_builds.contains("| | 17 | search_path=a\\|b`c d | largest ± |"),
            "{of_builds}"
        );
    }

    #[test]
    fn builds_become_columns() {
        let text = tables(&counts(vec![
            variant("17", "17.11", 41_823),
            variant("18", "18.6", 43_137),
        ]));
        assert!(text.contains("| | 17 | 18 | largest ± |\n|---|---:|---:|---:|\n"));
        assert!(
            text.contains("| look-up | 41,823 | 43,137 | 0.000% |\n"),
            "{text}"
        );
    }
}
