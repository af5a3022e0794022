//! `-P`: prints progress on stderr at intervals. Source: `printProgressReport` in pgbench.c.

use std::fmt::Write as _;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use pgassay_lab::system_env::monotonic_ns;

use super::figures::BenchFigures;
use super::message::write_stderr;
use super::observer::Common;
use super::settings::Settings;

/// Prints progress of a run that begins at this time until the other end of the channel is dropped.
pub fn report_progress(common: &Common, begin_ns: u64, every_s: u32, done: &Receiver<()>) {
    let every_ns = u64::from(every_s) * 1_000_000_000;
    let (mut last, mut last_ns, mut next_ns) =
        (BenchFigures::default(), begin_ns, begin_ns + every_ns);
    loop {
        let pause = Duration::from_nanos(next_ns.saturating_sub(monotonic_ns()));
        if done.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        let now_ns = monotonic_ns();
        let now = common.board.all();
        let at_s = if common.settings.progress_timestamp {
            let epoch_us = now_ns / 1000 + common.epoch_shift_us;
            format!("{:.3}", epoch_us as f64 / 1e6)
        } else {
            format!("{:.1}", (now_ns - begin_ns) as f64 / 1e9)
        };
        let run_s = (now_ns - last_ns) as f64 / 1e9;
        let figures = line(&common.settings, &at_s, run_s, &now, &last);
        write_stderr(&format!("{}: {figures}", common.progress_label));
        (last, last_ns) = (now, now_ns);
        while next_ns <= now_ns {
            next_ns += every_ns;
        }
    }
}

fn line(
    settings: &Settings,
    at_s: &str,
    run_s: f64,
    now: &BenchFigures,
    last: &BenchFigures,
) -> String {
    let since = BenchFigures {
        done: now.done - last.done,
        latency_sum_us: now.latency_sum_us - last.latency_sum_us,
        latency_sum2: now.latency_sum2 - last.latency_sum2,
        ..*now
    };
    let (mean_ms, deviation_ms) = since.latency_ms().unwrap_or_default();
    let tps = since.done as f64 / run_s;
    let failed = now.failed() - last.failed();
    let mut line = format!(
        "{at_s} s, {tps:.1} tps, lat {mean_ms:.3} ms stddev {deviation_ms:.3}, {failed} failed"
    );
    if settings.rate_per_s.is_some() {
        let lag_us = now.lag_sum_us - last.lag_sum_us;
        let _ = write!(
            line,
            ", lag {:.3} ms",
            lag_us / since.done.max(1) as f64 / 1000.0
        );
        if settings.latency_limit_us.is_some() {
            let _ = write!(line, ", {} skipped", now.skipped - last.skipped);
        }
    }
    if settings.tries_max != 1 {
        let (retried, retries) = (now.retried - last.retried, now.retries - last.retries);
        let _ = write!(line, ", {retried} retried, {retries} retries");
    }
    line.push('\n');
    line
}
