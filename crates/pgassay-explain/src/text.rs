//! Plans and their difference on the terminal.

use std::fmt::Write;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::change::{PlanChange, PlanChangeKind, PlanPlace};
use crate::difference::PlanDifference;
use crate::figures::StepFigures;
use crate::lines::{DifferenceLine, LineMark};
use crate::number::short;
use crate::plan::QueryPlan;

/// The most differences in buffers and in rows that are listed.
const FIGURES_MAX: usize = 5;
/// A tree narrower than this has no columns of figures.
const LABEL_MIN: usize = 28;
const WIDTH_MIN: usize = 20;

/// A plan as a tree with rows and blocks, in lines of at most `width` columns.
pub fn plan_text(plan: &QueryPlan, width: usize) -> String {
    let same = PlanDifference::between(plan, plan);
    let mut text = String::new();
    tree(&same.lines, width.max(WIDTH_MIN), &mut text);
    text
}

/// The difference in lines of at most `width` columns: both plans as one tree, in which `-` is in the
/// first only, `+` in the second only and `~` in both with a difference, then what differs in words.
/// Figures are rows per execution of the statement, blocks accessed without the children and, if
/// the time of nodes was measured, the share of the time without the children.
pub fn difference_text(difference: &PlanDifference, (a, b): (&str, &str), width: usize) -> String {
    let width = width.max(WIDTH_MIN);
    let mut text = String::new();
    let is_same = difference.changes.is_empty();
    if is_same {
        wrapped(&format!("Same plan: {a}, {b}"), width, &mut text);
    } else {
        wrapped(
            &format!("- {a}   + {b}   ~ both, with a difference"),
            width,
            &mut text,
        );
    }
    for it in &difference.settings {
        let [before, after] = [&it.before, &it.after].map(|it| it.as_deref().unwrap_or("default"));
        let line = format!("{}: {before} → {after}", it.name);
        wrapped(&line, width, &mut text);
    }
    if let Some(line) = jit(difference) {
        wrapped(&line, width, &mut text);
    }
    text.push('\n');
    tree(&difference.lines, width, &mut text);
    if !is_same {
        text.push('\n');
        sentences(&difference.changes, width, &mut text);
        for line in totals(difference) {
            wrapped(&line, width, &mut text);
        }
    }
    text
}

/// What differs in sentences, most important first, without the trees: at most `most` differences, then how
/// many are left, then the rows and blocks of the whole statement. Empty if nothing differs.
pub fn difference_sentences(difference: &PlanDifference, most: usize) -> Vec<String> {
    let (figures, others): (Vec<&PlanChange>, Vec<&PlanChange>) =
        difference.changes.iter().partition(|it| is_figure(it.kind));
    // Figures follow from what differs otherwise.
    let all = if others.is_empty() { figures } else { others };
    let mut sentences: Vec<String> = all
        .iter()
        .take(most)
        .map(|it| clean(&it.to_string()))
        .collect();
    match all.len().saturating_sub(most) {
        0 => {}
        1 => sentences.push("1 more difference".to_owned()),
        more => sentences.push(format!("{more} more differences")),
    }
    if difference.is_of_jit() {
        sentences.extend(jit(difference));
    }
    if !sentences.is_empty() {
        sentences.extend(totals(difference));
    }
    sentences
}

/// The numbers of functions that JIT compiled, unless they are equal.
fn jit(difference: &PlanDifference) -> Option<String> {
    let counts = [&difference.a, &difference.b].map(|it| it.jit_functions.unwrap_or(0.0));
    let [before, after] = counts.map(short);
    (before != after).then(|| format!("Functions compiled by JIT: {before} → {after}"))
}

/// Whether it is a difference in what was measured.
fn is_figure(kind: PlanChangeKind) -> bool {
    matches!(kind, PlanChangeKind::Buffers | PlanChangeKind::Rows)
}

/// The rows and blocks of the whole statement.
fn totals(difference: &PlanDifference) -> Vec<String> {
    let (a, b) = (&difference.a, &difference.b);
    let rows = a.rows.zip(b.rows);
    let mut all = vec![("Rows returned", rows)];
    if let Some((a, b)) = a.buffers.zip(b.buffers) {
        all.push(("Total blocks", Some((a.accessed(), b.accessed()))));
        all.push(("Total temporary blocks", Some((a.temp(), b.temp()))));
    }
    let differing = all.into_iter().filter_map(|(what, figures)| {
        let (before, after) = figures.map(|(a, b)| (short(a), short(b)))?;
        (before != after).then(|| format!("{what}: {before} → {after}"))
    });
    differing.collect()
}

/// What differs in words, the figures only where they differ most.
fn sentences(changes: &[PlanChange], width: usize, text: &mut String) {
    for change in changes.iter().filter(|it| !is_figure(it.kind)) {
        wrapped(&change.to_string(), width, text);
    }
    for kind in [PlanChangeKind::Buffers, PlanChangeKind::Rows] {
        let mut of_kind: Vec<&PlanChange> = changes.iter().filter(|it| it.kind == kind).collect();
        of_kind.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
        for change in of_kind.iter().take(FIGURES_MAX) {
            wrapped(&change.to_string(), width, text);
        }
        if let Some(more) = of_kind.len().checked_sub(FIGURES_MAX).filter(|it| *it > 0) {
            let what = match kind {
                PlanChangeKind::Buffers => "buffers",
                _ => "rows",
            };
            wrapped(&format!("{more} more nodes differ in {what}"), width, text);
        }
    }
}

fn weight(change: &PlanChange) -> f64 {
    let [a, b] = [change.before_figure, change.after_figure].map(|it| it.unwrap_or(0.0));
    (a - b).abs()
}

/// A line of the tree before its layout.
struct TreeRow {
    mark: char,
    depth: usize,
    /// One label, or those of both plans.
    labels: Vec<String>,
    cells: [String; 3],
}

fn tree(lines: &[DifferenceLine], width: usize, text: &mut String) {
    let rows: Vec<TreeRow> = lines.iter().map(tree_row).collect();
    let is_analyzed = lines.iter().any(|it| {
        [&it.a_figures, &it.b_figures]
            .into_iter()
            .flatten()
            .any(|it| it.rows.is_some())
    });
    let names = [
        if is_analyzed {
            "rows"
        } else {
            "estimated rows"
        },
        "blocks",
        "time",
    ];
    let mut columns = Vec::new();
    let mut left = width - 2;
    for (at, name) in names.iter().enumerate() {
        let cells = rows.iter().map(|it| it.cells[at].width());
        let needed = cells.max().unwrap_or(0);
        let column = needed.max(name.width());
        if needed > 0 && left >= LABEL_MIN + column + 2 {
            left -= column + 2;
            columns.push((at, column));
        }
    }
    let deepest = rows.iter().map(|it| it.depth).max().unwrap_or(0);
    let step = if deepest > left / 6 { 1 } else { 2 };
    if !columns.is_empty() {
        let cells = names.map(str::to_owned);
        tree_line(' ', "", left, &columns, Some(&cells), text);
    }
    for row in &rows {
        let indent = row.depth.saturating_mul(step).min(left / 2);
        let joined = row.labels.join(" → ");
        if row.labels.len() == 2 && indent + joined.width() > left {
            let first = format!("{:indent$}{}", "", row.labels[0]);
            tree_line(row.mark, &first, left, &columns, None, text);
            let second = format!("{:indent$}→ {}", "", row.labels[1]);
            tree_line(' ', &second, left, &columns, Some(&row.cells), text);
        } else {
            let label = format!("{:indent$}{joined}", "");
            tree_line(row.mark, &label, left, &columns, Some(&row.cells), text);
        }
    }
}

fn tree_line(
    mark: char,
    label: &str,
    label_width: usize,
    columns: &[(usize, usize)],
    cells: Option<&[String; 3]>,
    text: &mut String,
) {
    let label = fitted(label, label_width);
    let mut line = format!("{mark} {label}");
    if let Some(cells) = cells {
        line.extend(std::iter::repeat_n(' ', label_width - label.width()));
        for &(at, column) in columns {
            let cell = &cells[at];
            line.extend(std::iter::repeat_n(' ', 2 + column - cell.width()));
            line.push_str(cell);
        }
    }
    text.push_str(line.trim_end());
    text.push('\n');
}

fn tree_row(line: &DifferenceLine) -> TreeRow {
    let mark = match line.mark {
        LineMark::Same => ' ',
        LineMark::Changed => '~',
        LineMark::Added | LineMark::MovedTo => '+',
        LineMark::Removed | LineMark::MovedFrom => '-',
    };
    let label = |place: &PlanPlace| clean(&place.label);
    let mut labels: Vec<String> = [&line.a, &line.b]
        .into_iter()
        .flatten()
        .map(label)
        .collect();
    labels.dedup();
    if let (Some(subplan), Some(first)) = (&line.subplan, labels.first_mut()) {
        first.insert_str(0, &format!("{}: ", clean(subplan)));
    }
    if let (LineMark::MovedFrom | LineMark::MovedTo, Some(last)) = (line.mark, labels.last_mut()) {
        last.push_str(" (moved)");
    }
    let cell = |figure: fn(&StepFigures) -> Option<String>| {
        let sides = [&line.a_figures, &line.b_figures].into_iter().flatten();
        let mut cells: Vec<String> = sides.map(|it| figure(it).unwrap_or_default()).collect();
        cells.dedup();
        cells.retain(|it| !it.is_empty());
        cells.join(" → ")
    };
    TreeRow {
        mark,
        depth: line.depth,
        labels,
        cells: [
            cell(|it| it.rows.or(it.estimated_rows).map(short)),
            cell(|it| it.loops.and(it.own_buffers).map(|it| short(it.accessed()))),
            cell(|it| it.time_share.map(|it| format!("{:.0}%", it * 100.0))),
        ],
    }
}

/// Names come from the database: control characters must not reach the terminal.
fn clean(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// The beginning of a text that is too long.
fn fitted(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut found = String::new();
    let mut left = width.saturating_sub(1);
    for letter in text.chars() {
        let columns = letter.width().unwrap_or(0);
        if columns > left {
            break;
        }
        left -= columns;
        found.push(letter);
    }
    found.push('…');
    found
}

/// Appends a paragraph; lines after the first are indented. Words longer than a line are cut up.
fn wrapped(paragraph: &str, width: usize, text: &mut String) {
    let paragraph = clean(paragraph);
    let mut line = String::new();
    for word in paragraph.split(' ') {
        let mut word = word;
        if !line.trim().is_empty() && line.width() + 1 + word.width() > width {
            let _ = writeln!(text, "{}", line.trim_end());
            "  ".clone_into(&mut line);
        } else if !line.is_empty() {
            line.push(' ');
        }
        while line.width() + word.width() > width {
            let mut end = 0;
            let mut columns = line.width();
            for letter in word.chars() {
                columns += letter.width().unwrap_or(0);
                if columns > width {
                    break;
                }
                end += letter.len_utf8();
            }
            let _ = writeln!(text, "{line}{}", &word[..end]);
            "  ".clone_into(&mut line);
            word = &word[end..];
        }
        line.push_str(word);
    }
    let _ = writeln!(text, "{}", line.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(json: &str) -> QueryPlan {
        QueryPlan::parse(&format!(r#"[{{"Plan": {json}}}]"#)).unwrap()
    }

    #[test]
    fn both_plans_are_one_tree() {
        let a = plan(
            r#"{"Node Type": "Sort", "Sort Key": ["t.k"], "Actual Rows": 100, "Actual Loops": 1,
                "Shared Hit Blocks": 935, "Plans": [
                {"Node Type": "Seq Scan", "Relation Name": "t", "Alias": "t", "Filter": "(t.k = 5)",
                 "Actual Rows": 100, "Actual Loops": 1, "Shared Hit Blocks": 935}]}"#,
        );
        let b = plan(
            r#"{"Node Type": "Index Scan", "Index Name": "t_k", "Relation Name": "t", "Alias": "t",
                "Index Cond": "(t.k = 5)", "Actual Rows": 100, "Actual Loops": 1,
                "Shared Hit Blocks": 103}"#,
        );
        let difference = PlanDifference::between(&a, &b);
        let text = difference_text(&difference, ("no index", "index"), 80);
        let expected = "\
- no index   + index   ~ both, with a difference

                                                                 rows     blocks
- Sort                                                            100          0
~ Seq Scan on t → Index Scan using t_k on t                       100  935 → 103

Method: Seq Scan on t → Index Scan using t_k on t
Removed: Sort by t.k
Condition moved: Filter of Seq Scan on t → Index Cond of Index Scan using t_k on
  t: (t.k = 5)
Buffers of Index Scan using t_k on t: 935 blocks → 103 blocks
Total blocks: 935 → 103
";
        assert_eq!(text, expected);
        assert_eq!(
            difference_sentences(&difference, 2),
            [
                "Method: Seq Scan on t → Index Scan using t_k on t",
                "Removed: Sort by t.k",
                "1 more difference",
                "Total blocks: 935 → 103",
            ]
        );
        let same = PlanDifference::between(&a, &a);
        assert!(difference_sentences(&same, 2).is_empty());
        assert_eq!(
            plan_text(&b, 60),
            "                                                rows  blocks\n  \
             Index Scan using t_k on t                      100     103\n"
        );
    }

    #[test]
    fn times_are_shares_and_only_shown_if_they_were_measured() {
        let timed = |scan_ms: u32| {
            plan(&format!(
                r#"{{"Node Type": "Sort", "Actual Rows": 1, "Actual Loops": 1, "Actual Total Time": 20,
                    "Plans": [{{"Node Type": "Seq Scan", "Alias": "t", "Actual Rows": 1, "Actual Loops": 1,
                               "Actual Total Time": {scan_ms}}}]}}"#
            ))
        };
        let difference = PlanDifference::between(&timed(5), &timed(15));
        // The time of nodes is no difference between plans.
        assert!(difference.is_none());
        let text = difference_text(&difference, ("a", "b"), 50);
        let words: Vec<Vec<&str>> = text
            .lines()
            .map(|it| it.split_whitespace().collect())
            .collect();
        assert_eq!(words[2], ["rows", "time"]);
        assert_eq!(words[3], ["Sort", "1", "75%", "→", "25%"]);
        assert_eq!(words[4], ["Seq", "Scan", "on", "t", "1", "25%", "→", "75%"]);
        assert!(!difference_text(&PlanDifference::default(), ("a", "b"), 80).contains("time"));
    }

    #[test]
    fn every_line_fits_and_control_characters_do_not_reach_the_terminal() {
        let mut json = r#"{"Node Type": "Seq Scan", "Relation Name": "表\u001b[31m名前の長いテーブル", "Alias":
            "x", "Filter": "(x.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa = 1)"}"#
            .to_owned();
        for _ in 0..40 {
            json = format!(
                r#"{{"Node Type": "Nested Loop", "Plan Rows": 1234567, "Plans": [{json}]}}"#
            );
        }
        let a = plan(&json);
        let b = plan(
            &json
                .replace("Seq Scan", "Sample Scan")
                .replace("(x.a", "(x.b"),
        );
        let difference = PlanDifference::between(&a, &b);
        for width in [0, 40, 80, 132] {
            let text = difference_text(&difference, ("first", "second"), width);
            assert!(
                text.lines().all(|it| it.width() <= width.max(WIDTH_MIN)),
                "{text}"
            );
            assert!(text.chars().all(|it| it == '\n' || !it.is_control()));
        }
    }
}
