//! What the reader of a run must know before believing a figure.

use std::collections::BTreeSet;

use pgassay_core::run::{Run, Warning, WarningKind};
use pgassay_core::study::DriverKind;
use pgassay_core::trial::{Trial, TrialKind};

/// Shares of the machine that others may take before the reader is told.
const STEAL_NOTICEABLE: f64 = 0.02;
const FOREIGN_NOTICEABLE: f64 = 0.05;
/// A point is called client-limited when the generator set the pace in this share of its trials.
const CLIENT_LIMITED_NOTICEABLE: f64 = 0.5;
/// Below this share of user stacks unwound to the process's entry, the reader is told.
const UNWOUND_EXPECTED: f64 = 0.95;
/// A load writes when it changes this many rows per transaction.
const WRITES_NOTICEABLE: f64 = 0.01;
/// Up to this version, taking a snapshot costs time for every connection that is open (PostgreSQL 14's
/// release notes, "Improve the speed of computing MVCC visibility snapshots").
const SNAPSHOTS_BY_CONNECTION_MAX: u32 = 13;
/// With fewer connections beyond its own, a variant does not notice them.
const CONNECTIONS_NOTICEABLE: u32 = 32;

/// All of them.
pub fn of(run: &Run, ended_early: Option<&anyhow::Error>) -> Vec<Warning> {
    let mut found = Vec::new();
    let mut warn = |kind, message: String| found.push(Warning { kind, message });
    if let Some(error) = ended_early {
        let all = run.plan.trials();
        warn(
            WarningKind::Incomplete,
            format!(
                "ended after {} of {all} trials: {error:#}",
                run.trials.len()
            ),
        );
    }
    let limited: Vec<String> = run
        .points
        .iter()
        .filter(|point| point.client_limited >= CLIENT_LIMITED_NOTICEABLE)
        .map(|point| {
            format!(
                "{} ({})",
                run.plan.variants[point.variant],
                run.plan.conditions[point.condition].title()
            )
        })
        .collect();
    if !limited.is_empty() {
        warn(
            WarningKind::ClientLimited,
            format!(
                "client-limited: the load generator, not the server, set the pace of {}; give it more threads, or a machine of its own",
                limited.join("; ")
            ),
        );
    }
    let for_answer = || run.trials.iter().filter(|it| it.kind != TrialKind::Counted);
    let mean = |share: fn(&Trial) -> f64| {
        for_answer().map(share).sum::<f64>() / for_answer().count().max(1) as f64
    };
    let (steal, foreign) = (mean(|trial| trial.steal), mean(|trial| trial.foreign));
    if steal > STEAL_NOTICEABLE {
        warn(
            WarningKind::Steal,
            format!(
                "the hypervisor gave {:.0} % of the machine's time to others",
                steal * 100.0
            ),
        );
    }
    if foreign > FOREIGN_NOTICEABLE {
        warn(
            WarningKind::ForeignLoad,
            format!(
                "other programs used about {:.0} % of the machine",
                foreign * 100.0
            ),
        );
    }
    warn_of_profiles(run, &mut warn);
    warn_of_state(run, &mut warn);
    warn_of_maintenance(run, &mut warn);
    warn_of_connections(run, &mut warn);
    found
}

fn warn_of_profiles(run: &Run, warn: &mut impl FnMut(WarningKind, String)) {
    let sum = |count: fn(&pgassay_core::profile::Quality) -> u64| {
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
            format!("{lost} samples were lost because the machine was too busy to read them"),
        );
    }
    if user > 0 && (unwound as f64) < UNWOUND_EXPECTED * user as f64 {
        let share = 100.0 * unwound as f64 / user as f64;
        warn(
            WarningKind::ProfileQuality,
            format!("only {share:.1} % of the user stacks could be unwound to the process's entry"),
        );
    }
}

/// A point that writes and is not put back before each trial.
fn warn_of_state(run: &Run, warn: &mut impl FnMut(WarningKind, String)) {
    let mut names: BTreeSet<String> = BTreeSet::new();
    for point in run.plan.points.iter().filter(|it| it.resets.is_empty()) {
        let trials = run.trials.iter();
        let of_point =
            trials.filter(|it| (it.condition, it.variant) == (point.condition, point.variant));
        let (mut rows, mut transactions) = (0.0, 0);
        for trial in of_point.filter(|it| !it.counters.is_empty()) {
            let written = ["tup_inserted", "tup_updated", "tup_deleted"];
            let counted =
                written.map(|name| trial.counters.get(&format!("pg_stat_database.{name}")));
            rows += counted.into_iter().flatten().sum::<f64>();
            transactions += trial.transactions_total;
        }
        if rows > WRITES_NOTICEABLE * transactions as f64 {
            names.insert(run.plan.variants[point.variant].clone());
        }
    }
    if !names.is_empty() {
        warn(
            WarningKind::StateChanges,
            format!(
                "trials do not start from the same state: {} writes, and the study has no `reset`",
                names.into_iter().collect::<Vec<_>>().join(", "),
            ),
        );
    }
}

/// Checkpoints or autovacuum in some trials only.
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
            .filter_map(|name| trial.counters.get(*name));
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
            counted.iter().filter(has_checkpoint).count(),
            counted.len(),
        ),
        (
            "autovacuum",
            timed.iter().filter(has_vacuum).count(),
            timed.len(),
        ),
    ];
    for (what, some, all) in found {
        if some > 0 && some < all {
            warn(
                WarningKind::Maintenance,
                format!(
                    "{what} ran in {some} of {all} trials and not in the others; [maintenance] in the study keeps it out of all"
                ),
            );
        }
    }
}

/// Snapshots that are dearer than a variant's own connections make them.
fn warn_of_connections(run: &Run, warn: &mut impl FnMut(WarningKind, String)) {
    let mut told = BTreeSet::new();
    for point in &run.plan.points {
        let Some(server) = run.servers.get(point.server) else {
            continue;
        };
        let major = super::major_of(&server.version);
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
            told.insert((clients, open, major));
        }
    }
    for (clients, open, major) in told {
        warn(
            WarningKind::OpenConnections,
            format!(
                "{clients} clients: {open} client connections are open on PostgreSQL {major}, since its variants share a server; up to 13 each makes snapshots more expensive"
            ),
        );
    }
}
