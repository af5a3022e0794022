//! A scalability curve as text: answers, a plot and a table, in 80 columns.

use std::fmt::Write as _;

use pgassay_account::scalability::{CurvePoint, FittedLaw, ScalabilityCurve};

use super::style::Style;
use super::table::{Alignment, Table, TextStyle, cell, cut, inked, paint, wrap};
use crate::{number, scalability};

/// The report's width.
const COLUMNS: usize = 80;
/// The plot's size in characters.
const PLOT_COLUMNS: usize = 62;
const PLOT_ROWS: usize = 12;
/// Columns for labels that extend beyond the plot.
const BEYOND: usize = 5;
const LIMIT_COLUMNS: usize = 22;

/// The curve as text, with a final newline.
pub fn scalability_text(curve: &ScalabilityCurve, style: &Style) -> String {
    let width = style.columns().min(COLUMNS);
    let mut out = String::new();
    for answer in scalability::answers(curve) {
        out.push_str(&wrap(&answer, width, "→ ", "  "));
    }
    for line in wrap(&scalability::what_was_run(curve), width, "  ", "  ").lines() {
        out.push_str(&paint(line, TextStyle::Faint, style.color));
        out.push('\n');
    }
    if curve.points.len() > 1 {
        out.push('\n');
        out.push_str(&plot(curve));
    }
    out.push('\n');
    out.push_str(&table(curve).render(style.color));
    out
}

fn table(curve: &ScalabilityCurve) -> Table {
    let is_paced = curve.points.iter().any(|it| it.rate.is_some());
    let mut sides = vec![Alignment::Right; 7];
    sides[6] = Alignment::Left;
    let mut table = Table::new(&sides);
    let titles = [
        if is_paced { "rate" } else { "clients" },
        "tps",
        if is_paced { "of rate" } else { "95% CI" },
        "mean ms",
        "p95 ms",
        "p99 ms",
        // A rate that the server sustains has not reached a limit.
        if is_paced { "grew most" } else { "limit" },
    ];
    table.row(titles.map(|title| inked(title, TextStyle::Faint)).to_vec());
    for point in &curve.points {
        let limit = point.limit.as_ref().map(scalability::limit_name);
        table.row(vec![
            cell(match point.rate {
                Some(rate) => number::tps(rate),
                None => point.clients.to_string(),
            }),
            cell(number::tps(point.tps())),
            cell(precision(point)),
            cell(number::millis(point.latency_mean_us)),
            cell(number::millis(point.latency_p95_us)),
            cell(number::millis(point.latency_p99_us)),
            cell(cut(&limit.unwrap_or_default(), LIMIT_COLUMNS)),
        ]);
    }
    table
}

/// Half the width of the throughput's interval, or the share of the rate that was completed.
fn precision(point: &CurvePoint) -> String {
    if let Some(rate) = point.rate {
        return number::percent(point.tps() / rate);
    }
    let ends = point.throughput.low.zip(point.throughput.high);
    ends.map_or_else(String::new, |(low, high)| {
        format!("±{}", number::percent((high / low).ln() / 2.0))
    })
}

/// The quantity on the horizontal axis of a point.
fn across(point: &CurvePoint) -> f64 {
    point.rate.unwrap_or_else(|| f64::from(point.clients))
}

/// Throughput against the number of clients, with the law; or 99th percentiles of latency against the rate.
fn plot(curve: &ScalabilityCurve) -> String {
    let is_paced = curve.points.iter().any(|it| it.rate.is_some());
    let value = |it: &CurvePoint| {
        if is_paced {
            it.latency_p99_us / 1e3
        } else {
            it.tps()
        }
    };
    let ends =
        |of: fn(f64, f64) -> f64, first: f64| curve.points.iter().map(across).fold(first, of);
    let (least, most) = (ends(f64::min, f64::INFINITY), ends(f64::max, 0.0));
    let of_law = |law: &FittedLaw, column: usize| law.throughput(at_column(column, least, most));
    let law: Vec<f64> = match &curve.law {
        Some(law) => (0..PLOT_COLUMNS).map(|it| of_law(law, it)).collect(),
        None => Vec::new(),
    };
    let highest = curve.points.iter().map(value).chain(law.iter().copied());
    let highest = highest.fold(f64::MIN_POSITIVE, f64::max);
    let row = |value: f64| {
        let up = (value / highest * (PLOT_ROWS - 1) as f64).round() as usize;
        PLOT_ROWS - 1 - up.min(PLOT_ROWS - 1)
    };
    let mut grid = vec![vec![' '; PLOT_COLUMNS]; PLOT_ROWS];
    for (column, value) in law.iter().enumerate() {
        grid[row(*value)][column] = '·';
    }
    for point in &curve.points {
        grid[row(value(point))][column_of(across(point), least, most)] = '●';
    }
    let label = |value: f64| {
        let text = if is_paced {
            number::decimals(value, 2)
        } else {
            number::tps(value)
        };
        text.replace('\u{a0}', " ")
    };
    let labels = [
        (0, label(highest)),
        (PLOT_ROWS / 2, label(middle(highest))),
        (PLOT_ROWS - 1, "0".to_owned()),
    ];
    let title = match (is_paced, &curve.law) {
        (true, _) => "p99 latency in ms by requested tps",
        (false, Some(_)) => "tps by number of clients; the dotted line is the law",
        (false, None) => "tps by number of clients",
    };
    let mut out = format!("  {title}\n");
    for (number, line) in grid.iter().enumerate() {
        let label = labels.iter().find(|(at, _)| *at == number);
        let label = label.map_or("", |(_, label)| label.as_str());
        let line: String = line.iter().collect();
        _ = writeln!(out, "{}", format!("  {label:>10} │{line}").trim_end());
    }
    out.push_str(&axis(curve, least, most));
    out
}

/// The line below the plot, the numbers at it, and the places of knee and peak.
fn axis(curve: &ScalabilityCurve, least: f64, most: f64) -> String {
    let indent = " ".repeat(13);
    let mut numbers = vec![' '; PLOT_COLUMNS + BEYOND];
    let mut free = 0;
    for point in &curve.points {
        let text = number::whole(across(point)).replace('\u{a0}', " ");
        let length = text.chars().count();
        let first = column_of(across(point), least, most).min(numbers.len() - length);
        if first >= free {
            for (at, digit) in text.chars().enumerate() {
                numbers[first + at] = digit;
            }
            free = first + length + 1;
        }
    }
    let numbers: String = numbers.into_iter().collect();
    let mut out = format!("{}└{}\n", &indent[1..], "─".repeat(PLOT_COLUMNS));
    _ = writeln!(out, "{indent}{}", numbers.trim_end());
    let mut marks = vec![' '; PLOT_COLUMNS + BEYOND];
    for (name, _, place) in crate::scalability::marks(curve) {
        let first = column_of(place, least, most);
        let is_free = marks[first..].iter().take(6).all(|it| *it == ' ');
        if place >= least && is_free {
            for (mark, letter) in marks[first..]
                .iter_mut()
                .zip("↑".chars().chain(name.chars()))
            {
                *mark = letter;
            }
        }
    }
    let marks: String = marks.into_iter().collect();
    if !marks.trim().is_empty() {
        _ = writeln!(out, "{indent}{}", marks.trim_end());
    }
    out
}

/// The value of the row in the middle of the plot.
fn middle(highest: f64) -> f64 {
    let (from_below, most) = (PLOT_ROWS - 1 - PLOT_ROWS / 2, PLOT_ROWS - 1);
    highest * from_below as f64 / most as f64
}

/// The column of a value on the logarithmic axis.
fn column_of(value: f64, least: f64, most: f64) -> usize {
    let share = (value / least).ln() / (most / least).ln().max(f64::MIN_POSITIVE);
    (share.clamp(0.0, 1.0) * (PLOT_COLUMNS - 1) as f64).round() as usize
}

/// The value at a column.
fn at_column(column: usize, least: f64, most: f64) -> f64 {
    least * (most / least).powf(column as f64 / (PLOT_COLUMNS - 1) as f64)
}
