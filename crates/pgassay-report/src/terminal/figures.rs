//! The figures of every point.

use pgassay_account::comparison::PointSummary;
use pgassay_record::run::{Run, Warning, WarningKind};

use super::style::{Style, clients, heading};
use super::table::{Alignment, NAME_WIDTH, Table, TextStyle, cell, inked};
use super::variant_names::short_names;
use crate::number;
use crate::outline::{ThroughputUnit, groups, per_transaction, point};

/// Columns left out on a narrow terminal, in this order: p50, then p95.
const MAY_GO: [usize; 2] = [4, 4];

const FLOOR_COLUMN: usize = 8;

/// The section; empty if no trial was timed.
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
    let unit = ThroughputUnit::of(run);
    let floor = match &run.study.floor {
        Some(floor) => format!("; × floor: mean latency relative to {floor}"),
        None => String::new(),
    };
    let explanation = format!(
        "latency in ms; server CPU time in µs per {}{floor}",
        unit.one()
    );
    let mut out = heading("FIGURES", &explanation, style);
    out.push_str(&table.render(style.color));
    out
}

/// The mean latency of a point relative to the study's floor, the variant that does the least work.
fn over_floor(run: &Run, it: &PointSummary) -> String {
    let named = run.study.floor.as_ref();
    let floor = named.and_then(|floor| run.plan.variants.iter().position(|it| it == floor));
    let floor = floor.and_then(|variant| point(run, it.condition, variant));
    floor.map_or_else(String::new, |floor| {
        number::ratio(it.latency_mean_us / floor.latency_mean_us)
    })
}

/// One row per point, the baseline first. Latency is in milliseconds, as in pgbench.
fn table(run: &Run) -> Table {
    let mut sides = vec![Alignment::Right, Alignment::Left];
    sides.extend([Alignment::Right; 7]);
    let mut table = Table::new(&sides);
    let unit = ThroughputUnit::of(run);
    let rate = unit.rate();
    let titles = [
        "",
        "",
        rate,
        "mean",
        "p50",
        "p95",
        "p99",
        "server CPU",
        "× floor",
    ];
    table.row(titles.map(|title| inked(title, TextStyle::Faint)).to_vec());
    let names = short_names(&run.plan.variants, NAME_WIDTH);
    for group in groups(run) {
        let shown = |it: &PointSummary| it.trials > 0 && group.conditions.contains(&it.condition);
        if !group.label.is_empty() && run.points.iter().any(shown) {
            table.across(cell(group.label));
        }
        for condition in group.conditions {
            let mut title = clients(run, condition);
            for (variant, name) in names.iter().enumerate() {
                let Some(point) = point(run, condition, variant) else {
                    continue;
                };
                let limited = if point.client_limited > 0.0 { "!" } else { "" };
                table.row(vec![
                    cell(std::mem::take(&mut title)),
                    cell(format!("{name}{limited}")),
                    cell(number::tps(point.tps * per_transaction(run, point))),
                    cell(number::millis(point.latency_mean_us)),
                    cell(number::millis(point.latency_p50_us)),
                    cell(number::millis(point.latency_p95_us)),
                    cell(number::millis(point.latency_p99_us)),
                    cell(point.server_cpu_us.map_or_else(String::new, |cpu_us| {
                        number::micros(cpu_us / per_transaction(run, point))
                    })),
                    cell(over_floor(run, point)),
                ]);
            }
        }
    }
    if run.study.floor.is_none() {
        table.remove_column(FLOOR_COLUMN);
    }
    if run.points.iter().any(|point| point.client_limited > 0.0) {
        table.across(cell(
            "  ! bottleneck in some trials: the load generator (use more threads: -j)",
        ));
    }
    if run.plan.points.iter().any(|it| it.reconnects) {
        table.across(cell(
            "  latency begins when a connection is open; throughput includes opening it",
        ));
    }
    let leaves_out = |it: &Warning| it.kind == WarningKind::WorkerCpu;
    if run.warnings.iter().any(leaves_out) {
        table.across(cell(
            "  server CPU does not include parallel workers, which used a lot of CPU time: see NOTES",
        ));
    }
    table
}
