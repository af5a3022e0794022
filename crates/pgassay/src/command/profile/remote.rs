//! Profiles a server on another machine by sampling `pg_stat_activity`, the lowest access tier.
//!
//! All samples are taken in one transaction that is rolled back, so they do not add to the
//! transaction count. Shares of samples stand for shares of time, because no totals are available.
//! The server answers only when it has a free CPU, so on a saturated machine the samples
//! underestimate CPU work.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pgassay_diagnosis::diagnose_observation;
use pgassay_lab::local_server::number;
use pgassay_lab::system_env::unix_us;
use pgassay_lab::waits::{ACTIVITY_HZ, waits_of};
use pgassay_lab::watch::LiveWatch;
use pgassay_lab::{Interrupt, major_of};
use pgassay_model::check::Check;
use pgassay_model::waits::{WaitSource, Waits};
use pgassay_profile::{Access, ActivitySampler, WaitLog};
use pgassay_record::observation::{Observation, SCHEMA, Subject};

use super::connection::{OWN_TRANSACTIONS, RemoteServer, transactions};
use super::sessions::{SessionsToWatch, result_of};
use crate::checks;

/// Samples the server until the time is over or the user interrupts it.
pub fn observe(
    server: RemoteServer,
    sessions: &SessionsToWatch,
    duration: Duration,
    interrupt: &Interrupt,
) -> Result<Observation> {
    let RemoteServer {
        exchange,
        place,
        why,
    } = server;
    let no_activity = || format!("cannot read session activity from the server at {place}");
    let major = exchange.parameter("server_version").map(major_of);
    let mut activity = ActivitySampler::open(exchange, false).with_context(no_activity)?;
    let started_us = unix_us();
    let before = transactions(activity.exchange())?;
    let (mut watch, no_sessions) = sessions.open(None);
    let own_pids = watch.as_ref().map(LiveWatch::own_pids).unwrap_or_default();
    let own = watch.as_ref().map_or(0, LiveWatch::own_transactions);
    activity.exchange().run(BEGIN)?;
    // Behind a pooler, the backend is known only within a transaction.
    let own_pid = number(activity.exchange(), "select pg_backend_pid()")? as u32;
    if let Some(watch) = &watch {
        watch.leave_out(own_pid);
    }
    let until = Instant::now() + duration;
    let (asked, incomplete) = thread::scope(|scope| {
        let watching = watch.as_mut().map(|watch| {
            thread::Builder::new().spawn_scoped(scope, || watch.run_until(until, interrupt))
        });
        let asked = sample_activity(&mut activity, &own_pids, duration, interrupt);
        (asked, watching.and_then(result_of))
    });
    let asked = asked.with_context(no_activity)?;
    activity.exchange().query("rollback")?;
    let after = transactions(activity.exchange())?;
    let own = watch.as_ref().map_or(0, LiveWatch::own_transactions) - own;
    let waits = waits_of(WaitSource::PgStatActivity, asked.log, 0.0);
    let mut observation = Observation {
        schema: SCHEMA.to_owned(),
        pgassay_version: env!("CARGO_PKG_VERSION").to_owned(),
        started_us,
        window_us: micros(asked.window),
        frequency_hz: ACTIVITY_HZ,
        limitations: limits(&place, &format!("{why:#}"), &waits),
        subject: Subject {
            postmaster_pid: None,
            address: Some(place),
            backend_pid: None,
            major,
        },
        transactions: Some(after.saturating_sub(before + own + OWN_TRANSACTIONS)),
        backends: None,
        sessions: asked.sessions.len() as u32,
        backends_present_us: micros(asked.present),
        background: Vec::new(),
        profile: None,
        waits: Some(waits),
        tier: Some(checks::tier(&Access::without_processes())),
        activity: watch.map(LiveWatch::finish),
        findings: Vec::new(),
    };
    observation.limitations.extend(no_sessions);
    observation.limitations.extend(incomplete);
    observation.findings = diagnose_observation(&observation);
    Ok(observation)
}

/// Begins the transaction of all samples.
const BEGIN: &str = "begin transaction read only; set local statement_timeout = '10s'; \
                     set local lock_timeout = '100ms'; set local application_name = 'pgassay'";

/// The samples collected.
#[derive(Default)]
struct ActivityRecord {
    log: WaitLog<pgassay_profile::NamedWait>,
    sessions: BTreeSet<u32>,
    window: Duration,
    /// Total session time: each sample stands for the time since the previous one.
    present: Duration,
}

fn sample_activity<S: std::io::Read + std::io::Write>(
    activity: &mut ActivitySampler<S>,
    own_pids: &BTreeSet<u32>,
    duration: Duration,
    interrupt: &Interrupt,
) -> Result<ActivityRecord> {
    let mut asked = ActivityRecord::default();
    let begun = Instant::now();
    let mut looked = begun;
    while looked - begun < duration && interrupt.check().is_ok() {
        let next = looked + Duration::from_secs(1) / ACTIVITY_HZ;
        thread::sleep(next.saturating_duration_since(Instant::now()));
        let sessions = asked.log.query_all_sessions(activity, own_pids)?;
        let now = Instant::now();
        asked.present += (now - looked) * sessions.len() as u32;
        asked.sessions.extend(sessions);
        looked = now;
    }
    asked.window = looked - begun;
    Ok(asked)
}

fn limits(place: &str, why: &str, waits: &Waits) -> Vec<Check> {
    let mut limits = vec![Check {
        name: "server".to_owned(),
        value: "remote".to_owned(),
        limitation: Some(format!(
            "the server at {place} runs on another machine or in another container ({why}): pgassay \
             can only sample pg_stat_activity, {ACTIVITY_HZ} times per second; there are no CPU totals \
             and no stacks, and shares of samples stand for shares of time"
        )),
        fix: Some("run pgassay on the server's host".to_owned()),
    }];
    if waits.unreadable > 0 {
        limits.push(Check {
            name: "sessions".to_owned(),
            value: "some hidden".to_owned(),
            limitation: Some(
                "no activity data for some sessions: they belong to other users, or \
                 track_activities is off"
                    .to_owned(),
            ),
            fix: Some("grant pg_monitor to the user that pgassay connects as".to_owned()),
        });
    }
    limits
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
