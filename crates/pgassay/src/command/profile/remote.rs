//! Profiles a server on another machine by sampling `pg_stat_activity`, the lowest access tier.
//!
//! All samples are taken in one transaction that is rolled back. If the server ends it, what was sampled until then
//! remains. Shares of samples stand for shares of time, because no totals are available. The server answers only when
//! it has a free CPU, so on a saturated machine the samples underestimate CPU work.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pgassay_diagnosis::diagnose_observation;
use pgassay_lab::connector::TimedStream;
use pgassay_lab::system_env::unix_us;
use pgassay_lab::waits::{ACTIVITY_HZ, waits_of};
use pgassay_lab::watch::{LiveWatch, OwnTransactions, pause_after_query};
use pgassay_lab::{Interrupt, major_of};
use pgassay_model::check::Check;
use pgassay_model::waits::{WaitSource, Waits};
use pgassay_profile::{Access, ActivitySampler, NamedWait, WaitLog};
use pgassay_record::observation::{Observation, SCHEMA, Subject};
use pgassay_wire::Exchange;

use super::connection::{
    EndedTransactions, INCOMPLETE, RemoteServer, TransactionCounter, discard_incomplete_count,
    leave_out_autovacuum, note_workers,
};
use super::overhead::{OverheadGuard, OverheadLimit};
use super::sessions::{SessionsToWatch, result_of, suspension, with_connections};
use crate::checks;
use crate::exit::text_of;

/// Samples the server until the time is over or the user interrupts it.
pub fn observe(
    server: RemoteServer,
    sessions: &SessionsToWatch,
    limits_of_time: (Duration, Option<OverheadLimit>),
    interrupt: &Interrupt,
) -> Result<Observation> {
    let (exchange, place) = (server.exchange, server.place);
    let no_activity = || format!("cannot read session activity from the server at {place}");
    let major = exchange.parameter("server_version").map(major_of);
    let counter = TransactionCounter::of(&exchange);
    let mut activity = ActivitySampler::open_counted(exchange, false).with_context(no_activity)?;
    let (mut watch, no_sessions) = sessions.open(None);
    let own_pids = watch.as_ref().map(LiveWatch::own_pids).unwrap_or_default();
    let own = settle(activity.exchange(), &counter, watch.as_mut(), interrupt)?;
    let started_us = unix_us();
    let before = counter.read(activity.exchange(), &own)?;
    let own_pid = begin(activity.exchange(), major.as_deref())?;
    if let Some(watch) = &watch {
        watch.leave_out(own_pid);
    }
    let sampler = (&mut activity, &own_pids);
    interrupt.take_suspended();
    let (asked, incomplete) = sample_and_watch(sampler, watch.as_mut(), limits_of_time, interrupt)?;
    let after = match asked.failed {
        Some(error) => Err(error),
        None => end(&mut activity, &counter, &own),
    };
    if asked.log.sweeps == 0
        && let Err(error) = after
    {
        return Err(error.context(no_activity()));
    }
    let cut_off = |error| cut_off(error, asked.window);
    let not_sampled = after.as_ref().err().map(cut_off);
    let waits = waits_of(WaitSource::PgStatActivity, asked.log, 0.0);
    let mut observation = Observation {
        schema: SCHEMA.to_owned(),
        pgassay_version: env!("CARGO_PKG_VERSION").to_owned(),
        started_us,
        window_us: micros(asked.window),
        frequency_hz: ACTIVITY_HZ,
        limitations: limits(&place, &format!("{:#}", server.why), &waits),
        subject: Subject {
            postmaster_pid: None,
            address: Some(place),
            backend_pid: None,
            major,
        },
        transactions: after.ok().map(|after| before.others_until(after)),
        backends: None,
        sessions: asked.sessions.len() as u32,
        backends_present_us: micros(asked.present),
        ended_cpu_us: None,
        background: Vec::new(),
        profile: None,
        waits: Some(waits),
        tier: Some(checks::tier(&Access::without_processes())),
        // Samples and transactions have one connection.
        activity: watch.map(|it| with_connections(it.finish(), 1)),
        findings: Vec::new(),
    };
    let suspended = suspension(interrupt);
    add(&mut observation, [not_sampled, no_sessions, suspended]);
    add(&mut observation, incomplete);
    discard_incomplete_count(&mut observation);
    leave_out_autovacuum(&mut observation);
    note_workers(&mut observation);
    observation.findings = diagnose_observation(&observation);
    Ok(observation)
}

fn add(observation: &mut Observation, missing: impl IntoIterator<Item = Option<Check>>) {
    let missing = missing.into_iter().flatten();
    observation.limitations.extend(missing);
}

/// See [`TransactionCounter::settle`]. Returns the transactions on the connections of the watch.
fn settle(
    exchange: &mut Exchange<TimedStream>,
    counter: &TransactionCounter,
    mut watch: Option<&mut LiveWatch>,
    interrupt: &Interrupt,
) -> Result<Vec<OwnTransactions>> {
    let mut own = Vec::new();
    if let Some(watch) = &mut watch {
        watch.leave_out_transactions(&counter.own);
        own = watch.own_transactions();
    }
    let report = || watch.map_or(Ok(()), LiveWatch::report_transactions);
    counter.settle(exchange, interrupt, report)?;
    Ok(own)
}

/// Samples on one connection while the watch reads on others. Returns why the watch ended early.
fn sample_and_watch(
    (activity, own_pids): (&mut ActivitySampler<TimedStream>, &BTreeSet<u32>),
    watch: Option<&mut LiveWatch>,
    (duration, overhead_max): (Duration, Option<OverheadLimit>),
    interrupt: &Interrupt,
) -> Result<(ActivityRecord, [Option<Check>; 2])> {
    let until = Instant::now() + duration;
    // The backends are on another machine.
    let mut guard = overhead_max.map(|it| OverheadGuard::new(it, []));
    let (sampled, exceeded) = OverheadGuard::run(guard.as_mut(), interrupt, |ending| {
        thread::scope(|scope| {
            let watching = watch.map(|watch| {
                thread::Builder::new().spawn_scoped(scope, move || watch.run_until(until, ending))
            });
            let query = |log: &mut WaitLog<_>| Ok(log.query_all_sessions(activity, own_pids)?);
            let asked = sample_activity(query, duration, ending);
            (asked, watching.and_then(result_of))
        })
    })?;
    let (asked, incomplete) = sampled;
    let exceeded = exceeded.map(|it| it.limitation(asked.window, duration));
    Ok((asked, [exceeded, incomplete]))
}

/// Begins the transaction of all samples. The server may limit how long a transaction lasts, and how long it
/// is idle; this one lasts as long as the profile, and its connection is gone with pgassay. It keeps no snapshot
/// between two samples, which would hold back VACUUM. Returns the PID of the backend: behind a pooler, it is known only
/// within a transaction.
fn begin(exchange: &mut Exchange<TimedStream>, major: Option<&str>) -> Result<u32> {
    let major = major.and_then(|it| it.parse().ok()).unwrap_or(0);
    let lasting = if major >= 17 {
        "; set local transaction_timeout = 0"
    } else {
        ""
    };
    exchange.run(&format!(
        "begin transaction isolation level read committed read only; \
         set local search_path = pg_catalog, pg_temp; set local statement_timeout = '10s'; \
         set local lock_timeout = '100ms'; set local application_name = 'pgassay'; \
         set local idle_in_transaction_session_timeout = '5min'{lasting}"
    ))?;
    let pid = exchange.value("select pg_backend_pid()")?;
    let pid = pid.and_then(|it| it.parse().ok());
    pid.context("the server does not say which backend answers")
}

/// Ends it, and returns the transactions ended so far.
fn end(
    activity: &mut ActivitySampler<TimedStream>,
    counter: &TransactionCounter,
    own: &[OwnTransactions],
) -> Result<EndedTransactions> {
    activity.exchange().query("rollback")?;
    counter.own.end(Instant::now());
    counter.read(activity.exchange(), own)
}

/// Samples that ended early: those that were taken remain.
fn cut_off(error: &anyhow::Error, window: Duration) -> Check {
    let seconds = window.as_secs_f64();
    Check {
        name: "pg_stat_activity".to_owned(),
        value: INCOMPLETE.to_owned(),
        limitation: Some(format!(
            "pg_stat_activity could be sampled only for {seconds:.1} s, and transactions were not \
             counted: {}",
            text_of(error)
        )),
        fix: None,
    }
}

/// The samples collected.
#[derive(Default)]
struct ActivityRecord {
    log: WaitLog<NamedWait>,
    sessions: BTreeSet<u32>,
    window: Duration,
    /// Total session time: each sample stands for the time since the previous one.
    present: Duration,
    /// Why it ended early.
    failed: Option<anyhow::Error>,
}

/// Samples with `query`, which returns the PIDs that it saw, until the time is over, the user interrupts it,
/// or a query fails. Queries use at most a tenth of one backend's time.
fn sample_activity(
    mut query: impl FnMut(&mut WaitLog<NamedWait>) -> Result<Vec<u32>>,
    duration: Duration,
    interrupt: &Interrupt,
) -> ActivityRecord {
    let mut asked = ActivityRecord::default();
    let begun = Instant::now();
    let until = begun + duration;
    let mut looked = begun;
    let every = Duration::from_secs(1) / ACTIVITY_HZ;
    let mut next = begun + every;
    while looked < until && interrupt.check().is_ok() {
        interrupt.sleep_until(next.min(until));
        let asked_at = Instant::now();
        let sessions = match query(&mut asked.log) {
            Ok(sessions) => sessions,
            Err(error) => {
                asked.failed = Some(error);
                break;
            }
        };
        let now = Instant::now();
        asked.present += (now - looked) * sessions.len() as u32;
        asked.sessions.extend(sessions);
        looked = now;
        next = now + every.max(pause_after_query(now - asked_at));
    }
    asked.window = looked - begun;
    asked
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
        let asked = sample_activity(query, duration, &Interrupt::default());
        // One after 50 ms, and one after ten times 30 ms each; the last one at the end.
        assert!(queries <= 3, "{queries}");
        assert!(asked.window >= duration);
        assert_eq!(asked.present, asked.window * 2);
    }

    /// Regression: a sampling connection that failed discarded all samples before.
    #[test]
    fn a_query_that_fails_keeps_the_samples_before_it() {
        let mut queries = 0;
        let query = |log: &mut WaitLog<NamedWait>| {
            queries += 1;
            if queries == 3 {
                anyhow::bail!("terminating connection");
            }
            log.sweeps += 1;
            Ok(vec![1])
        };
        let asked = sample_activity(query, Duration::from_mins(10), &Interrupt::default());
        assert_eq!((asked.log.sweeps, queries), (2, 3));
        assert!(!asked.window.is_zero() && asked.present == asked.window);
        let check = cut_off(&asked.failed.unwrap(), asked.window);
        let limitation = check.limitation.unwrap();
        assert!(
            limitation.contains("terminating connection"),
            "{limitation}"
        );
    }
}
