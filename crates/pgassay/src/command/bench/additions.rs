//! Results that pgbench does not report: percentiles on request, fairness between clients, the
//! client's own cost and whether it was the bottleneck; and everything as JSON.

use std::fmt::Write;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};
use pgassay_load::{Histogram, ThreadUsage};
use serde_json::{Map, Value, json};

use super::client_limit::ClientLimit;
use super::report::Report;

/// Shorter runs are never called client-limited.
const CLIENT_LIMITED_US_MIN: f64 = 500_000.0;
/// A run is unstable if more than one in this many transactions that were due was not started.
const UNSTABLE_ONE_IN: u64 = 100;
/// A stall that is not longer leaves transactions that are due, but does not make a run unstable.
const STALL_S: f64 = 0.1;
const PERCENTILES: [f64; 5] = [50.0, 90.0, 95.0, 99.0, 99.9];

impl Report<'_> {
    /// The lines after pgbench's report.
    pub fn additions(&self) -> String {
        let mut out = String::new();
        self.write_additions(&mut out)
            .expect("writing to a String cannot fail");
        out
    }

    fn write_additions(&self, out: &mut String) -> std::fmt::Result {
        let measurement = self.measurement;
        for percentile in self.settings.percentiles.as_deref().unwrap_or_default() {
            let value = at_percentile_ms(&measurement.latency_ns, *percentile);
            writeln!(out, "latency percentile {percentile} = {value:.3} ms")?;
        }
        if self.settings.prints_additions && measurement.transactions_total > 0 {
            self.write_since_begin(out)?;
            self.write_openings(out)?;
            self.write_fairness(out)?;
            self.write_client(out)?;
        }
        if self.is_unstable() {
            let unserved = measurement.unserved;
            writeln!(
                out,
                "unstable: {unserved} more transactions were due but not started by the end of the run"
            )?;
        }
        if let Some(late_s) = self.late_at_end_s() {
            writeln!(
                out,
                "unstable: transactions started later and later after they were due, in the end by about {:.0} ms",
                late_s * 1e3
            )?;
        }
        self.write_limit(out)
    }

    /// How late the last transactions of a run by count started, if the clients did not keep up with the rate.
    fn late_at_end_s(&self) -> Option<f64> {
        let rate_per_s = self.settings.rate_per_s?;
        let total = self.total();
        // What is due before the end of a timed run, but not started, says the same.
        let is_counted = self.settings.duration_s.is_none() && self.measurement.aborted == 0;
        let (elapsed_s, lag_s) = (self.elapsed_us() / 1e6, total.lag_max_us / 1e6);
        let scheduled = total.total() as f64;
        let late_s = elapsed_s - scheduled / rate_per_s;
        let chance_s = CHANCE_SDS * scheduled.sqrt() / rate_per_s;
        (is_counted && is_late(late_s - chance_s, lag_s, elapsed_s)).then_some(late_s)
    }

    /// Whether the clients did not keep up with the rate. Clients that were aborted leave transactions, too.
    fn is_unstable(&self) -> bool {
        let rate_per_s = self.settings.rate_per_s.unwrap_or_default();
        self.measurement.aborted == 0
            && is_behind(self.measurement.unserved, self.total().total(), rate_per_s)
    }

    fn write_limit(&self, out: &mut String) -> std::fmt::Result {
        let thread = self.busiest_thread();
        let waited = thread.demand() - thread.on_cpu();
        let (on_cpu, waited) = (100.0 * thread.on_cpu(), 100.0 * waited);
        match self.client_limit {
            // In a very short run, the shares mean nothing.
            _ if self.elapsed_us() < CLIENT_LIMITED_US_MIN => Ok(()),
            ClientLimit::Unlimited => Ok(()),
            ClientLimit::Client => writeln!(
                out,
                "client-limited: a client thread was on CPU {on_cpu:.0}% and in the run queue \
                 {waited:.0}% of the time ({:.1} us of client CPU per transaction)",
                self.measurement.client_cpu_us_per_transaction()
            ),
            ClientLimit::Competition => writeln!(
                out,
                "saturated: the client and other processes, such as the server's, compete for the \
                 CPUs of this machine (a client thread was on CPU {on_cpu:.0}% and in the run \
                 queue {waited:.0}% of the time)"
            ),
        }
    }

    /// The usage of the thread that needed a CPU most.
    fn busiest_thread(&self) -> ThreadUsage {
        let threads = self.measurement.threads.iter().copied();
        let busiest = threads.max_by(|one, other| one.demand().total_cmp(&other.demand()));
        busiest.unwrap_or_default()
    }

    /// Under `-R`, latency counts from the schedule; also reports it from the transactions' start.
    fn write_since_begin(&self, out: &mut String) -> std::fmt::Result {
        let Some(since_begin_ns) = &self.measurement.since_begin_ns else {
            return Ok(());
        };
        for (from, latency_ns) in [
            ("schedule", &self.measurement.latency_ns),
            ("send", since_begin_ns),
        ] {
            writeln!(out, "latency from {from} = {}", summary_line(latency_ns))?;
        }
        Ok(())
    }

    /// Under `-C`, the phases of opening a connection.
    fn write_openings(&self, out: &mut String) -> std::fmt::Result {
        let Some(openings) = &self.measurement.openings else {
            return Ok(());
        };
        writeln!(out, "connect = {}", summary_line(&openings.connect_ns))?;
        writeln!(
            out,
            "authenticate = {}",
            summary_line(&openings.authenticate_ns)
        )?;
        writeln!(
            out,
            "first query = {}",
            summary_line(&openings.first_query_ns)
        )
    }

    fn write_fairness(&self, out: &mut String) -> std::fmt::Result {
        let clients = &self.measurement.clients;
        let (Some(least), Some(most)) = (clients.iter().min(), clients.iter().max()) else {
            return Ok(());
        };
        if clients.len() < 2 {
            return Ok(());
        }
        let even = self.measurement.transactions as f64 / clients.len() as f64;
        let part = |count: u64| 100.0 * (count as f64 / even.max(f64::MIN_POSITIVE) - 1.0);
        writeln!(
            out,
            "fairness: the slowest client completed {least} transactions ({:+.1}%), the fastest {most} ({:+.1}%)",
            part(*least),
            part(*most)
        )
    }

    fn write_client(&self, out: &mut String) -> std::fmt::Result {
        let measurement = self.measurement;
        let time = measurement.time;
        let all_us = measurement.clients.len() as f64 * measurement.window_us.max(1) as f64;
        let share = |us: u64| 100.0 * us as f64 / all_us;
        writeln!(
            out,
            "client time: {:.1}% in transactions, {:.1}% sleeping, {:.1}% between transactions",
            share(time.in_transaction_us),
            share(time.asleep_us),
            share(time.between_us)
        )?;
        let (on_cpu, in_run_queue) = shares_of_threads(&measurement.threads);
        let waited = match in_run_queue {
            Some(share) => format!(", in run queue {:.1}%", 100.0 * share),
            None => String::new(),
        };
        write!(
            out,
            "client: {:.2} us of CPU per transaction, on CPU {:.1}%{waited} of the time",
            measurement.client_cpu_us_per_transaction(),
            100.0 * on_cpu
        )?;
        let lag = measurement.timer_lag;
        if lag.wakeups > 0 {
            write!(
                out,
                ", timers {:.3} ms late on average (max {:.3})",
                lag.sum_us as f64 / lag.wakeups as f64 / 1e3,
                lag.max_us as f64 / 1e3
            )?;
        }
        let refusal = measurement.io.refusal.as_deref();
        let why = refusal.map_or(String::new(), |reason| format!(" ({reason})"));
        let memory = self.memory.words(measurement.clients.len());
        writeln!(out, "{memory}; I/O by {}{why}", measurement.io.name())
    }

    /// Everything as JSON.
    pub fn json(&self) -> Value {
        let (total, measurement) = (self.total(), self.measurement);
        let fraction = |least: bool| {
            let clients = measurement.clients.iter();
            let count = if least { clients.min() } else { clients.max() };
            let even = measurement.transactions as f64 / measurement.clients.len().max(1) as f64;
            count.map(|count| *count as f64 / even.max(f64::MIN_POSITIVE))
        };
        json!({
            "schema": "pgassay.bench/1",
            "clients": self.settings.clients,
            "threads": self.settings.threads,
            "cpus": self.settings.cpus,
            "protocol": self.settings.protocol.name(),
            "scale": self.scale,
            "seed": self.settings.seed,
            "elapsed_s": self.elapsed_us() / 1e6,
            "transactions": total.done,
            "failed": {
                "total": total.failed(), "serialization": total.serialization,
                "deadlock": total.deadlock, "other": total.other,
            },
            "skipped": total.skipped,
            "unserved": measurement.unserved,
            "late": total.late,
            "retried": total.retried, "retries": total.retries,
            "aborted_clients": measurement.aborted,
            "interrupted": measurement.interrupted,
            "tps": self.tps(),
            "latency_ms": {
                "mean": total.latency_ms().map(|(mean, _)| mean),
                "stddev": total.latency_ms().map(|(_, deviation)| deviation),
                "percentiles": self.percentiles(&measurement.latency_ns),
                "histogram_ns": encoded(&measurement.latency_ns),
            },
            "latency_from_send_ms": measurement.since_begin_ns.as_ref()
                .map(|latency_ns| self.distribution(latency_ns)),
            "connections": measurement.openings.as_ref().map(|openings| json!({
                "connect_ms": self.distribution(&openings.connect_ns),
                "authenticate_ms": self.distribution(&openings.authenticate_ns),
                "first_query_ms": self.distribution(&openings.first_query_ns),
            })),
            "initial_connection_ms": self.connecting_us as f64 / 1e3,
            "client": self.client_as_json(),
            "client_time_us": {
                "in_transaction": measurement.time.in_transaction_us,
                "asleep": measurement.time.asleep_us,
                "between": measurement.time.between_us,
            },
            "fairness": { "slowest_client": fraction(true), "fastest_client": fraction(false) },
            "transactions_by_client": measurement.clients,
            "scripts": self.scripts_as_json(),
        })
    }

    fn client_as_json(&self) -> Value {
        let measurement = self.measurement;
        let (on_cpu_mean, run_queue_mean) = shares_of_threads(&measurement.threads);
        json!({
            "io": measurement.io.name(),
            "io_uring_refused": measurement.io.refusal,
            "cpu_us_per_transaction": measurement.client_cpu_us_per_transaction(),
            "memory_bytes": Some(self.memory.peak_bytes).filter(|bytes| *bytes > 0),
            "memory_bytes_per_client": self.memory.bytes_per_client(measurement.clients.len()),
            "busy": self.busiest_thread().demand(),
            "on_cpu": self.busiest_thread().on_cpu(),
            "on_cpu_mean": on_cpu_mean, "run_queue_mean": run_queue_mean,
            "limited": self.client_limit == ClientLimit::Client,
            "competes_for_cpus": self.client_limit == ClientLimit::Competition,
            "run_queue_wait_us": measurement.threads.iter()
                .map(|thread| thread.run_queue_wait_us).collect::<Option<Vec<_>>>(),
            "timer_lag_us_max": measurement.timer_lag.max_us,
            "timer_lag_us_mean": (measurement.timer_lag.wakeups > 0).then(|| {
                measurement.timer_lag.sum_us as f64 / measurement.timer_lag.wakeups as f64
            }),
        })
    }

    fn scripts_as_json(&self) -> Vec<Value> {
        let scripts = self.scripts.iter().zip(&self.measurement.scripts);
        let described = scripts
            .enumerate()
            .map(|(index, ((script, weight), measured))| {
                let of_script = self.figures[index];
                let commands = self.measurement.commands.get(index);
                let statements = commands.map(|commands| {
                    let texts = script.commands().iter().map(|command| &command.first_line);
                    let each = texts.zip(commands).map(|(text, command)| {
                        json!({
                            "text": text, "timed": command.timed,
                            "failures": command.failures, "retries": command.retries,
                            "latency_ms": self.distribution(&command.latency_ns),
                        })
                    });
                    each.collect::<Vec<_>>()
                });
                json!({
                    "name": script.name(), "weight": weight, "transactions": of_script.done,
                    "failed": of_script.failed(), "skipped": of_script.skipped,
                    "latency_ms_mean": of_script.latency_ms().map(|(mean, _)| mean),
                    "latency_ms": self.distribution(&measured.latency_ns),
                    "statements": statements,
                })
            });
        described.collect()
    }

    fn percentiles(&self, latency_ns: &Histogram<u64>) -> Map<String, Value> {
        let wanted = self.settings.percentiles.as_deref().unwrap_or(&PERCENTILES);
        let each = wanted.iter().map(|percentile| {
            let value = (!latency_ns.is_empty()).then(|| at_percentile_ms(latency_ns, *percentile));
            (percentile.to_string(), value.into())
        });
        each.collect()
    }

    fn distribution(&self, latency_ns: &Histogram<u64>) -> Value {
        json!({
            "mean": (!latency_ns.is_empty()).then(|| latency_ns.mean() / 1e6),
            "percentiles": self.percentiles(latency_ns),
            "histogram_ns": encoded(latency_ns),
        })
    }
}

/// The shares of all threads' time that they were on CPU, and in the run queue if that is known.
fn shares_of_threads(threads: &[ThreadUsage]) -> (f64, Option<f64>) {
    let elapsed_us: u64 = threads.iter().map(|it| it.elapsed_us).sum();
    let cpu_us: u64 = threads.iter().map(|it| it.cpu_us).sum();
    let waited_us: Option<u64> = threads.iter().map(|it| it.run_queue_wait_us).sum();
    let share = |us: u64| us as f64 / elapsed_us.max(1) as f64;
    (share(cpu_us), waited_us.map(share))
}

/// Whether more transactions were not begun than those that are always pending at the end, and after a stall.
fn is_behind(unserved: u64, served: u64, rate_per_s: f64) -> bool {
    unserved * UNSTABLE_ONE_IN > served + unserved && unserved as f64 > STALL_S * rate_per_s
}

/// The sum of the schedule's random gaps has a standard deviation of the square root of their number. It is longer by
/// more than this many of them in one run of 700.
const CHANCE_SDS: f64 = 3.0;

/// Whether a run by count took so much longer than its schedule, and than its random gaps explain, that the clients did
/// not keep up: longer than a stall, and with a transaction that started about as late.
fn is_late(late_s: f64, lag_max_s: f64, elapsed_s: f64) -> bool {
    late_s > STALL_S && late_s * UNSTABLE_ONE_IN as f64 > elapsed_s && lag_max_s > late_s / 2.0
}

/// A histogram in `HdrHistogram`'s format, deflated and base64-encoded as in its logs.
fn encoded(latency_ns: &Histogram<u64>) -> String {
    let mut packed = Vec::new();
    V2DeflateSerializer::new()
        .serialize(latency_ns, &mut packed)
        .expect("writing to memory cannot fail, and counts fit");
    STANDARD.encode(packed)
}

fn at_percentile_ms(latency_ns: &Histogram<u64>, percentile: f64) -> f64 {
    latency_ns.value_at_quantile(percentile / 100.0) as f64 / 1e6
}

/// Mean and percentiles on one line.
fn summary_line(latency_ns: &Histogram<u64>) -> String {
    let at = |percentile| at_percentile_ms(latency_ns, percentile);
    format!(
        "avg {:.3}, p50 {:.3}, p99 {:.3}, max {:.3} ms",
        latency_ns.mean() / 1e6,
        at(50.0),
        at(99.0),
        latency_ns.max() as f64 / 1e6
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: 5 transactions were pending after a stall of 36 ms at the end of a run of 2 s.
    #[test]
    fn a_stall_at_the_end_of_a_short_run_was_called_unstable() {
        assert!(!is_behind(5, 176, 100.0));
        assert!(is_behind(20, 180, 100.0));
        assert!(!is_behind(20, 2_000, 100.0));
        assert!(is_behind(38_402, 1_935, 20_000.0));
    }

    /// Regression: with `-t`, a rate above what the server can do was not called unstable.
    #[test]
    fn a_run_by_count_that_fell_behind_its_schedule_was_not_called_unstable() {
        assert!(is_late(0.26, 0.27, 0.5));
        // Long random gaps, a stall in between, and a long run.
        assert!(!is_late(0.26, 0.01, 0.5));
        assert!(!is_late(0.01, 0.5, 2.0));
        assert!(!is_late(0.26, 0.27, 100.0));
    }

    /// Regression: only the text had them; the JSON had those of the busiest thread.
    #[test]
    fn shares_are_of_the_time_of_all_threads() {
        let thread = |elapsed_us, cpu_us, run_queue_wait_us| ThreadUsage {
            elapsed_us,
            cpu_us,
            run_queue_wait_us,
        };
        let threads = [thread(1_000, 800, Some(100)), thread(3_000, 200, Some(0))];
        assert_eq!(shares_of_threads(&threads), (0.25, Some(0.025)));
        assert_eq!(shares_of_threads(&[thread(8, 2, None)]), (0.25, None));
        assert_eq!(shares_of_threads(&[]), (0.0, Some(0.0)));
    }
}
