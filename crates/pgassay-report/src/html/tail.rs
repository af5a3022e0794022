//! What transactions beyond p99 spend their time on, compared with all transactions.

use maud::{Markup, html};
use pgassay_account::ledger::{Ledger, Tail, TailRow};
use pgassay_record::run::Run;

use crate::number;
use crate::outline::{condition_title, variant_name};
use crate::tail::{basis, lines, p99, row_name, unlike_others};

/// More rows than this are summed in the last one.
const ROWS_MAX: usize = 12;
/// The row of CPU time that is not divided by phase.
const WHOLE_CPU: &str = "CPU";

/// The table of the ledgers with a tail, and why the others have none.
pub(super) fn table(run: &Run, ledgers: &[&Ledger]) -> Markup {
    let tails: Vec<(&Ledger, &Tail)> = ledgers
        .iter()
        .filter_map(|ledger| Some((*ledger, ledger.tail.as_ref()?)))
        .collect();
    let names = names(&tails);
    let (shown, rest) = names.split_at(names.len().min(ROWS_MAX));
    html! {
        @if !tails.is_empty() {
            div.scroll { table.tail {
                caption {
                    "Transactions slower than their trial's p99, compared with all, µs per transaction, in "
                    "profiled trials; the rows add up to the mean latencies."
                }
                thead {
                    tr {
                        th {}
                        @for (ledger, _) in &tails {
                            th.n colspan="2" scope="colgroup" {
                                (variant_name(run, ledger.variant)) ", "
                                (condition_title(run, ledger.condition))
                            }
                        }
                    }
                    tr {
                        th scope="col" { "row" }
                        @for _ in &tails {
                            th.n scope="col" { "all" } th.n scope="col" { "slowest 1%" }
                        }
                    }
                }
                tbody {
                    @for name in shown { (row(name, &tails, |it| row_name(it) == *name)) }
                    @if !rest.is_empty() {
                        (row(&format!("{} more", rest.len()), &tails, |it| rest.contains(&row_name(it))))
                    }
                    (row("mean latency", &tails, |_| true))
                }
            } }
        }
        @for (ledger, tail) in &tails {
            p.faint { (variant_name(run, ledger.variant)) ": p99 " (p99(tail)) "; " (basis(tail)) "."
                @if let Some(why) = unlike_others(tail) { " " (why) "." }
            }
        }
        @let without: Vec<&Ledger> = ledgers.iter().copied().filter(|it| it.tail.is_none()).collect();
        @for line in lines(run, &without) { p.faint { (line) "." } }
    }
}

/// The names of all rows, the longest in any tail first.
fn names(tails: &[(&Ledger, &Tail)]) -> Vec<String> {
    let mut rows: Vec<&TailRow> = tails.iter().flat_map(|(_, tail)| &tail.rows).collect();
    rows.sort_by(|a, b| b.tail_us.total_cmp(&a.tail_us));
    let mut names: Vec<String> = Vec::new();
    for row in rows {
        let name = row_name(row);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// The sums of the rows for which `is_meant` holds.
fn row(name: &str, tails: &[(&Ledger, &Tail)], is_meant: impl Fn(&TailRow) -> bool) -> Markup {
    let sum = |tail: &Tail, of: fn(&TailRow) -> f64| -> f64 {
        let meant = tail.rows.iter().filter(|it| is_meant(it));
        meant.map(of).sum()
    };
    html! {
        tr {
            td { (name) }
            @for (_, tail) in tails {
                @if is_unknown(tail, name) {
                    td.n.faint { "–" } td.n { "–" }
                } @else {
                    td.n.faint { (number::micros(sum(tail, |it| it.all_us))) }
                    td.n { (number::micros(sum(tail, |it| it.tail_us))) }
                }
            }
        }
    }
}

/// Whether a row of another tail says nothing of this one: with too few samples, CPU time is not divided by phase.
fn is_unknown(tail: &Tail, name: &str) -> bool {
    let is_whole = tail.rows.iter().any(|it| row_name(it) == WHOLE_CPU);
    (name == WHOLE_CPU && !is_whole) || (name.starts_with("CPU: ") && is_whole)
}
