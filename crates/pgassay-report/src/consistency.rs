//! Text for the checks that decide whether a difference is explained.

use pgassay_account::ledger::{CheckName, CheckSide, ConsistencyCheck, ExplainedShare};

use crate::number;

/// The failed checks, one clause each; empty if all passed.
pub(crate) fn failures(checks: &[ConsistencyCheck]) -> String {
    let mut names: Vec<CheckName> = Vec::new();
    for check in checks.iter().filter(|check| !check.passed) {
        if !names.contains(&check.name) {
            names.push(check.name);
        }
    }
    let clauses = names.into_iter().filter_map(|name| failure(checks, name));
    clauses.collect::<Vec<String>>().join("; ")
}

/// The clause for a check that failed on one side or both, with the larger error.
fn failure(checks: &[ConsistencyCheck], name: CheckName) -> Option<String> {
    let failed: Vec<&ConsistencyCheck> = checks
        .iter()
        .filter(|check| check.name == name && !check.passed)
        .collect();
    let worst = failed
        .iter()
        .max_by(|a, b| a.error.abs().total_cmp(&b.error.abs()))?;
    let side = match failed[..] {
        [one] => match one.side {
            Some(CheckSide::Baseline) => " (baseline)",
            Some(CheckSide::Variant) => " (variant)",
            None => "",
        },
        _ => " (both sides)",
    };
    Some(clause(worst) + side)
}

fn clause(check: &ConsistencyCheck) -> String {
    let error = number::percent(check.error.abs());
    let limit = number::percent(check.bound);
    let differ = |what: &str| format!("{what} by {error} (limit {limit})");
    match check.name {
        CheckName::Attribution => {
            "no exact data was available to attribute the blocked time".to_owned()
        }
        CheckName::Coverage => {
            differ("the sum of the rows differs from the time that clients measured")
        }
        CheckName::Count => {
            differ("the number of latencies differs from the number of transactions")
        }
        CheckName::Rate => {
            differ("throughput in the measured window differs from that of the whole trial")
        }
        CheckName::ClientClock => {
            differ("the clients' total time differs from backends × measured window")
        }
        CheckName::CpuClock => differ("the backends' CPU clocks disagree with schedstat"),
        CheckName::Samples => differ("CPU samples disagree with schedstat"),
        CheckName::ProfiledCpu => {
            differ("CPU time in profiled trials differs from that in timed trials")
        }
        CheckName::Machine => {
            // Negative: more is accounted for than the machine's idle time, which is counted in ticks, leaves.
            if check.error < 0.0 {
                differ("the CPU time of processes exceeds the machine's busy time")
            } else {
                format!(
                    "{error} of the machine's CPU time belongs to no process that was measured (limit {limit})"
                )
            }
        }
        CheckName::SwitchesCpu => differ("CPU time by context switches disagrees with schedstat"),
        CheckName::SwitchesRunQueue => {
            format!(
                "two measurements of run-queue wait, context switches and schedstat, disagree by {error} (limit {limit})"
            )
        }
        CheckName::ProfiledRunQueue => {
            differ("run-queue wait in profiled trials differs from that in timed trials")
        }
        CheckName::ServerClock => {
            differ("the sum of the rows differs from the server's statement time")
        }
        CheckName::ClientAccount => {
            differ("the server's time waiting for clients differs from what the clients measured")
        }
        CheckName::ClientCpu => {
            differ("the CPU time of the load generator's threads differs from that of its process")
        }
        CheckName::ProfilingOverhead => {
            format!("profiling overhead is {error} of throughput (limit {limit})")
        }
        CheckName::ClientLimited => {
            format!("the load generator was the bottleneck in {error} of trials (limit {limit})")
        }
        CheckName::Unwound
        | CheckName::BlockedReasons
        | CheckName::UnexplainedTime
        | CheckName::UnexplainedRows
        | CheckName::ExplainedShare
        | CheckName::Sources => clause_of_shares(check.name, check.bound, &error, &limit),
    }
}

/// The clause for a check whose error is a share that may not be exceeded.
fn clause_of_shares(name: CheckName, bound: f64, error: &str, limit: &str) -> String {
    match name {
        CheckName::Unwound => format!(
            "{error} of the CPU stacks were not unwound to the process entry point (limit {limit})"
        ),
        CheckName::BlockedReasons => format!(
            "stacks and wait events give {error} of the blocked time different reasons (limit {limit})"
        ),
        CheckName::UnexplainedRows => format!(
            "rows without a known cause, in both directions, add up to {error} of the difference (limit {limit})"
        ),
        CheckName::ExplainedShare => {
            let [low, high] = [1.0 - bound, 1.0 + bound].map(number::percent);
            format!("the 95% CI of the explained share is not within {low} to {high}")
        }
        CheckName::Sources => {
            format!("{error} of the difference is in rows with only one source (limit {limit})")
        }
        _ => format!("{error} of the difference is unexplained (limit {limit})"),
    }
}

/// `97.1% of +605.5 µs (95% CI [91.0%, 103.2%])`.
pub(crate) fn share(share: &ExplainedShare, whole: &str) -> String {
    let interval = match share.interval {
        Some([low, high]) => {
            let (low, high) = (number::percent(low), number::percent(high));
            format!("95% CI [{low}, {high}]")
        }
        None => "its CI is unbounded with these pairs".to_owned(),
    };
    let shown = number::percent(share.share);
    let possible = share.possible.map(|it| number::percent(it.abs()));
    match possible.filter(|it| *it != number::percent(0.0)) {
        // Otherwise it is not clear why the interval may end far from the share.
        Some(possible) => format!(
            "{shown} of {whole} µs ({interval}, with and without up to {possible} of possible waiting for the \
             client's threads)"
        ),
        None => format!("{shown} of {whole} µs ({interval})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: at 64 clients, 45% of the difference was an upper bound, and the sentence said "100.0% (95% CI
    /// [100.0%, 100.0%])".
    #[test]
    fn possible_waiting_for_the_client_is_said_next_to_the_interval_that_contains_it() {
        let of = |possible| {
            let explained = ExplainedShare {
                share: 0.549,
                interval: Some([0.516, 1.0]),
                possible,
            };
            share(&explained, "−2,054")
        };
        let plain = "54.9% of −2,054 µs (95% CI [51.6%, 100.0%]";
        assert_eq!(of(None), format!("{plain})"));
        assert_eq!(of(Some(0.0)), format!("{plain})"));
        let words = "with and without up to 45.1% of possible waiting for the client's threads";
        assert_eq!(of(Some(0.451)), format!("{plain}, {words})"));
    }

    /// Regression: "9.0% of the machine's CPU time is unaccounted for" when all of it and more was accounted for.
    #[test]
    fn more_cpu_time_than_the_machine_was_busy_is_not_unaccounted_for() {
        let check = |error: f64| ConsistencyCheck {
            name: CheckName::Machine,
            side: None,
            error,
            bound: 0.05,
            passed: false,
        };
        assert!(
            clause(&check(0.09))
                .contains("9.0% of the machine's CPU time belongs to no process that was measured")
        );
        let more = clause(&check(-0.09));
        assert!(
            more.contains("exceeds the machine's busy time by 9.0%"),
            "{more}"
        );
    }
}
