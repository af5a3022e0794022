//! Off-CPU time on real servers: complete accounts with the right causes.

use crate::load::{fill, postmaster, select_by_id, under_load};
use pgassay_profile::{
    Access, Blocked, LiveServer, OffCpuCause, OffCpuConfig, ProcessCpu, ProcessOffCpu,
    ProcessStates, Role, Sampler, SamplerConfig, Samples, WaitLog, WaitReader,
};
use pgassay_server::Server;
use pgassay_test_support::{not_applicable, servers, skip, timing_tests};
use std::thread;
use std::time::{Duration, Instant};

timing_tests! {
    a_whole_window_in_one_slice_agrees_with_the_kernels_totals,
    updates_of_a_hot_row_wait_for_a_lock_on_18,
    updates_of_a_hot_row_wait_for_a_lock_on_a_stripped_10,
    on_a_saturated_machine_slices_agree_with_the_kernels_totals,
    short_lived_backends_are_accounted_for_only_during_their_lifetime,
    a_slice_with_lost_records_is_dropped_and_reported,
}

fn config(slice_ms: u64, every_ms: u64) -> SamplerConfig {
    SamplerConfig {
        off_cpu: Some(OffCpuConfig {
            slice: Duration::from_millis(slice_ms),
            every: Duration::from_millis(every_ms),
            ..OffCpuConfig::default()
        }),
        ring_bytes: 16 * 1024 * 1024,
        ..SamplerConfig::default()
    }
}

fn stack_has(samples: &Samples, stack: Option<u32>, name: &str) -> bool {
    stack.is_some_and(|stack| {
        let frames = samples.stacks[stack as usize].iter();
        frames
            .map(|&frame| &samples.frames[frame as usize])
            .any(|frame| frame.name() == Some(name))
    })
}

fn sum(processes: &[&ProcessOffCpu], of: impl Fn(&ProcessOffCpu) -> u64) -> u64 {
    processes.iter().map(|it| of(it)).sum()
}

/// A server, and a sampler of it that reads its wait events.
fn watched(version: &str, config: &SamplerConfig) -> Option<(Server, Sampler)> {
    let server = servers::start_on_disk(version)?;
    let sampler = crate::load::sampler(&server, config)?;
    let live = LiveServer::of_process(postmaster(&server)).unwrap();
    match WaitReader::open(&live) {
        Ok(reader) => sampler.watch_waits(postmaster(&server), reader).unwrap(),
        Err(error) => assert_ne!(version, "18", "{error}"),
    }
    fill(&server);
    Some((server, sampler))
}

/// Exact totals of a process, with the time on the clock of the events.
fn exact(pid: u32) -> (u64, ProcessCpu) {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let cpu = ProcessCpu::read(pid).unwrap();
    // SAFETY: the pointer is to a timespec that outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let now_ns = time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned();
    (now_ns, cpu)
}

/// Time from a wake-up to the run queue of another CPU.
const WAKING_NS: f64 = 5_000.0;
/// Time of a switch that the kernel counts for the processes, and that lies outside of its records: 1.0 to
/// 1.4 µs were measured on a machine with 80,000 switches per second.
const SWITCH_NS: f64 = 2_000.0;

fn a_whole_window_in_one_slice_agrees_with_the_kernels_totals() {
    let Some((server, sampler)) = watched("18", &config(60_000, 60_000)) else {
        return;
    };
    under_load(&server, 8, &select_by_id, |pids| {
        sampler.start().unwrap();
        thread::sleep(Duration::from_millis(50));
        let before: Vec<_> = pids.iter().map(|&pid| exact(pid)).collect();
        thread::sleep(Duration::from_millis(1500));
        let after: Vec<_> = pids.iter().map(|&pid| exact(pid)).collect();
        thread::sleep(Duration::from_millis(50));
        let samples = sampler.stop().unwrap();
        let off_cpu = samples.off_cpu.as_ref().unwrap();
        if off_cpu.slices_dropped > 0 {
            not_applicable(
                "a whole window in one slice",
                &format!("{} records were lost", off_cpu.lost),
            );
            return;
        }
        let mut window_ns = 0;
        let (mut on_cpu_ns, mut run_queue_ns) = (0, 0);
        let (mut away_ns, mut runnable_ns) = (0, 0);
        let mut wake_ups = 0.0;
        for ((&pid, before), after) in pids.iter().zip(&before).zip(&after) {
            let (start_ns, end_ns) = (before.0, after.0);
            window_ns += end_ns - start_ns;
            on_cpu_ns += after.1.on_cpu_ns - before.1.on_cpu_ns;
            run_queue_ns += after.1.run_queue_ns - before.1.run_queue_ns;
            let overlap =
                |from_ns: u64, to_ns: u64| to_ns.min(end_ns).saturating_sub(from_ns.max(start_ns));
            for it in off_cpu.intervals.iter().filter(|it| it.pid == pid) {
                assert_ne!(it.cause, OffCpuCause::Unseen, "{it:?}");
                away_ns += overlap(it.start_ns, it.end_ns);
                runnable_ns += overlap(it.woken_ns, it.end_ns);
                wake_ups += 1.0;
            }
        }
        let may_see = Access::to_server(postmaster(&server)).wake_ups;
        assert_eq!(off_cpu.wake_ups, may_see);
        let close =
            |ours_ns: u64, exact_ns: u64| ours_ns.abs_diff(exact_ns) as f64 / window_ns as f64;
        let seen_ns = window_ns - away_ns;
        let switching = SWITCH_NS * wake_ups / window_ns as f64;
        let missing = (on_cpu_ns as f64 - seen_ns as f64) / window_ns as f64;
        assert!(
            (-0.01..0.01 + switching).contains(&missing),
            "on CPU: {seen_ns} {on_cpu_ns} of {window_ns}, {wake_ups} wake-ups"
        );
        if may_see {
            // The kernel's total starts when a woken process enters the run queue of another CPU,
            // some microseconds after the wake-up, which is more frequent on a busy machine.
            let waking_ns = WAKING_NS * wake_ups / window_ns as f64;
            assert!(
                close(runnable_ns, run_queue_ns) < 0.01 + waking_ns,
                "run queue: {runnable_ns} {run_queue_ns} of {window_ns}, {wake_ups} wake-ups"
            );
        } else {
            skip("wake-ups", "not permitted");
        }
        let backends: Vec<_> = off_cpu.backends(pids).collect();
        assert_eq!(backends.len(), pids.len());
        for it in &backends {
            let parts_ns = it.on_cpu_ns + it.preempted_ns + it.woken_ns + it.unseen_ns;
            assert_eq!(it.present_ns, parts_ns + it.blocked_ns());
            assert_eq!(it.role, Role::Backend);
            assert!(it.unseen_ns < it.present_ns / 100, "{it:?}");
        }
    });
    server.stop().unwrap();
}

/// The shares of the backends' blocked time with a function in the stack, and with a wait event.
fn shares(samples: &Samples, pids: &[u32], function: &str, wait: Option<u32>) -> (f64, f64) {
    let off_cpu = samples.off_cpu.as_ref().unwrap();
    let rows = || off_cpu.backends(pids).flat_map(|it| &it.blocked);
    let all_ns: u64 = rows().map(|it| it.total_ns).sum();
    let with = |holds: &dyn Fn(&Blocked) -> bool| {
        let some_ns: u64 = rows().filter(|it| holds(it)).map(|it| it.total_ns).sum();
        some_ns as f64 / all_ns as f64
    };
    (
        with(&|it| stack_has(samples, it.stack, function)),
        with(&|it| it.wait == wait),
    )
}

fn updates_of_a_hot_row_wait_for_a_lock(version: &str, wait: Option<u32>) {
    let Some((server, sampler)) = watched(version, &config(50, 150)) else {
        return;
    };
    // Each client holds the row's lock for a while, so that all others wait for it.
    let hot = |_: u64, _: usize| {
        "begin; update t set info = info where id = 1; select pg_sleep(0.002); commit".to_owned()
    };
    under_load(&server, 6, &hot, |pids| {
        sampler.start().unwrap();
        thread::sleep(Duration::from_millis(1500));
        let samples = sampler.stop().unwrap();
        let off_cpu = samples.off_cpu.as_ref().unwrap();
        assert!(
            (4..=12).contains(&off_cpu.slices.len()),
            "{:?}",
            off_cpu.slices
        );
        let (stack, waiting) = shares(&samples, pids, "ProcSleep", wait);
        assert!(stack > 0.6, "{version}: {stack} {off_cpu:?}");
        if wait.is_some() {
            assert!(waiting > 0.4, "{waiting} {off_cpu:?}");
        }
        let (known, _) = shares(&samples, pids, "PostgresMain", None);
        assert!(
            known > 0.95,
            "{version}: {known} of the blocked time has a complete stack"
        );
        // The sleep of the lock's holder is separate.
        let (asleep, _) = shares(&samples, pids, "pg_sleep", None);
        assert!((0.02..0.35).contains(&asleep), "{version}: {asleep}");
        // A process preempted in a system call has another kernel stack at the same call site, which
        // happens now and then on a busy machine.
        let backends: Vec<_> = off_cpu.backends(pids).collect();
        let blocked_ns = sum(&backends, ProcessOffCpu::blocked_ns);
        assert!(
            off_cpu.ambiguous_ns < blocked_ns / 10,
            "{} of {blocked_ns}",
            off_cpu.ambiguous_ns
        );
    });
    server.stop().unwrap();
}

fn updates_of_a_hot_row_wait_for_a_lock_on_18() {
    // PG_WAIT_LOCK, LOCKTAG_TRANSACTION; see wait_event.h and lock.h.
    updates_of_a_hot_row_wait_for_a_lock("18", Some(0x0300_0005));
}

fn updates_of_a_hot_row_wait_for_a_lock_on_a_stripped_10() {
    updates_of_a_hot_row_wait_for_a_lock("10", None);
}

/// On a saturated machine a sampler in user space runs only when the backends do not, so its samples
/// of running and runnable processes are biased; slices agree with the kernel's totals.
fn on_a_saturated_machine_slices_agree_with_the_kernels_totals() {
    let Some((server, sampler)) = watched("18", &config(50, 200)) else {
        return;
    };
    let live = LiveServer::of_process(postmaster(&server)).unwrap();
    let reader = WaitReader::open(&live).unwrap();
    under_load(&server, 12, &select_by_id, |pids| {
        sampler.start().unwrap();
        let before: Vec<_> = pids.iter().map(|&pid| exact(pid)).collect();
        let began = Instant::now();
        let (mut log, mut states) = (WaitLog::default(), ProcessStates::default());
        while began.elapsed() < Duration::from_millis(2500) {
            log.sweep(&reader, &mut states, pids.iter().copied());
            thread::sleep(Duration::from_millis(5));
        }
        let after: Vec<_> = pids.iter().map(|&pid| exact(pid)).collect();
        let samples = sampler.stop().unwrap();
        let off_cpu = samples.off_cpu.as_ref().unwrap();
        let window_ns: u64 = before.iter().zip(&after).map(|(b, a)| a.0 - b.0).sum();
        let sees_wake_ups = off_cpu.wake_ups;
        // Without wake-ups, blocked time includes run-queue wait after a wake-up.
        let runnable_ns =
            |it: &ProcessCpu| it.on_cpu_ns + if sees_wake_ups { it.run_queue_ns } else { 0 };
        let ran_ns: u64 = before
            .iter()
            .zip(&after)
            .map(|(b, a)| runnable_ns(&a.1) - runnable_ns(&b.1))
            .sum();
        let exact = ran_ns as f64 / window_ns as f64;
        let backends: Vec<_> = off_cpu.backends(pids).collect();
        let waits_ns = |it: &ProcessOffCpu| it.preempted_ns + it.woken_ns;
        let of_slices = sum(&backends, |it| {
            it.on_cpu_ns + if sees_wake_ups { waits_ns(it) } else { 0 }
        }) as f64
            / sum(&backends, |it| it.present_ns) as f64;
        assert!(exact > 0.02, "the backends run: {exact}");
        // Slices are a sample of the time, and shares vary with other load on the machine.
        assert!(
            (of_slices - exact).abs() < 0.15,
            "slices {of_slices}, exact {exact}"
        );
        // The sampler's share can be anything: half of the exact one on an otherwise idle machine.
        assert!(log.runnable > 0 && !log.blocked.is_empty(), "{log:?}");
    });
    server.stop().unwrap();
}

fn short_lived_backends_are_accounted_for_only_during_their_lifetime() {
    let Some((server, sampler)) = watched("18", &config(200, 200)) else {
        return;
    };
    sampler.start().unwrap();
    let began = Instant::now();
    let mut lives: Vec<(u32, Duration)> = Vec::new();
    while began.elapsed() < Duration::from_millis(1500) {
        let born = Instant::now();
        let (mut connection, pid) = crate::load::connect(&server);
        connection.query("select pg_sleep(0.02)").unwrap();
        connection.close().unwrap();
        lives.push((pid, born.elapsed()));
    }
    // The last backend may not have ended yet.
    thread::sleep(Duration::from_millis(200));
    let samples = sampler.stop().unwrap();
    let off_cpu = samples.off_cpu.as_ref().unwrap();
    let of = |pid: u32| off_cpu.processes.iter().find(|it| it.pid == pid);
    let seen: Vec<_> = lives
        .iter()
        .filter_map(|life| Some((of(life.0)?, life.1)))
        .collect();
    assert!(
        seen.len() * 4 >= lives.len() * 3,
        "{} of {}",
        seen.len(),
        lives.len()
    );
    for (process, life) in &seen {
        // The title of a backend that ended before the slice cannot be read.
        assert!(
            matches!(process.role, Role::Backend | Role::Unknown),
            "{process:?}"
        );
        let parts_ns = process.on_cpu_ns + process.preempted_ns + process.woken_ns;
        assert_eq!(
            process.present_ns,
            parts_ns + process.unseen_ns + process.blocked_ns()
        );
        // It starts before its client is connected and ends later, within a limit.
        let limit = *life + Duration::from_secs(1);
        assert!(
            u128::from(process.present_ns) < limit.as_nanos(),
            "{process:?} {life:?}"
        );
    }
    let asleep: u64 = seen
        .iter()
        .flat_map(|it| &it.0.blocked)
        .filter(|it| stack_has(&samples, it.stack, "pg_sleep"))
        .map(|it| it.total_ns)
        .sum();
    assert!(
        asleep > 10_000_000 * seen.len() as u64,
        "{asleep} of {}",
        seen.len()
    );
    server.stop().unwrap();
}

fn a_slice_with_lost_records_is_dropped_and_reported() {
    let small = SamplerConfig {
        ring_bytes: 32 * 4096,
        ..config(1000, 1000)
    };
    let Some((server, sampler)) = watched("18", &small) else {
        return;
    };
    under_load(&server, 8, &select_by_id, |_| {
        sampler.start().unwrap();
        thread::sleep(Duration::from_millis(2500));
        let samples = sampler.stop().unwrap();
        let off_cpu = samples.off_cpu.as_ref().unwrap();
        // 128 KiB hold a thousand switches, which occur within a few hundredths of a second; an
        // idle enough machine may still read them in time.
        if off_cpu.slices_dropped == 0 {
            assert_eq!(off_cpu.lost, 0);
            not_applicable("lost records", "this machine reads them in time");
            return;
        }
        assert!(off_cpu.lost > 0);
        let limits = samples.limits();
        let said = limits
            .iter()
            .find(|it| it.condition == "lost_slices")
            .unwrap();
        assert!(said.effect.contains("are dropped"), "{said:?}");
    });
    server.stop().unwrap();
}
