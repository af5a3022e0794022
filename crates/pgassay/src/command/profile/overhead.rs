//! Ends a watch that uses more CPU time than the user permits.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pgassay_lab::Interrupt;
use pgassay_lab::watch::BackendCpu;
use pgassay_model::check::Check;
use pgassay_profile::{own_cpu_ns, process_cpu_ns};
use pgassay_report::activity::share;

use super::connection::INCOMPLETE;

/// The limit is for any time of this length. A shorter one would end a watch because of one reading of the tables.
const WINDOW: Duration = Duration::from_secs(5);
/// How often CPU times are read.
const READ_EVERY: Duration = Duration::from_millis(250);
/// How soon an interrupt is passed on.
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// The argument of `--max-overhead`: a share of the machine's CPU time, in percent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OverheadLimit(f64);

impl FromStr for OverheadLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.trim().trim_end_matches('%').trim_end().parse::<f64>();
        let percent = number.ok().filter(|it| (0.01..=100.0).contains(it));
        percent
            .map(Self)
            .ok_or_else(|| "expected a percentage from 0.01% to 100%, such as 1%".to_owned())
    }
}

impl fmt::Display for OverheadLimit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}%", self.0)
    }
}

/// A watch used more than it may.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error(
    "{who} used {} of this machine's CPU time within {} s, more than --max-overhead {limit}",
    share(*.used, 1.0), WINDOW.as_secs()
)]
pub struct OverheadExceeded {
    /// Whose CPU time is known.
    who: &'static str,
    used: f64,
    limit: OverheadLimit,
}

impl OverheadExceeded {
    /// The limitation of a profile that it ended after so long.
    pub fn limitation(self, after: Duration, wanted: Duration) -> Check {
        let seconds = |it: Duration| format!("{:.1} s", it.as_secs_f64());
        Check {
            name: "overhead".to_owned(),
            value: INCOMPLETE.to_owned(),
            limitation: Some(format!(
                "it ended after {} instead of {}: {self}",
                seconds(after),
                seconds(wanted)
            )),
            fix: Some("raise --max-overhead, or lower --frequency".to_owned()),
        }
    }

    /// The reason in a line of a terminal.
    pub fn brief(self) -> String {
        let used = share(self.used, 1.0);
        format!(
            "it used {used} of the CPUs; --max-overhead is {}",
            self.limit
        )
    }
}

/// What a watch may use, and what it has used so far.
pub struct OverheadGuard {
    limit: OverheadLimit,
    processors: f64,
    backends: BackendCpu,
    has_backends: bool,
    /// The CPU time used at some moments, in nanoseconds, oldest first. The first one is as old as the window.
    used: VecDeque<(Instant, u64)>,
}

/// Those of the machine, however few pgassay itself may use.
fn processors_online() -> f64 {
    // SAFETY: it only reads.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    online.max(1) as f64
}

impl OverheadGuard {
    /// For a watch that begins now.
    pub fn new(limit: OverheadLimit, own_pids: impl IntoIterator<Item = u32>) -> Self {
        let processors = processors_online();
        let mut guard = Self {
            limit,
            processors,
            backends: BackendCpu::default(),
            has_backends: false,
            used: VecDeque::new(),
        };
        guard.add_backends(own_pids);
        guard
    }

    /// Counts what these backends use from now on.
    pub fn add_backends(&mut self, own_pids: impl IntoIterator<Item = u32>) {
        for pid in own_pids {
            self.backends.add(pid, process_cpu_ns(pid).unwrap_or(0));
            self.has_backends = true;
        }
    }

    /// Does something that ends if its interrupt is requested: by the user, or if it uses too much. Returns what it
    /// returned, and whether it was too much.
    pub fn run<T>(
        guard: Option<&mut Self>,
        interrupt: &Interrupt,
        work: impl FnOnce(&Interrupt) -> T,
    ) -> Result<(T, Option<OverheadExceeded>)> {
        let Some(guard) = guard else {
            return Ok((work(interrupt), None));
        };
        let ending = Interrupt::default();
        thread::scope(|scope| {
            let guarding = thread::Builder::new()
                .spawn_scoped(scope, || guard.watch(interrupt, &ending))
                .context("cannot start a thread")?;
            // Also after a panic, or the scope would not end.
            let end = EndOnDrop(&ending);
            let result = work(&ending);
            drop(end);
            guarding.thread().unpark();
            Ok((
                result,
                guarding.join().expect("reading clocks does not panic"),
            ))
        })
    }

    /// Reads CPU times until `ending` is requested, and requests it if that is necessary.
    fn watch(&mut self, interrupt: &Interrupt, ending: &Interrupt) -> Option<OverheadExceeded> {
        let _end = EndOnDrop(ending);
        let mut due = Instant::now();
        while !ending.is_requested() && !interrupt.is_requested() {
            let now = Instant::now();
            if now >= due {
                due = now + READ_EVERY;
                let used_ns = own_cpu_ns() + self.backends.used_ns(process_cpu_ns);
                if let Some(exceeded) = self.exceeded(now, used_ns) {
                    return Some(exceeded);
                }
            }
            thread::park_timeout(CHECK_EVERY);
        }
        None
    }

    /// Whether more was used than permitted in the window that ends now, with what was used in all.
    fn exceeded(&mut self, now: Instant, used_ns: u64) -> Option<OverheadExceeded> {
        self.used.push_back((now, used_ns));
        while self.used.get(1).is_some_and(|it| now - it.0 >= WINDOW) {
            self.used.pop_front();
        }
        let &(since, before_ns) = self.used.front()?;
        // From the start on, the budget is that of a whole window.
        let window = WINDOW.max(now - since).as_secs_f64() * self.processors;
        let used = used_ns.saturating_sub(before_ns) as f64 / 1e9 / window;
        (used * 100.0 > self.limit.0).then_some(OverheadExceeded {
            who: if self.has_backends {
                "pgassay and its backends"
            } else {
                "pgassay"
            },
            used,
            limit: self.limit,
        })
    }
}

struct EndOnDrop<'a>(&'a Interrupt);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.flag().store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(limit: &str) -> OverheadGuard {
        OverheadGuard {
            processors: 2.0,
            ..OverheadGuard::new(limit.parse().unwrap(), [])
        }
    }

    #[test]
    fn a_limit_is_a_percentage() {
        for text in ["1", "1%", " 1.0 % "] {
            assert_eq!(text.parse(), Ok(OverheadLimit(1.0)), "{text}");
        }
        for text in ["", "0", "-1%", "101%", "NaN", "much"] {
            assert!(text.parse::<OverheadLimit>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_watch_that_uses_more_than_its_share_of_five_seconds_is_ended() {
        // 1% of two processors in 5 s are 100 ms.
        let mut guard = guard("1%");
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let ms = |ms: u64| 7_000_000_000 + ms * 1_000_000;
        assert_eq!(guard.exceeded(start, ms(0)), None, "what was used before");
        // A burst at the start, and half of the limit afterward.
        assert_eq!(guard.exceeded(at(250), ms(99)), None);
        for second in 1..60 {
            let used = ms(99 + 10 * second);
            let exceeded = guard.exceeded(at(1000 * second), used);
            assert_eq!(exceeded.is_some(), (1..6).contains(&second), "{second} s");
        }
        assert!(guard.used.len() <= 7);
        let exceeded = guard.exceeded(at(60_000), ms(1000)).unwrap();
        assert_eq!(
            exceeded.to_string(),
            "pgassay used 3.5% of this machine's CPU time within 5 s, more than --max-overhead 1%"
        );
        let check = exceeded.limitation(Duration::from_millis(3210), Duration::from_secs(10));
        let text = check.limitation.unwrap();
        assert!(
            text.starts_with("it ended after 3.2 s instead of 10.0 s: pgassay used"),
            "{text}"
        );
    }

    #[test]
    fn work_ends_with_the_limit_the_interrupt_or_itself() {
        let busy = |ending: &Interrupt| while !ending.is_requested() {};
        let mut low = guard("0.01%");
        let ran = OverheadGuard::run(Some(&mut low), &Interrupt::default(), busy);
        assert!(ran.unwrap().1.is_some());
        let interrupt = Interrupt::default();
        interrupt.flag().store(true, Ordering::Relaxed);
        let idle =
            |ending: &Interrupt| ending.sleep_until(Instant::now() + Duration::from_hours(1));
        let ran = OverheadGuard::run(Some(&mut guard("100%")), &interrupt, idle);
        assert_eq!(ran.unwrap(), ((), None));
        let ran = OverheadGuard::run(Some(&mut guard("100%")), &Interrupt::default(), |_| 7);
        assert_eq!(ran.unwrap(), (7, None));
        let ran = OverheadGuard::run(None, &interrupt, Interrupt::is_requested);
        assert_eq!(ran.unwrap(), (true, None));
    }
}
