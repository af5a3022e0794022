//! Warming up fresh connections until their throughput neither rises nor falls, and the server's cache
//! has what it will have of their data.

use std::time::{Duration, Instant};

use anyhow::Result;
use pgassay_core::plan::{Point, Schedule};
use pgassay_core::study::StudySource;
use pgassay_load::{Timing, Window};

use super::crews::Clients;
use crate::exit::Interrupted;

/// Three windows agree when the last is no more than this above the best of the two before it, and no
/// more than this below the worst: a backend that still fills its caches gets faster, one whose table
/// grows or whose buffers fill with dirty pages gets slower, and noise alone goes both ways.
const STILL_MOVING: f64 = 1.05;

/// A cache that fills may raise throughput too slowly for three windows to show it. So what backends read
/// is looked at over so many windows, and over as many before these.
const READ_WINDOWS: usize = 4;
/// It is settled where it is no less than this share of what was read before, per transaction,
const STILL_READ: f64 = 0.9;
/// or where hardly any transaction reads: a block of 8 kB for a hundred of them.
const READ_BYTES_MAX: f64 = 82.0;

/// What one window showed.
#[derive(Debug, Clone, Copy)]
struct Seen {
    transactions: f64,
    /// Bytes that the backends have read from files since they began, the kernel's page cache included;
    /// `None` where that is not to be read.
    read_bytes: Option<f64>,
}

/// What warming up found.
#[derive(Debug, Clone, Copy)]
pub struct WarmedUp {
    /// Whether throughput neither rose nor fell any longer.
    pub is_steady: bool,
    /// How long a trial should be: as planned, or longer where transactions are slow.
    pub trial: Timing,
}

/// Runs load until three windows agree and reads have settled, or until the cap. `pids` are the
/// backends, where they are known.
pub fn warm_up(
    clients: &mut Clients,
    pids: &[u32],
    schedule: &Schedule,
    source: &StudySource,
    point: &Point,
) -> Result<WarmedUp> {
    let settle = Duration::from_micros(schedule.settle_us);
    let planned = Duration::from_micros(schedule.trial_us);
    let mut found = WarmedUp {
        is_steady: false,
        trial: Timing::of(settle, planned, Duration::ZERO),
    };
    let window = Window::Timed {
        settle: Duration::ZERO,
        measure: Duration::from_micros(schedule.warm_up_window_us),
    };
    let until = Instant::now() + Duration::from_micros(schedule.warm_up_cap_us);
    let mut history = Vec::new();
    while Instant::now() < until {
        let measured = clients.run(&window, source, point)?;
        if measured.interrupted {
            return Err(Interrupted.into());
        }
        let elapsed_ns = measured.instants.idle_ns - measured.instants.begin_ns;
        let each = measured.transactions_total.max(1) as f64 / measured.clients.len().max(1) as f64;
        let latency = Duration::from_nanos((elapsed_ns as f64 / each) as u64);
        found.trial = Timing::of(settle, planned, latency);
        history.push(Seen {
            transactions: measured.transactions_total as f64,
            read_bytes: read_bytes(pids),
        });
        if is_steady(&history) && has_read(&history) {
            found.is_steady = true;
            break;
        }
    }
    Ok(found)
}

/// Whether the last three windows agree.
fn is_steady(history: &[Seen]) -> bool {
    let [.., first, second, last] = history else {
        return false;
    };
    let [first, second, last] = [first, second, last].map(|it| it.transactions);
    let (best, worst) = (first.max(second), first.min(second));
    best > 0.0 && last <= STILL_MOVING * best && last >= worst / STILL_MOVING
}

/// Whether reads per transaction fall no longer. True where they are not known.
fn has_read(history: &[Seen]) -> bool {
    // Bytes per transaction from one window's end to another's.
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
    both.is_some_and(|(before, since)| since >= STILL_READ * before)
}

/// `rchar` of these processes (proc(5), `/proc/PID/io`): reads of files by whatever call, not of sockets
/// by `recv`.
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
    use super::{Seen, has_read, read_bytes};

    fn is_steady(transactions: &[f64]) -> bool {
        let seen = transactions.iter().map(|transactions| Seen {
            transactions: *transactions,
            read_bytes: None,
        });
        super::is_steady(&seen.collect::<Vec<_>>())
    }

    /// Windows of a thousand transactions that read so many bytes each.
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
        // A time constant of 20 windows: each reads 5% less than the one before.
        let filling: Vec<Seen> = reading((0..).map(|at| 4_000.0 * 0.95f64.powi(at)).take(120));
        assert!((2..60).all(|windows| !has_read(&filling[..windows])));
        assert!(has_read(&filling), "hardly any block is read");
        // What does not fit reads as much as ever, after as many windows as it takes to tell.
        let larger = reading(std::iter::repeat_n(4_000.0, 12));
        assert!(!has_read(&larger[..5]) && has_read(&larger));
        assert!(has_read(&reading(std::iter::repeat_n(0.0, 2))));
        let unknown = vec![
            Seen {
                transactions: 1.0,
                read_bytes: None
            };
            3
        ];
        assert!(has_read(&unknown));
    }

    #[test]
    fn what_a_process_has_read_is_known() {
        let own = [std::process::id()];
        let before = read_bytes(&own).expect("our own");
        assert!(std::fs::read("/proc/self/exe").expect("it is there").len() > 1 << 20);
        assert!(read_bytes(&own).expect("our own") >= before + f64::from(1 << 20));
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
        assert!(!is_steady(&[0.0, 0.0, 0.0]), "nothing has run yet");
    }
}
