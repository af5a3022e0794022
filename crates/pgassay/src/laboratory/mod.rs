//! The laboratory: follows a plan on real servers and hands back what was measured.
//!
//! Invariants: servers are up before the first trial and gone after the last, but for the user's own,
//! on which nothing is left; whatever ends a run early, what was measured so far is handed back and
//! nothing is left running; verdicts are none of the laboratory's business.

mod counters;
pub mod counting;
mod crews;
mod data;
mod foreign;
mod foreign_facts;
mod host;
mod idle;
mod probes;
mod redis;
pub mod requirements;
mod rounds;
pub mod scripts;
mod servers;
mod statements;
mod transactions;
pub mod waits;
mod warm_up;
mod watch;

pub use watch::{Watched, add_blocked, add_samples};

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use pgassay_core::plan::Plan;
use pgassay_core::profile::Profile;
use pgassay_core::run::{RelayFacts, ServerFacts, Warning, WarningKind};
use pgassay_core::statement::ScriptStatements;
use pgassay_core::trial::Trial;

use crate::catalogue::Found;
use crate::cli::ServerArgs;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use counters::Counters;
use probes::Probes;
use redis::Redis;
use rounds::{Bench, Harvest};
use servers::Servers;

/// What a plan gave.
pub struct Outcome {
    /// Every trial, in the order they ran.
    pub trials: Vec<Trial>,
    /// Stacks of each point; empty where none could be taken.
    pub profiles: Vec<Profile>,
    /// What each statement took, where transactions have several.
    pub statements: Vec<ScriptStatements>,
    /// What each server is.
    pub servers: Vec<ServerFacts>,
    /// What the relays did.
    pub relays: Vec<RelayFacts>,
    /// What the reader must know.
    pub warnings: Vec<Warning>,
    /// Ends of the servers' logs, as `(file name, text)`.
    pub logs: Vec<(String, Vec<u8>)>,
    /// When the first trial began, and when the last ended, microseconds since 1970.
    pub span_us: (i64, i64),
    /// Why it ended before all was done.
    pub ended_early: Option<anyhow::Error>,
}

/// Follows a plan.
///
/// # Errors
/// Whatever keeps the first trial from being measured; later errors are in the outcome.
pub fn run(
    plan: &Plan,
    found: &Found,
    args: &ServerArgs,
    interrupt: &Interrupt,
    progress: &mut Progress,
) -> Result<Outcome> {
    let servers = Servers::start(plan, found, args, interrupt, progress)?;
    let redis = Redis::start(plan)?;
    let mut warnings = servers.warnings.clone();
    let probes = Probes::open(&servers, &plan.schedule, &mut warnings)?;
    let bench = Bench {
        plan,
        source: &found.source,
        servers: &servers,
        redis: &redis,
        counters: Counters::open(plan, &servers)?,
        probes: &probes,
        interrupt,
    };
    let mut harvest = Harvest::new(plan);
    let began_us = now_us();
    let result = bench.run(&mut harvest, progress);
    let ended_us = now_us();
    drop(bench);
    let relays = servers.relay_facts();
    drop(probes);
    let (logs, facts) = (servers.logs(), servers.facts.clone());
    progress.stage("removing what was made for the run");
    drop(redis);
    let stopped = servers.stop();
    warn_of_unsteady(plan, &harvest, &mut warnings);
    let (trials, profiles, statements) = harvest.finish();
    // A server that died is the run's error already; stopping it then only repeats that.
    let ended_early = match result.and(stopped) {
        Err(error) if trials.is_empty() => return Err(error),
        other => other.err(),
    };
    let sampled = profiles.iter().any(|profile| !profile.nodes.is_empty());
    Ok(Outcome {
        statements: statements.finish(plan, &found.source)?,
        trials,
        profiles: if sampled { profiles } else { Vec::new() },
        servers: facts,
        relays,
        warnings,
        logs,
        span_us: (began_us, ended_us),
        ended_early,
    })
}

fn warn_of_unsteady(plan: &Plan, harvest: &Harvest, warnings: &mut Vec<Warning>) {
    let points: BTreeSet<_> = harvest.unsteady.iter().copied().collect();
    for (condition, variant) in points {
        let times = harvest
            .unsteady
            .iter()
            .filter(|point| **point == (condition, variant))
            .count();
        let message = format!(
            "\"{}\" with {} was still getting faster when its time to warm up was over, in {times} of {} blocks",
            plan.variants[variant],
            plan.conditions[condition].title(),
            plan.schedule.blocks,
        );
        warnings.push(Warning {
            kind: WarningKind::NotSteady,
            message,
        });
    }
}

fn now_us() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
