//! The latency of each statement of a transaction: a curve over the script, and its figures.

use std::fmt::Write as _;

use maud::{Markup, html};
use pgassay_model::statement::{ScriptStatements, StatementLatency};
use pgassay_record::run::Run;

use super::scale::{Scale, px, tick_label};
use crate::number;
use crate::outline::condition_title;
use crate::statement::{name, sentence, shown};

const WIDTH: f64 = 380.0;
const HEIGHT: f64 = 200.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 38.0;

/// The section; empty if no transaction has several statements, or none was timed.
pub(super) fn section(run: &Run) -> Markup {
    let shown = shown(run);
    html! {
        @if let Some(first) = shown.first() {
            section #statements {
                h2 { "Latency of each statement" }
                p.lead {
                    (condition_title(run, first.condition)) ". As the client sees it, in profiled "
                    "trials: from the start of a statement to its result. In a pipeline: from sending "
                    "the pipeline to the statement’s result, for a random 1 in 50 executions, in which "
                    "the server is asked to send that result immediately. The shaded area extends from the "
                    "median to the 99th percentile. Other conditions are in " code { "run.json" } "."
                }
                div.charts { @for it in &shown { (chart(run, it)) } }
                @for it in &shown { (table(run, it)) }
            }
        }
    }
}

/// Mean latency by statement number.
fn chart(run: &Run, it: &ScriptStatements) -> Markup {
    let timed: Vec<&StatementLatency> = it.statements.iter().filter(|it| it.timed > 0).collect();
    let last = timed.len().max(2) as f64;
    let x = Scale::linear(1.0, last);
    let most = timed.iter().map(|it| it.p99_us.max(it.mean_us));
    let y = Scale::linear(0.0, most.fold(0.0, f64::max) / 1e3 * 1.05);
    let across = |number: f64| LEFT + x.place(number) * (WIDTH - LEFT - RIGHT);
    let up = |us: f64| HEIGHT - BOTTOM - y.place(us / 1e3) * (HEIGHT - TOP - BOTTOM);
    let numbered = || (1..).map(f64::from).zip(&timed);
    let line = |of: fn(&StatementLatency) -> f64| -> Vec<String> {
        numbered()
            .map(|(number, it)| format!("{},{}", px(across(number)), px(up(of(it)))))
            .collect()
    };
    let mut shade = line(|it| it.p99_us);
    shade.extend(line(|it| it.p50_us).into_iter().rev());
    let ticks = y.ticks(4);
    html! {
        figure {
            figcaption { b { (name(run, it)) } ": " (sentence(it)) }
            svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img"
                aria-label={ "latency of each statement, " (name(run, it)) } {
                @for tick in &ticks {
                    @let at = px(up(tick * 1e3));
                    line.grid x1=(LEFT) x2=(WIDTH - RIGHT) y1=(at) y2=(at) {}
                    text x=(LEFT - 6.0) y=(px(up(tick * 1e3) + 4.0)) text-anchor="end" {
                        (tick_label(*tick, &ticks))
                    }
                }
                @for number in [1.0, last] {
                    text x=(px(across(number))) y=(HEIGHT - BOTTOM + 16.0) text-anchor="middle" {
                        (number)
                    }
                }
                text.faint x=((LEFT + WIDTH - RIGHT) / 2.0) y=(HEIGHT - 5.0) text-anchor="middle" {
                    "statement number; latency in ms"
                }
                g class={ "v" (it.variant % 7) } {
                    polygon.ribbon points=(shade.join(" ")) {}
                    polyline.curve points=(line(|it| it.mean_us).join(" ")) {}
                    @for (number, it) in numbered() {
                        circle.mark cx=(px(across(number))) cy=(px(up(it.mean_us))) r="2" {
                            title { (hint(it)) }
                        }
                    }
                }
            }
        }
    }
}

/// The tooltip of a statement.
fn hint(it: &StatementLatency) -> String {
    let mut hint = format!("line {}: {}", it.line, it.text);
    _ = write!(hint, ", {} ms", number::millis(it.mean_us));
    hint
}

fn table(run: &Run, it: &ScriptStatements) -> Markup {
    html! {
        details {
            summary { "Every statement of " (name(run, it)) }
            div.scroll { table {
                thead { tr {
                    th.n scope="col" { "line" }
                    th scope="col" { "statement" }
                    th.n scope="col" { "timed" }
                    th.n scope="col" { "mean, ms" }
                    th.n scope="col" { "p50" }
                    th.n scope="col" { "p99" }
                } }
                tbody {
                    @for row in &it.statements {
                        tr {
                            td.n { (row.line) }
                            td { code { (row.text) } @if row.in_pipeline { " in a pipeline" } }
                            td.n { (number::whole(row.timed as f64)) }
                            @for us in [row.mean_us, row.p50_us, row.p99_us] {
                                td.n { @if row.timed > 0 { (number::millis(us)) } }
                            }
                        }
                    }
                }
            } }
        }
    }
}
