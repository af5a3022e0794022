//! What watches the server for `pgassay top`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use pgassay_lab::connector::TimedStream;
use pgassay_lab::local_server;
use pgassay_lab::system_env::unix_us;
use pgassay_lab::watch::{LiveWatch, WatchOptions, WatchedServer};
use pgassay_lab::{Interrupt, major_of};
use pgassay_record::activity::{BlockingEpisode, CatalogActivity, IdleLockHolder, WatchCost};
use pgassay_wire::Exchange;

use super::TopArgs;
use super::state::{TopReading, TopServer};
use crate::command::profile::connection;
use crate::command::profile::overhead::{OverheadExceeded, OverheadGuard};

/// Samples for this long or until an interrupt, and returns what it saw; with tables and indexes, if
/// they are wanted.
pub type ActivityFeed = Box<dyn FnMut(FeedRequest<'_>) -> Result<TopReading>>;

/// What the screen wants next.
#[derive(Clone, Copy)]
pub struct FeedRequest<'a> {
    pub length: Duration,
    /// Tables are on the screen, or findings about them, at the end of the interval.
    pub wants_tables: &'a AtomicBool,
    /// Findings are.
    pub wants_findings: &'a AtomicBool,
    pub interrupt: &'a Interrupt,
}

/// How long an episode stays on the screen that is over.
const SHOWN_AFTER_END_US: f64 = 60e6;
/// Reading tables and indexes costs more than reading sessions.
const TABLES_EVERY: Duration = Duration::from_secs(5);
/// Findings on tables that were last read before this would not be those of now.
const TABLES_KEPT: Duration = Duration::from_mins(1);
/// Counters of statements are read at the end of an interval, but not more often.
const COUNTERS_EVERY: Duration = Duration::from_millis(900);
/// Likewise, as a multiple of what a reading takes.
const READING_PAUSE: u32 = 50;

/// Connects, and says what is watched.
pub fn open(args: &TopArgs) -> Result<(TopServer, ActivityFeed)> {
    let database = args.database.as_deref().unwrap_or_default();
    let conninfo = args.psql.conninfo(database)?;
    let (mut exchange, place) = connection::exchange(&conninfo)?;
    let version = exchange.parameter("server_version").map(str::to_owned);
    let live = local_server::find(&mut exchange).ok().map(|it| it.0);
    let ahead_us = if live.is_some() {
        0
    } else {
        clock_ahead_us(&mut exchange)
    };
    drop(exchange);
    let where_from = if live.is_some() {
        ""
    } else {
        ", not on this machine"
    };
    let server = TopServer {
        title: format!(
            "PostgreSQL {} at {place}{where_from}",
            version.as_deref().unwrap_or("(unknown version)")
        ),
        major: version.as_deref().map(major_of),
        postmaster_pid: live.as_ref().map(|it| it.postmaster_pid),
        address: live.is_none().then_some(place),
    };
    let watched = WatchedServer {
        live,
        connect: Box::new(move || Ok(connection::exchange(&conninfo)?.0)),
    };
    let options = WatchOptions {
        frequency_hz: args.frequency,
        keeps_text: !args.no_text,
        ..WatchOptions::default()
    };
    let is_local = watched.live.is_some();
    let watch = LiveWatch::open(watched, &options)?;
    let limit = CostLimit {
        guard: args.max_overhead.map(|it| OverheadGuard::new(it, [])),
        is_local,
        exceeded: None,
    };
    Ok((server, feed(watch, limit, ahead_us)))
}

/// How far the server's clock is ahead of this machine's, in microseconds; 0 if it does not say.
fn clock_ahead_us(exchange: &mut Exchange<TimedStream>) -> i64 {
    let before_us = unix_us();
    let sql = "select extract(epoch from pg_catalog.clock_timestamp())";
    let answer = exchange.value_read_committed(sql);
    let middle_us = before_us + (unix_us() - before_us) / 2;
    let seconds = answer.ok().flatten().and_then(|it| it.parse::<f64>().ok());
    seconds.map_or(0, |it| (it * 1e6) as i64 - middle_us)
}

fn feed(mut watch: LiveWatch, mut limit: CostLimit, ahead_us: i64) -> ActivityFeed {
    let started = Instant::now();
    let mut before = WatchCost::default();
    let mut tables: Option<CatalogActivity> = None;
    let mut tables_pause = ReadingPause::new(TABLES_EVERY);
    let mut holders: Vec<IdleLockHolder> = Vec::new();
    let mut holders_pause = ReadingPause::new(TABLES_EVERY);
    let mut counters_pause = ReadingPause::new(COUNTERS_EVERY);
    let mut waited = WaitsBefore::new();
    Box::new(move |request: FeedRequest<'_>| {
        limit.run(&mut watch, &request)?;
        // That of the last reading of the sessions. What follows can take seconds.
        let read_us = unix_us() + ahead_us;
        let may_read = limit.exceeded.is_none();
        if may_read && counters_pause.is_over() {
            counters_pause.time(|| watch.read_counters());
        }
        let wants_tables = request.wants_tables.load(Ordering::Relaxed);
        if may_read && wants_tables && tables_pause.is_over() {
            tables = tables_pause.time(|| watch.read_catalog());
        } else if !wants_tables && tables_pause.is_longer_than(TABLES_KEPT) {
            tables = None;
        }
        let wants_findings = request.wants_findings.load(Ordering::Relaxed);
        if may_read && wants_findings && holders_pause.is_over() {
            holders = holders_pause.time(|| watch.read_idle_holders());
        }
        // Afterward, because it says what of the tables could not be read.
        let mut activity = watch.take();
        let end_us = started.elapsed().as_secs_f64() * 1e6;
        let start_us = end_us - activity.window_us;
        let episodes = std::mem::take(&mut activity.blocking);
        let episodes = waits_since(&mut waited, episodes, activity.window_us);
        activity.blocking = recent(episodes, start_us);
        activity.catalog.clone_from(&tables);
        if wants_findings {
            activity.idle_lock_holders.clone_from(&holders);
        }
        let now = activity.cost;
        activity.cost = since(&now, &before);
        before = now;
        let present = watch.present_sessions(&activity, read_us);
        Ok(TopReading { activity, present })
    })
}

/// What the watch may cost.
struct CostLimit {
    guard: Option<OverheadGuard>,
    /// The backends of the watch run on this machine.
    is_local: bool,
    exceeded: Option<OverheadExceeded>,
}

impl CostLimit {
    /// Watches for the interval, or until it uses too much. The next time, that is an error: what was seen until then
    /// has been shown.
    fn run(&mut self, watch: &mut LiveWatch, request: &FeedRequest<'_>) -> Result<()> {
        self.exceeded.map_or(Ok(()), Err)?;
        let backends = if self.is_local {
            watch.own_pids()
        } else {
            BTreeSet::new()
        };
        if let Some(guard) = &mut self.guard {
            guard.add_backends(backends);
        }
        let until = Instant::now() + request.length;
        let run = |ending: &Interrupt| watch.run_until(until, ending);
        let (ran, exceeded) = OverheadGuard::run(self.guard.as_mut(), request.interrupt, run)?;
        match exceeded {
            Some(exceeded) if ran.is_err() => Err(exceeded.into()),
            exceeded => {
                self.exceeded = exceeded;
                ran
            }
        }
    }
}

/// The time between readings of one kind. With many tables or statements, one takes seconds of the server's time.
struct ReadingPause {
    every: Duration,
    /// When the last one ended, and how long it took.
    last: Option<(Instant, Duration)>,
}

impl ReadingPause {
    fn new(every: Duration) -> Self {
        Self { every, last: None }
    }

    fn is_over(&self) -> bool {
        let pause = |cost: Duration| self.every.max(cost * READING_PAUSE);
        self.last
            .is_none_or(|(at, cost)| at.elapsed() >= pause(cost))
    }

    /// Whether the last one is longer ago than this.
    fn is_longer_than(&self, age: Duration) -> bool {
        self.last.is_some_and(|(at, _)| at.elapsed() > age)
    }

    fn time<T>(&mut self, read: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let value = read();
        self.last = Some((Instant::now(), began.elapsed()));
        value
    }
}

/// The waits behind each blocker up to the last interval, by its PID and first sighting.
type WaitsBefore = BTreeMap<(Option<u32>, u64), f64>;

/// Episodes with the waits of the last interval only: a watch counts from its start. Intervals may be shorter
/// than the time between two readings of locks, so of an episode that lasts, those count that waited at the last one.
fn waits_since(
    before: &mut WaitsBefore,
    episodes: Vec<BlockingEpisode>,
    window_us: f64,
) -> Vec<BlockingEpisode> {
    let key = |it: &BlockingEpisode| (it.root.pid, it.first_seen_us.to_bits());
    let now: WaitsBefore = episodes.iter().map(|it| (key(it), it.waited_us)).collect();
    let since = episodes.into_iter().map(|it| {
        let known = before.get(&key(&it)).copied().unwrap_or(0.0);
        let blocked = it.blocked.iter();
        let waited_us = if it.is_lasting {
            blocked.map(|it| it.waited_us.min(window_us)).sum()
        } else {
            (it.waited_us - known).max(0.0)
        };
        BlockingEpisode { waited_us, ..it }
    });
    let since = since.collect();
    *before = now;
    since
}

/// Episodes that last or ended a moment ago, on the interval's time axis. A watch has all of them, on
/// its own.
fn recent(episodes: Vec<BlockingEpisode>, start_us: f64) -> Vec<BlockingEpisode> {
    let shifted = episodes.into_iter().map(|it| BlockingEpisode {
        first_seen_us: (it.first_seen_us - start_us).max(0.0),
        // The views are asked less often than an interval may be short.
        last_seen_us: if it.is_lasting {
            (it.last_seen_us - start_us).max(0.0)
        } else {
            it.last_seen_us - start_us
        },
        ..it
    });
    shifted
        .filter(|it| it.is_lasting || it.last_seen_us > -SHOWN_AFTER_END_US)
        .collect()
}

/// The cost of the last interval. A watch counts from its start.
fn since(now: &WatchCost, before: &WatchCost) -> WatchCost {
    WatchCost {
        own_cpu_us: now.own_cpu_us - before.own_cpu_us,
        backend_cpu_us: now
            .backend_cpu_us
            .map(|us| us - before.backend_cpu_us.unwrap_or(0.0)),
        peak_memory_bytes: now.peak_memory_bytes,
        connections: now.connections,
        statements_sent: now.statements_sent - before.statements_sent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgassay_record::activity::RootBlocker;

    fn episode(last_seen_us: f64, is_lasting: bool) -> BlockingEpisode {
        BlockingEpisode {
            root: RootBlocker::default(),
            blocked: Vec::new(),
            first_seen_us: 1e6,
            last_seen_us,
            is_lasting,
            waited_us: 1e6,
            ended_by: String::new(),
        }
    }

    /// Regression: the headline did not name a blocker in every other interval of 500 ms.
    #[test]
    fn an_episode_that_lasts_is_of_every_interval() {
        let all = vec![
            episode(99.2e6, true),
            episode(99.2e6, false),
            episode(20e6, false),
        ];
        let shown = recent(all, 100e6);
        let seen: Vec<(f64, f64)> = shown
            .iter()
            .map(|it| (it.first_seen_us, it.last_seen_us.round()))
            .collect();
        assert_eq!(seen, [(0.0, 0.0), (0.0, -800_000.0)]);
    }
}
