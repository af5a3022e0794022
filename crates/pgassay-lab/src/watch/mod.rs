//! Watches what the sessions of a live server do, without a study.
//!
//! [`LiveWatch`] reads all sessions at random moments from the server's shared memory, or from
//! `pg_stat_activity`, and divides their time among statements, states and waits (`attribution`). Once a
//! second, [`catalog`] asks the server who blocks whom.
//!
//! Invariants: nothing is written on the server, and nothing is done to its processes. Every connection
//! is read only, with limits on statements and on waiting for locks. What cannot be read is an entry of
//! [`Activity::unavailable`].

mod attribution;
mod backend_cpu;
pub mod catalog;
mod collector;
mod disabled_sessions;
mod held_file;
mod log_file;
mod log_message;
mod log_watch;
mod names;
mod opening;
mod options;
mod own_transactions;
mod present_sessions;
mod reading_log;
mod sampling;
mod session_status;
mod statements;
mod text_join;
mod ticking;
mod unseen_sessions;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pgassay_model::check::Check;
use pgassay_profile::{Samples, own_cpu_ns, own_peak_bytes, process_cpu_ns};
use pgassay_record::activity::{
    Activity, ActivitySource, BlockingEpisode, CatalogActivity, LoadMark, WatchCost,
};

use crate::interrupt::Interrupt;
use crate::system_env::{monotonic_ns, unix_us};
use attribution::LoadSums;
pub use backend_cpu::BackendCpu;
use catalog::{CatalogWatch, CountedStatements, TransactionRates};
pub use collector::PresentSession;
use collector::{Collector, locked};
use log_watch::LogWatch;
use names::ObjectNames;
pub use options::{Connect, WatchOptions, WatchedServer};
pub use own_transactions::{OwnTransactions, is_delayed, reported};
use reading_log::ReadingLog;
pub use reading_log::StackColumns;
pub use sampling::pause_after_query;
use sampling::{SamplingPlan, SessionSource, sample};
use statements::JoinedCounters;
use text_join::TextJoin;
use ticking::{TickContext, at_us, tick};
use unseen_sessions::UnseenSessions;

/// How often the server's views are read.
const TICK_EVERY: Duration = Duration::from_secs(1);
/// The first time, after the first readings of the sessions.
const FIRST_TICK_AFTER: Duration = Duration::from_millis(200);
/// How soon an interrupt is noticed.
const CHECK_EVERY: Duration = Duration::from_millis(50);
/// Statements with a column of CPU samples.
const COLUMNS_MAX: usize = 20;

/// A watch of a live server.
pub struct LiveWatch {
    server: WatchedServer,
    options: WatchOptions,
    source: SessionSource,
    collector: Mutex<Collector>,
    names: ObjectNames,
    catalog: Option<CatalogWatch>,
    log: Option<LogWatch>,
    /// Of the last [`LiveWatch::read_counters`].
    counters: JoinedCounters,
    unavailable: Vec<Check>,
    /// Time 0 of the readings, on `CLOCK_MONOTONIC`.
    epoch_ns: u64,
    ticked: Option<Instant>,
    statements_sent: u64,
    /// CPU time of pgassay before.
    own_cpu_before_ns: u64,
    backend_cpu: BackendCpu,
}

impl LiveWatch {
    /// Learns how to read the server's memory, or falls back to `pg_stat_activity`, and takes the first
    /// reading of the views.
    ///
    /// # Errors
    /// The server accepts no connection, or its sessions cannot be read in either way.
    pub fn open(mut server: WatchedServer, options: &WatchOptions) -> Result<Self> {
        let own_cpu_before_ns = own_cpu_ns();
        let mut backend_cpu = BackendCpu::default();
        for &pid in &options.own_pids {
            backend_cpu.add(pid, process_cpu_ns(pid).unwrap_or(0));
        }
        let opened = opening::open(&mut server, options)?;
        let own_pids = opened.own_pids;
        // The others have started for this watch.
        for &pid in &own_pids {
            backend_cpu.add(pid, 0);
        }
        let epoch_ns = monotonic_ns();
        let readings = options.keeps_readings.then(|| ReadingLog::new(epoch_ns));
        let mut collector = Collector::new(&opened.major, own_pids, readings);
        collector.is_pooled = opened.is_pooled;
        collector.reads_memory = opened.source.kind() == ActivitySource::Memory;
        Ok(Self {
            own_cpu_before_ns,
            backend_cpu,
            collector: Mutex::new(collector),
            source: opened.source,
            names: opened.names,
            catalog: opened.catalog,
            log: opened.log,
            counters: JoinedCounters::default(),
            unavailable: opened.unavailable,
            statements_sent: opened.statements_sent,
            server,
            options: options.clone(),
            epoch_ns,
            ticked: None,
        })
    }

    /// Backends that serve pgassay, also those of [`WatchOptions::own_pids`]; none behind a pooler, where each serves
    /// others, too.
    pub fn own_pids(&self) -> BTreeSet<u32> {
        let collector = locked(&self.collector);
        let mut pids = collector.own_pids.clone();
        if let SessionSource::Query(query, _) = &self.source
            && !collector.is_pooled
        {
            pids.insert(query.own_pid());
        }
        pids
    }

    /// Leaves out another backend that serves the caller.
    pub fn leave_out(&self, pid: u32) {
        locked(&self.collector).leave_out(pid);
    }

    /// Leaves out transactions on a connection of the caller.
    pub fn leave_out_transactions(&mut self, own: &OwnTransactions) {
        if let Some(catalog) = &mut self.catalog {
            catalog.leave_out_transactions(own.clone());
        }
    }

    /// Transactions of the watch, which the server counts too.
    pub fn own_transactions(&self) -> Vec<OwnTransactions> {
        let of_catalog = self.catalog.iter().map(CatalogWatch::own_transactions);
        of_catalog.chain([self.source.own().clone()]).collect()
    }

    /// Lets each session of the watch report the transactions that ended [`OwnTransactions::SETTLING`] ago.
    ///
    /// # Errors
    /// As for [`Self::run_until`].
    pub fn report_transactions(&mut self) -> Result<()> {
        self.catalog
            .iter_mut()
            .for_each(CatalogWatch::report_transactions);
        if self.source.kind() == ActivitySource::PgStatActivity {
            self.source.sweep()?;
        }
        Ok(())
    }

    /// Reads the sessions until then, or an interrupt, and the server's views once a second.
    ///
    /// # Errors
    /// The server has stopped, or ended the connection, or no thread can be started. What was seen
    /// so far is kept.
    ///
    /// # Panics
    /// Never: sampling does not panic.
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
            log,
            ticked,
            server,
            backend_cpu,
            ..
        } = self;
        let statements = source.statements();
        let context = TickContext {
            collector,
            epoch_ns: plan.epoch_ns,
            is_last: false,
        };
        let sampled = thread::scope(|scope| {
            let sampling = thread::Builder::new()
                .spawn_scoped(scope, || sample(source, collector, &plan))
                .context("cannot start a thread")?;
            let mut due = ticked.map_or(Instant::now() + FIRST_TICK_AFTER, |it| it + TICK_EVERY);
            while !sampling.is_finished() {
                if interrupt.is_requested() {
                    is_over.store(true, Ordering::Relaxed);
                    break;
                }
                if Instant::now() >= due {
                    due = Instant::now() + TICK_EVERY;
                    *ticked = Some(Instant::now());
                    context.read_log(log.as_mut());
                    let new = tick(catalog.as_mut(), &mut server.connect, &context);
                    if let Some(pid) = new {
                        backend_cpu.add(pid, 0);
                    }
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

    /// What was seen since the last call, with the blocking so far, and what cannot be seen now. Transactions per second
    /// in the last part of the timeline are those of the last seconds.
    pub fn take(&mut self) -> Activity {
        let (sums, since_us) = {
            let mut collector = locked(&self.collector);
            let sums = collector.take();
            let since_us = collector.began_us(&sums);
            (sums, since_us)
        };
        self.read_missing_names(&sums);
        let unseen = locked(&self.collector).unseen;
        let grant = self.catalog.as_ref().map(CatalogWatch::grant);
        self.note_limitations(unseen, grant);
        let cost = self.cost();
        let (mut activity, _) = self.describe(&sums, &self.counters);
        activity.cost = cost;
        activity.marks = self.take_marks(since_us);
        if let Some(catalog) = &mut self.catalog {
            let now_us = at_us(&self.collector, self.epoch_ns);
            catalog.note_transactions(&mut activity, since_us, now_us);
            activity.blocking = catalog.blocking();
            activity.unavailable.extend(catalog.unavailable());
        }
        self.show_hidden(&mut activity.blocking);
        if unseen.disabled > 0 {
            let catalog = self.catalog.as_mut();
            let is_on = catalog.is_some_and(CatalogWatch::tracks_activities);
            disabled_sessions::explain(&mut activity.unavailable, is_on);
        }
        activity
    }

    /// Adds what memory shows of blockers that the server's views hide.
    fn show_hidden(&self, episodes: &mut [BlockingEpisode]) {
        if self.source.kind() == ActivitySource::Memory {
            locked(&self.collector).show_hidden(episodes, self.options.keeps_text, unix_us());
        }
    }

    /// Writes transactions per second into the timeline, if they can be right.
    fn fill_rates(activity: &mut Activity, rates: &TransactionRates) {
        let autovacuum = rates.of_autovacuum(activity.window_us);
        activity.autovacuum_transactions = autovacuum;
        // Workers of autovacuum are among the sessions whose transactions were seen.
        let all = rates.counted().map(|it| it + autovacuum.unwrap_or(0.0));
        if all.is_none_or(|it| activity.is_transaction_count(it)) {
            rates.fill(&mut activity.timeline, 0.0);
            activity.unavailable.extend(rates.autovacuum_note());
            let elsewhere = catalog::autovacuum_elsewhere(activity);
            activity.unavailable.extend(elsewhere);
        }
    }

    /// What lasts or was noticed since the last call, on the time axis that begins at `since_us`.
    fn take_marks(&mut self, since_us: f64) -> Vec<LoadMark> {
        let seen = self.catalog.iter_mut().flat_map(CatalogWatch::take_marks);
        let errors = self.log.iter_mut().flat_map(LogWatch::take_marks);
        let mut marks: Vec<LoadMark> = seen
            .chain(errors)
            .map(|it| {
                let began_us = (it.at_us - since_us).max(0.0);
                let ended_us = it.at_us + it.length_us - since_us;
                LoadMark {
                    at_us: began_us,
                    length_us: (ended_us - began_us).max(0.0),
                    ..it
                }
            })
            .collect();
        marks.sort_by(|a, b| a.at_us.total_cmp(&b.at_us));
        marks
    }

    /// Reads tables, indexes and the server's state, with what was counted since the last call, or since
    /// the start; `None` without a connection. It takes as long as a reading at the end.
    pub fn read_catalog(&mut self) -> Option<CatalogActivity> {
        let mut catalog = self.catalog.as_mut()?.refresh()?;
        let brief = locked(&self.collector).take_brief();
        note_brief(&mut catalog, brief);
        Some(catalog)
    }

    /// With the sessions that came and went between readings of a window of this length.
    fn with_brief(
        &self,
        catalog: Option<CatalogActivity>,
        window_us: f64,
    ) -> Option<CatalogActivity> {
        let brief = locked(&self.collector).all_brief(window_us);
        catalog.map(|mut it| {
            note_brief(&mut it, brief);
            it
        })
    }

    /// Reads what `pg_stat_statements` counted since the last call, or since the start. Statements have it until
    /// the next call.
    pub fn read_counters(&mut self) {
        let Some(catalog) = &mut self.catalog else {
            return;
        };
        let reads_texts = TextJoin::is_required(locked(&self.collector).statements.seen());
        let counted = catalog.refresh_statements(reads_texts);
        // What has no counters for the time being is no limitation of the whole watch.
        self.counters = counted.map(|it| self.joined(it).0).unwrap_or_default();
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
        let mut catalog = self.catalog.take();
        let last = TickContext {
            collector: &self.collector,
            epoch_ns: self.epoch_ns,
            is_last: true,
        };
        tick(catalog.as_mut(), &mut self.server.connect, &last);
        last.read_log(self.log.as_mut());
        locked(&self.collector).take();
        let sums = std::mem::take(&mut locked(&self.collector).total);
        self.read_missing_names(&sums);
        // Its backend ends with the last reading.
        let mut cost = self.cost();
        let reads_texts = TextJoin::is_required(locked(&self.collector).statements.seen());
        let unseen = locked(&self.collector).unseen_max;
        self.note_limitations(unseen, catalog.as_ref().map(CatalogWatch::grant));
        let live = self.server.live.as_ref();
        let is_gone = || self.source.is_gone(live);
        let mut read = catalog.map(|it| it.finish_with(reads_texts, is_gone));
        let mut counters = JoinedCounters::default();
        if let Some(read) = &mut read {
            let (joined, limitations) = self.joined(std::mem::take(&mut read.statements));
            counters = joined;
            read.unavailable.extend(limitations);
        }
        let (mut activity, statements) = self.describe(&sums, &counters);
        if let Some(read) = read {
            cost.connections += 1;
            cost.statements_sent += read.statements_sent;
            activity.blocking = catalog::waits_within(read.blocking, activity.window_us);
            self.show_hidden(&mut activity.blocking);
            activity.idle_lock_holders = read.idle_lock_holders;
            activity.catalog = self.with_brief(read.catalog, activity.window_us);
            activity.marks = read.marks;
            Self::fill_rates(&mut activity, &read.transactions);
            let rates = activity.timeline.iter();
            let most = rates
                .filter_map(|it| it.transactions_per_s)
                .fold(0.0, f64::max);
            activity
                .marks
                .extend(catalog::stalls(&activity.timeline, most));
            let errors = self.log.iter().flat_map(LogWatch::marks);
            activity.marks.extend(errors);
            activity.marks.sort_by(|a, b| a.at_us.total_cmp(&b.at_us));
            activity.unavailable.extend(read.unavailable);
        }
        if let Some(catalog) = &activity.catalog {
            let is_on = disabled_sessions::is_on(catalog);
            disabled_sessions::explain(&mut activity.unavailable, is_on);
        }
        activity.cost = cost;
        let collector = locked(&self.collector);
        let columns = samples
            .zip(collector.readings.as_ref())
            .map(|(samples, log)| log.columns(samples, is_ours, &sums, COLUMNS_MAX));
        for (statement, index) in activity.statements.iter_mut().zip(statements) {
            let known = columns.iter().flat_map(|it| &it.statements);
            let column = known.into_iter().position(|&it| it == index);
            statement.profile_column = column.map(|it| it as u32);
        }
        (activity, columns)
    }

    /// The counters by query ID, and by text for statements without one; and what is missing.
    fn joined(&self, counted: CountedStatements) -> (JoinedCounters, Vec<Check>) {
        let joined = counted.texts.as_ref().map(|texts| {
            let collector = locked(&self.collector);
            TextJoin::new(collector.statements.seen(), texts)
        });
        let joined = joined.unwrap_or_default();
        let limitations = joined.limitations();
        let counters = JoinedCounters {
            by_query_id: counted.counters,
            by_statement: joined.counters,
            window_us: (counted.window_us > 0.0).then_some(counted.window_us),
            own_commits: counted.own_commits,
        };
        (counters, limitations)
    }

    fn describe(&self, sums: &LoadSums, counters: &JoinedCounters) -> (Activity, Vec<u32>) {
        let keeps_text = self.options.keeps_text;
        let (mut activity, statements) =
            locked(&self.collector).describe(sums, keeps_text, &self.names, counters);
        activity.source = self.source.kind();
        let processors = thread::available_parallelism().map(|it| it.get() as u32);
        let is_local = self.server.live.is_some();
        activity.processors = processors.ok().filter(|_| is_local);
        activity.unavailable.clone_from(&self.unavailable);
        (activity, statements)
    }

    fn cost(&mut self) -> WatchCost {
        let used_ns = own_cpu_ns().saturating_sub(self.own_cpu_before_ns);
        let of_backends_ns = self.backend_cpu.used_ns(process_cpu_ns);
        let is_known = self.server.live.is_some() && !locked(&self.collector).is_pooled;
        let catalog = self.catalog.as_ref();
        let of_catalog = catalog.map_or(0, CatalogWatch::statements_sent);
        WatchCost {
            own_cpu_us: used_ns as f64 / 1e3,
            backend_cpu_us: is_known.then_some(of_backends_ns as f64 / 1e3),
            peak_memory_bytes: own_peak_bytes(),
            connections: self.source.connections() + u32::from(catalog.is_some()),
            statements_sent: self.statements_sent + of_catalog,
        }
    }

    /// Databases and users that were created meanwhile.
    fn read_missing_names(&mut self, sums: &LoadSums) {
        let oids = locked(&self.collector).oids(sums);
        if oids.iter().all(|&pair| self.names.has(pair)) {
            return;
        }
        let read = match &mut self.source {
            SessionSource::Query(query, own) => {
                let read = ObjectNames::read(query.exchange()).map_err(Into::into);
                own.end(Instant::now());
                read
            }
            SessionSource::Memory(_, own) => opening::read_names(&mut self.server.connect, own),
        };
        self.statements_sent += ObjectNames::STATEMENTS;
        match read {
            Ok(names) => self.names = names,
            Err(error) => tracing::debug!(%error, "cannot read names of databases and users"),
        }
        for pair in oids {
            self.names.give_up(pair);
        }
    }

    /// Adds what the readings could not show. `grant` is the statement that shows other users' sessions.
    fn note_limitations(&mut self, unseen: UnseenSessions, grant: Option<String>) {
        let collector = locked(&self.collector);
        let (others, is_full) = (collector.others, collector.statements.is_full);
        let sums = [&collector.total, &collector.attribution.sums];
        let has_rest = sums.iter().any(|it| it.is_full);
        drop(collector);
        let UnseenSessions { hidden, disabled } = unseen;
        self.note(Activity::HIDDEN_SESSIONS, hidden > 0, || {
            let fix = || "grant pg_monitor to the user that pgassay connects as".to_owned();
            (unseen.why_hidden(), Some(grant.unwrap_or_else(fix)))
        });
        self.note(Activity::DISABLED_SESSIONS, disabled > 0, || {
            (
                unseen.why_disabled(),
                Some(disabled_sessions::FIX.to_owned()),
            )
        });
        self.note("sessions", others == 0 && hidden == 0, || {
            (
                "no other client is connected to the server".to_owned(),
                None,
            )
        });
        self.note("statements", is_full, || {
            let limitation = "there are too many distinct statements; the time of those seen last has \
                              no statement";
            (limitation.to_owned(), None)
        });
        self.note("sessions and statements", has_rest, || {
            let limitation = "there are too many combinations of sessions and statements; the time of \
                              those seen last belongs to one session with PID 0";
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

/// Adds the sessions that came and went between readings.
fn note_brief(catalog: &mut CatalogActivity, brief: Option<u64>) {
    if let Some(connections) = &mut catalog.connections {
        connections.brief_seen = brief;
    }
}
