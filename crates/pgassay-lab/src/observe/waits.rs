//! Samples what backends wait for: from their memory or, if that is not readable, from
//! `pg_stat_activity`.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pgassay_knowledge::{wait_event, wait_number};
use pgassay_model::check::Check;
use pgassay_model::waits::{WaitCount, WaitSource, Waits};
use pgassay_profile::{
    ActivitySampler, KnownWaits, LiveServer, NamedWait, ProcessStates, WaitError, WaitLog,
    WaitReader,
};
use pgassay_wire::Exchange;

use crate::connector::TimedStream;
use crate::interrupt::Interrupt;
use crate::system_env::monotonic_ns;
use crate::watch::OwnTransactions;

/// Maximum queries of `pg_stat_activity` per second; each costs the server a few tenths of a
/// millisecond.
pub const ACTIVITY_HZ: u32 = 20;

/// A reading is late if it begins this long after it was due; an idle machine wakes a thread in less.
const LATE: Duration = Duration::from_millis(1);

/// The source of wait samples.
#[derive(Clone)]
pub enum WaitProbe {
    /// The backends' memory.
    Memory(WaitReader),
    /// `pg_stat_activity`, over a separate connection.
    Server(ActivityProbe),
}

/// A connection that samples `pg_stat_activity`.
#[derive(Clone)]
pub struct ActivityProbe {
    sampler: Arc<Mutex<ActivitySampler<TimedStream>>>,
    own: OwnTransactions,
}

impl WaitProbe {
    /// The probe for a server on this machine: its memory if readable, otherwise `pg_stat_activity`
    /// if `connect` is given. Also returns why its memory is not readable. `is_counted`: the server counts the
    /// transactions of the probe at once, and the caller leaves them out.
    pub fn of(
        server: &LiveServer,
        mut connect: Option<impl FnMut() -> Result<Exchange<TimedStream>>>,
        is_counted: bool,
    ) -> (Option<Self>, Option<Check>) {
        let refusal = match wait_reader(server, connect.as_mut()) {
            Ok(reader) => return (Some(Self::Memory(reader)), None),
            Err(refusal) => refusal,
        };
        let of_activity = connect.map(|mut connect| {
            let exchange = connect()?;
            Self::of_activity(exchange, true, is_counted)
        });
        let check = refused(&refusal, of_activity.as_ref());
        (of_activity.and_then(Result::ok), Some(check))
    }

    /// The probe for a server whose processes are not visible from here.
    pub fn remote(exchange: Exchange<TimedStream>) -> Result<Self> {
        Self::of_activity(exchange, false, false)
    }

    fn of_activity(
        exchange: Exchange<TimedStream>,
        sees_processes: bool,
        is_counted: bool,
    ) -> Result<Self> {
        let own = OwnTransactions::of(&exchange);
        own.connect(Instant::now());
        let activity = if is_counted {
            ActivitySampler::open_counted(exchange, sees_processes)?
        } else {
            ActivitySampler::open(exchange, sees_processes)?
        };
        own.end(Instant::now());
        Ok(Self::Server(ActivityProbe {
            sampler: Arc::new(Mutex::new(activity)),
            own,
        }))
    }

    /// The backend that serves the probe's own connection.
    pub fn own_pid(&self) -> Option<u32> {
        match self {
            Self::Memory(_) => None,
            Self::Server(activity) => Some(locked(&activity.sampler).own_pid()),
        }
    }
}

/// Locks a mutex and ignores poisoning: a panic leaves at worst a result unread, and then the next
/// query fails.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Finds where a server stores its wait events. Before version 14 this takes two connections.
pub(crate) fn wait_reader(
    server: &LiveServer,
    connect: Option<&mut impl FnMut() -> Result<Exchange<TimedStream>>>,
) -> Result<WaitReader> {
    let opened = WaitReader::open(server);
    if let Err(WaitError::NotPermitted(_)) = opened {
        return Ok(opened?);
    }
    // The numbers of wait events differ between versions.
    let major = server.major.as_deref().unwrap_or("(unknown version)");
    let advisory = wait_number(major, "Lock", "advisory").with_context(|| {
        format!("wait events cannot be read: their numbers in PostgreSQL {major} are unknown")
    })?;
    match (opened, connect) {
        (Err(WaitError::NeedsConnection), Some(connect)) => {
            // 9.6 has no wait event for waiting for the client.
            let idle = wait_number(major, "Client", "ClientRead").unwrap_or(0);
            let known = KnownWaits { advisory, idle };
            let mut holder = connect()?;
            Ok(WaitReader::learn(server, known, &mut holder, connect()?)?)
        }
        (opened, _) => Ok(opened?),
    }
}

/// Samples waits at intervals and counts them.
pub struct WaitSampler {
    log: WaitLogSource,
    every: Duration,
    /// Readings of a process per second, over all processes.
    reads_per_s_max: u32,
    cpu_us: f64,
    readings: u32,
    late: u32,
}

enum WaitLogSource {
    Memory(WaitReader, ProcessStates, WaitLog<u32>),
    Server(ActivityProbe, WaitLog<NamedWait>),
}

impl WaitSampler {
    /// A sampler without samples. Queries of the server are limited to [`ACTIVITY_HZ`].
    pub fn new(probe: WaitProbe, frequency_hz: u32) -> Self {
        let (log, hz) = match probe {
            WaitProbe::Memory(reader) => (
                WaitLogSource::Memory(reader, ProcessStates::default(), WaitLog::default()),
                frequency_hz,
            ),
            WaitProbe::Server(activity) => (
                WaitLogSource::Server(activity, WaitLog::default()),
                frequency_hz.min(ACTIVITY_HZ),
            ),
        };
        Self {
            log,
            every: Duration::from_secs(1) / hz.max(1),
            reads_per_s_max: u32::MAX,
            cpu_us: 0.0,
            readings: 0,
            late: 0,
        }
    }

    /// Reads many processes less often, so that the cost does not grow with their number: a reading takes about
    /// 20 µs.
    #[must_use]
    pub fn with_reads_per_s_max(self, reads_per_s_max: u32) -> Self {
        Self {
            reads_per_s_max,
            ..self
        }
    }

    /// Connections that it holds.
    pub fn connections(&self) -> u32 {
        u32::from(matches!(self.log, WaitLogSource::Server(..)))
    }

    /// Transactions on the connection that it samples with, if there is one.
    pub fn own_transactions(&self) -> Option<OwnTransactions> {
        match &self.log {
            WaitLogSource::Memory(..) => None,
            WaitLogSource::Server(activity, _) => Some(activity.own.clone()),
        }
    }

    /// Lets its session report the transactions that ended [`OwnTransactions::SETTLING`] ago.
    ///
    /// # Errors
    /// As for statements.
    pub fn report_transactions(&self) -> Result<()> {
        if let WaitLogSource::Server(activity, _) = &self.log {
            locked(&activity.sampler)
                .exchange()
                .value_read_committed("select 1")?;
            activity.own.end(Instant::now());
        }
        Ok(())
    }

    /// Samples these processes until then, or until an interrupt: with thousands of processes, the time to the next
    /// reading is most of a minute.
    pub fn sample(&mut self, pids: &[u32], until: Instant, interrupt: &Interrupt) {
        let before_us = self.used_us();
        if let WaitLogSource::Memory(_, states, _) = &mut self.log {
            states.keep_only(pids);
        }
        let affordable = Duration::from_secs(pids.len() as u64) / self.reads_per_s_max;
        let every = self.every.max(affordable);
        let mut due = Instant::now();
        while Instant::now() < until && !interrupt.is_requested() {
            self.readings += 1;
            self.late += u32::from(due.elapsed() > LATE);
            self.log.look(pids);
            due = until.min(Instant::now() + every);
            interrupt.sleep_until(due);
        }
        self.cpu_us += self.used_us() - before_us;
    }

    /// CPU time of this thread (first field of `schedstat`) and of the backend that answers it.
    fn used_us(&self) -> f64 {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let own_ns = text.split_whitespace().next().map(str::parse::<u64>);
        let own_ns = own_ns.and_then(Result::ok).unwrap_or(0);
        let answering_ns = match &self.log {
            WaitLogSource::Memory(..) => 0,
            WaitLogSource::Server(activity, _) => {
                locked(&activity.sampler).own_cpu_ns().unwrap_or(0)
            }
        };
        (own_ns + answering_ns) as f64 / 1e3
    }

    /// The samples, with wait events named as in this major version.
    pub fn finish(self, major: Option<&str>) -> Waits {
        let name = |number| named(major.unwrap_or_default(), number);
        let (source, log) = match self.log {
            WaitLogSource::Memory(.., log) => (WaitSource::Memory, log.named(name)),
            WaitLogSource::Server(_, log) => (WaitSource::PgStatActivity, log),
        };
        Waits {
            late: (self.readings > 0).then(|| f64::from(self.late) / f64::from(self.readings)),
            ..waits_of(source, log, self.cpu_us)
        }
    }
}

/// Converts a log of samples, with the CPU time that sampling took.
pub fn waits_of(source: WaitSource, log: WaitLog<NamedWait>, sampling_cpu_us: f64) -> Waits {
    let blocked_samples = log.blocked.values().sum();
    let events = log.blocked.into_iter().map(|(wait, samples)| WaitCount {
        kind: wait.kind,
        name: wait.name,
        samples,
    });
    Waits {
        source,
        blocked_samples,
        runnable_samples: log.runnable,
        unreadable: log.unreadable,
        sampling_cpu_us,
        late: None,
        events: events.collect(),
    }
}

impl WaitLogSource {
    fn look(&mut self, pids: &[u32]) {
        match self {
            Self::Memory(reader, states, log) => log.sweep(reader, states, pids.iter().copied()),
            Self::Server(activity, log) => {
                if let Err(error) = log.ask(&mut locked(&activity.sampler), pids) {
                    tracing::debug!(%error, "cannot sample pg_stat_activity");
                }
                activity.own.end(Instant::now());
            }
        }
    }
}

fn named(major: &str, number: u32) -> NamedWait {
    let (kind, name) = match wait_event(major, number) {
        _ if number == 0 => return NamedWait::default(),
        Some(wait) => (wait.kind.to_owned(), wait.name.to_owned()),
        None => ("not known".to_owned(), format!("{number:#010x}")),
    };
    NamedWait { kind, name }
}

/// Why memory is not readable, and how to permit it.
pub(crate) fn refusal(why: &anyhow::Error) -> (String, Option<String>) {
    match why.downcast_ref::<WaitError>() {
        Some(WaitError::NotPermitted(refusal)) => {
            let effect = format!("{}: {}", refusal.what, refusal.why);
            (effect, Some(refusal.commands.join("  or  ")))
        }
        Some(WaitError::NeedsConnection) => (why.to_string(), Some("--dsn".to_owned())),
        _ => (format!("{why:#}"), None),
    }
}

/// Why waits in memory are not readable, how to permit it, and what is used instead.
fn refused(why: &anyhow::Error, asking: Option<&Result<WaitProbe>>) -> Check {
    let (limits, fix) = refusal(why);
    let (value, limits) = match asking {
        None => ("none", limits),
        Some(Err(error)) => (
            "none",
            format!("{limits}; pg_stat_activity is not available either: {error:#}"),
        ),
        Some(Ok(_)) => (
            "pg_stat_activity",
            format!(
                "{limits}; pgassay samples pg_stat_activity {ACTIVITY_HZ} times per second instead, \
                 which costs the server more and shows less of short waits"
            ),
        ),
    };
    Check {
        name: "waits".to_owned(),
        value: value.to_owned(),
        limitation: Some(limits),
        fix,
    }
}

/// A sampler that runs in a separate thread during a trial.
pub struct WaitThread {
    over: Arc<AtomicBool>,
    /// `None` after [`WaitThread::stop`].
    thread: Option<JoinHandle<(WaitSampler, Vec<WaitInterval>)>>,
}

impl Drop for WaitThread {
    /// A trial that failed must not leave the thread behind.
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

/// How soon the thread notices that it must stop, and the precision with which samples are assigned
/// to a window.
const STRETCH: Duration = Duration::from_millis(10);

/// The samples between two times on `CLOCK_MONOTONIC`.
struct WaitInterval {
    time_ns: Range<u64>,
    samples: WaitSamples,
}

/// The samples of a [`WaitLogSource`] without their source.
enum WaitSamples {
    Memory(WaitLog<u32>),
    Server(WaitLog<NamedWait>),
}

impl WaitThread {
    /// Starts sampling these processes.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(mut sampler: WaitSampler, pids: Vec<u32>) -> Result<Self> {
        let over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&over);
        let thread = thread::Builder::new().spawn(move || {
            let uninterrupted = Interrupt::default();
            let mut stretches = Vec::new();
            // Each stretch starts with a sample.
            let length = STRETCH.max(sampler.every);
            while !until.load(Ordering::Relaxed) {
                let begin_ns = monotonic_ns();
                sampler.sample(&pids, Instant::now() + length, &uninterrupted);
                stretches.push(WaitInterval {
                    time_ns: begin_ns..monotonic_ns(),
                    samples: sampler.log.take(),
                });
            }
            (sampler, stretches)
        });
        let thread = thread.context("cannot start a thread that samples waits")?;
        Ok(Self {
            over,
            thread: Some(thread),
        })
    }

    /// Stops and returns the samples within the trial's window, with wait events named as in this
    /// major version. Returns all samples if the window is unknown or too short. Samples outside
    /// the window are dropped, because backends then only wait for their client.
    ///
    /// # Panics
    /// If the thread panicked, which it never does.
    pub fn stop(mut self, major: Option<&str>, window: Option<&Range<u64>>) -> Waits {
        self.over.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("only this takes the thread");
        let (mut sampler, mut stretches) = thread.join().expect("sampling does not panic");
        let is_within = |it: &WaitInterval| {
            window.is_some_and(|window| {
                window.start <= it.time_ns.start && it.time_ns.end <= window.end
            })
        };
        if stretches.iter().any(is_within) {
            stretches.retain(is_within);
        }
        for stretch in stretches {
            sampler.log.put_back(stretch.samples);
        }
        sampler.finish(major)
    }
}

impl WaitLogSource {
    /// Takes the samples so far and leaves the log empty.
    fn take(&mut self) -> WaitSamples {
        match self {
            Self::Memory(.., log) => WaitSamples::Memory(std::mem::take(log)),
            Self::Server(_, log) => WaitSamples::Server(std::mem::take(log)),
        }
    }

    /// Adds samples that [`WaitLogSource::take`] returned.
    fn put_back(&mut self, samples: WaitSamples) {
        match (self, samples) {
            (Self::Memory(.., log), WaitSamples::Memory(taken)) => log.add(taken),
            (Self::Server(_, log), WaitSamples::Server(taken)) => log.add(taken),
            _ => unreachable!("the samples come from this log"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgassay_profile::SessionsError;

    /// Regression: "process 42: No such process (os error 3): No such process (os error 3)".
    #[test]
    fn a_refusal_names_its_cause_once() {
        let gone = || std::io::Error::from_raw_os_error(libc::ESRCH);
        let of_waits = WaitError::Unreadable {
            pid: 42,
            source: gone(),
        };
        let of_sessions = SessionsError::Unreadable {
            pid: 42,
            source: gone(),
        };
        for why in [anyhow::Error::new(of_waits), of_sessions.into()] {
            let (text, _) = refusal(&why);
            assert_eq!(text.matches("No such process").count(), 1, "{text}");
        }
    }
}
