//! Looks at what the backends wait for, as often as their CPU is sampled.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use pgassay_core::observation::{WaitCount, Waits};
use pgassay_core::run::Check;
use pgassay_core::subsystem::{wait_event, wait_number};
use pgassay_profile::{KnownWaits, LiveServer, WaitError, WaitLog, WaitReader};
use pgassay_wire::Exchange;

/// Finds where a server keeps its waits; before 14 by means of two connections to it.
///
/// # Errors
/// What keeps us from reading them.
pub fn reader<S: Read + Write + Send>(
    server: &LiveServer,
    mut connect: Option<impl FnMut() -> Result<Exchange<S>>>,
) -> Result<WaitReader> {
    match (WaitReader::open(server), &mut connect) {
        (Err(WaitError::NeedsConnection), Some(connect)) => {
            learn(server, &mut connect()?, connect()?)
        }
        (other, _) => Ok(other?),
    }
}

/// Looks at the backends' memory.
pub struct WaitSampler {
    reader: WaitReader,
    log: WaitLog,
    every: Duration,
    cpu_us: f64,
}

impl WaitSampler {
    /// Nothing seen yet.
    pub fn new(reader: WaitReader, frequency_hz: u32) -> Self {
        Self {
            reader,
            log: WaitLog::default(),
            every: Duration::from_secs(1) / frequency_hz.max(1),
            cpu_us: 0.0,
        }
    }

    /// Looks at these processes until then.
    pub fn sample(&mut self, pids: &[u32], until: Instant) {
        let before_us = own_cpu_us();
        while Instant::now() < until {
            self.log.sweep(&self.reader, pids.iter().copied());
            let next = until.min(Instant::now() + self.every);
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        self.cpu_us += own_cpu_us() - before_us;
    }

    /// What was seen, by the names of this major version.
    pub fn finish(self, major: Option<&str>) -> Waits {
        let name = |number: u32| match wait_event(major.unwrap_or_default(), number) {
            _ if number == 0 => (String::new(), String::new()),
            Some(wait) => (wait.kind.to_owned(), wait.name.to_owned()),
            None => ("not known".to_owned(), format!("{number:#010x}")),
        };
        let events = self.log.blocked.iter().map(|(&number, &samples)| {
            let (kind, name) = name(number);
            WaitCount {
                kind,
                name,
                samples,
            }
        });
        Waits {
            blocked_samples: self.log.blocked.values().sum(),
            runnable_samples: self.log.runnable,
            unreadable: self.log.unreadable,
            sampling_cpu_us: self.cpu_us,
            events: events.collect(),
        }
    }
}

fn learn<S: Read + Write + Send>(
    server: &LiveServer,
    holder: &mut Exchange<S>,
    waiter: Exchange<S>,
) -> Result<WaitReader> {
    let major = server.major.as_deref().unwrap_or_default();
    let advisory = wait_number(major, "Lock", "advisory")
        .ok_or_else(|| anyhow::anyhow!("the numbers of wait events of {major:?} are not known"))?;
    // 9.6 does not tell that it waits for the client.
    let idle = wait_number(major, "Client", "ClientRead").unwrap_or(0);
    let known = KnownWaits { advisory, idle };
    Ok(WaitReader::learn(server, known, holder, waiter)?)
}

/// What keeps us from waits, and what grants them.
pub fn refusal(error: &anyhow::Error) -> Check {
    let (limits, mend) = match error.downcast_ref::<WaitError>() {
        Some(WaitError::NotPermitted(refusal)) => {
            let effect = format!("{}: {}", refusal.what, refusal.why);
            (effect, Some(refusal.commands.join("  or  ")))
        }
        Some(WaitError::NeedsConnection) => (error.to_string(), Some("--dsn".to_owned())),
        _ => (format!("{error:#}"), None),
    };
    Check {
        name: "waits".to_owned(),
        value: "none".to_owned(),
        limits: Some(limits),
        mend,
    }
}

/// A sampler at work in a thread of its own, beside a trial.
pub struct WaitThread {
    over: Arc<AtomicBool>,
    thread: JoinHandle<WaitSampler>,
}

/// How soon the thread notices that it is over.
const STRETCH: Duration = Duration::from_millis(50);

impl WaitThread {
    /// Looks at these processes from now on.
    pub fn start(mut sampler: WaitSampler, pids: Vec<u32>) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                sampler.sample(&pids, Instant::now() + STRETCH);
            }
            sampler
        });
        Self { over, thread }
    }

    /// What was seen, by the names of this major version.
    ///
    /// # Panics
    /// Never: looking does not panic.
    pub fn stop(self, major: Option<&str>) -> Waits {
        self.over.store(true, Ordering::Relaxed);
        let sampler = self.thread.join().expect("looking does not panic");
        sampler.finish(major)
    }
}

/// CPU time that this thread has used: the first number of its `schedstat`.
fn own_cpu_us() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let on_cpu_ns = text.split_whitespace().next().map(str::parse::<u64>);
    on_cpu_ns.and_then(Result::ok).unwrap_or(0) as f64 / 1e3
}
