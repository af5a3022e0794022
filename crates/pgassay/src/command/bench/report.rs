//! The report on stdout, line by line as pgbench's. pgassay's additions follow it (`additions`).
//!
//! Source: `printResults` in pgbench.c, 15 to 18. Since 18, a report ends early only if no
//! transaction is counted, and a script's share is relative to all counted transactions. Until 17, it
//! ended if none was processed or skipped, and the share was relative to those processed. The line
//! of other failures was added after 18, with `--continue-on-error`.

use std::fmt::Write;

use pgassay_load::{CommandMeasurement, Measurement};
use pgassay_script::{Compat, ParsedScript};

use super::client_limit::ClientLimit;
use super::figures::BenchFigures;
use super::memory::ClientMemory;
use super::settings::{PartitionMethod, Settings};

/// The contents of a report.
pub struct Report<'a> {
    pub settings: &'a Settings,
    pub scripts: &'a [(std::sync::Arc<ParsedScript>, u32)],
    /// By script.
    pub figures: &'a [BenchFigures],
    pub measurement: &'a Measurement,
    pub scale: i32,
    pub partitioning: Option<(PartitionMethod, i32)>,
    pub connecting_us: u64,
    pub client_limit: ClientLimit,
    pub memory: ClientMemory,
}

/// A share in percent; for 0/0, what PostgreSQL's printf prints.
fn percent(count: u64, of: u64) -> String {
    if of == 0 {
        "NaN%".to_owned()
    } else {
        format!("{:.3}%", 100.0 * count as f64 / of as f64)
    }
}

impl Report<'_> {
    /// pgbench's report.
    pub fn text(&self) -> String {
        let mut out = String::new();
        self.write(&mut out)
            .expect("writing to a String cannot fail");
        out
    }

    /// The figures of all scripts.
    pub(super) fn total(&self) -> BenchFigures {
        BenchFigures::sum(self.figures.iter().copied())
    }

    /// Transactions per second as pgbench counts them.
    pub fn tps(&self) -> f64 {
        self.total().done as f64 / (self.elapsed_us() / 1e6)
    }

    pub(super) fn elapsed_us(&self) -> f64 {
        let instants = &self.measurement.instants;
        (instants.idle_ns.saturating_sub(instants.begin_ns) as f64 / 1000.0).max(1.0)
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let settings = self.settings;
        let total = self.total();
        self.write_parameters(out)?;
        match (settings.duration_s, settings.transactions) {
            (None, Some(count)) => {
                writeln!(out, "number of transactions per client: {count}")?;
                let wanted = i64::from(count) * i64::from(settings.clients);
                let done = total.done;
                writeln!(
                    out,
                    "number of transactions actually processed: {done}/{wanted}"
                )?;
            }
            (duration, _) => {
                writeln!(out, "duration: {} s", duration.unwrap_or_default())?;
                let done = total.done;
                writeln!(out, "number of transactions actually processed: {done}")?;
            }
        }
        if settings.compat >= Compat::V18 {
            if total.total() == 0 {
                return Ok(());
            }
            self.write_failures(out, &total, "")?;
        } else {
            self.write_failures(out, &total, "")?;
            if total.done + total.skipped == 0 {
                return Ok(());
            }
        }
        self.write_skipped(out, &total, "")?;
        self.write_latency(out, &total)?;
        self.write_connections(out, &total)?;
        if self.scripts.len() > 1 || settings.per_command {
            self.write_scripts(out, &total)?;
        }
        Ok(())
    }

    fn write_parameters(&self, out: &mut String) -> std::fmt::Result {
        let settings = self.settings;
        let name = match self.scripts {
            [(script, _)] => script.name(),
            _ => "multiple scripts",
        };
        writeln!(out, "transaction type: {name}")?;
        writeln!(out, "scaling factor: {}", self.scale)?;
        if let Some((method, partitions)) = self.partitioning {
            writeln!(out, "partition method: {}", method.name())?;
            writeln!(out, "partitions: {partitions}")?;
        }
        writeln!(out, "query mode: {}", settings.protocol.name())?;
        writeln!(out, "number of clients: {}", settings.clients)?;
        writeln!(out, "number of threads: {}", settings.threads)?;
        if settings.tries_max > 0 {
            writeln!(out, "maximum number of tries: {}", settings.tries_max)?;
        }
        Ok(())
    }

    fn write_failures(
        &self,
        out: &mut String,
        figures: &BenchFigures,
        prefix: &str,
    ) -> std::fmt::Result {
        let settings = self.settings;
        let total = figures.total();
        let mut line = |what: &str, count: u64| {
            writeln!(
                out,
                "{prefix}number of {what}: {count} ({})",
                percent(count, total)
            )
        };
        line("failed transactions", figures.failed())?;
        if settings.failures_detailed {
            line("serialization failures", figures.serialization)?;
            line("deadlock failures", figures.deadlock)?;
            if settings.continue_on_error {
                line("other failures", figures.other)?;
            }
        }
        if settings.tries_max != 1 {
            line("transactions retried", figures.retried)?;
            writeln!(out, "{prefix}total number of retries: {}", figures.retries)?;
        }
        Ok(())
    }

    fn write_skipped(
        &self,
        out: &mut String,
        figures: &BenchFigures,
        prefix: &str,
    ) -> std::fmt::Result {
        let (settings, skipped) = (self.settings, figures.skipped);
        if settings.rate_per_s.is_none() || settings.latency_limit_us.is_none() {
            return Ok(());
        }
        let share = percent(skipped, figures.total());
        writeln!(
            out,
            "{prefix}number of transactions skipped: {skipped} ({share})"
        )
    }

    fn write_latency(&self, out: &mut String, total: &BenchFigures) -> std::fmt::Result {
        let settings = self.settings;
        if let Some(limit_us) = settings.latency_limit_us {
            let share = if total.done == 0 {
                "0.000%".to_owned()
            } else {
                percent(total.late, total.done)
            };
            writeln!(
                out,
                "number of transactions above the {:.1} ms latency limit: {}/{} ({share})",
                limit_us as f64 / 1000.0,
                total.late,
                total.done
            )?;
        }
        if settings.measures_latency() {
            write_mean(out, "latency", total)?;
        } else {
            let mean_ms =
                self.elapsed_us() * f64::from(settings.clients) / total.total() as f64 / 1000.0;
            let including = if total.failed() > 0 {
                " (including failures)"
            } else {
                ""
            };
            writeln!(out, "latency average = {mean_ms:.3} ms{including}")?;
        }
        if settings.rate_per_s.is_some() {
            // NaN if no transaction was processed, as in pgbench.
            let mean_ms = total.lag_sum_us / total.done as f64 / 1000.0;
            writeln!(
                out,
                "rate limit schedule lag: avg {mean_ms:.3} (max {:.3}) ms",
                total.lag_max_us / 1000.0
            )?;
        }
        Ok(())
    }

    fn write_connections(&self, out: &mut String, total: &BenchFigures) -> std::fmt::Result {
        let tps = self.tps();
        if self.settings.connects {
            let count = (total.done + total.failed()).max(1);
            let mean_ms = self.measurement.reconnecting.sum_us as f64 / count as f64 / 1000.0;
            writeln!(out, "average connection time = {mean_ms:.3} ms")?;
            writeln!(out, "tps = {tps:.6} (including reconnection times)")
        } else {
            let initial_ms = self.connecting_us as f64 / 1000.0;
            writeln!(out, "initial connection time = {initial_ms:.3} ms")?;
            writeln!(out, "tps = {tps:.6} (without initial connection time)")
        }
    }

    fn write_scripts(&self, out: &mut String, total: &BenchFigures) -> std::fmt::Result {
        let weights: u64 = self
            .scripts
            .iter()
            .map(|(_, weight)| u64::from(*weight))
            .sum();
        let several = self.scripts.len() > 1;
        for (index, (script, weight)) in self.scripts.iter().enumerate() {
            if several {
                let figures = &self.figures[index];
                writeln!(out, "SQL script {}: {}", index + 1, script.name())?;
                writeln!(
                    out,
                    " - weight: {weight} (targets {:.1}% of total)",
                    100.0 * f64::from(*weight) / weights as f64
                )?;
                self.write_share(out, figures, total)?;
                write_mean(out, " - latency", figures)?;
            }
            if self.settings.per_command {
                let times = self.measurement.commands.get(index);
                self.write_commands(out, script, times.map_or(&[], Vec::as_slice), several)?;
            }
        }
        Ok(())
    }

    /// Prints a script's share of all transactions and their outcomes.
    fn write_share(
        &self,
        out: &mut String,
        figures: &BenchFigures,
        total: &BenchFigures,
    ) -> std::fmt::Result {
        let counted = figures.total();
        let share = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
        let tps = figures.done as f64 / (self.elapsed_us() / 1e6);
        if self.settings.compat >= Compat::V18 {
            let share = share(counted, total.total());
            writeln!(out, " - {counted} transactions ({share:.1}% of total)")?;
            if counted == 0 {
                return Ok(());
            }
            writeln!(
                out,
                " - number of transactions actually processed: {} (tps = {tps:.6})",
                figures.done
            )?;
        } else {
            let share = share(figures.done, total.done);
            writeln!(
                out,
                " - {} transactions ({share:.1}% of total, tps = {tps:.6})",
                figures.done
            )?;
        }
        self.write_failures(out, figures, " - ")?;
        if counted == 0 {
            return Ok(());
        }
        self.write_skipped(out, figures, " - ")
    }

    fn write_commands(
        &self,
        out: &mut String,
        script: &ParsedScript,
        times: &[CommandMeasurement],
        several: bool,
    ) -> std::fmt::Result {
        let has_tries = self.settings.tries_max != 1;
        let columns = if has_tries {
            ", failures and retries"
        } else {
            " and failures"
        };
        let prefix = if several { " - " } else { "" };
        writeln!(out, "{prefix}statement latencies in milliseconds{columns}:")?;
        // Up to 17, columns are separated by one more space.
        let gap = if self.settings.compat < Compat::V18 {
            "  "
        } else {
            " "
        };
        for (index, command) in script.commands().iter().enumerate() {
            let of_command = times.get(index).cloned().unwrap_or_default();
            let mean_ms = of_command.mean_ms().unwrap_or(0.0);
            write!(out, "   {mean_ms:11.3}  {:10}{gap}", of_command.failures)?;
            if has_tries {
                write!(out, "{:10}{gap}", of_command.retries)?;
            }
            writeln!(out, "{}", command.first_line)?;
        }
        Ok(())
    }
}

fn write_mean(out: &mut String, prefix: &str, figures: &BenchFigures) -> std::fmt::Result {
    let Some((mean_ms, deviation_ms)) = figures.latency_ms() else {
        return Ok(());
    };
    writeln!(out, "{prefix} average = {mean_ms:.3} ms")?;
    writeln!(out, "{prefix} stddev = {deviation_ms:.3} ms")
}
