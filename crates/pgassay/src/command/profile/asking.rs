//! A look at a server of another machine: nothing but what it answers, which is the lowest tier.
//!
//! Its sessions are asked for some times a second, in one transaction that is rolled back, so that our
//! questions are not among the transactions that are counted. Shares of these looks stand for shares
//! of time here, since nothing tells totals: an answer comes when the server has a processor left, so
//! on a full machine what is at work is met too seldom.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pgassay_core::finding::diagnose_observation;
use pgassay_core::observation::{Observation, SCHEMA, Subject, WaitSource, Waits};
use pgassay_core::run::Check;
use pgassay_profile::{Access, Activity, WaitLog};

use super::connection::{Elsewhere, transactions};
use super::watching::unix_us;
use crate::checks;
use crate::command::run::major_of;
use crate::interrupt::Interrupt;
use crate::laboratory::waits::{ASKED_HZ, seen};

/// Asks until the time is over, or the user stops it.
pub fn observe(
    server: Elsewhere,
    duration: Duration,
    interrupt: &Interrupt,
) -> Result<Observation> {
    let Elsewhere {
        exchange,
        place,
        why,
    } = server;
    let unanswered = || format!("the server at {place} does not tell what its sessions do");
    let major = exchange.parameter("server_version").map(major_of);
    let mut activity = Activity::open(exchange, false).with_context(unanswered)?;
    let started_us = unix_us();
    let before = transactions(activity.exchange())?;
    activity.exchange().query("begin")?;
    let asked = ask(&mut activity, duration, interrupt).with_context(unanswered)?;
    activity.exchange().query("rollback")?;
    let after = transactions(activity.exchange())?;
    let waits = seen(WaitSource::PgStatActivity, asked.log, 0.0);
    let mut observation = Observation {
        schema: SCHEMA.to_owned(),
        pgassay: env!("CARGO_PKG_VERSION").to_owned(),
        started_us,
        window_us: micros(asked.window),
        frequency_hz: ASKED_HZ,
        limits: limits(&place, &format!("{why:#}"), &waits),
        subject: Subject {
            postmaster_pid: None,
            place: Some(place),
            backend_pid: None,
            major,
        },
        transactions: Some(after.saturating_sub(before)),
        backends: None,
        sessions: asked.sessions.len() as u32,
        backends_present_us: micros(asked.present),
        background: Vec::new(),
        profile: None,
        waits: Some(waits),
        tier: Some(checks::tier(&Access::without_processes())),
        findings: Vec::new(),
    };
    observation.findings = diagnose_observation(&observation);
    Ok(observation)
}

/// What the server answered.
#[derive(Default)]
struct Asked {
    log: WaitLog<pgassay_profile::NamedWait>,
    sessions: BTreeSet<u32>,
    window: Duration,
    /// How long sessions were there, summed: each look stands for the time since the last.
    present: Duration,
}

fn ask<S: std::io::Read + std::io::Write>(
    activity: &mut Activity<S>,
    duration: Duration,
    interrupt: &Interrupt,
) -> Result<Asked> {
    let mut asked = Asked::default();
    let begun = Instant::now();
    let mut looked = begun;
    while looked - begun < duration && interrupt.check().is_ok() {
        let next = looked + Duration::from_secs(1) / ASKED_HZ;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        let sessions = asked.log.ask_of_all(activity)?;
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
        value: "elsewhere".to_owned(),
        limits: Some(format!(
            "the server at {place} does not run on this machine, or in another container ({why}): what \
             follows is what it answered {ASKED_HZ} times a second; there are no totals of CPU time, \
             no stacks, and shares of looks stand for shares of time"
        )),
        mend: Some("run pgassay on the server's machine".to_owned()),
    }];
    if waits.unreadable > 0 {
        limits.push(Check {
            name: "sessions".to_owned(),
            value: "some hidden".to_owned(),
            limits: Some(
                "of some sessions the server told nothing: they are other users', or \
                 track_activities is off"
                    .to_owned(),
            ),
            mend: Some("grant pg_monitor to the user that asks".to_owned()),
        });
    }
    limits
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
