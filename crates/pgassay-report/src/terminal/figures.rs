//! The figures of every point.

use pgassay_core::comparison::PointSummary;
use pgassay_core::run::Run;

use super::table::{Ink, Side, Table, cell, inked, name};
use super::{Style, clients, heading};
use crate::number;
use crate::outline::{groups, point, variant_name};

/// Columns that give way on a narrow terminal, the first to go first: p50, p95.
const MAY_GO: [usize; 2] = [4, 4];

/// The section, or nothing where no trial was timed.
pub(super) fn section(run: &Run, style: Style) -> String {
    if run.points.is_empty() {
        return String::new();
    }
    let mut table = table(run);
    for column in MAY_GO {
        if table.width() > style.columns() {
            table.remove_column(column);
        }
    }
    let explanation = "latency in ms; server CPU time in µs per transaction";
    let mut out = heading("FIGURES", explanation, style);
    out.push_str(&table.render(style.color));
    out
}

/// A row per point, the baseline first. Latency is in milliseconds because pgbench's is.
fn table(run: &Run) -> Table {
    let mut sides = vec![Side::Right, Side::Left];
    sides.extend([Side::Right; 6]);
    let mut table = Table::new(&sides);
    let titles = ["", "", "tps", "mean", "p50", "p95", "p99", "server CPU"];
    table.row(titles.map(|title| inked(title, Ink::Faint)).to_vec());
    for group in groups(run) {
        let shown = |it: &PointSummary| group.conditions.contains(&it.condition);
        if !group.label.is_empty() && run.points.iter().any(shown) {
            table.across(cell(group.label));
        }
        for condition in group.conditions {
            let mut title = clients(run, condition);
            for variant in 0..run.plan.variants.len() {
                let Some(point) = point(run, condition, variant) else {
                    continue;
                };
                let limited = if point.client_limited > 0.0 { "!" } else { "" };
                table.row(vec![
                    cell(std::mem::take(&mut title)),
                    name(&format!("{}{limited}", variant_name(run, variant))),
                    cell(number::tps(point.tps)),
                    cell(number::millis(point.latency_mean_us)),
                    cell(number::millis(point.latency_p50_us)),
                    cell(number::millis(point.latency_p95_us)),
                    cell(number::millis(point.latency_p99_us)),
                    cell(number::micros(point.server_cpu_us)),
                ]);
            }
        }
    }
    if run.points.iter().any(|point| point.client_limited > 0.0) {
        table.across(cell(
            "  ! the load generator set the pace in some trials, not the server",
        ));
    }
    table
}
