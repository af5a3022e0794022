//! A run's results in sentences, the same in the terminal and on the page.

use pgassay_account::comparison::{Comparison, Ratio, Verdict};
use pgassay_account::cost_row::Change;
use pgassay_account::ledger::{Ledger, LedgerChecks};
use pgassay_model::check::Check;
use pgassay_model::plan::StoppingRule;
use pgassay_model::profile::{Profile, Quality};
use pgassay_model::trial::{TrialKind, failed_share};
use pgassay_model::waits::{WaitSource, Waits};
use pgassay_record::activity::Activity;
use pgassay_record::observation::{Observation, WaitRow};
use pgassay_record::run::{RelayFacts, Run, Warning, WarningKind};

pub(crate) use crate::evidence::{
    advice, cause_of, confidence_word, fact, facts, first_sentences, fix_result, fix_sql, gain,
    is_cause_certain, is_difference, point_name, share, weight,
};
use crate::ledger::group_name;
use crate::outline::{EQUIVALENCE_MARGIN, baseline_name, condition_title, variant_name};
use crate::time_measured::time_measured;
use crate::{failures, number, outlook, reliability, step_cause};

/// How many log entries were lost, if the log's format shows it.
pub(crate) fn log_entries(run: &Run) -> Option<String> {
    let sum = |name: &str| -> f64 {
        let trials = run.trials.iter();
        trials.filter_map(|trial| trial.counters.get(name)).sum()
    };
    let (entries, lost) = (sum("log.entries"), sum("log.entries_lost"));
    (entries > 0.0).then(|| {
        format!(
            "{} of {} log entries lost, according to gaps in the session line numbers of csvlog or jsonlog within a trial.",
            number::whole(lost),
            number::whole(entries + lost)
        )
    })
}

/// The word for a verdict.
pub(crate) fn verdict_word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Faster => "faster",
        Verdict::Slower => "slower",
        Verdict::Equivalent => "equivalent",
        Verdict::Inconclusive => "inconclusive",
    }
}

/// The mark of a verdict in a matrix; [`matrix_key`] explains it.
pub(crate) fn verdict_mark(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Faster => "▲",
        Verdict::Slower => "▼",
        Verdict::Equivalent => "=",
        Verdict::Inconclusive => "?",
    }
}

/// What the marks of a matrix mean.
pub(crate) fn matrix_key(run: &Run) -> String {
    let baseline = if run.plan.stepwise {
        "the variant before"
    } else {
        "the baseline"
    };
    format!(
        "▲ faster, ▼ slower, = equivalent (±2%), ? inconclusive: throughput relative to {baseline}"
    )
}

/// Fewer comparisons than these are clear from the sentences.
pub(crate) const MATRIX_CELLS_MIN: usize = 4;

/// Whether the verdicts are shown as a matrix.
pub(crate) fn has_matrix(run: &Run) -> bool {
    run.comparisons.len() >= MATRIX_CELLS_MIN && run.plan.conditions.len() > 1
}

/// The mark of a row; empty if its difference is within noise.
pub(crate) fn change_word(change: Change) -> &'static str {
    match change {
        Change::Added => "added",
        Change::Increased => "increased",
        Change::Decreased => "decreased",
        Change::Removed => "removed",
        Change::Inconclusive => "",
    }
}

/// A variant's answer over all conditions.
pub(crate) struct VariantAnswer {
    /// The verdict, if it is the same under all conditions.
    pub verdict: Option<Verdict>,
    /// Up to three sentences.
    pub text: String,
}

/// One answer per compared variant, in the plan's order.
pub(crate) fn answers(run: &Run) -> Vec<VariantAnswer> {
    (1..run.plan.variants.len())
        .filter_map(|variant| {
            let of_variant: Vec<&Comparison> = run
                .comparisons
                .iter()
                .filter(|it| it.variant == variant)
                .collect();
            let first = *of_variant.first()?;
            let uniform = of_variant.iter().all(|it| it.verdict == first.verdict);
            let mut text = if let [only] = of_variant[..] {
                answer_alone(run, only)
            } else {
                answer_over_many(run, variant, &of_variant)
            };
            let cause = step_cause::of(run, &of_variant);
            let caution = failures::caution(run, &of_variant);
            for sentence in [cause, caution].into_iter().flatten() {
                text = format!("{text} {sentence}");
            }
            Some(VariantAnswer {
                verdict: uniform.then_some(first.verdict),
                text,
            })
        })
        .collect()
}

/// The answer for a variant with a single comparison, with its interval.
fn answer_alone(run: &Run, comparison: &Comparison) -> String {
    let name = variant_name(run, comparison.variant);
    let baseline = baseline_name(run, comparison.variant);
    let tps = &comparison.tps;
    let figures = throughput_in_words(comparison);
    match comparison.verdict {
        Verdict::Faster => format!(
            "{name} is faster than {baseline}{}: throughput {figures}.",
            within_margin(tps)
        ),
        Verdict::Slower => format!(
            "{name} is slower than {baseline}{}: throughput {figures}.",
            within_margin(tps)
        ),
        Verdict::Equivalent => {
            format!("{name} is equivalent to {baseline} (±2%): throughput {figures}.")
        }
        Verdict::Inconclusive => {
            // A gate ends when its own question is answered, which its first sentence says.
            let needs_none = run.plan.schedule.gate_limit_percent.is_some()
                || outlook::is_answered(run, comparison);
            let needed = || outlook::needed(outlook::Undecided::One, run, comparison);
            let why = reliability::reason(comparison).or_else(|| (!needs_none).then(needed));
            let why = why.unwrap_or_default();
            let text = format!("{name} vs {baseline} is inconclusive: throughput {figures}. {why}");
            text.trim_end().to_owned()
        }
    }
}

/// ` by less than 2%`, if the whole interval of a difference lies within the equivalence margin.
fn within_margin(ratio: &Ratio) -> &'static str {
    let margin = 1.0 + EQUIVALENCE_MARGIN;
    if ratio.low > 1.0 / margin && ratio.high < margin {
        " by less than 2%"
    } else {
        ""
    }
}

/// One clause per verdict, the most frequent first: `prepared is faster than simple in 4 of 6
/// conditions: throughput ×1.245 to ×1.284; equivalent (±2%) with f1, 1 client: throughput ×1.003`.
fn answer_over_many(run: &Run, variant: usize, comparisons: &[&Comparison]) -> String {
    let mut clauses: Vec<(Verdict, Vec<&Comparison>)> = [
        Verdict::Faster,
        Verdict::Slower,
        Verdict::Equivalent,
        Verdict::Inconclusive,
    ]
    .into_iter()
    .map(|verdict| {
        let with = comparisons.iter().filter(|it| it.verdict == verdict);
        (verdict, with.copied().collect())
    })
    .filter(|(_, with): &(_, Vec<_>)| !with.is_empty())
    .collect();
    clauses.sort_by_key(|(_, with)| std::cmp::Reverse(with.len()));
    let (name, baseline) = (variant_name(run, variant), baseline_name(run, variant));
    // A run that ended early has not reached every condition.
    let measured = if comparisons.len() < run.plan.conditions.len() {
        " that were measured"
    } else {
        ""
    };
    let subject = match clauses.first() {
        Some((Verdict::Inconclusive, _)) => format!("{name} vs {baseline}:"),
        _ => format!("{name} is"),
    };
    let clauses: Vec<String> = clauses
        .iter()
        .enumerate()
        .map(|(place, (verdict, with))| {
            let words = match (verdict, place) {
                (Verdict::Faster, 0) => format!("faster than {baseline}"),
                (Verdict::Faster, _) => "faster".to_owned(),
                (Verdict::Slower, 0) => format!("slower than {baseline}"),
                (Verdict::Slower, _) => "slower".to_owned(),
                (Verdict::Equivalent, 0) => format!("equivalent to {baseline} (±2%)"),
                (Verdict::Equivalent, _) => "equivalent (±2%)".to_owned(),
                (Verdict::Inconclusive, _) => "inconclusive".to_owned(),
            };
            let place = match with[..] {
                [_, _] if comparisons.len() == 2 => format!("in both conditions{measured}"),
                _ if with.len() == comparisons.len() => {
                    format!("in all {} conditions{measured}", with.len())
                }
                [only] => format!("with {}", condition_title(run, only.condition)),
                _ => format!(
                    "in {} of {} conditions{measured}",
                    with.len(),
                    comparisons.len()
                ),
            };
            format!("{words} {place}: {}", range(with))
        })
        .collect();
    let why = reliability::reasons(comparisons);
    format!("{subject} {}.{why}", clauses.join("; "))
}

/// The range of the ratios. Intervals are left to the tables: one interval for several comparisons
/// would be meaningless.
fn range(comparisons: &[&Comparison]) -> String {
    let ratios = || comparisons.iter().map(|it| it.tps.ratio);
    let low = number::ratio(ratios().fold(f64::INFINITY, f64::min));
    let high = number::ratio(ratios().fold(f64::NEG_INFINITY, f64::max));
    if low == high {
        format!("throughput {low}")
    } else {
        format!("throughput {low} to {high}")
    }
}

/// A comparison's ratio of throughput with its interval, if there is one yet.
pub(crate) fn throughput_in_words(comparison: &Comparison) -> String {
    let tps = &comparison.tps;
    if tps.by_pair.len() < 2 || comparison.has_interval() {
        return ratio_in_words(tps);
    }
    format!("{} (no interval yet)", number::ratio(tps.ratio))
}

/// `×1.412 [1.396, 1.428]`, or the ratio alone for a single pair, which has no interval.
pub(crate) fn ratio_in_words(ratio: &Ratio) -> String {
    if ratio.by_pair.len() < 2 {
        format!("{} (one pair)", number::ratio(ratio.ratio))
    } else {
        format!(
            "{} {}",
            number::ratio(ratio.ratio),
            number::interval(ratio.low, ratio.high)
        )
    }
}

/// The delay that a relay added, compared with the requested one.
pub(crate) fn relay(it: &RelayFacts) -> String {
    let us = |value: f64| format!("{}\u{a0}µs", number::whole(value));
    format!(
        "Requested delay {} per round trip. A one-byte round trip took {} through the relay and {} without it: \
         the relay itself costs {}. Data was forwarded {} late on average, {} at most.",
        us(it.delay_us),
        us(it.relayed_us),
        us(it.direct_us),
        us((it.relayed_us - it.direct_us - it.delay_us).max(0.0)),
        us(it.late_mean_us),
        us(it.late_max_us),
    )
}

/// Values that say less than the limitation itself.
const VAGUE: [&str; 12] = [
    "none",
    "limited",
    "insufficient",
    "incomplete",
    "lost",
    "remote",
    "some hidden",
    "not all counted",
    "not read",
    "with those of parallel workers",
    "with those of autovacuum",
    "without autovacuum's",
];

/// What limits accuracy: `kernel.kptr_restrict is 1: …`, without the value if the text contains it or
/// explains it.
pub(crate) fn limit(check: &Check) -> Option<String> {
    let limits = check.limitation.as_ref()?;
    let (name, value) = (check.title(), &check.value);
    Some(if limits.starts_with(name.as_str()) {
        limits.clone()
    } else if VAGUE.contains(&value.as_str()) || limits.contains(value.as_str()) {
        format!("{name}: {limits}")
    } else if value == Activity::AT_TIMES {
        format!("{name}, {value}: {limits}")
    } else {
        format!("{name} is {value}: {limits}")
    })
}

/// The confidence levels in use, as `95%` or `95% to 97.5%`; `None` before there are intervals.
pub(crate) fn levels(run: &Run) -> Option<String> {
    let levels = || {
        let analyzed = run.comparisons.iter().filter(|it| it.has_interval());
        analyzed.map(|it| it.tps.confidence_level * 100.0)
    };
    let low = levels().fold(f64::INFINITY, f64::min);
    let high = levels().fold(f64::NEG_INFINITY, f64::max);
    let print = |level: f64| {
        let text = format!("{level:.1}");
        text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
    };
    if !low.is_finite() {
        None
    } else if print(low) == print(high) {
        Some(format!("{}%", print(low)))
    } else {
        Some(format!("{}% to {}%", print(low), print(high)))
    }
}

/// What was run: servers, variants, conditions, trials and seed.
pub(crate) fn what_was_run(run: &Run) -> String {
    let mut versions: Vec<String> = Vec::new();
    for (server, planned) in run.servers.iter().zip(&run.plan.servers) {
        let whose = planned.dsn.as_ref().map_or("", |_| " (external)");
        let version = format!("{}{whose}", server.version);
        if !versions.contains(&version) {
            versions.push(version);
        }
    }
    let schedule = &run.plan.schedule;
    format!(
        "PostgreSQL {}; {}, {}; {} of trials, {} each{}; seed {}.",
        versions.join(", "),
        number::count(run.plan.variants.len() as u64, "variant"),
        number::count(run.plan.conditions.len() as u64, "condition"),
        number::count(blocks_run(run), "block"),
        number::duration(trial_us(run)),
        time_measured(run),
        schedule.seed
    )
}

/// The usual length of a timed trial: slow transactions make them longer than planned.
fn trial_us(run: &Run) -> f64 {
    let timed = run.trials.iter().filter(|it| it.kind == TrialKind::Timed);
    let mut lengths: Vec<f64> = timed.map(|it| it.window_us).collect();
    lengths.sort_by(f64::total_cmp);
    let planned_us = run.plan.schedule.trial_us as f64;
    let median_us = lengths.get(lengths.len() / 2).copied();
    median_us.unwrap_or(planned_us)
}

/// The number of blocks: of the plan, or those that a run without a fixed number of pairs took.
pub(crate) fn blocks_run(run: &Run) -> u64 {
    let schedule = &run.plan.schedule;
    match schedule.stopping {
        StoppingRule::AllBlocks if run.complete => u64::from(schedule.blocks),
        _ => {
            let last = run.trials.iter().map(|it| it.block).max();
            last.map_or(0, |last| u64::from(last) + 1)
        }
    }
}

/// The quality of all profiles together; `None` without samples.
pub(crate) fn profile_quality(run: &Run) -> Option<String> {
    quality(run.profiles.iter())
}

/// The quality of these profiles together; `None` without samples.
pub(crate) fn quality<'a>(profiles: impl Iterator<Item = &'a Profile>) -> Option<String> {
    let mut all = Quality::default();
    for profile in profiles {
        all.add(&profile.quality);
    }
    if all.samples == 0 {
        return None;
    }
    let mut parts = vec![number::count(all.samples, "sample")];
    if all.user_samples > 0 {
        parts.push(format!(
            "{} of user stacks unwound to the process entry point",
            number::percent_of(all.unwound_to_entry, all.user_samples)
        ));
    }
    if all.truncated > 0 {
        let share = all.truncated as f64 / all.user_samples.max(1) as f64;
        parts.push(format!("{} truncated (too deep)", number::percent(share)));
    }
    let unknown = all.unknown_leaf as f64 / all.samples as f64;
    parts.push(format!("{} in unknown functions", number::percent(unknown)));
    parts.push(match all.lost {
        0 => "none lost".to_owned(),
        lost => format!("{} lost", number::whole(lost as f64)),
    });
    Some(format!("{}.", parts.join(", ")))
}

/// What was observed, as a title.
pub(crate) fn observed(observation: &Observation) -> String {
    let subject = &observation.subject;
    let version = subject.major.as_deref().unwrap_or("(unknown version)");
    let server = match (subject.postmaster_pid, &subject.address) {
        (Some(pid), _) => format!("PostgreSQL {version}, postmaster {pid}"),
        (None, Some(place)) => format!("PostgreSQL {version} at {place}"),
        (None, None) => format!("PostgreSQL {version}"),
    };
    match subject.backend_pid {
        Some(pid) => format!("Backend {pid} of {server}"),
        None => server,
    }
}

/// How it was observed, and how busy it was.
pub(crate) fn observation_conditions(observation: &Observation) -> String {
    let seconds = observation.window_us / 1e6;
    let mut parts = vec![
        format!("observed for {}\u{a0}s", number::decimals(seconds, 1)),
        number::count(observation.sessions.into(), "backend"),
    ];
    parts.push(match observation.transactions {
        Some(count) => format!("{} transactions/s", number::tps(count as f64 / seconds)),
        None => "transactions unknown".to_owned(),
    });
    if observation.profile.is_some() {
        parts.push(format!(
            "{} samples/s per busy CPU",
            observation.frequency_hz
        ));
    }
    let when = number::moment(observation.started_us);
    format!("{}; {when}", parts.join(", "))
}

/// A wait's name, the same as in the ledger.
pub(crate) fn wait(row: &WaitRow) -> String {
    group_name(row.part, &row.mechanism)
}

/// How waits were sampled, and what that cost.
pub(crate) fn waits_quality(waits: &Waits, window_us: f64) -> String {
    let samples = [
        waits.blocked_samples,
        waits.runnable_samples,
        waits.unreadable,
    ];
    let samples = samples.into_iter().fold(0, u64::saturating_add);
    let (place, unseen) = match waits.source {
        WaitSource::Memory => ("the backends' memory", "could not be read"),
        WaitSource::PgStatActivity => (
            "pg_stat_activity",
            "returned no data (other users' sessions require membership in pg_monitor)",
        ),
    };
    let mut parts = vec![format!(
        "{} of {place} ({} of blocked backends)",
        number::count(samples, "sample"),
        number::whole(waits.blocked_samples as f64)
    )];
    if waits.unreadable > 0 {
        let unreadable = number::whole(waits.unreadable as f64);
        parts.push(format!("{unreadable} {unseen}"));
    }
    if waits.sampling_cpu_us > 0.0 {
        let cpu = number::percent(waits.sampling_cpu_us / window_us.max(1.0));
        parts.push(format!("sampling used {cpu} of a CPU"));
    }
    format!("{}.", parts.join(", "))
}

/// That CPUs did not sleep, which shortens latencies; `None` if they did.
pub(crate) fn awake_cpus(run: &Run) -> Option<&'static str> {
    let refused = |it: &Warning| it.kind == WarningKind::CpusAsleep;
    let were_awake = run.plan.schedule.keep_cpus_awake && !run.warnings.iter().any(refused);
    were_awake.then_some(
        "Idle CPUs were kept awake during the trials: latencies do not include the time that it takes to \
         wake them up.",
    )
}

/// If profiled trials are faster by more, the difference is noise.
const OVERHEAD_NOISE_MAX: f64 = 0.05;

/// The profiling overhead over all profiled points, or over the comparisons if the result has no
/// ledgers.
pub(crate) fn profiling_overhead(run: &Run) -> Option<String> {
    let of_points = run
        .ledgers
        .iter()
        .filter_map(|it| it.checks.profiled_tps_ratio);
    let costs = run.comparisons.iter().filter_map(|it| it.cost.as_ref());
    let mut ratios: Vec<f64> = of_points.collect();
    if ratios.is_empty() {
        ratios = costs.map(|cost| cost.profiled_tps_ratio).collect();
    }
    let low = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let high = ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if ratios.is_empty() {
        return None;
    }
    let is_noise = high > 1.0 + OVERHEAD_NOISE_MAX;
    let (low, high) = (number::percent(low), number::percent(high));
    let speed = if low == high {
        low
    } else {
        format!("{low} to {high}")
    };
    // Without noise, profiling can only be slower.
    let reason = if is_noise {
        " Above 100% is noise: the overhead could not be measured."
    } else {
        ""
    };
    Some(format!(
        "Profiled trials ran at {speed} of the throughput of timed trials, which are not profiled.{reason} Verdicts \
         and totals use timed trials only."
    ))
}

/// Above this share of the clients' time in transactions that trials cut off, the report says so.
const CUT_SHARE_WORTH_SAYING: f64 = 0.1;

/// If more of a point's transactions failed, these are why its latencies do not imply its throughput.
const FAILED_SHARE_MAX: f64 = 0.01;

/// A warning about transactions so long that trials cut many of them off: these do not count in
/// throughput.
pub(crate) fn cut_off_transactions(run: &Run) -> Option<String> {
    let failed = |it: &Ledger| failed_share(&run.trials, it.condition, it.variant);
    let ledgers = run.ledgers.iter();
    let ledgers = ledgers.filter(|it| failed(it) <= FAILED_SHARE_MAX);
    let checks = ledgers.map(|it| &it.checks);
    let is_cut = |it: &&LedgerChecks| {
        it.little_error > CUT_SHARE_WORTH_SAYING && it.edge > CUT_SHARE_WORTH_SAYING / 2.0
    };
    let errors: Vec<f64> = checks.filter(is_cut).map(|it| it.little_error).collect();
    let most = errors.iter().copied().fold(0.0, f64::max);
    (!errors.is_empty()).then(|| {
        format!(
            "At {} of {} points (a variant under a condition), many long transactions were cut off at the \
             ends of trials: measured throughput is up to {} below what clients and latency imply \
             (Little's law), and throughput ratios may be off by as much. Use longer trials (--length).",
            errors.len(),
            run.ledgers.len(),
            number::percent(most)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_or_limited_is_not_said_to_be_none_or_limited() {
        let check = |value: &str| Check {
            name: "stacks".to_owned(),
            value: value.to_owned(),
            limitation: Some("CPU stacks cannot be sampled".to_owned()),
            fix: None,
        };
        let expected = "stacks: CPU stacks cannot be sampled";
        for value in ["none", "limited"] {
            assert_eq!(limit(&check(value)).as_deref(), Some(expected));
        }
        let expected = "stacks is 1: CPU stacks cannot be sampled";
        assert_eq!(limit(&check("1")).as_deref(), Some(expected));
    }
}
