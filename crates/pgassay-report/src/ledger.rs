//! Text for ledgers, the same in the terminal and on the page.

use pgassay_account::comparison::Verdict;
use pgassay_account::ledger::{
    self as core_ledger, COVERAGE_ERROR_MAX, Divider, ExplainedShare, LITTLE_ERROR_MAX, Ledger,
    LedgerChecks, LedgerDifference, LedgerRow, Nature, Part, SAMPLES_ERROR_MAX, TOTALS_ERROR_MAX,
    UNEXPLAINED_TIME_SHARE_MAX, explained_share,
};
use pgassay_model::check::Check;
use pgassay_model::trial::failed_share;
use pgassay_record::run::Run;

use crate::outline::{condition_title, plus_minus_us, variant_name};
use crate::{consistency, number};

/// The displayed name of a group of rows.
pub(crate) fn group_name(part: Part, name: &str) -> String {
    match part {
        Part::OnCpu if name == "CPU" || name == "all phases" => "CPU".to_owned(),
        Part::OnCpu => format!("CPU: {name}"),
        // Time blocked without a known reason, whatever its wording in this result's version.
        Part::Unexplained if name.starts_with("blocked") => "unexplained (blocked)".to_owned(),
        Part::Unexplained => format!("unexplained ({name})"),
        _ => name.to_owned(),
    }
}

/// A row's name: that of its group, and its mechanism within a phase.
pub(crate) fn row_name(row: &LedgerRow) -> String {
    match (row.part, row.phase.as_str()) {
        (Part::OnCpu, phase) if !phase.is_empty() => format!("CPU: {phase} · {}", row.cost.name),
        (_, "") => group_name(row.part, &row.cost.name),
        (_, phase) => format!("{} · {phase}", group_name(row.part, &row.cost.name)),
    }
}

/// The word for a row's kind: work or waiting.
pub(crate) fn nature_word(nature: Nature) -> &'static str {
    match nature {
        Nature::Service => "service",
        Nature::Queueing => "queueing",
        Nature::Think => "think",
        Nature::Unknown => "?",
    }
}

/// The point's ledger, if it has one.
pub(crate) fn ledger(run: &Run, condition: usize, variant: usize) -> Option<&Ledger> {
    let mut ledgers = run.ledgers.iter();
    ledgers.find(|it| it.condition == condition && it.variant == variant)
}

/// `CPU by stacks, blocked time by wait events; 93.2% of the time has a known cause`, and what the next tier
/// requires. `shares` are the explained shares of the ledgers shown.
pub(crate) fn tier(
    (cpu_by_stacks, blocked_by): (bool, Divider),
    shares: &[f64],
    access: Option<&Check>,
) -> String {
    let tier = core_ledger::tier(cpu_by_stacks, blocked_by);
    if tier == 0 {
        let share = number::percent(shares.iter().copied().fold(f64::INFINITY, f64::min));
        return format!(
            "All time by samples of pg_stat_activity, which undercount running backends on a saturated \
             machine; {share} of the time has a known cause; exact CPU totals need pgassay on the \
             server's host"
        );
    }
    let cpu = if cpu_by_stacks {
        "by stacks"
    } else {
        "in one row (not broken down)"
    };
    let low = shares.iter().copied().fold(f64::INFINITY, f64::min);
    let high = shares.iter().copied().fold(0.0, f64::max);
    let (low, high) = (number::percent(low), number::percent(high));
    let share = if low == high {
        format!("{low} of the time")
    } else {
        format!("{low} to {high} of the variants' time")
    };
    // A single row names no cause, but time on a CPU is not unknown.
    let besides = if cpu_by_stacks {
        ""
    } else {
        "apart from CPU, "
    };
    let next = access.and_then(|check| next_tier(tier, check));
    format!(
        "CPU {cpu}, blocked time {}; {besides}{share} has a known cause{}",
        basis_of_blocked_time(blocked_by),
        next.unwrap_or_default()
    )
}

/// What the next tier requires, or why there is less than what is permitted: on a server that is idle, no sample hits
/// a backend.
fn next_tier(tier: u8, access: &Check) -> Option<String> {
    let permitted = access.value.strip_prefix('T');
    let permitted = permitted.and_then(|it| it.chars().next()?.to_digit(10));
    if tier == 1 && permitted.is_some_and(|it| it > 1) {
        return Some("; there are no CPU samples".to_owned());
    }
    let fix = access.fix.as_ref().filter(|_| tier < 3)?;
    let next = if tier == 1 {
        "CPU stacks"
    } else {
        "off-CPU stacks"
    };
    Some(format!("; {next} need {fix}"))
}

/// The lowest tier of these ledgers, as [`tier`] describes it; empty without ledgers.
pub(crate) fn tier_of_run(run: &Run, ledgers: &[&Ledger]) -> String {
    let divided_by = |it: &&Ledger| (it.cpu_by_stacks, it.blocked_by);
    let shallowest = ledgers
        .iter()
        .map(divided_by)
        .min_by_key(|&(cpu_by_stacks, blocked_by)| core_ledger::tier(cpu_by_stacks, blocked_by));
    let shares: Vec<f64> = ledgers.iter().map(|it| explained_share(&it.rows)).collect();
    let is_profiled = run.plan.schedule.profiled > 0;
    let access = run.checks.iter().find(|check| check.name == "tier");
    let text = shallowest.map(|by| tier(by, &shares, access.filter(|_| is_profiled)));
    let why = if is_profiled {
        ""
    } else {
        "; trials were not profiled"
    };
    text.map_or_else(String::new, |text| text + why)
}

/// `rows with a known cause add up to −1,629 µs, 101.5% of −1,605 µs (95% CI [97.2%, 105.8%])`.
fn explained_sum(share: &ExplainedShare, difference: &LedgerDifference) -> String {
    let whole_us = difference.response.difference_us;
    format!(
        "rows with a known cause add up to {} µs, {}",
        number::signed_micros(share.share * whole_us),
        consistency::share(share, &number::signed_micros(whole_us))
    )
}

/// Whether the rows explain the difference, and if not, why.
pub(crate) fn explanation(verdict: Verdict, difference: &LedgerDifference) -> String {
    let whole = number::signed_micros(difference.response.difference_us);
    if plus_minus_us(&difference.response).is_none() {
        return format!("Not explained: the noise of {whole} µs is unknown with a single pair.");
    }
    if !difference.differs() && matches!(verdict, Verdict::Faster | Verdict::Slower) {
        return format!("Not explained: the difference of {whole} µs is too noisy to break down.");
    }
    if !difference.differs() {
        return format!("Nothing to explain: {whole} µs is within the noise of these pairs.");
    }
    match &difference.explained_share {
        Some(share) if difference.explained => {
            let sum = explained_sum(share, difference);
            return format!("Explained: {sum}.");
        }
        Some(share) if !difference.checks.is_empty() => {
            let failures = consistency::failures(&difference.checks);
            let sum = explained_sum(share, difference);
            return format!(
                "Not explained: {failures}. The {sum}. Take these rows as approximate."
            );
        }
        _ => {}
    }
    // Results of older versions have no such checks.
    let unexplained = number::micros(difference.unexplained_us);
    let unexplained = format!("{unexplained} µs of {whole} µs are unexplained");
    match () {
        () if difference.explained => format!("Explained: {unexplained}."),
        () if !difference.is_mostly_explained() => format!(
            "Not explained: {unexplained}, more than {}.",
            number::percent(UNEXPLAINED_TIME_SHARE_MAX)
        ),
        () => format!(
            "Not explained: {unexplained}, but a consistency check below failed, or no exact data was available to attribute the time."
        ),
    }
}

/// Above this profiling overhead, the report says which figures it concerns.
const OVERHEAD_WORTH_SAYING: f64 = 0.2;
/// If mean latencies of the same trials differ by more, the report says why.
const MEANS_WORTH_SAYING: f64 = 0.05;
/// Up to this share of failed transactions, their time does not explain such a difference.
const FAILED_WORTH_SAYING: f64 = 0.01;

/// What the response times of ledgers are, if other figures of the same points seem to contradict them.
pub(crate) fn response_times(run: &Run, ledgers: &[&Ledger]) -> Option<String> {
    let mean_us = |it: &Ledger| {
        let points = run.points.iter();
        let mut points =
            points.filter(|at| (at.condition, at.variant) == (it.condition, it.variant));
        points.next().map(|at| at.latency_mean_us)
    };
    let differs = |it: &&Ledger| {
        mean_us(it).is_some_and(|us| (it.response_us / us - 1.0).abs() > MEANS_WORTH_SAYING)
    };
    let ratios = ledgers.iter().filter_map(|it| it.checks.profiled_tps_ratio);
    let [slowest, fastest] = ratios.fold([1.0, 1.0], |[low, high]: [f64; 2], it| {
        [low.min(it), high.max(it)]
    });
    // Profiling makes nothing faster: if it seems to, the slower trials are noise as well.
    let overhead = if fastest > 1.0 + OVERHEAD_WORTH_SAYING {
        0.0
    } else {
        1.0 - slowest
    };
    let mut text = "The response time is that of the timed trials".to_owned();
    let has_failed =
        |it: &&Ledger| failed_share(&run.trials, it.condition, it.variant) > FAILED_WORTH_SAYING;
    if ledgers.iter().any(differs) {
        text += ", averaged over the blocks";
        let of_failed = |it: &&Ledger| differs(it) && has_failed(it);
        text += if ledgers.iter().any(of_failed) {
            ", and includes the time of transactions that failed, per successful one. The mean latency in the figures \
             is that of successful ones only, and the geometric mean of the blocks, so it differs"
        } else {
            ". The mean latency in the figures is the geometric mean of the blocks, so it differs"
        };
    }
    text.push('.');
    if overhead > OVERHEAD_WORTH_SAYING {
        text = format!(
            "{text} Profiled trials apportion it, and were up to {} slower.",
            number::percent(overhead)
        );
    }
    (ledgers.iter().any(differs) || overhead > OVERHEAD_WORTH_SAYING).then_some(text)
}

/// The same as [`checks`], of failed checks only; `None` if all passed.
pub(crate) fn failed_checks(run: &Run, ledger: &Ledger) -> Option<String> {
    let checks = &ledger.checks;
    let is_off = |error: f64, limit: f64| error.abs() > limit;
    let is_machine_off = |it: f64| is_off(it, TOTALS_ERROR_MAX);
    let failed = [
        is_off(checks.coverage - 1.0, COVERAGE_ERROR_MAX + checks.edge).then(|| coverage(checks)),
        is_off(checks.little_error, LITTLE_ERROR_MAX + checks.edge).then(|| little(checks)),
        machine(checks).filter(|_| checks.machine_error.is_some_and(is_machine_off)),
        samples(checks).filter(|_| {
            let limit = SAMPLES_ERROR_MAX + checks.samples_chance;
            checks.samples_error.is_some_and(|it| is_off(it, limit))
        }),
    ];
    let failed: Vec<String> = failed.into_iter().flatten().collect();
    (!failed.is_empty()).then(|| {
        format!(
            "{}, {}: {}",
            variant_name(run, ledger.variant),
            condition_title(run, ledger.condition),
            failed.join(", ")
        )
    })
}

/// `Consistency checks of simple, 16 clients: rows add up to 100.1% of the clients' time, …`, with failed checks marked.
pub(crate) fn checks(run: &Run, ledger: &Ledger) -> String {
    let checks = &ledger.checks;
    let parts: Vec<String> = [Some(coverage(checks)), Some(little(checks))]
        .into_iter()
        .chain([
            machine(checks),
            samples(checks),
            overhead(checks),
            client(checks),
            steal(checks),
        ])
        .flatten()
        .collect();
    format!(
        "Consistency checks of {}, {}: {}; blocked time {}",
        variant_name(run, ledger.variant),
        condition_title(run, ledger.condition),
        parts.join(", "),
        basis_of_blocked_time(ledger.blocked_by)
    )
}

fn coverage(checks: &LedgerChecks) -> String {
    let shown = number::percent(checks.coverage);
    let text = format!("rows add up to {shown} of the clients' time");
    if (checks.coverage - 1.0).abs() <= COVERAGE_ERROR_MAX {
        return text;
    }
    let word = if checks.closes() { "may" } else { "must" };
    let limit = COVERAGE_ERROR_MAX + checks.edge;
    let [low, high] = [1.0 - limit, 1.0 + limit].map(number::percent);
    format!("{text} ({word} be {low} to {high})")
}

fn little(checks: &LedgerChecks) -> String {
    check_result(
        "Little's law",
        checks.little_error,
        [LITTLE_ERROR_MAX, checks.edge],
    )
}

fn machine(checks: &LedgerChecks) -> Option<String> {
    let error = checks.machine_error?;
    let share = number::percent(error.abs());
    if error < -TOTALS_ERROR_MAX {
        Some(format!(
            "the CPU time of processes exceeds the machine's busy time by {share}"
        ))
    } else if error <= TOTALS_ERROR_MAX {
        Some(format!(
            "the machine's CPU time accounted for within {share}"
        ))
    } else {
        Some(format!(
            "{share} of the machine's CPU time was used outside the measured processes"
        ))
    }
}

fn samples(checks: &LedgerChecks) -> Option<String> {
    let error = checks.samples_error?;
    let limits = [SAMPLES_ERROR_MAX, checks.samples_chance];
    Some(check_result("CPU time by samples", error, limits))
}

/// The limit is what is always permitted, plus what the size of these samples adds. It is printed wherever the former
/// alone does not decide.
fn check_result(name: &str, error: f64, [always, added]: [f64; 2]) -> String {
    let (error, limit) = (error.abs(), always + added);
    let [shown, of] = [error, limit].map(number::percent);
    if error <= always {
        format!("{name} within {shown}")
    } else if error <= limit {
        format!("{name} within {shown} (limit {of})")
    } else {
        format!("{name} off by {shown} (limit {of})")
    }
}

fn overhead(checks: &LedgerChecks) -> Option<String> {
    let overhead = 1.0 - checks.profiled_tps_ratio?;
    Some(if overhead < 0.0 {
        let faster = number::percent(-overhead);
        format!("profiling overhead below the noise (profiled trials were {faster} faster)")
    } else {
        format!("profiling overhead {}", number::percent(overhead))
    })
}

fn client(checks: &LedgerChecks) -> Option<String> {
    let share = checks.client_limited;
    let share = (share > 0.0).then(|| number::percent(share))?;
    Some(format!(
        "the load generator was the bottleneck in {share} of trials"
    ))
}

fn steal(checks: &LedgerChecks) -> Option<String> {
    (checks.cpu_steal >= 0.005).then(|| format!("CPU steal {}", number::percent(checks.cpu_steal)))
}

fn basis_of_blocked_time(divider: Divider) -> &'static str {
    match divider {
        Divider::Nothing => "in one row",
        Divider::ActivityStates => "by samples of pg_stat_activity",
        Divider::ActivityWaitEvents => "by wait events of pg_stat_activity",
        Divider::MemoryWaitEvents => "by wait events",
        Divider::Stacks => "by stacks",
    }
}

/// CPU time of background processes in µs per transaction: `logger 0.80, checkpointer 0.02`; empty if
/// none used any.
pub(crate) fn background(ledger: &Ledger) -> String {
    let used = ledger.background.iter().filter(|row| row.us >= 0.005);
    let rows: Vec<String> = used
        .map(|row| {
            // As in the statistics.
            let role = match row.role.as_str() {
                "walwriter" => "WAL writer",
                role => role,
            };
            format!("{role} {}", number::micros(row.us))
        })
        .collect();
    rows.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: "CPU time by samples within 13.1%" did not say that few samples raise the limit of 5%.
    #[test]
    fn a_limit_that_few_samples_raise_is_printed() {
        let text = |error| check_result("samples", error, [0.05, 0.09]);
        assert_eq!(text(-0.05), "samples within 5.0%");
        assert_eq!(text(0.131), "samples within 13.1% (limit 14.0%)");
        assert_eq!(text(0.2), "samples off by 20.0% (limit 14.0%)");
    }

    /// Regression: of an idle server, which no CPU sample hit, it said that CPU stacks need `--off-cpu`.
    #[test]
    fn what_is_permitted_is_not_missing() {
        let check = |value: &str, fix: &str| Check {
            name: "tier".to_owned(),
            value: value.to_owned(),
            limitation: None,
            fix: Some(fix.to_owned()),
        };
        let text = |by_stacks, access: &Check| {
            let by = (by_stacks, Divider::MemoryWaitEvents);
            let text = tier(by, &[1.0], Some(access));
            text.rsplit_once("; ").unwrap().1.to_owned()
        };
        let all = check("T3 of T3: CPU stacks", "--off-cpu");
        assert_eq!(text(true, &all), "off-CPU stacks need --off-cpu");
        assert_eq!(text(false, &all), "there are no CPU samples");
        let totals = check("T1 of T3: exact CPU totals", "sysctl");
        assert_eq!(text(false, &totals), "CPU stacks need sysctl");
    }
}
