//! Watches what the sessions of a live server do, without a study.
//!
//! [`LiveWatch`] reads all sessions at random moments from the server's shared memory, or from
//! `pg_stat_activity`, and divides their time among statements, states and waits (`attribution`). Once
//! a second, [`catalog`] asks the server who blocks whom.
//!
//! Invariants: nothing is written on the server, and nothing is done to its processes. Every connection
//! is read only, with limits on statements and on waiting for locks. What cannot be read is an entry of
//! [`Activity::unavailable`].

mod attribution;
pub mod catalog;
mod collector;
mod names;
mod opening;
mod reading_log;
mod sampling;
mod statements;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use pgassay_model::check::Check;
use pgassay_profile::{LiveServer, Samples, own_cpu_ns, own_peak_bytes, process_cpu_ns};
use pgassay_record::activity::{Activity, CatalogActivity, StatementCounters, WatchCost};
use pgassay_wire::Exchange;

use crate::connector::TimedStream;
use crate::interrupt::Interrupt;
use crate::system_env::monotonic_ns;
use attribution::LoadSums;
use catalog::CatalogWatch;
use collector::Collector;
use names::ObjectNames;
pub use reading_log::StackColumns;
use sampling::{SamplingPlan, SessionSource, sample};

/// Readings per second without a request for more or fewer.
const FREQUENCY_HZ: u32 = 40;
/// How often the views are asked.
const TICK_EVERY: Duration = Duration::from_secs(1);
/// The first time they are asked, after the first readings.
const FIRST_TICK_AFTER: Duration = Duration::from_millis(200);
/// How soon an interrupt is noticed.
const CHECK_EVERY: Duration = Duration::from_millis(50);
/// Statements with a column of CPU samples.
const COLUMNS_MAX: usize = 20;

/// A server to watch.
pub struct WatchedServer {
    /// Its processes, if it runs on this machine.
    pub live: Option<LiveServer>,
    /// Opens a connection to it.
    pub connect: Connect,
}

/// Opens a connection.
pub type Connect = Box<dyn FnMut() -> Result<Exchange<TimedStream>> + Send>;

/// How to watch.
#[derive(Debug, Clone)]
pub struct WatchOptions {
    /// Readings of all sessions per second, on average. The views are queried at most ten times per
    /// second, and with thousands of sessions memory is read less often, too.
    pub frequency_hz: u32,
    /// Keep the statements' normalized texts, and not only their fingerprints.
    pub keeps_text: bool,
    /// Backends that serve other connections of the caller; they are left out.
    pub own_pids: BTreeSet<u32>,
    /// Keep what is needed to divide CPU samples among statements; see [`LiveWatch::finish_with`].
    pub keeps_readings: bool,
}

impl Default for WatchOptions {
    fn default() -> Self {
        Self {
            frequency_hz: FREQUENCY_HZ,
            keeps_text: true,
            own_pids: BTreeSet::new(),
            keeps_readings: false,
        }
    }
}

/// A watch of a live server.
pub struct LiveWatch {
    server: WatchedServer,
    options: WatchOptions,
    source: SessionSource,
    collector: Mutex<Collector>,
    names: ObjectNames,
    catalog: Option<CatalogWatch>,
    unavailable: Vec<Check>,
    /// Time 0 of the readings, on `CLOCK_MONOTONIC`.
    epoch_ns: u64,
    ticked: Option<Instant>,
    statements_sent: u64,
    /// CPU time of pgassay and of its backends before.
    cpu_before: (u64, BTreeMap<u32, u64>),
}

/// Locks a mutex and ignores poisoning: a panic leaves at worst a reading uncounted.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LiveWatch {
    /// Learns how to read the server's memory, or falls back to `pg_stat_activity`, and takes the first
    /// reading of the views.
    ///
    /// # Errors
    /// The server accepts no connection, or its sessions cannot be read in either way.
    pub fn open(mut server: WatchedServer, options: &WatchOptions) -> Result<Self> {
        let opened = opening::open(&mut server, options)?;
        let own_pids = opened.own_pids;
        let backend_cpu = own_pids
            .iter()
            .filter(|_| server.live.is_some())
            .filter_map(|&pid| Some((pid, process_cpu_ns(pid)?)));
        Ok(Self {
            cpu_before: (own_cpu_ns(), backend_cpu.collect()),
            collector: Mutex::new(Collector::new(
                &opened.major,
                own_pids,
                options.keeps_readings,
            )),
            source: opened.source,
            names: opened.names,
            catalog: opened.catalog,
            unavailable: opened.unavailable,
            statements_sent: opened.statements_sent,
            server,
            options: options.clone(),
            epoch_ns: monotonic_ns(),
            ticked: None,
        })
    }

    /// Backends that serve pgassay, also those of [`WatchOptions::own_pids`].
    pub fn own_pids(&self) -> BTreeSet<u32> {
        locked(&self.collector).own_pids.clone()
    }

    /// Reads the sessions until then, or an interrupt, and asks the views once a second.
    ///
    /// # Errors
    /// The server has stopped, or ended the connection. What was seen so far is kept.
    pub fn run_until(&mut self, until: Instant, interrupt: &Interrupt) -> Result<()> {
        let is_over = AtomicBool::new(false);
        let plan = SamplingPlan {
            frequency_hz: self.options.frequency_hz,
            epoch_ns: self.epoch_ns,
            until,
            is_over: &is_over,
        };
        let Self {
            source,
            collector,
            catalog,
            ticked,
            ..
        } = self;
        let statements = source.statements();
        let sampled = thread::scope(|scope| {
            let sampling = scope.spawn(|| sample(source, collector, &plan));
            let mut due = ticked.map_or(Instant::now() + FIRST_TICK_AFTER, |it| it + TICK_EVERY);
            while !sampling.is_finished() {
                if interrupt.is_requested() {
                    is_over.store(true, Ordering::Relaxed);
                    break;
                }
                if Instant::now() >= due {
                    due = Instant::now() + TICK_EVERY;
                    *ticked = Some(Instant::now());
                    tick(catalog.as_mut(), collector, plan.epoch_ns);
                }
                let left = until.saturating_duration_since(Instant::now());
                thread::sleep(left.min(CHECK_EVERY).max(Duration::from_millis(1)));
            }
            sampling.join().expect("sampling does not panic")
        })?;
        self.statements_sent += statements * sampled.readings;
        self.note("priority", !sampled.is_prior && self.server.live.is_some(), || {
            let limitation = "on a saturated machine the readings are late, mostly while statements use \
                              the CPUs, so CPU time is underestimated";
            (limitation.to_owned(), Some("run pgassay as root or with CAP_SYS_NICE".to_owned()))
        });
        Ok(())
    }

    /// What was seen since the last call, with the blocking so far.
    pub fn take(&mut self) -> Activity {
        let sums = locked(&self.collector).take();
        self.read_missing_names(&sums);
        let (mut activity, _) = self.describe(&sums, &BTreeMap::new());
        if let Some(watch) = &self.catalog {
            activity.blocking = watch.blocking();
        }
        activity
    }

    /// Reads tables, indexes and the server's state, with what was counted since the last call, or since
    /// the start; `None` without a connection. It takes as long as a reading at the end.
    pub fn read_catalog(&mut self) -> Option<CatalogActivity> {
        self.catalog.as_mut()?.refresh()
    }

    /// Everything that was seen, with the last reading of the views.
    pub fn finish(self) -> Activity {
        self.finish_with(None, |_| false).0
    }

    /// As [`LiveWatch::finish`]. Also divides CPU samples of some processes, taken meanwhile, among the
    /// statements with the highest load, whose `profile_column` is then set. Requires
    /// [`WatchOptions::keeps_readings`].
    pub fn finish_with(
        mut self,
        samples: Option<&Samples>,
        is_ours: impl Fn(u32) -> bool,
    ) -> (Activity, Option<StackColumns>) {
        locked(&self.collector).take();
        let sums = std::mem::take(&mut locked(&self.collector).total);
        self.read_missing_names(&sums);
        // Its backend ends with it.
        let cost = self.cost();
        let asked = self.catalog.take().map(CatalogWatch::finish);
        let no_counters = BTreeMap::new();
        let counters = asked.as_ref().map_or(&no_counters, |it| &it.counters);
        let (mut activity, statements) = self.describe(&sums, counters);
        activity.cost = cost;
        if let Some(asked) = asked {
            activity.cost.statements_sent += asked.statements_sent;
            activity.blocking = asked.blocking;
            activity.idle_lock_holders = asked.idle_lock_holders;
            activity.catalog = asked.catalog;
            activity.marks = asked.marks;
            activity.unavailable.extend(asked.unavailable);
        }
        let collector = locked(&self.collector);
        let columns = samples
            .zip(collector.readings.as_ref())
            .map(|(samples, log)| log.columns(samples, is_ours, &sums, COLUMNS_MAX, self.epoch_ns));
        for (statement, index) in activity.statements.iter_mut().zip(statements) {
            let known = columns.iter().flat_map(|it| &it.statements);
            let column = known.into_iter().position(|&it| it == index);
            statement.profile_column = column.map(|it| it as u32);
        }
        (activity, columns)
    }

    fn describe(
        &mut self,
        sums: &LoadSums,
        counters: &BTreeMap<i64, StatementCounters>,
    ) -> (Activity, Vec<u32>) {
        self.note_limitations();
        let keeps_text = self.options.keeps_text;
        let (mut activity, statements) =
            locked(&self.collector).describe(sums, keeps_text, &self.names, counters);
        activity.source = self.source.kind();
        let processors = thread::available_parallelism().map(|it| it.get() as u32);
        let is_local = self.server.live.is_some();
        activity.processors = processors.ok().filter(|_| is_local);
        activity.unavailable.clone_from(&self.unavailable);
        activity.cost = self.cost();
        (activity, statements)
    }

    fn cost(&self) -> WatchCost {
        let used_ns = own_cpu_ns().saturating_sub(self.cpu_before.0);
        let backends = self.cpu_before.1.iter();
        let backends = backends.filter_map(|(&pid, before)| {
            process_cpu_ns(pid).map(|now| now.saturating_sub(*before))
        });
        let is_local = self.server.live.is_some();
        WatchCost {
            own_cpu_us: used_ns as f64 / 1e3,
            backend_cpu_us: is_local.then(|| backends.sum::<u64>() as f64 / 1e3),
            peak_memory_bytes: own_peak_bytes(),
            statements_sent: self.statements_sent,
        }
    }

    /// Databases and users that were created meanwhile.
    fn read_missing_names(&mut self, sums: &LoadSums) {
        let oids = locked(&self.collector).oids(sums);
        if oids.into_iter().all(|pair| self.names.has(pair)) {
            return;
        }
        let read = match &mut self.source {
            SessionSource::Query(query) => ObjectNames::read(query.exchange()).map_err(Into::into),
            SessionSource::Memory(_) => {
                opening::connect(&mut self.server, &mut self.statements_sent)
                    .and_then(|mut exchange| Ok(ObjectNames::read(&mut exchange)?))
            }
        };
        self.statements_sent += ObjectNames::STATEMENTS;
        match read {
            Ok(names) => self.names = names,
            Err(error) => tracing::debug!(%error, "cannot read names of databases and users"),
        }
    }

    /// Adds what the readings could not show.
    fn note_limitations(&mut self) {
        let collector = locked(&self.collector);
        let (hidden, disabled) = (collector.hidden, collector.disabled);
        let (others, is_full) = (collector.others, collector.statements.is_full);
        drop(collector);
        self.note("hidden sessions", hidden > 0, || {
            let limitation = format!(
                "{hidden} sessions belong to other users, and the server does not show what they do"
            );
            let fix = "grant pg_monitor to the user that pgassay connects as";
            (limitation, Some(fix.to_owned()))
        });
        self.note("track_activities", disabled > 0, || {
            let limitation = format!(
                "{disabled} sessions have track_activities off, so they do not show what they do"
            );
            (
                limitation,
                Some("alter system set track_activities = on".to_owned()),
            )
        });
        self.note("sessions", others == 0 && hidden == 0, || {
            ("nobody else is connected to the server".to_owned(), None)
        });
        self.note("statements", is_full, || {
            let limitation = "there are too many distinct statements; the time of those seen last has \
                              no statement";
            (limitation.to_owned(), None)
        });
    }

    /// Adds a limitation once, or replaces its text.
    fn note(
        &mut self,
        name: &str,
        applies: bool,
        describe: impl FnOnce() -> (String, Option<String>),
    ) {
        self.unavailable.retain(|it| it.name != name);
        if applies {
            let (limitation, fix) = describe();
            self.unavailable.push(Check {
                name: name.to_owned(),
                value: "limited".to_owned(),
                limitation: Some(limitation),
                fix,
            });
        }
    }
}

/// Asks the views who blocks the sessions that wait for locks.
fn tick(catalog: Option<&mut CatalogWatch>, collector: &Mutex<Collector>, epoch_ns: u64) {
    let Some(catalog) = catalog else { return };
    let (waiters, start_us) = {
        let collector = locked(collector);
        (collector.lock_waiters(), collector.start_us())
    };
    let now_us = monotonic_ns().saturating_sub(epoch_ns) as f64 / 1e3;
    let at_us = now_us - start_us.unwrap_or(now_us);
    if let Err(error) = catalog.tick(at_us, &waiters) {
        tracing::debug!(%error, "cannot ask who blocks whom");
    }
}
