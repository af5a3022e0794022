//! The timed trials of a run in the format of Go's benchmarks, which `benchstat` reads
//! (<https://golang.org/design/14313-benchmark-format>).

use std::fmt::Write;

use pgassay_model::trial::{Trial, TrialKind};
use pgassay_record::run::Run;

use crate::outline::condition_title;

/// One line per timed trial, with its transactions, their mean latency and its throughput. `benchstat -col /variant`
/// compares the variants. A trial without transactions has no line.
pub fn benchstat(run: &Run) -> String {
    let mut text = "Unit tx/s better=higher\n".to_owned();
    let is_measured = |it: &&Trial| it.kind == TrialKind::Timed && it.transactions > 0;
    for trial in run.trials.iter().filter(is_measured) {
        let Some(variant) = run.plan.variants.get(trial.variant) else {
            continue;
        };
        let Ok(latency) = trial.latency.histogram() else {
            continue;
        };
        let mean_ns = latency.mean();
        _ = writeln!(
            text,
            "Benchmark{}/condition={}/variant={} {} {mean_ns:.0} ns/op {:.3} tx/s",
            part(&run.study_name),
            part(&condition_title(run, trial.condition)),
            part(variant),
            trial.transactions,
            trial.tps(),
        );
    }
    text
}

/// A part of a benchmark's name. Neither a blank nor `/` can be in one, and a number after a hyphen at the end would be
/// the number of processors.
fn part(name: &str) -> String {
    let is_kept = |it: char| !(it.is_whitespace() || it.is_control() || it == '/');
    let mut text: String = name
        .chars()
        .map(|it| if is_kept(it) { it } else { '_' })
        .collect();
    if let Some((before, number)) = text.rsplit_once('-')
        && number.chars().all(|it| it.is_ascii_digit())
    {
        text = format!("{before}_{number}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_name_has_no_blank_no_slash_and_no_number_of_processors() {
        let parts = ["f1, 8 clients", "a/b", "release-18", "x-y", "x-"].map(part);
        assert_eq!(parts, ["f1,_8_clients", "a_b", "release_18", "x-y", "x_"]);
    }
}
