//! The number and length of trials, and the number of connections that they need.

use super::{Condition, Overrides, Plan, Point, Schedule, ServerPlan, StoppingRule};
use crate::study::{DriverKind, Length, Percentage, Study, StudyError, StudySource, limits};

/// In shorter windows, switching between variants costs more time than the variants themselves.
const TRIAL_US_MIN: u64 = 50_000;
const SETTLE_US: u64 = 20_000;
const WARM_UP_WINDOW_US: u64 = 50_000;
const WARM_UP_CAP_US: u64 = 2_000_000;
/// Connections in addition to the clients': setup, checks, a user with psql.
pub const CONNECTIONS_SPARE: u32 = 10;

/// A sequential comparison ends after this number of server starts at the latest, each with the mean of
/// its pairs; or after this number of pairs, if servers are not restarted. The critical values in
/// `pgassay_stats::sequential` are for these numbers.
const SERVER_STARTS_SEQUENTIAL_MAX: u32 = 12;
const PAIRS_SEQUENTIAL_MAX: u32 = 48;
/// Trials of a server start, which cost less than the start itself: repeats of two timed ones per point,
/// and profiled ones. The first choice whose trials are not shorter than [`TRIAL_US_WORTH`], or the last: between
/// two trials, 25 to 80 ms pass.
const TRIALS_PER_SERVER_START: [(u32, u32); 3] = [(4, 2), (2, 1), (1, 1)];
const TRIAL_US_WORTH: u64 = 100_000;
/// A time limit shortens trials so that this number of server starts, or of pairs, fits: the first analysis follows 4,
/// and more than the estimated time may pass.
const UNITS_WITHIN_LIMIT: u64 = 6;

/// Limit on the connections of a server.
pub(super) const CONNECTIONS_MAX: u32 = *limits::CLIENTS.end();

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

/// Number of blocks and of trials in them.
#[derive(Clone, Copy)]
struct BlockCounts {
    stopping: StoppingRule,
    blocks: u32,
    repeats: u32,
    profiled: u32,
}

impl BlockCounts {
    fn fixed(blocks: u32) -> Self {
        Self {
            stopping: StoppingRule::AllBlocks,
            blocks,
            repeats: 1,
            profiled: 1,
        }
    }

    /// The choices of a schedule with this number of pairs, best first. A single variant, such as that of a curve, has
    /// no pairs. A reset before each trial can cost more than the trial, so there are as few as possible.
    fn by_pairs(pairs: u32, study: &Study, has_own_server: bool) -> Vec<Self> {
        let mut variants = study.variant.iter();
        let has_reset = study.data.reset.is_some() || variants.any(|it| it.reset.is_some());
        let is_restarted = has_own_server && study.length.restart_every > 0;
        if !is_restarted || has_reset || study.variant.len() < 2 {
            return vec![Self::fixed(pairs)];
        }
        Self::fixed(pairs).by_repeats(study.length.restart_every)
    }

    /// The choices of a sequential schedule, or of the first stage of two, best first. The first stage is as
    /// long as a sequential run at most: a shorter one has a larger quantile, and so a longer second stage.
    fn by_units(stopping: StoppingRule, length: &Length, has_own_server: bool) -> Vec<Self> {
        let each = length.restart_every;
        let of_blocks = |blocks: u32| Self {
            stopping,
            ..Self::fixed(blocks)
        };
        if each == 0 || !has_own_server {
            return vec![of_blocks(PAIRS_SEQUENTIAL_MAX)];
        }
        of_blocks(SERVER_STARTS_SEQUENTIAL_MAX * each).by_repeats(each)
    }

    /// The same number of blocks, this many of them per server start, with more or fewer repeats in each.
    fn by_repeats(&self, blocks_per_start: u32) -> Vec<Self> {
        let of_start = |(repeats, profiled): (u32, u32)| Self {
            repeats: (repeats / blocks_per_start).max(1),
            profiled: (profiled / blocks_per_start).max(1),
            ..*self
        };
        TRIALS_PER_SERVER_START.into_iter().map(of_start).collect()
    }
}

/// The possible schedules of a plan with this number of points, best first; `has_own_server` says whether there is a
/// server that can be restarted. Never empty.
pub(super) fn schedules(
    study: &Study,
    source: &StudySource,
    overrides: &Overrides,
    (points, has_own_server): (usize, bool),
) -> Result<Vec<Schedule>, StudyError> {
    let length = &study.length;
    check_length(study, source, overrides)?;
    let ending = Ending::of(study, overrides);
    let choices = match ending {
        Ending::Pairs(pairs) => BlockCounts::by_pairs(pairs, study, has_own_server),
        Ending::Verdicts => BlockCounts::by_units(StoppingRule::Sequential, length, has_own_server),
        Ending::HalfWidth(_) => {
            BlockCounts::by_units(StoppingRule::Precision, length, has_own_server)
        }
    };
    let chosen = if overrides.quick {
        length.quick
    } else {
        length.full
    };
    let total = overrides.length.unwrap_or(chosen).duration().as_micros() as u64;
    let schedules = choices.iter().map(|blocks| {
        let schedule = of_blocks(study, overrides, blocks);
        let trials = points as u64 * schedule.trials_per_point();
        // Round to whole milliseconds for readability.
        let trial_us = total / trials / 1000 * 1000;
        Schedule {
            trial_us: trial_us.max(TRIAL_US_MIN),
            ..schedule
        }
    });
    Ok(schedules.collect())
}

/// Gives a plan the first schedule whose trials are not shorter than [`TRIAL_US_WORTH`], or the last.
pub(super) fn choose(plan: &mut Plan, schedules: &[Schedule], overrides: &Overrides) {
    // Who gives a length decides how long trials are; a gate is comparable to baselines with trials of equal length.
    let may_shorten = overrides.length.is_none() && overrides.gate_limit_percent.is_none();
    for schedule in schedules {
        plan.schedule = *schedule;
        if may_shorten && schedule.stopping == StoppingRule::Sequential {
            fit_time_limit(plan);
        }
        if plan.schedule.trial_us >= TRIAL_US_WORTH {
            break;
        }
    }
}

/// Shortens trials so that [`UNITS_WITHIN_LIMIT`] fit into the time limit.
fn fit_time_limit(plan: &mut Plan) {
    let Some(limit_us) = plan.schedule.max_time_us else {
        return;
    };
    let units = if plan.restarts_servers() {
        plan.schedule.server_starts().len() as u64
    } else {
        u64::from(plan.schedule.blocks)
    };
    let all_us = limit_us.saturating_mul(units) / UNITS_WITHIN_LIMIT;
    let others_us = plan.estimated_us() - plan.measurement_us();
    let each_us = all_us.saturating_sub(others_us) / plan.trials() / 1000 * 1000;
    let planned_us = plan.schedule.trial_us;
    plan.schedule.trial_us = each_us.clamp(TRIAL_US_MIN, planned_us);
}

/// The schedule with these blocks, with trials of the shortest length.
fn of_blocks(study: &Study, overrides: &Overrides, blocks: &BlockCounts) -> Schedule {
    let max_time = overrides
        .max_time
        .map(|it| it.duration().as_micros() as u64);
    Schedule {
        blocks: blocks.blocks,
        stopping: blocks.stopping,
        repeats: blocks.repeats,
        gate_limit_percent: overrides.gate_limit_percent,
        half_width_percent: match Ending::of(study, overrides) {
            Ending::HalfWidth(wanted) => Some(wanted.percent()),
            Ending::Pairs(_) | Ending::Verdicts => None,
        },
        max_time_us: max_time.filter(|_| blocks.stopping != StoppingRule::AllBlocks),
        trial_us: TRIAL_US_MIN,
        profiled: if overrides.without_profile {
            0
        } else {
            blocks.profiled
        },
        settle_us: SETTLE_US,
        warm_up_window_us: WARM_UP_WINDOW_US,
        warm_up_cap_us: WARM_UP_CAP_US,
        threads: overrides.threads.unwrap_or(study.length.threads),
        seed: overrides.seed,
        blocks_per_server_start: study.length.restart_every,
        maintenance: study.maintenance,
        plans: study.plans && !overrides.without_plans,
        // Who names a running server has not asked for a change of the machine that it may share with others.
        keep_cpus_awake: overrides
            .keep_cpus_awake
            .unwrap_or(study.keep_cpus_awake && overrides.dsn.is_none()),
    }
}

/// What ends a run.
#[derive(Debug, Clone, Copy)]
enum Ending {
    /// A fixed number of pairs.
    Pairs(u32),
    /// Intervals of this half-width.
    HalfWidth(Percentage),
    Verdicts,
}

impl Ending {
    /// What the user asks for, and otherwise what the study says. A gate decides when to stop, whatever the
    /// study says; and a time limit, whatever its number of pairs.
    fn of(study: &Study, overrides: &Overrides) -> Self {
        let is_gate = overrides.gate_limit_percent.is_some();
        if let Some(pairs) = overrides.pairs {
            return Self::Pairs(pairs);
        }
        if is_gate {
            return Self::Verdicts;
        }
        // A quick run has wider intervals.
        let of_study = study.length.half_width.filter(|_| !overrides.quick);
        if let Some(half_width) = overrides.half_width.or(of_study) {
            return Self::HalfWidth(half_width);
        }
        if overrides.max_time.is_some() {
            return Self::Verdicts;
        }
        let quick = study.quick.as_ref().filter(|_| overrides.quick);
        let of_quick = quick.and_then(|quick| quick.pairs);
        of_quick
            .or(study.length.pairs)
            .map_or(Self::Verdicts, Self::Pairs)
    }
}

fn check_length(
    study: &Study,
    source: &StudySource,
    overrides: &Overrides,
) -> Result<(), StudyError> {
    let at = |key: &str, message: String| Err(source.error_at(&["length", key], message));
    if study.length.pairs.is_some() && study.length.half_width.is_some() {
        let message = "`half_width` decides the number of pairs: remove it, or remove `pairs`";
        return at("half_width", message.to_owned());
    }
    match Ending::of(study, overrides) {
        Ending::Pairs(0 | 1) => {
            let message = "`pairs` must be at least 2: one pair gives no confidence interval";
            return at("pairs", message.to_owned());
        }
        Ending::Pairs(pairs) if pairs > *limits::PAIRS.end() => {
            return at(
                "pairs",
                format!("`pairs` must be at most {}", limits::PAIRS.end()),
            );
        }
        Ending::HalfWidth(_) | Ending::Verdicts
            if !limits::RESTART_EVERY.contains(&study.length.restart_every) =>
        {
            return at(
                "restart_every",
                format!(
                    "`restart_every` must be at most {}",
                    limits::RESTART_EVERY.end()
                ),
            );
        }
        _ => {}
    }
    if !limits::THREADS.contains(&study.length.threads) {
        let message = format!("`threads` must be between 1 and {}", limits::THREADS.end());
        return at("threads", message);
    }
    Ok(())
}
