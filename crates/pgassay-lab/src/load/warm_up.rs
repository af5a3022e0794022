//! Warms up new connections until throughput is stable and the server's caches are filled.

use std::time::{Duration, Instant};

use anyhow::Result;
use pgassay_load::{Measurement, RunLength, Timing};
use pgassay_model::plan::{Point, Schedule};

use super::Clients;
use crate::interrupt::Interrupted;
use crate::run_context::RunContext;

/// Throughput is stable if the last window is no more than this factor above the better and no more
/// than this factor below the worse of the two windows before it. A backend that fills its caches
/// gets faster; one whose table grows or whose buffers fill with dirty pages gets slower; noise goes
/// both ways.
const STABLE_FACTOR: f64 = 1.05;

/// A filling cache may raise throughput too slowly for three windows to show it. So the bytes that
/// backends read are compared over this many windows with as many before them.
const READ_WINDOWS: usize = 4;
/// The caches are filled if reads per transaction are at least this share of those before,
const READS_STABLE: f64 = 0.9;
/// or if transactions hardly read at all: one 8 kB block per hundred transactions.
const READ_BYTES_MAX: f64 = 82.0;

/// A warm-up begins anew so often if this process is suspended.
const SUSPENDED_MAX: u32 = 5;

/// The measurements of one window.
#[derive(Debug, Clone, Copy)]
struct Seen {
    transactions: f64,
    /// Bytes that the backends have read from files since they started, including reads from the
    /// kernel's page cache; `None` if not readable.
    read_bytes: Option<f64>,
}

/// The result of a warm-up.
#[derive(Debug, Clone, Copy)]
pub struct WarmedUp {
    /// Whether throughput and reads became stable.
    pub is_steady: bool,
    /// The duration of a trial: as planned, or longer if transactions are slow.
    pub trial: Timing,
}

/// Runs load until throughput and reads are stable, or until the cap. `pids` are the backends, if
/// known.
pub fn warm_up(
    clients: &mut dyn Clients,
    pids: &[u32],
    schedule: &Schedule,
    point: &Point,
    context: &RunContext<'_>,
) -> Result<WarmedUp> {
    let settle = Duration::from_micros(schedule.settle_us);
    let planned = Duration::from_micros(schedule.trial_us);
    let mut found = WarmedUp {
        is_steady: false,
        trial: Timing::of(settle, planned, Duration::ZERO),
    };
    let window = RunLength::Timed {
        settle: Duration::ZERO,
        measure: Duration::from_micros(schedule.warm_up_window_us),
    };
    let cap = Duration::from_micros(schedule.warm_up_cap_us);
    let mut until = Instant::now() + cap;
    let mut history = Vec::new();
    let mut suspended = 0;
    context.interrupt.take_suspended();
    while Instant::now() < until {
        let measured = clients.run(&window, point, context)?;
        if measured.interrupted {
            return Err(Interrupted.into());
        }
        if context.interrupt.take_suspended() && suspended < SUSPENDED_MAX {
            // Its transactions seem slow, and trials would become long.
            suspended += 1;
            history.clear();
            until = Instant::now() + cap;
            continue;
        }
        if let Some(transaction) = transaction_length(&measured) {
            found.trial = Timing::of(settle, planned, transaction);
        }
        history.push(Seen {
            transactions: measured.transactions_total as f64,
            read_bytes: read_bytes(pids),
        });
        if is_steady(&history) && reads_are_stable(&history) {
            found.is_steady = true;
            break;
        }
    }
    Ok(found)
}

/// The mean length of a transaction; `None` if none was due.
fn transaction_length(measured: &Measurement) -> Option<Duration> {
    let elapsed_ns = measured.instants.idle_ns - measured.instants.begin_ns;
    let Some(since_begin_ns) = &measured.since_begin_ns else {
        let each = measured.transactions_total.max(1) as f64 / measured.clients.len().max(1) as f64;
        return Some(Duration::from_nanos((elapsed_ns as f64 / each) as u64));
    };
    // Under pacing, clients also wait for transactions to be due.
    if !since_begin_ns.is_empty() {
        return Some(Duration::from_nanos(since_begin_ns.mean() as u64));
    }
    // All that began in the window ended after it.
    (measured.transactions_total > 0).then(|| Duration::from_nanos(elapsed_ns))
}

/// Whether throughput is stable over the last three windows.
fn is_steady(history: &[Seen]) -> bool {
    let [.., first, second, last] = history else {
        return false;
    };
    let [first, second, last] = [first, second, last].map(|it| it.transactions);
    let (best, worst) = (first.max(second), first.min(second));
    best > 0.0 && last <= STABLE_FACTOR * best && last >= worst / STABLE_FACTOR
}

/// Whether reads per transaction have stopped falling. True if they are unknown.
fn reads_are_stable(history: &[Seen]) -> bool {
    // Bytes per transaction between the ends of two windows.
    let per_transaction = |from: usize, to: usize| -> Option<f64> {
        let bytes = history[to].read_bytes? - history[from].read_bytes?;
        let transactions = history[from + 1..=to].iter().map(|it| it.transactions);
        Some(bytes / transactions.sum::<f64>().max(1.0))
    };
    let Some(last) = history.len().checked_sub(1).filter(|last| *last > 0) else {
        return false;
    };
    let Some(now) = per_transaction(last - 1, last) else {
        return true;
    };
    if now <= READ_BYTES_MAX {
        return true;
    }
    let Some(first) = last.checked_sub(2 * READ_WINDOWS) else {
        return false;
    };
    let middle = first + READ_WINDOWS;
    let both = per_transaction(first, middle).zip(per_transaction(middle, last));
    both.is_some_and(|(before, since)| since >= READS_STABLE * before)
}

/// Sum of `rchar` of these processes (`/proc/PID/io`, see proc(5)): reads of files by any system
/// call, but not of sockets by `recv`.
fn read_bytes(pids: &[u32]) -> Option<f64> {
    let of_process = |pid: &u32| -> Option<f64> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
        let rest = text.lines().find_map(|line| line.strip_prefix("rchar:"))?;
        rest.trim().parse().ok()
    };
    let sum: Option<f64> = pids.iter().map(of_process).sum();
    sum.filter(|_| !pids.is_empty())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Seen, read_bytes, reads_are_stable, transaction_length};
    use crate::fake::measurement;

    fn is_steady(transactions: &[f64]) -> bool {
        let seen = transactions.iter().map(|transactions| Seen {
            transactions: *transactions,
            read_bytes: None,
        });
        super::is_steady(&seen.collect::<Vec<_>>())
    }

    /// Windows of a thousand transactions, each of which reads the given number of bytes.
    fn reading(bytes: impl Iterator<Item = f64>) -> Vec<Seen> {
        let mut sum = 0.0;
        let seen = bytes.map(|each| {
            sum += each * 1_000.0;
            Seen {
                transactions: 1_000.0,
                read_bytes: Some(sum),
            }
        });
        seen.collect()
    }

    #[test]
    fn a_cache_that_still_fills_does_not_pass_as_warm() {
        // Time constant of 20 windows: each reads 5% less than the one before.
        let filling: Vec<Seen> = reading((0..).map(|at| 4_000.0 * 0.95f64.powi(at)).take(120));
        assert!((2..60).all(|windows| !reads_are_stable(&filling[..windows])));
        assert!(reads_are_stable(&filling), "hardly any block is read");
        // Data larger than the cache: reads stay constant, which takes some windows to detect.
        let larger = reading(std::iter::repeat_n(4_000.0, 12));
        assert!(!reads_are_stable(&larger[..5]) && reads_are_stable(&larger));
        assert!(reads_are_stable(&reading(std::iter::repeat_n(0.0, 2))));
        let unknown = vec![
            Seen {
                transactions: 1.0,
                read_bytes: None
            };
            3
        ];
        assert!(reads_are_stable(&unknown));
    }

    #[test]
    fn bytes_read_by_a_process_are_known() {
        let own = [std::process::id()];
        let before = read_bytes(&own).expect("own /proc/self/io");
        assert!(
            std::fs::read("/proc/self/exe")
                .expect("own executable")
                .len()
                > 1 << 20
        );
        assert!(read_bytes(&own).expect("own /proc/self/io") >= before + f64::from(1 << 20));
        assert_eq!(read_bytes(&[]), None);
    }

    #[test]
    fn a_falling_rate_does_not_pass_as_steady() {
        assert!(!is_steady(&[140.0, 120.0, 100.0]));
        assert!(!is_steady(&[100.0, 100.0, 90.0]));
        assert!(is_steady(&[100.0, 104.0, 98.0]));
    }

    #[test]
    fn a_rise_is_not_steady_and_noise_is() {
        assert!(!is_steady(&[100.0, 100.0]));
        assert!(!is_steady(&[100.0, 120.0, 140.0]));
        assert!(is_steady(&[100.0, 140.0, 141.0]));
        assert!(is_steady(&[141.0, 100.0, 120.0]));
        assert!(!is_steady(&[0.0, 0.0, 0.0]), "no transaction has run");
    }

    /// Regression: 100 clients at 10 transactions per second seemed to have transactions of 10 s, so that the trials
    /// of `pgassay curve --rate` became ten times longer than planned.
    #[test]
    fn waiting_for_transactions_to_be_due_does_not_count_as_their_length() {
        let ms = Duration::from_millis;
        let mut measured = measurement(ms(0), ms(1000), (100, ms(250)));
        assert_eq!(transaction_length(&measured), Some(ms(250)));
        measured.transactions_total = 10;
        let mut since_begin_ns = measured.latency_ns.clone();
        since_begin_ns.reset();
        measured.since_begin_ns = Some(since_begin_ns.clone());
        assert_eq!(
            transaction_length(&measured),
            Some(ms(1000)),
            "all are longer"
        );
        since_begin_ns.saturating_record(5_000_000);
        measured.since_begin_ns = Some(since_begin_ns.clone());
        let found = transaction_length(&measured).expect("a transaction ended");
        assert!((ms(4)..ms(6)).contains(&found), "{found:?}");
        since_begin_ns.reset();
        measured.since_begin_ns = Some(since_begin_ns);
        measured.transactions_total = 0;
        assert_eq!(transaction_length(&measured), None);
    }
}
