//! Text for the checks that decide whether a difference is explained.

use pgassay_core::ledger::{CheckName, CheckSide, ConsistencyCheck, ExplainedShare};

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
        CheckName::Attribution => "no exact data attributes the blocked time".to_owned(),
        CheckName::Coverage => differ("the sum of the rows differs from the clients' clock"),
        CheckName::Count => differ("the number of latencies differs from that of transactions"),
        CheckName::Rate => differ("the rate in the window differs from that of the whole run"),
        CheckName::ClientClock => differ("the clients' time differs from backends × window"),
        CheckName::CpuClock => differ("the backends' CPU clocks disagree with schedstat"),
        CheckName::Samples => differ("samples disagree with schedstat"),
        CheckName::ProfiledCpu => {
            differ("the CPU time of profiled trials differs from that of timed ones")
        }
        CheckName::Machine => {
            format!("{error} of machine time is unaccounted for (limit {limit})")
        }
        CheckName::SwitchesCpu => {
            differ("context switches disagree with schedstat on the CPU time")
        }
        CheckName::SwitchesRunQueue => {
            differ("context switches disagree with schedstat on the run queue")
        }
        CheckName::ProfiledRunQueue => {
            differ("the run queue of profiled trials differs from that of timed ones")
        }
        CheckName::ServerClock => {
            differ("the sum of the rows differs from the server's statement time")
        }
        CheckName::ClientAccount => {
            differ("the server's wait for its clients differs from the clients' own account")
        }
        CheckName::ClientCpu => {
            differ("the load generator's CPU time differs from that of its process")
        }
        CheckName::ProfilingOverhead => {
            format!("profiling overhead is {error} of throughput (limit {limit})")
        }
        CheckName::ClientLimited => {
            format!("the load generator was the bottleneck in {error} of trials (limit {limit})")
        }
        CheckName::UnexplainedTime => {
            format!("{error} of the difference is unexplained (limit {limit})")
        }
        CheckName::ExplainedShare => {
            format!("the 95% CI of the explained share is not within {limit} of 100%")
        }
        CheckName::Sources => {
            format!("{error} of the difference is in rows with only one source (limit {limit})")
        }
    }
}

/// `97.1% of +605.5 µs, 95% CI [91.0%, 103.2%]`.
pub(crate) fn share(share: &ExplainedShare, whole: &str) -> String {
    let interval = match share.interval {
        Some([low, high]) => {
            let (low, high) = (number::percent(low), number::percent(high));
            format!("95% CI [{low}, {high}]")
        }
        None => "its CI is unbounded with these pairs".to_owned(),
    };
    format!("{} of {whole} µs, {interval}", number::percent(share.share))
}
