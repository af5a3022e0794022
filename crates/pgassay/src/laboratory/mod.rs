//! The laboratory: runs a plan on real servers and returns the measurements.
//!
//! Invariants: servers run from before the first trial until after the last; external servers keep
//! running, but nothing is left on them. If a run ends early for whatever reason, completed trials
//! are returned and nothing is left running. The laboratory does not compute verdicts.

mod client_pools;
mod counters;
pub mod counting;
mod data;
mod external_facts;
mod external_server;
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
mod upkeep;
pub mod waits;
mod warm_up;
mod watch;

pub use watch::{ProfiledTrial, add_blocked, add_samples};

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use pgassay_core::plan::Plan;
use pgassay_core::profile::Profile;
use pgassay_core::run::{RelayFacts, ServerFacts, Warning, WarningKind};
use pgassay_core::statement::ScriptStatements;
use pgassay_core::study::StudySource;
use pgassay_core::trial::Trial;

use crate::catalog::FoundStudy;
use crate::cli::ServerArgs;
use crate::interrupt::Interrupt;
use crate::progress::ProgressDisplay;
use counters::Statistics;
use probes::Probes;
use redis::Redis;
use rounds::{RawResults, TrialRunner};
use servers::Servers;
use upkeep::MaintenanceRunner;

/// The measurements of a plan.
pub struct Outcome {
    /// Every trial, in the order they ran.
    pub trials: Vec<Trial>,
    /// The profile of each point; empty if no stacks were sampled.
    pub profiles: Vec<Profile>,
    /// Latencies of statements, for transactions with more than one.
    pub statements: Vec<ScriptStatements>,
    pub servers: Vec<ServerFacts>,
    pub relays: Vec<RelayFacts>,
    pub warnings: Vec<Warning>,
    /// The last lines of the servers' logs, as `(file name, text)`.
    pub logs: Vec<(String, Vec<u8>)>,
    /// Start of the first trial and end of the last, microseconds since 1970.
    pub span_us: (i64, i64),
    /// Why the run ended before all trials were done.
    pub ended_early: Option<anyhow::Error>,
}

/// Runs a plan.
///
/// # Errors
/// If no trial could be completed. After the first trial, errors are in the outcome.
pub fn run(
    plan: &Plan,
    found: &FoundStudy,
    args: &ServerArgs,
    interrupt: &Interrupt,
    progress: &mut ProgressDisplay,
) -> Result<Outcome> {
    let mut servers = Servers::start(plan, found, args, interrupt, progress)?;
    let redis = Redis::start(plan)?;
    let mut warnings = servers.warnings.clone();
    let mut harvest = RawResults::new(plan);
    let began_us = now_us();
    let mut result = Ok(());
    for (boot, blocks) in (0..).zip(boots(plan)) {
        let site = ServerStarts {
            plan,
            source: &found.source,
            redis: &redis,
            interrupt,
        };
        if boot > 0 {
            result = servers.restart(plan, interrupt, progress);
        }
        if result.is_ok() {
            result = site.serve(
                &servers,
                (boot, blocks),
                &mut harvest,
                &mut warnings,
                progress,
            );
        }
        if result.is_err() {
            break;
        }
    }
    let ended_us = now_us();
    let relays = servers.relay_facts();
    let (logs, facts) = (servers.logs(), servers.facts.clone());
    progress.stage("cleaning up");
    drop(redis);
    let stopped = servers.stop();
    warn_of_unsteady(plan, &harvest, &mut warnings);
    let (trials, profiles, statements) = harvest.finish();
    // If a server died, that already is the run's error, and stopping it only repeats it.
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

/// The blocks for each server start; a single range if all servers are external.
fn boots(plan: &Plan) -> Vec<Range<u32>> {
    if plan.servers.iter().all(|server| server.dsn.is_some()) {
        return std::iter::once(0..plan.schedule.blocks).collect();
    }
    plan.schedule.server_starts()
}

/// What all server starts have in common.
struct ServerStarts<'a> {
    plan: &'a Plan,
    source: &'a StudySource,
    redis: &'a Redis,
    interrupt: &'a Interrupt,
}

impl ServerStarts<'_> {
    /// Runs the blocks of one server start. Opens new probes and counters, because these refer to
    /// server processes.
    fn serve(
        &self,
        servers: &Servers,
        (boot, blocks): (u32, Range<u32>),
        harvest: &mut RawResults,
        warnings: &mut Vec<Warning>,
        progress: &mut ProgressDisplay,
    ) -> Result<()> {
        let probes = Probes::open(servers, &self.plan.schedule, warnings)?;
        let bench = TrialRunner {
            plan: self.plan,
            source: self.source,
            servers,
            redis: self.redis,
            boot,
            upkeep: MaintenanceRunner::new(self.plan, servers),
            counters: Statistics::open(self.plan, servers)?,
            probes: &probes,
            interrupt: self.interrupt,
        };
        bench.run(blocks, harvest, progress)
    }
}

fn warn_of_unsteady(plan: &Plan, harvest: &RawResults, warnings: &mut Vec<Warning>) {
    let points: BTreeSet<_> = harvest.unsteady.iter().copied().collect();
    for (condition, variant) in points {
        let times = harvest
            .unsteady
            .iter()
            .filter(|point| **point == (condition, variant))
            .count();
        let message = format!(
            "\"{}\" with {}: throughput was not yet stable at the end of warm-up in {times} of {} blocks",
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
