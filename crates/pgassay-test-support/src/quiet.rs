//! The tier of tests whose outcome depends on time.
//!
//! They run one at a time, each on a machine that is as quiet as it becomes within a bounded wait, and
//! again where one failed: on a shared machine a single run may be disturbed by other machines.
//! A defect fails every attempt.

use std::fs;
use std::io::Write;
use std::panic::{self, UnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Other programs and the hypervisor may use this share of the machine before a test begins.
const OTHERS_MAX: f64 = 0.1;
/// A test waits this long for that, and then begins anyway.
const PATIENCE: Duration = Duration::from_secs(30);
/// All tests of a program together wait this long: a machine that is busy all the time does not become
/// quiet for the fortieth test.
const PATIENCE_OF_ALL: Duration = Duration::from_mins(3);
const READING: Duration = Duration::from_millis(500);
const ATTEMPTS: u32 = 3;

static TURN: Mutex<()> = Mutex::new(());
static WAITED_MS: AtomicU64 = AtomicU64::new(0);

/// Runs a test of the timing tier.
///
/// # Panics
/// As the test does in its last attempt.
pub fn timing(test: impl Fn() + UnwindSafe + Copy) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for attempt in 1..ATTEMPTS {
        let busy = wait_for_quiet();
        if panic::catch_unwind(test).is_ok() {
            return;
        }
        say(&format!(
            "attempt {attempt} of {ATTEMPTS} failed: other programs used {:.0}% of the machine before it, \
             {:.0}% after it (at most {:.0}% wanted)",
            busy * 100.0,
            busy_share() * 100.0,
            OTHERS_MAX * 100.0
        ));
    }
    wait_for_quiet();
    test();
}

/// The share of the machine that was in use at last.
fn wait_for_quiet() -> f64 {
    let waited = Duration::from_millis(WAITED_MS.load(Relaxed));
    let patience = PATIENCE.min(PATIENCE_OF_ALL.saturating_sub(waited));
    let begin = Instant::now();
    loop {
        let busy = busy_share();
        if busy <= OTHERS_MAX {
            return busy;
        }
        if begin.elapsed() > patience {
            WAITED_MS.fetch_add(begin.elapsed().as_millis() as u64, Relaxed);
            say(&format!(
                "the machine is {:.0}% busy after {} s of waiting (at most {:.0}% wanted); measuring anyway",
                busy * 100.0,
                begin.elapsed().as_secs(),
                OTHERS_MAX * 100.0
            ));
            return busy;
        }
    }
}

/// The share of the processors' time that was neither idle nor waited for a device.
fn busy_share() -> f64 {
    let before = processor_ticks();
    thread::sleep(READING);
    let after = processor_ticks();
    let all = after.0.saturating_sub(before.0).max(1);
    let idle = after.1.saturating_sub(before.1);
    1.0 - idle as f64 / all as f64
}

/// All ticks and idle ones; source: `proc_stat(5)`.
fn processor_ticks() -> (u64, u64) {
    let text = fs::read_to_string("/proc/stat").expect("proc is mounted");
    let first = text.lines().next().unwrap_or_default();
    let ticks = first.split_whitespace().skip(1).take(8);
    let ticks: Vec<u64> = ticks.filter_map(|it| it.parse().ok()).collect();
    let idle = ticks.get(3..5).unwrap_or_default().iter().sum();
    (ticks.iter().sum(), idle)
}

/// Past the harness, which would capture it.
fn say(what: &str) {
    let _ = writeln!(std::io::stderr(), "timing: {what}");
}

/// Puts tests into the timing tier, by the names of their functions; see [`crate::timing()`].
#[macro_export]
macro_rules! timing_tests {
    ($($name:ident,)+) => {
        mod timing {
            $(
                #[test]
                fn $name() {
                    $crate::timing(super::$name);
                }
            )+
        }
    };
}
