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
use pgassay_lab::watch::{LiveWatch, pause_after_query};
use pgassay_lab::{Interrupt, major_of};
use pgassay_model::check::Check;
use pgassay_model::waits::{WaitSource, Waits};
use pgassay_profile::{Access, ActivitySampler, NamedWait, WaitLog};
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
        let query =
            |log: &mut WaitLog<_>| Ok(log.query_all_sessions(&mut activity, &own_pids)?);
        let asked = sample_activity(query, duration, interrupt);
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

/// How soon an interrupt is noticed.
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// Begins the transaction of all samples.
const BEGIN: &str = "begin transaction read only; set local statement_timeout = '10s'; \
                     set local lock_timeout = '100ms'; set local application_name = 'pgassay'";

/// The samples collected.
#[derive(Default)]
struct ActivityRecord {
    log: WaitLog<NamedWait>,
    sessions: BTreeSet<u32>,
    window: Duration,
    /// Total session time: each sample stands for the time since the previous one.
    present: Duration,
}

/// Samples with `query`, which returns the PIDs that it saw, until the time is over, the user interrupts it,
/// or a query fails. Queries use at most a tenth of one backend's time.
fn sample_activity(
    mut query: impl FnMut(&mut WaitLog<NamedWait>) -> Result<Vec<u32>>,
    duration: Duration,
    interrupt: &Interrupt,
) -> Result<ActivityRecord> {
    let mut asked = ActivityRecord::default();
    let begun = Instant::now();
    let until = begun + duration;
    let mut looked = begun;
    let every = Duration::from_secs(1) / ACTIVITY_HZ;
    let mut next = begun + every;
    while looked < until && interrupt.check().is_ok() {
        sleep_until(next.min(until), interrupt);
        let asked_at = Instant::now();
        let sessions = query(&mut asked.log)?;
        let now = Instant::now();
        asked.present += (now - looked) * sessions.len() as u32;
        asked.sessions.extend(sessions);
        looked = now;
        next = now + every.max(pause_after_query(now - asked_at));
    }
    asked.window = looked - begun;
    Ok(asked)
}

/// Sleeps, unless the user interrupts it.
fn sleep_until(until: Instant, interrupt: &Interrupt) {
    let left = || until.saturating_duration_since(Instant::now());
    while !left().is_zero() && !interrupt.is_requested() {
        thread::sleep(left().min(CHECK_EVERY));
    }
}

fn limits(place: &str, why: &str, waits: &Waits) -> Vec<Check> {
    let mut limits = vec![Check {
        name: "server".to_owned(),
        value: "remote".to_owned(),
        limitation: Some(format!(
            "the server at {place} runs on another machine or in another container ({why}): pgassay \
             can only sample pg_stat_activity, at most {ACTIVITY_HZ} times per second; there are no \
             CPU totals and no stacks, and shares of samples stand for shares of time"
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: on a server with 5000 connections, where a query takes 50 ms, sampling used half a core.
    #[test]
    fn expensive_queries_use_at_most_a_tenth_of_a_backend() {
        let mut queries = 0;
        let query = |_: &mut WaitLog<NamedWait>| {
            queries += 1;
            thread::sleep(Duration::from_millis(30));
            Ok(vec![1, 2])
        };
        let duration = Duration::from_millis(600);
        let asked = sample_activity(query, duration, &Interrupt::default()).unwrap();
        // One after 50 ms, and one after ten times 30 ms each; the last one at the end.
        assert!(queries <= 3, "{queries}");
        assert!(asked.window >= duration);
        assert_eq!(asked.present, asked.window * 2);
    }
}
