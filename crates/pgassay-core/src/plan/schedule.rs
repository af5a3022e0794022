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

/// Sets the number of connections per server: all variants of a condition stay connected at once.
pub(super) fn count_connections(
    servers: &mut [ServerPlan],
    points: &[Point],
    conditions: &[Condition],
    variants: usize,
) {
    for (index, server) in servers.iter_mut().enumerate() {
        let at_once = points.chunks(variants).map(|of_condition| {
            let sharing = of_condition
                .iter()
                .filter(|point| point.server == index && point.driver == DriverKind::Postgres)
                .count() as u32;
            sharing * conditions[of_condition[0].condition].clients
        });
        server.connections =
            at_once.max().unwrap_or(0) + server.idle_connections + CONNECTIONS_SPARE;
    }
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
    if length.threads == 0 {
        return Err(source.error_at(&["length", "threads"], "`threads` must be at least 1"));
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
    };
    let trials = points as u64 * schedule.trials_per_point();
    // Round to whole milliseconds for readability.
    let trial_us = (total / trials / 1000 * 1000).max(TRIAL_US_MIN);
    Ok(Schedule {
        trial_us,
        ..schedule
    })
}
