//! Words for the checks that decide whether a difference is explained.

use pgassay_core::ledger::{CheckName, CheckSide, ConsistencyCheck, ExplainedShare};

use crate::number;

/// The checks that failed, one clause each, joined; empty where none did.
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

/// The clause of a check that failed on one side or on both, with its larger error.
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
        CheckName::Division => "nothing exact divided the blocked time".to_owned(),
        CheckName::Coverage => differ("the rows differ from the clients' clock"),
        CheckName::Count => differ("the latencies recorded differ from the transactions counted"),
        CheckName::Rate => differ("the rate in the window differs from that of the whole run"),
        CheckName::ClientClock => differ("the clients' time differs from backends × window"),
        CheckName::CpuClock => differ("the backends' CPU clocks disagree with schedstat"),
        CheckName::Samples => differ("samples disagree with schedstat"),
        CheckName::ProfiledCpu => {
            differ("the CPU time of profiled trials differs from that of timed ones")
        }
        CheckName::Machine => {
            format!("{error} of the machine's time is not accounted for (limit {limit})")
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
        CheckName::ServerClock => differ("the rows differ from the server's clock of statements"),
        CheckName::ClientAccount => {
            differ("the server's wait for its clients differs from their own account")
        }
        CheckName::ClientCpu => {
            differ("the load generator's CPU time differs from that of its process")
        }
        CheckName::ProfilingOverhead => {
            format!("profiling cost {error} of the throughput (limit {limit})")
        }
        CheckName::ClientLimited => {
            format!("the load generator set the pace in {error} of trials (limit {limit})")
        }
        CheckName::Unresolved => format!("{error} of the difference is unresolved (limit {limit})"),
        CheckName::Unexplained => {
            format!("the 95% CI of the share explained does not lie within {limit} of the whole")
        }
        CheckName::Sources => {
            format!("{error} of the difference lies in rows with one source only (limit {limit})")
        }
    }
}

/// `97.1 % of +605.5 µs, 95% CI [91.0 %, 103.2 %]`.
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
