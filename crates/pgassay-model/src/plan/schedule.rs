//! The number and length of trials, and the number of connections that they need.

use super::{Condition, Overrides, Point, Schedule, ServerPlan};
use crate::study::{DriverKind, Study, StudyError, StudySource};

/// In shorter windows, switching between variants costs more time than the variants themselves.
const TRIAL_US_MIN: u64 = 50_000;
const SETTLE_US: u64 = 20_000;
const WARM_UP_WINDOW_US: u64 = 50_000;
const WARM_UP_CAP_US: u64 = 2_000_000;
/// Connections in addition to the clients': setup, checks, a user with psql.
const CONNECTIONS_SPARE: u32 = 10;

/// Limit on pairs: more would take weeks, however short their trials.
const PAIRS_MAX: u32 = 100_000;
/// Limit on threads of the load generator per point.
const THREADS_MAX: u32 = 1024;
/// Limit on the connections of a server: `MAX_BACKENDS` in `src/include/postmaster/postmaster.h`,
/// PostgreSQL 9.6 to 17 (`storage/procnumber.h` in 18).
pub(super) const CONNECTIONS_MAX: u32 = 0x3_ffff;

/// Sets the number of connections per server: all variants of a condition stay connected at once.
pub(super) fn count_connections(
    source: &StudySource,
    servers: &mut [ServerPlan],
    points: &[Point],
    conditions: &[Condition],
    variants: usize,
) -> Result<(), StudyError> {
    for (index, server) in servers.iter_mut().enumerate() {
        let at_once = points.chunks(variants).map(|of_condition| {
            let sharing = of_condition
                .iter()
                .filter(|point| point.server == index && point.driver == DriverKind::Postgres)
                .count() as u64;
            sharing * u64::from(conditions[of_condition[0].condition].clients)
        });
        let needed = at_once.max().unwrap_or(0)
            + u64::from(server.idle_connections)
            + u64::from(CONNECTIONS_SPARE);
        let fits = u32::try_from(needed)
            .ok()
            .filter(|it| *it <= CONNECTIONS_MAX);
        server.connections = fits.ok_or_else(|| {
            let message = format!(
                "the variants need {needed} connections to one server at once, and PostgreSQL allows \
                 {CONNECTIONS_MAX} at most; use fewer clients or idle connections"
            );
            source.error_at(&["conditions", "clients"], message)
        })?;
    }
    Ok(())
}

pub(super) fn schedule(
    study: &Study,
    source: &StudySource,
    overrides: &Overrides,
    points: usize,
) -> Result<Schedule, StudyError> {
    let length = &study.length;
    let quick = study.quick.as_ref().filter(|_| overrides.quick);
    let of_quick = quick.and_then(|quick| quick.pairs);
    let blocks = overrides.pairs.or(of_quick).unwrap_or(length.pairs);
    if blocks < 2 {
        return Err(source.error_at(
            &["length", "pairs"],
            "`pairs` must be at least 2: one pair gives no confidence interval",
        ));
    }
    if blocks > PAIRS_MAX {
        let message = format!("`pairs` must be at most {PAIRS_MAX}");
        return Err(source.error_at(&["length", "pairs"], message));
    }
    if !(1..=THREADS_MAX).contains(&length.threads) {
        let message = format!("`threads` must be between 1 and {THREADS_MAX}");
        return Err(source.error_at(&["length", "threads"], message));
    }
    let chosen = if overrides.quick {
        length.quick
    } else {
        length.full
    };
    let total = overrides.length.unwrap_or(chosen).duration().as_micros() as u64;
    let profiled = u32::from(!overrides.without_profile);
    let schedule = Schedule {
        blocks,
        trial_us: TRIAL_US_MIN,
        profiled,
        settle_us: SETTLE_US,
        warm_up_window_us: WARM_UP_WINDOW_US,
        warm_up_cap_us: WARM_UP_CAP_US,
        threads: length.threads,
        seed: overrides.seed,
        blocks_per_server_start: length.restart_every,
        maintenance: study.maintenance,
        plans: study.plans && !overrides.without_plans,
    };
    let trials = points as u64 * schedule.trials_per_point();
    // Round to whole milliseconds for readability.
    let trial_us = (total / trials / 1000 * 1000).max(TRIAL_US_MIN);
    Ok(Schedule {
        trial_us,
        ..schedule
    })
}
