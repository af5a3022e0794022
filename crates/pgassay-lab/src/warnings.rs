//! Warnings that qualify the figures of a run.

use std::collections::BTreeSet;

use pgassay_model::counters::Counters;
use pgassay_model::plan::Point;
use pgassay_model::plan::StoppingRule;
use pgassay_model::study::DriverKind;
use pgassay_model::trial::{Trial, TrialKind, failed_share};
use pgassay_model::wording::counted;
use pgassay_record::run::{Run, Warning, WarningKind};

use crate::observe::MEMORY_BLOCKS_MAX;
use crate::{returned_rows, stalls, unchanged_rows, worker_cpu};

/// Shares of the machine's CPU time above which a warning is shown.
const STEAL_NOTICEABLE: f64 = 0.02;
const OTHER_LOAD_NOTICEABLE: f64 = 0.05;
/// Likewise, the share of transactions that failed, and the points that are named.
const FAILED_NOTICEABLE: f64 = 0.001;
const FAILED_SHOWN_MAX: usize = 6;
/// A point is client-limited if the load generator was the bottleneck in this share of its trials.
const CLIENT_LIMITED_NOTICEABLE: f64 = 0.5;
/// Below this share of user stacks unwound to the process entry point, a warning is shown.
const UNWOUND_EXPECTED: f64 = 0.95;
/// A load counts as writing if it changes more than this many rows per transaction in a trial.
const WRITES_NOTICEABLE: f64 = 0.01;
/// Up to this version, the cost of a snapshot grows with the number of open connections (PostgreSQL
/// 14 release notes, "Improve the speed of computing MVCC visibility snapshots").
const SNAPSHOTS_BY_CONNECTION_MAX: u32 = 13;
/// Fewer connections than this in addition to a variant's own have no noticeable effect on it.
const CONNECTIONS_NOTICEABLE: u32 = 32;

/// How many trials ended before the run did.
fn ended_after(run: &Run, error: &anyhow::Error) -> String {
    let ended = run.trials.len();
    let is_extra = |trial: &Trial| trial.kind == TrialKind::HardwareCounters;
    let all = if run.trials.iter().any(is_extra) {
        run.plan.trials()
    } else {
        run.plan.trials_without_hardware_counters()
    };
    let of = match run.plan.schedule.stopping {
        // A curve measures only those conditions that determine it.
        _ if run.plan.variants.len() < 2 => String::new(),
        StoppingRule::AllBlocks => format!(" of {all}"),
        StoppingRule::Sequential => format!(" of at most {all}"),
        StoppingRule::Precision => String::new(),
    };
    match &of[..] {
        "" => format!("ended after {}: {error:#}", counted(ended, "trial")),
        of => format!("ended after {ended}{of} trials: {error:#}"),
    }
}

/// All warnings of a run.
pub fn of(run: &Run, ended_early: Option<&anyhow::Error>) -> Vec<Warning> {
    let mut found = Vec::new();
    let mut warn = |kind, message: String| {
        found.push(Warning {
            kind,
            message,
            variant: None,
        });
    };
    if let Some(error) = ended_early {
        warn(WarningKind::Incomplete, ended_after(run, error));
    }
    for (kind, sentence) in [
        (WarningKind::FailedTransactions, failures(run)),
        (WarningKind::NoStatement, without_statements(run)),
        (WarningKind::RowsDiffer, returned_rows::sentence(run)),
        (WarningKind::RowsUnchanged, unchanged_rows::sentence(run)),
        (WarningKind::NotSteady, stalls::sentence(run)),
        (WarningKind::WorkerCpu, worker_cpu::sentence(run)),
    ] {
        if let Some(sentence) = sentence {
            warn(kind, sentence);
        }
    }
    let limited = client_limited(run);
    if !limited.is_empty() {
        warn(
            WarningKind::ClientLimited,
            format!(
                "client-limited: the load generator was the bottleneck for {}; give it more threads or run it on a separate machine",
                limited.join("; ")
            ),
        );
    }
    let for_answer = || {
        run.trials
            .iter()
            .filter(|it| it.kind != TrialKind::HardwareCounters)
    };
    let mean = |share: fn(&Trial) -> f64| {
        for_answer().map(share).sum::<f64>() / for_answer().count().max(1) as f64
    };
    let (steal, other_programs) = (
        mean(|trial| trial.cpu_steal),
        mean(|trial| trial.other_programs),
    );
    if steal > STEAL_NOTICEABLE {
        warn(
            WarningKind::CpuSteal,
            format!("CPU steal: {:.0}% (noisy neighbors)", steal * 100.0),
        );
    }
    if other_programs > OTHER_LOAD_NOTICEABLE {
        warn(
            WarningKind::OtherLoad,
            format!(
                "other programs used about {:.0}% of the machine's CPU time: stop them, or expect wider intervals",
                other_programs * 100.0
            ),
        );
    }
    warn_of_profiles(run, &mut warn);
    warn_of_state(run, &mut warn);
    warn_of_maintenance(run, &mut warn);
    warn_of_connections(run, &mut warn);
    if ended_early.is_none() {
        warn_of_memory(run, &mut warn);
    }
    found
}

/// The points where the load generator was the bottleneck.
fn client_limited(run: &Run) -> Vec<String> {
    let limited = run
        .points
        .iter()
        .filter(|point| point.client_limited >= CLIENT_LIMITED_NOTICEABLE);
    limited
        .map(|point| {
            format!(
                "{} ({})",
                run.plan.variants[point.variant],
                run.plan.conditions[point.condition].title()
            )
        })
        .collect()
}

/// The points whose servers ended no transaction, because `\if` skipped every statement.
fn without_statements(run: &Run) -> Option<String> {
    let sent_nothing = |point: &&Point| {
        let trials = run.trials.iter();
        let mut ended = trials
            .filter(|it| (it.condition, it.variant) == (point.condition, point.variant))
            .filter(|it| it.transactions_total > 0)
            .filter_map(|it| transactions_ended(&it.counters))
            .peekable();
        point.driver == DriverKind::Postgres && ended.peek().is_some() && ended.all(|it| it <= 0.0)
    };
    let found = run.plan.points.iter().filter(sent_nothing);
    let found: Vec<String> = found.map(|it| named(run, it)).collect();
    (!found.is_empty()).then(|| {
        format!(
            "no statement reached the server: {}; the throughput is that of the script's meta-commands, and its ratio \
             says nothing about the server",
            found.join(", ")
        )
    })
}

/// The transactions that a server counted; `None` if it did not: a database that pgassay did not create has other
/// sessions, so its counters are not read.
fn transactions_ended(counters: &Counters) -> Option<f64> {
    let ends = ["xact_commit", "xact_rollback"];
    let counts = ends.map(|name| counters.get(&format!("pg_stat_database.{name}")));
    let [commits, rollbacks] = counts;
    commits.map(|it| it + rollbacks.unwrap_or(0.0))
}

/// The variant and the condition of a point.
fn named(run: &Run, point: &Point) -> String {
    let title = run.plan.conditions[point.condition].title();
    format!("{} ({title})", run.plan.variants[point.variant])
}

/// The points where transactions failed, the highest shares first.
fn failures(run: &Run) -> Option<String> {
    let shares = run.plan.points.iter().map(|it| {
        let share = failed_share(&run.trials, it.condition, it.variant);
        (share, named(run, it))
    });
    let mut shares: Vec<(f64, String)> = shares.collect();
    shares.sort_by(|a, b| b.0.total_cmp(&a.0));
    if shares.first()?.0 < FAILED_NOTICEABLE {
        return None;
    }
    let words = shares.iter().take(FAILED_SHOWN_MAX);
    let words: Vec<String> = words
        .map(|(share, point)| format!("{} of {point}", share_text(*share)))
        .collect();
    Some(format!(
        "transactions failed with serialization failures or deadlocks: {}; throughput and latency are those of the \
         others, but CPU time, WAL and statistics per transaction include what the failed ones used",
        words.join(", ")
    ))
}

/// `17.2%`; only where no transaction failed, `none`.
fn share_text(share: f64) -> String {
    match share {
        none if none <= 0.0 => "none".to_owned(),
        few if few < 0.000_5 => "under 0.1%".to_owned(),
        _ => format!("{:.1}%", 100.0 * share),
    }
}

fn warn_of_profiles(run: &Run, warn: &mut impl FnMut(WarningKind, String)) {
    let sum = |count: fn(&pgassay_model::profile::Quality) -> u64| {
        run.profiles
            .iter()
            .map(|profile| count(&profile.quality))
            .sum::<u64>()
    };
    let (user, unwound, lost) = (
        sum(|q| q.user_samples),
        sum(|q| q.unwound_to_entry),
        sum(|q| q.lost),
    );
    if lost > 0 {
        warn(
            WarningKind::ProfileQuality,
            format!(
                "{} lost: the machine was too busy to read samples in time",
                counted(lost as usize, "sample")
            ),
        );
    }
    if user > 0 && (unwound as f64) < UNWOUND_EXPECTED * user as f64 {
        let share = 100.0 * unwound as f64 / user as f64;
        warn(
            WarningKind::ProfileQuality,
            format!("only {share:.1}% of user stacks could be unwound to the process entry point"),
        );
    }
}

/// Warns about points that write but do not reset their data before each trial.
fn warn_of_state(run: &Run, warn: &mut impl FnMut(WarningKind, String)) {
    let mut names: BTreeSet<String> = BTreeSet::new();
    for point in run.plan.points.iter().filter(|it| it.resets.is_empty()) {
        let trials = run.trials.iter();
        let of_point =
            trials.filter(|it| (it.condition, it.variant) == (point.condition, point.variant));
        let writing = of_point.filter(|it| writes(&it.counters, it.transactions_total));
        // In a single one, autovacuum may have written statistics.
        if writing.count() > 1 {
            names.insert(run.plan.variants[point.variant].clone());
        }
    }
    if !names.is_empty() {
        warn(
            WarningKind::NoReset,
            format!(
                "trials do not start from the same state: these variants write data, and no reset (--reset of \
                 compare and gate, or a key of study files) undoes it: {}",
                names.into_iter().collect::<Vec<_>>().join(", "),
            ),
        );
    }
}

/// Whether the load of a trial writes. Not of all trials together: a load that has nothing left to delete after the
/// first ones changed most.
fn writes(counters: &Counters, transactions: u64) -> bool {
    let written = ["tup_inserted", "tup_updated", "tup_deleted"];
    let counted = written.map(|name| counters.get(&format!("pg_stat_database.{name}")));
    let rows: f64 = counted.into_iter().flatten().sum();
    rows > WRITES_NOTICEABLE * transactions as f64
}

/// Warns if checkpoints or autovacuum ran in some trials only.
fn warn_of_maintenance(run: &Run, warn: &mut impl FnMut(WarningKind, String)) {
    let timed: Vec<&Trial> = run
        .trials
        .iter()
        .filter(|it| it.kind == TrialKind::Timed)
        .collect();
    let counted: Vec<&&Trial> = timed.iter().filter(|it| !it.counters.is_empty()).collect();
    let checkpoints = [
        "pg_stat_bgwriter.checkpoints_timed",
        "pg_stat_bgwriter.checkpoints_req",
        "pg_stat_checkpointer.num_timed",
        "pg_stat_checkpointer.num_requested",
    ];
    let has_checkpoint = |trial: &&&&Trial| {
        let of_trial = checkpoints
            .iter()
            .filter_map(|name| trial.counters.get(name));
        of_trial.sum::<f64>() > 0.0
    };
    let has_vacuum = |trial: &&&Trial| {
        let workers = trial
            .background
            .iter()
            .filter(|it| it.role == "autovacuum worker");
        workers.map(|it| it.cpu.on_cpu_us).sum::<f64>() > 0.0
    };
    let found = [
        (
            "a checkpoint",
            "raise checkpoint_timeout and max_wal_size (--set)",
            counted.iter().filter(has_checkpoint).count(),
            counted.len(),
        ),
        (
            "autovacuum",
            "use --set autovacuum=off",
            timed.iter().filter(has_vacuum).count(),
            timed.len(),
        ),
    ];
    let is_external = run.plan.servers.iter().any(|it| it.dsn.is_some());
    for (what, settings, some, all) in found {
        if some > 0 && some < all {
            let remedy = if is_external {
                "with longer trials (--length), it runs in more of them".to_owned()
            } else {
                // A curve has no study file.
                format!("to prevent it, {settings}, or use [maintenance] in a study file")
            };
            warn(
                WarningKind::Maintenance,
                format!("{what} ran in only {some} of {all} trials; {remedy}"),
            );
        }
    }
}

/// Warns if other variants' open connections make snapshots more expensive.
fn warn_of_connections(run: &Run, warn: &mut impl FnMut(WarningKind, String)) {
    let mut seen = BTreeSet::new();
    for point in &run.plan.points {
        let Some(server) = run.servers.get(point.server) else {
            continue;
        };
        let major = crate::major_version::major_of(&server.version);
        let first = major
            .split('.')
            .next()
            .and_then(|it| it.parse::<u32>().ok());
        let clients = run.plan.conditions[point.condition].clients;
        let open = run.plan.open_connections(point.condition, point.server);
        let is_noticeable = open >= clients + CONNECTIONS_NOTICEABLE;
        if point.driver == DriverKind::Postgres
            && first.is_some_and(|it| it <= SNAPSHOTS_BY_CONNECTION_MAX)
            && is_noticeable
        {
            seen.insert((clients, open, major));
        }
    }
    for (clients, open, major) in seen {
        warn(
            WarningKind::OpenConnections,
            format!(
                "{clients} clients: {open} client connections are open on PostgreSQL {major} because variants share a server; up to PostgreSQL 13, each connection makes snapshots more expensive"
            ),
        );
    }
}

/// Warns if the memory of backends on this machine could not be read.
fn warn_of_memory(run: &Run, warn: &mut impl FnMut(WarningKind, String)) {
    let is_unread = |point: &&Point| {
        let trials = run.trials.iter();
        let mut of_point = trials
            .filter(|it| (it.condition, it.variant) == (point.condition, point.variant))
            .filter(|it| it.server.is_some() && it.block < MEMORY_BLOCKS_MAX)
            .peekable();
        point.driver == DriverKind::Postgres
            && !point.reconnects
            && of_point.peek().is_some()
            && of_point.all(|it| it.backend_memory.is_none())
    };
    if run.plan.points.iter().any(|it| is_unread(&it)) {
        warn(
            WarningKind::NotObserved,
            "memory of the backends is not available: /proc/PID/smaps_rollup is readable for root and for \
             the user of the server only"
                .to_owned(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: "transactions failed …: 17.2% of dead, 0.0% of nodead", where none failed.
    #[test]
    fn a_variant_without_failures_is_not_said_to_have_some() {
        let texts = [0.0, 0.000_1, 0.172].map(share_text);
        assert_eq!(texts, ["none", "under 0.1%", "17.2%"]);
    }

    /// Regression: "no statement reached the server" in each comparison with `--dsn` and `--setup ''`.
    #[test]
    fn transactions_that_were_not_counted_are_not_none() {
        let others = Counters::from([("pg_stat_wal.wal_bytes", 8.0)]);
        assert!(transactions_ended(&others).is_none());
        let commits = "pg_stat_database.xact_commit";
        let none = Counters::from([(commits, 0.0)]);
        assert!(transactions_ended(&none).is_some_and(|it| it <= 0.0));
        let failed = Counters::from([(commits, 0.0), ("pg_stat_database.xact_rollback", 2.0)]);
        assert!(transactions_ended(&failed).is_some_and(|it| it > 1.0));
    }

    /// Regression: a run had no warning although it was 40 times as fast once its first trials had deleted all that
    /// there was to delete: 121 rows in 13,000 transactions.
    #[test]
    fn a_load_that_runs_out_of_rows_to_delete_writes() {
        let deleted = |rows| Counters::from([("pg_stat_database.tup_deleted", rows)]);
        assert!(writes(&deleted(10.0), 23) && writes(&deleted(20.0), 427));
        assert!(!writes(&deleted(0.0), 500) && !writes(&deleted(1.0), 493));
        assert!(!writes(&Counters::default(), 0));
    }
}
