//! Text for the tail of a ledger, the same in the terminal and on the page.

use pgassay_account::ledger::{Divider, Ledger, TAIL_TRANSACTIONS_MIN, Tail, TailRow};
use pgassay_record::run::Run;

use crate::ledger::group_name;
use crate::number;
use crate::outline::{condition_title, variant_name};

/// Rows named in the line.
const ROWS: usize = 3;
/// Slices cover the tail's time as often as any other, up to this factor: few transactions are a small sample.
const UNLIKE: f64 = 1.5;

/// The name of a row of the tail.
pub(crate) fn row_name(row: &TailRow) -> String {
    match row.mechanism.as_str() {
        "client" => "client and network".to_owned(),
        mechanism => group_name(row.part, mechanism),
    }
}

/// The line of each ledger, once if several have the same.
pub(crate) fn lines(run: &Run, ledgers: &[&Ledger]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in ledgers.iter().filter_map(|it| line(run, it)) {
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

/// `simple, 16 clients, profiled trials: the slowest 1% (above 8684 µs) take 88971 µs on average, all transactions
/// 1480 µs: Lock transactionid 68204 (all: 671.2), …`; or why there is no such account. `None` if no trial was
/// profiled.
pub(crate) fn line(run: &Run, ledger: &Ledger) -> Option<String> {
    let point = format!(
        "{}, {}",
        variant_name(run, ledger.variant),
        condition_title(run, ledger.condition)
    );
    let Some(tail) = &ledger.tail else {
        ledger.checks.profiled_tps_ratio?;
        let of_point = if run.ledgers.iter().any(|it| it.tail.is_some()) {
            format!(" of {point}")
        } else {
            String::new()
        };
        return Some(format!(
            "No breakdown of the slowest 1%{of_point}: {}",
            reason_for_no_tail(run, ledger)
        ));
    };
    let (shown, rest) = tail.rows.split_at(tail.rows.len().min(ROWS));
    let mut parts: Vec<String> = shown
        .iter()
        .map(|row| part(&row_name(row), row.tail_us, row.all_us))
        .collect();
    if !rest.is_empty() {
        let sum = |of: fn(&TailRow) -> f64| rest.iter().map(of).sum::<f64>();
        parts.push(part("rest", sum(|it| it.tail_us), sum(|it| it.all_us)));
    }
    let without_profiling = without_profiling(tail)
        .map_or_else(String::new, |us| format!(" ({us} µs without profiling)"));
    Some(format!(
        "{point}: the slowest 1% of transactions in profiled trials (beyond each trial's p99, {}) take {} µs on \
         average{}; all take {} µs. Breakdown in µs, estimated from {} of these {} transactions (in parentheses: of all \
         transactions): {}{}",
        p99(tail),
        number::micros(tail.tail_us),
        without_profiling,
        number::micros(tail.all_us),
        number::whole(tail.covered as f64),
        number::whole(tail.transactions as f64),
        parts.join(", "),
        unlike_others(tail).map_or_else(String::new, |why| format!(". {why}")),
    ))
}

/// Why the rows may not be those of the whole tail: slices cover it more often, or less, than other transactions.
pub(crate) fn unlike_others(tail: &Tail) -> Option<String> {
    let ratio = tail.covered_share / tail.slices_share;
    let is_unlike = !(1.0 / UNLIKE..=UNLIKE).contains(&ratio);
    let effect = if ratio > 1.0 {
        "the recording itself may have made some of them slow"
    } else {
        "they represent some kinds of slow transactions more than others"
    };
    is_unlike.then(|| {
        format!(
            "Approximate: context switches were recorded for {} of the time but {} of the slowest transactions' time, \
             so {effect}",
            number::percent(tail.slices_share),
            number::percent(tail.covered_share),
        )
    })
}

fn part(name: &str, tail_us: f64, all_us: f64) -> String {
    format!(
        "{name}\u{a0}{}\u{a0}({})",
        number::micros(tail_us),
        number::micros(all_us)
    )
}

/// Why there is no account of the tail.
fn reason_for_no_tail(run: &Run, ledger: &Ledger) -> String {
    // They are recorded in slices, and short trials may end between two of them.
    let is_recorded = |it: &Ledger| it.blocked_by == Divider::Stacks;
    if is_recorded(ledger) {
        format!(
            "context switches were recorded during fewer than {TAIL_TRANSACTIONS_MIN} of them; use a longer --length"
        )
    } else if run.ledgers.iter().any(is_recorded) {
        "no context switches were recorded in these short trials; use a longer --length".to_owned()
    } else {
        "context switches were not recorded (`pgassay doctor` shows how to enable them)".to_owned()
    }
}

/// How much of the tail was observed, and whether that part is representative.
pub(crate) fn basis(tail: &Tail) -> String {
    let dropped = match tail.dropped {
        0 => String::new(),
        count => format!(
            "; {} more transactions dropped (buffer full)",
            number::whole(count as f64)
        ),
    };
    let timed = without_profiling(tail).map_or_else(String::new, |us| {
        format!("; mean latency beyond p99 in trials without profiling: {us} µs")
    });
    format!(
        "{} of {} transactions observed; context switches recorded for {} of the time and {} of the \
         tail{timed}{dropped}",
        number::whole(tail.covered as f64),
        number::whole(tail.transactions as f64),
        number::percent(tail.slices_share),
        number::percent(tail.covered_share),
    )
}

/// The mean latency of the slowest in timed trials, which may be too short to have any.
fn without_profiling(tail: &Tail) -> Option<String> {
    (tail.timed_us > 0.0).then(|| number::micros(tail.timed_us))
}

/// `8684 µs`, or `8684 to 11,829 µs` if it differs from trial to trial.
pub(crate) fn p99(tail: &Tail) -> String {
    let (low, high) = (
        number::micros(tail.p99_low_us),
        number::micros(tail.p99_high_us),
    );
    if low == high {
        format!("{low} µs")
    } else {
        format!("{low} to {high} µs")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the terminal printed rows of a tail that the recording itself had caused, without a word.
    #[test]
    fn rows_of_a_tail_that_slices_met_too_often_are_approximate() {
        let with = |covered_share: f64| Tail {
            p99_low_us: 118.3,
            p99_high_us: 129.9,
            transactions: 131,
            covered: 36,
            tail_us: 284.0,
            all_us: 54.07,
            timed_us: 170.8,
            slices_share: 0.098,
            covered_share,
            dropped: 0,
            rows: Vec::new(),
        };
        assert_eq!(unlike_others(&with(0.1)), None);
        let often = unlike_others(&with(0.305)).unwrap();
        assert!(often.contains("9.8% of the time but 30.5% of"), "{often}");
        assert!(often.ends_with("made some of them slow"), "{often}");
        let rarely = unlike_others(&with(0.023)).unwrap();
        assert!(rarely.ends_with("more than others"), "{rarely}");
    }
}
