//! The sampler on copies of this program that the tests start.
//!
//! A copy runs only `fixture_program`, in the role given by the variable `PGASSAY_FIXTURE`, until it
//! is killed or for half a minute.

use pgassay_profile::{Access, ProcessTotals, Sampler, SamplerConfig, SamplerError, Samples};
use pgassay_test_support::{copy_program, not_applicable, os::is_root, skip};
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const VARIABLE: &str = "PGASSAY_FIXTURE";
const LIFE: Duration = Duration::from_secs(30);

/// Not a test, but the code of the copies.
#[test]
#[ignore = "run by the other tests in a separate process"]
fn fixture_program() {
    let Ok(part) = std::env::var(VARIABLE) else {
        return;
    };
    let began = Instant::now();
    match part.as_str() {
        "spin" => {
            say("ready");
            while began.elapsed() < LIFE {
                black_box(fixture_outer(black_box(1)));
            }
        }
        "deep" => {
            say("ready");
            while began.elapsed() < LIFE {
                black_box(fixture_recursion(black_box(200)));
            }
        }
        "parent" => {
            say("ready");
            while began.elapsed() < LIFE {
                // Each child executes a program (from the same file) and ends soon.
                let mut child = fixture_command(&std::env::current_exe().unwrap(), "spin");
                let mut child = child.stdout(Stdio::null()).spawn().unwrap();
                std::thread::sleep(Duration::from_millis(150));
                child.kill().unwrap();
                child.wait().unwrap();
            }
        }
        "unprivileged" => match Sampler::open(&SamplerConfig::default()) {
            Ok(_) => say("opened"),
            Err(error) => {
                let own = ProcessTotals::read(&[std::process::id()]);
                say(&format!("{} {error}", own.by_pid.len()));
            }
        },
        "tier" => {
            let target = std::env::var("PGASSAY_FIXTURE_PID").unwrap_or_default();
            // A child of the same user stands in for a server.
            let mut child = Command::new("sleep").arg("30").spawn().unwrap();
            // It is not readable before its `exec` is complete; its program is mapped last.
            let maps = format!("/proc/{}/maps", child.id());
            while !std::fs::read_to_string(&maps).is_ok_and(|it| it.contains("r-xp")) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let access = Access::to_server(target.parse().unwrap_or(child.id()));
            child.kill().unwrap();
            child.wait().unwrap();
            let missing = access.missing.iter();
            let missing: Vec<_> = missing
                .map(|it| format!("{} {}", it.tier, it.refusal))
                .collect();
            say(&format!(
                "{} {} | {}",
                access.tier,
                access.words(),
                missing.join(" | ")
            ));
        }
        other => panic!("unknown role: {other}"),
    }
}

fn say(line: &str) {
    // Unlike `println!`, this is not captured by the test harness.
    std::io::stdout()
        .write_all(format!("\nFIXTURE {line}\n").as_bytes())
        .unwrap();
}

#[inline(never)]
fn fixture_outer(n: u64) -> u64 {
    black_box(fixture_middle(n + 1)) + 1
}

#[inline(never)]
fn fixture_middle(n: u64) -> u64 {
    black_box(fixture_inner(n + 1)) + 1
}

#[inline(never)]
fn fixture_inner(n: u64) -> u64 {
    let mut sum = n;
    for i in 0..200_000 {
        sum = black_box(sum.wrapping_mul(31).wrapping_add(i));
    }
    sum
}

#[inline(never)]
fn fixture_recursion(depth: u64) -> u64 {
    if depth == 0 {
        return fixture_inner(1);
    }
    let room = black_box([depth; 8]);
    black_box(fixture_recursion(depth - 1)) + room[7]
}

fn fixture_command(program: &Path, part: &str) -> Command {
    let mut command = Command::new(program);
    command
        .args([
            "--exact",
            "processes::fixture_program",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(VARIABLE, part)
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// A running copy, killed at the end of its test.
struct Fixture {
    child: Child,
}

impl Fixture {
    fn start(program: &Path, part: &str) -> Self {
        let mut child = fixture_command(program, part)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.any(|line| line.unwrap() == "FIXTURE ready");
        let fixture = Self { child };
        assert!(ready, "the copy ended without being ready");
        fixture
    }

    fn of(part: &str) -> Self {
        Self::start(&std::env::current_exe().unwrap(), part)
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Concurrent samplers and busy copies would disturb each other.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    // A failed test leaves no state behind, so a poisoned lock is fine.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A sampler of these processes; `None`, with a visible skip, if it is not permitted.
fn sampler(pids: &[u32], stack_bytes: u32) -> Option<Sampler> {
    let config = SamplerConfig {
        postmaster_pids: pids.to_vec(),
        frequency_hz: 499,
        stack_bytes,
        ..SamplerConfig::default()
    };
    match Sampler::open(&config) {
        Ok(sampler) => Some(sampler),
        Err(error @ (SamplerError::NotPermitted(_) | SamplerError::Unsupported { .. })) => {
            skip("sampling our own process", &error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn sample(sampler: &Sampler, time: Duration) -> Samples {
    sampler.start().unwrap();
    std::thread::sleep(time);
    sampler.stop().unwrap()
}

/// Number of samples whose stacks contain all these names, in this order.
fn with_chain(samples: &Samples, chain: &[&str]) -> u64 {
    let mut count = 0;
    for (frames, n) in samples.select(|_| true).stacks() {
        let mut wanted = chain.iter().peekable();
        for frame in frames {
            if wanted
                .peek()
                .is_some_and(|name| frame.to_string().contains(**name))
            {
                wanted.next();
            }
        }
        if wanted.peek().is_none() {
            count += n;
        }
    }
    count
}

const CHAIN: [&str; 4] = [
    "fixture_program",
    "fixture_outer",
    "fixture_middle",
    "fixture_inner",
];

#[test]
fn nested_functions_are_unwound_in_order_to_the_entry() {
    let _alone = alone();
    let fixture = Fixture::of("spin");
    let Some(sampler) = sampler(&[fixture.pid()], 24 * 1024) else {
        return;
    };
    sampler.start().unwrap();
    let before = ProcessTotals::read(&[fixture.pid()]);
    std::thread::sleep(Duration::from_millis(800));
    let used = ProcessTotals::read(&[fixture.pid()]).since(&before).total();
    let samples = sampler.stop().unwrap();

    let quality = samples.select(|_| true).quality;
    assert!(quality.total >= 20, "{samples:?}");
    assert!(
        with_chain(&samples, &CHAIN) * 100 >= quality.total * 95,
        "{samples:?}"
    );
    assert!(quality.reached_entry_share() >= Some(0.95), "{quality:?}");
    assert_eq!(
        quality.with_user,
        quality.reached_entry + quality.truncated + quality.unwind_failed
    );
    assert_eq!(quality.total, quality.with_user + quality.kernel_only);
    assert_eq!(
        samples.select(|_| true).counts.values().sum::<u64>(),
        quality.total
    );
    assert_eq!(samples.lost, 0);

    // The samples must agree with the exact total, which they allocate.
    let (sampled, exact) = (quality.sampled_ns as f64, used.on_cpu_ns as f64);
    let noise_ns = (quality.total as f64).sqrt() * samples.period_ns as f64;
    let allowed = exact * 0.05 + 4.0 * noise_ns;
    assert!(
        (sampled - exact).abs() < allowed,
        "sampled {sampled} ns, exact {exact} ns"
    );
}

#[test]
fn children_that_run_another_program_belong_to_their_server() {
    let _alone = alone();
    let fixture = Fixture::of("parent");
    let Some(sampler) = sampler(&[fixture.pid()], 24 * 1024) else {
        return;
    };
    let samples = sample(&sampler, Duration::from_millis(1500));
    let children = samples.select(|p| p.pid != Some(fixture.pid())).quality;
    let pids: Vec<u32> = samples.processes.iter().filter_map(|p| p.pid).collect();
    assert!(
        pids.len() >= 4,
        "several children were started and ended: {pids:?}"
    );
    assert!(
        samples
            .processes
            .iter()
            .all(|p| p.postmaster_pid == fixture.pid())
    );
    assert!(children.total >= 20);
    // A child starts in the loader and the harness, so not all samples are in the function.
    assert!(
        with_chain(&samples, &CHAIN) * 100 >= children.total * 70,
        "{children:?}"
    );
    assert!(children.reached_entry_share() >= Some(0.9), "{children:?}");
}

#[test]
fn a_program_whose_file_is_deleted_keeps_its_names() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("gone");
    copy_program(&std::env::current_exe().unwrap(), &program);
    let fixture = Fixture::start(&program, "spin");
    std::fs::remove_file(&program).unwrap();
    let Some(sampler) = sampler(&[fixture.pid()], 24 * 1024) else {
        return;
    };
    let samples = sample(&sampler, Duration::from_millis(500));
    let total = samples.select(|_| true).quality.total;
    assert!(total >= 10);
    assert!(
        with_chain(&samples, &CHAIN) * 100 >= total * 95,
        "{samples:?}"
    );
    assert_eq!(samples.unreadable_objects, Vec::<String>::new());
}

#[test]
fn processes_of_other_programs_are_counted_separately() {
    let _alone = alone();
    let fixture = Fixture::of("spin");
    let Some(sampler) = sampler(&[], 8 * 1024) else {
        return;
    };
    let samples = sample(&sampler, Duration::from_millis(400));
    assert!(samples.other_programs >= 10, "{samples:?}");
    assert_eq!(samples.processes, []);
    drop(fixture);
}

#[test]
fn each_window_is_counted_separately() {
    let _alone = alone();
    let fixture = Fixture::of("spin");
    let Some(sampler) = sampler(&[fixture.pid()], 8 * 1024) else {
        return;
    };
    let first = sample(&sampler, Duration::from_millis(600))
        .select(|_| true)
        .quality
        .total;
    let none = sampler.start().and_then(|()| sampler.stop()).unwrap();
    for _ in 0..20 {
        sample(&sampler, Duration::from_millis(1));
    }
    let last = sample(&sampler, Duration::from_millis(100))
        .select(|_| true)
        .quality
        .total;
    assert!(first >= 20, "{first}");
    assert!(none.select(|_| true).quality.total <= 5);
    assert!(last < first, "{last} after {first}");
    // A removed server is like any other process.
    sampler.unwatch(fixture.pid()).unwrap();
    assert_eq!(sample(&sampler, Duration::from_millis(100)).processes, []);
}

#[test]
fn a_process_that_does_not_exist_is_an_error() {
    let Some(sampler) = sampler(&[], 8 * 1024) else {
        return;
    };
    let error = sampler.watch(u32::MAX - 1).unwrap_err();
    assert!(
        matches!(error, SamplerError::NoSuchProcess { .. }),
        "{error}"
    );
}

#[test]
fn the_error_for_a_value_out_of_range_includes_the_setting() {
    for (config, name) in [
        (
            SamplerConfig {
                frequency_hz: 0,
                ..SamplerConfig::default()
            },
            "frequency_hz",
        ),
        (
            SamplerConfig {
                stack_bytes: 65_536,
                ..SamplerConfig::default()
            },
            "stack_bytes",
        ),
        (
            SamplerConfig {
                stack_bytes: 1001,
                ..SamplerConfig::default()
            },
            "stack_bytes",
        ),
        (
            SamplerConfig {
                ring_bytes: 3 << 20,
                ..SamplerConfig::default()
            },
            "ring_bytes",
        ),
    ] {
        let error = Sampler::open(&config).unwrap_err();
        assert!(error.to_string().starts_with(name), "{error}");
    }
}

#[test]
fn an_unprivileged_user_gets_the_command_to_run_and_exact_totals() {
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    let refuses = paranoid.is_ok_and(|text| text.trim().parse::<i64>().is_ok_and(|p| p > 0));
    if !refuses {
        not_applicable(
            "sampling as an unprivileged user",
            "any user may sample here",
        );
        return;
    }
    if !is_root() {
        skip("sampling as an unprivileged user", "requires root");
        return;
    }
    let (_dir, program) = program_for_anybody();
    let output = fixture_command(&program, "unprivileged")
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text
        .lines()
        .find(|l| l.starts_with("FIXTURE"))
        .unwrap_or_default();
    assert!(
        line.starts_with("FIXTURE 1 CPU stacks cannot be sampled"),
        "{text}"
    );
    assert!(
        line.contains("sudo sysctl kernel.perf_event_paranoid=0"),
        "{text}"
    );
    assert!(
        line.contains(&format!("+ep {}", program.display())),
        "{text}"
    );
}

/// A copy of this program that any user can execute.
fn program_for_anybody() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = dir.path().join("copy");
    copy_program(&std::env::current_exe().unwrap(), &program);
    (dir, program)
}

/// For a process of the same user, and for one of root's.
#[test]
fn an_unprivileged_user_gets_its_tier_and_the_commands_for_the_next() {
    if !is_root() {
        skip("tiers of an unprivileged user", "requires root");
        return;
    }
    let number = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}"));
        text.ok().and_then(|text| text.trim().parse::<i64>().ok())
    };
    let paranoid = number("perf_event_paranoid").unwrap();
    let is_traceable = number("yama/ptrace_scope").unwrap_or(0) == 0;
    let (_dir, program) = program_for_anybody();
    let known = |target: Option<u32>| {
        let mut command = fixture_command(&program, "tier");
        command.env(
            "PGASSAY_FIXTURE_PID",
            target.map_or(String::new(), |pid| pid.to_string()),
        );
        let output = command.uid(65534).gid(65534).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find_map(|line| line.strip_prefix("FIXTURE "));
        line.unwrap_or_else(|| panic!("{text}")).to_owned()
    };
    let own = known(None);
    let others = known(Some(std::process::id()));
    if paranoid > 0 {
        assert!(own.starts_with("T1 "), "{own}");
        assert!(own.contains("T2 CPU stacks cannot be sampled"), "{own}");
        assert!(
            own.contains("sudo sysctl kernel.perf_event_paranoid=0"),
            "{own}"
        );
    } else {
        assert!(own.starts_with("T3 "), "{own}");
    }
    assert_eq!(
        own.contains("wait events from memory"),
        is_traceable,
        "{own}"
    );
    assert!(
        others.starts_with("T1 SQL statistics, exact CPU totals |"),
        "{others}"
    );
    assert!(others.contains("T1 wait events cannot be read"), "{others}");
    assert!(others.contains("server's own user"), "{others}");
}

mod slow {
    use super::*;

    #[test]
    #[ignore = "slow: cargo test --test suite -- --ignored slow::"]
    fn stacks_deeper_than_the_copy_are_counted_as_truncated() {
        let _alone = alone();
        let fixture = Fixture::of("deep");
        let Some(short) = sampler(&[fixture.pid()], 1024) else {
            return;
        };
        let quality = sample(&short, Duration::from_millis(400))
            .select(|_| true)
            .quality;
        assert!(quality.total >= 10);
        assert!(
            quality.truncated * 100 >= quality.with_user * 95,
            "{quality:?}"
        );
        drop(short);

        let Some(long) = sampler(&[fixture.pid()], 64_000) else {
            return;
        };
        let samples = sample(&long, Duration::from_millis(400));
        let quality = samples.select(|_| true).quality;
        assert!(quality.reached_entry_share() >= Some(0.95), "{quality:?}");
        assert!(
            quality.frames > quality.total * 200,
            "stacks contain the whole recursion: {quality:?}"
        );
    }
}
