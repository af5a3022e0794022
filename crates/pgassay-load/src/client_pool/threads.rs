//! The threads of a run: start them together and collect their CPU usage.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, OnceLock};
use std::time::Duration;

use pgassay_rights as rights;

use crate::clock;
use crate::driver::{self, Driver as _, Io};
use crate::error::LoadError;
use crate::thread_usage::{ThreadUsage, UsageStart};
use crate::worker::{DelayAccount, Worker, WorkerShared};

/// Coordinates the threads' start.
pub(super) struct Start {
    pub begin_ns: AtomicU64,
    /// When to begin; at once if `None`.
    pub due_ns: Option<u64>,
    /// The CPUs that the threads take in turn; if empty, the kernel chooses.
    pub cpus: Vec<usize>,
    pub settle_ns: u64,
    pub measure_ns: Option<u64>,
    /// Whether transactions that end after the window are measured too.
    pub counts_late_ends: bool,
    pub barrier: Barrier,
    /// Set before the barrier: false if a thread could not be started, which it would wait for.
    pub all_exist: OnceLock<bool>,
    pub wants_uring: bool,
    /// Whether to account for delays in the client threads.
    pub keeps_account: bool,
    /// Why a thread could not use `io_uring` despite the earlier check.
    pub refusal: Mutex<Option<String>>,
}

/// Runs all threads; returns each thread's usage, and the number of clients that did not finish.
pub(super) fn run_all(
    workers: &mut [Worker<Io>],
    shared: &WorkerShared<'_>,
    start: &Start,
) -> Result<(Vec<ThreadUsage>, u32), LoadError> {
    let ran = std::thread::scope(|scope| {
        let threads: Result<Vec<_>, _> = workers
            .iter_mut()
            .enumerate()
            .map(|(thread, worker)| {
                let cpu = start.cpus.get(thread % start.cpus.len().max(1)).copied();
                let run = move || match start.all_exist.wait() {
                    true => run_pinned(worker, shared, start, cpu),
                    false => Ok((ThreadUsage::default(), 0)),
                };
                std::thread::Builder::new().spawn_scoped(scope, run)
            })
            .collect();
        start.all_exist.get_or_init(|| threads.is_ok());
        let joined = threads.map_err(no_thread)?.into_iter();
        let joined = joined.map(|thread| match thread.join() {
            Ok(ran) => ran,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        Ok::<Vec<_>, LoadError>(joined.collect())
    })?;
    let mut usages = Vec::new();
    let mut unfinished = 0;
    for one in ran {
        let (usage, left) = one?;
        usages.push(usage);
        unfinished += left;
    }
    Ok((usages, unfinished))
}

/// The system's refusal to start one more thread.
pub(super) fn no_thread(source: io::Error) -> LoadError {
    LoadError::System {
        what: "start a client thread",
        source,
    }
}

/// Runs a thread on its CPU, if it has one. The other threads wait for it, so it takes part if that is refused.
fn run_pinned(
    worker: &mut Worker<Io>,
    shared: &WorkerShared<'_>,
    start: &Start,
    cpu: Option<usize>,
) -> Result<(ThreadUsage, u32), LoadError> {
    let pinned = cpu.map_or(Ok(()), pin_to);
    if pinned.is_err() {
        shared.failed.store(true, Ordering::Relaxed);
    }
    let ran = run_one(worker, shared, start);
    pinned.and(ran)
}

/// Moves the calling thread to a CPU.
fn pin_to(cpu: usize) -> Result<(), LoadError> {
    let refused = |source| LoadError::System {
        what: "move a client thread to its CPU",
        source,
    };
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(refused(io::Error::from_raw_os_error(libc::EINVAL)));
    }
    // SAFETY: all zeroes is an empty set, the number is below its size, and the call reads it.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set)
    };
    if result == 0 {
        return Ok(());
    }
    Err(refused(io::Error::last_os_error()))
}

fn run_one(
    worker: &mut Worker<Io>,
    shared: &WorkerShared<'_>,
    start: &Start,
) -> Result<(ThreadUsage, u32), LoadError> {
    disable_timer_slack();
    // Where this is not permitted, `rights::keep` has failed before, with a warning. The other threads wait for this
    // one, so it must not end here.
    let _ = rights::rest_in_load();
    if start.wants_uring
        && let Err(error) = worker.driver.begin_uring()
        && let Ok(mut refusal) = start.refusal.lock()
    {
        *refusal = Some(driver::explain(&error));
    }
    worker.recorder.reset(0, u64::MAX);
    worker.recorder.counts_late_ends = start.counts_late_ends;
    if start.barrier.wait().is_leader() {
        if let Some(due_ns) = start.due_ns {
            let early_ns = due_ns.saturating_sub(clock::monotonic_ns());
            std::thread::sleep(Duration::from_nanos(early_ns));
        }
        let begin_ns = clock::monotonic_ns();
        start.begin_ns.store(begin_ns, Ordering::Relaxed);
        if let Some(measure_ns) = start.measure_ns {
            // Pools that begin together also end together, even if one of them began late.
            let end_ns = start
                .due_ns
                .unwrap_or(begin_ns)
                .saturating_add(start.settle_ns)
                .saturating_add(measure_ns);
            shared.end_ns.store(end_ns, Ordering::Relaxed);
        }
    }
    start.barrier.wait();
    let begin_ns = start.begin_ns.load(Ordering::Relaxed);
    worker.recorder.window_begin_ns = begin_ns + start.settle_ns;
    worker.recorder.window_end_ns = shared.end_ns.load(Ordering::Relaxed);
    let usage_start = UsageStart::now();
    worker.account = start.keeps_account.then(|| {
        let is_alone = !shared.program.has_sleep
            && shared.options.rate_per_s.is_none()
            && shared.connector.is_none();
        let read = Box::new(clock::thread_run_queue_reader());
        Box::new(DelayAccount::new(
            worker.clients.len(),
            worker.driver.batch_traits(),
            is_alone,
            begin_ns,
            read,
        ))
    });
    let ran = worker.run(begin_ns, shared);
    if ran.is_err() {
        shared.failed.store(true, Ordering::Relaxed);
    }
    let usage = usage_start.usage(begin_ns);
    let ended = worker
        .driver
        .end_uring()
        .map_err(|source| LoadError::System {
            what: "finish io_uring operations",
            source,
        });
    let unfinished = ran?;
    ended.map(|()| (usage, unfinished))
}

/// Disables timer slack: by default the kernel may wake a sleeper 50 µs late.
fn disable_timer_slack() {
    // SAFETY: the call only changes the calling thread's timer slack.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_usize) };
}
