//! Runs checkpoints and vacuum when the study specifies: in no trial, in every trial, or whenever the
//! server decides.
//!
//! By default both would fall into some trials only, and servers that started together would run
//! checkpoints together. So pgassay keeps the server from running them, and before a condition's
//! trials runs what is due by PostgreSQL's rules: a checkpoint after 5 minutes or half a gigabyte of
//! WAL (the defaults of `checkpoint_timeout` and `max_wal_size`, xlog.c), vacuum and analyze of tables
//! above the autovacuum thresholds (`relation_needs_vacanalyze`, autovacuum.c). Settings in the study
//! take precedence, and external servers are never changed.

use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};
use pgassay_model::plan::Plan;
use pgassay_model::study::MaintenanceTime;

use super::planned_maintenance::PlannedMaintenance;
use super::{Servers, SqlConnection};
use crate::interrupt::Interrupt;

/// Whether a checkpoint is due: since version 10, and for 9.6.
const CHECKPOINT_DUE: [&str; 2] = [
    "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), redo_lsn) > 512 * 1024 * 1024 \
     or now() - checkpoint_time > interval '5 min' from pg_control_checkpoint()",
    "select pg_xlog_location_diff(pg_current_xlog_insert_location(), redo_location) > 512 * 1024 * 1024 \
     or now() - checkpoint_time > interval '5 min' from pg_control_checkpoint()",
];
/// Lists commands for the tables that autovacuum would process with its default thresholds.
const VACUUM_DUE: &str = "select format('vacuum analyze %I.%I', s.schemaname, s.relname) \
     from pg_stat_user_tables s join pg_class c on c.oid = s.relid \
     where c.relpersistence <> 't' \
     and coalesce(array_to_string(c.reloptions, ',') !~* 'autovacuum_enabled=(false|off|no|0)', true) \
     and (s.n_dead_tup > 50 + 0.2 * greatest(c.reltuples, 0) \
     or s.n_mod_since_analyze > 50 + 0.1 * greatest(c.reltuples, 0) \
     or coalesce((to_jsonb(s) ->> 'n_ins_since_vacuum')::bigint, 0) > 1000 + 0.2 * greatest(c.reltuples, 0))";
/// Lists commands for all tables.
const VACUUM_ALL: &str = "select format('vacuum analyze %I.%I', schemaname, relname) \
     from pg_stat_user_tables s join pg_class c on c.oid = s.relid where c.relpersistence <> 't'";

/// Maintenance of a plan's servers.
pub struct MaintenanceRunner<'a> {
    servers: &'a Servers,
    /// In the plan's order of servers.
    decided: Vec<PlannedMaintenance>,
}

impl<'a> MaintenanceRunner<'a> {
    /// Decides what to run on each server of a plan.
    pub fn new(plan: &Plan, servers: &'a Servers) -> Self {
        let maintenance = plan.schedule.maintenance;
        let decided = (0..plan.servers.len())
            .map(|index| PlannedMaintenance::of(&plan.servers, index, maintenance));
        Self {
            servers,
            decided: decided.collect(),
        }
    }

    /// Runs what is due before a condition's trials. If a checkpoint is due on one server, all run
    /// one, so that full-page images after it affect all variants alike.
    pub fn between_trials(&self, interrupt: &Interrupt) -> Result<()> {
        let between = Some(MaintenanceTime::BetweenTrials);
        let mut checkpoints = Vec::new();
        let mut is_due = false;
        for (index, decided) in self.decided.iter().enumerate() {
            let host = self.servers.host(index);
            if decided.vacuum == between {
                for database in self.servers.databases(index) {
                    interrupt.check()?;
                    let mut connection = host.connect(database)?;
                    run_listed(connection.as_mut(), VACUUM_DUE)?;
                }
            }
            if decided.checkpoint == between {
                let mut connection = host.connect(host.database())?;
                is_due |= is_checkpoint_due(connection.as_mut())?;
                checkpoints.push(connection);
            }
        }
        for connection in checkpoints.iter_mut().filter(|_| is_due) {
            interrupt.check()?;
            connection.execute("checkpoint")?;
        }
        Ok(())
    }

    /// Starts the maintenance that runs concurrently with each trial's load.
    pub fn within_trial(&self, server: usize) -> Result<WithinTrial> {
        let within = Some(MaintenanceTime::InEveryTrial);
        let Some(decided) = self.decided.get(server).copied() else {
            return Ok(WithinTrial::default());
        };
        let host = self.servers.host(server);
        let mut threads = Vec::new();
        if decided.checkpoint == within {
            let mut connection = host.connect(host.database())?;
            let checkpoint = move || connection.execute("checkpoint").map_err(Into::into);
            threads.push(started(checkpoint)?);
        }
        if decided.vacuum == within {
            for database in self.servers.databases(server) {
                let mut connection = host.connect(database)?;
                threads.push(started(move || {
                    run_listed(connection.as_mut(), VACUUM_ALL)
                })?);
            }
        }
        Ok(WithinTrial(threads))
    }
}

fn started(work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<JoinHandle<Result<()>>> {
    let thread = thread::Builder::new().spawn(work);
    thread.context("cannot start a thread for maintenance")
}

/// Maintenance that runs concurrently with a trial's load.
#[derive(Default)]
#[must_use = "it must finish before the next trial starts"]
pub struct WithinTrial(Vec<JoinHandle<Result<()>>>);

impl WithinTrial {
    /// Waits for it to finish.
    pub fn finish(self) -> Result<()> {
        for thread in self.0 {
            let ended = thread
                .join()
                .ok()
                .context("a maintenance thread panicked")?;
            ended.context("cannot run checkpoint or vacuum during a trial")?;
        }
        Ok(())
    }
}

fn is_checkpoint_due(connection: &mut dyn SqlConnection) -> Result<bool> {
    let mut first = |sql: &str| -> Result<Option<String>> {
        Ok(connection
            .query(sql)?
            .into_iter()
            .flatten()
            .flatten()
            .next())
    };
    let version = first("show server_version_num")?;
    let is_old = version.and_then(|it| it.parse::<u32>().ok()) < Some(100_000);
    let is_due = first(CHECKPOINT_DUE[usize::from(is_old)])?;
    Ok(is_due.as_deref() == Some("t"))
}

/// Runs the commands that a query lists.
fn run_listed(connection: &mut dyn SqlConnection, sql: &str) -> Result<()> {
    for command in connection.query(sql)?.into_iter().flatten().flatten() {
        connection.execute(&command)?;
    }
    Ok(())
}
