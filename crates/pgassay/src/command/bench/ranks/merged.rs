//! The ranks' results: merged into one, and side by side.

use std::fmt::Write as _;

use pgassay_load::Measurement;
use pgassay_ranks::{ClockOffset, RankShare};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::command::bench::client_limit::ClientLimit;
use crate::command::bench::figures::BenchFigures;
use crate::command::bench::memory::ClientMemory;

/// What a rank reports.
#[derive(Serialize, Deserialize)]
pub struct RankReport {
    /// The machine's name.
    pub host: String,
    /// When the rank was to begin, on its own clock.
    pub due_ns: u64,
    pub connecting_us: u64,
    /// By script.
    pub figures: Vec<BenchFigures>,
    /// On its own clock.
    pub measurement: Measurement,
    pub client_limit: ClientLimit,
    pub memory: ClientMemory,
    /// Whether something could not be written to a log.
    pub has_incomplete_log: bool,
}

/// A rank's line.
struct RankRow {
    host: String,
    share: RankShare,
    transactions: u64,
    tps: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// How much after the agreed time it began.
    late_ns: u64,
    clock: ClockOffset,
}

/// The results of all ranks.
pub struct MergedRanks {
    /// On the clock of rank 0.
    pub measurement: Measurement,
    /// By script.
    pub figures: Vec<BenchFigures>,
    /// Until the last rank was connected.
    pub connecting_us: u64,
    /// Of the rank that was limited most.
    pub client_limit: ClientLimit,
    /// Of all ranks.
    pub memory: ClientMemory,
    /// Whether a rank could not write something to a log.
    pub has_incomplete_log: bool,
    rows: Vec<RankRow>,
}

impl MergedRanks {
    /// Merges the reports of all ranks, in their order; `None` without any. Takes one at a time, because
    /// its histograms take far more memory than their encoded form.
    pub fn of(
        reports: impl Iterator<Item = RankReport>,
        shares: &[RankShare],
        clocks: &[ClockOffset],
    ) -> Option<Self> {
        let mut merged: Option<Self> = None;
        for ((mut report, share), clock) in reports.zip(shares).zip(clocks) {
            let row = RankRow::of(&report, *share, *clock);
            let instants = &mut report.measurement.instants;
            *instants = instants.on_clock(clock.offset_ns);
            match &mut merged {
                None => {
                    merged = Some(Self {
                        measurement: report.measurement,
                        client_limit: report.client_limit,
                        memory: report.memory,
                        has_incomplete_log: report.has_incomplete_log,
                        figures: report.figures,
                        connecting_us: report.connecting_us,
                        rows: vec![row],
                    });
                }
                Some(merged) => merged.add(report, row),
            }
        }
        merged
    }

    fn add(&mut self, report: RankReport, row: RankRow) {
        self.measurement.merge(report.measurement);
        self.has_incomplete_log |= report.has_incomplete_log;
        self.client_limit = self.client_limit.max(report.client_limit);
        self.memory = self.memory.plus(report.memory);
        for (sum, more) in self.figures.iter_mut().zip(&report.figures) {
            *sum = sum.plus(more);
        }
        self.connecting_us = self.connecting_us.max(report.connecting_us);
        self.rows.push(row);
    }

    /// The longest possible time between the first and the last rank's begin: clocks may be wrong by
    /// their bounds.
    fn skew_ns(&self) -> u64 {
        let latest = self.rows.iter().map(|row| row.late_ns + row.clock.bound_ns);
        let earliest = self
            .rows
            .iter()
            .map(|row| row.late_ns.cast_signed() - row.clock.bound_ns.cast_signed());
        let latest_ns = latest.max().unwrap_or(0).cast_signed();
        (latest_ns - earliest.min().unwrap_or(0)).cast_unsigned()
    }

    fn hosts(&self) -> usize {
        let hosts: std::collections::BTreeSet<&str> =
            self.rows.iter().map(|row| row.host.as_str()).collect();
        hosts.len()
    }

    /// The lines after the report: how the ranks began, and the results of each.
    pub fn table(&self) -> String {
        let host = self
            .rows
            .iter()
            .map(|row| row.host.len())
            .max()
            .unwrap_or(0)
            .max(4);
        let (hosts, plural) = (self.hosts(), if self.hosts() == 1 { "" } else { "s" });
        let mut out = format!(
            "ranks: {} on {hosts} host{plural}, begun within {:.1} us of each other\n\
             rank  {:<host$}  clients  threads  transactions         tps    p50 ms    p99 ms  \
             begun late (us)  clock +- (us)\n",
            self.rows.len(),
            self.skew_ns() as f64 / 1e3,
            "host"
        );
        for (rank, row) in self.rows.iter().enumerate() {
            let _ = writeln!(
                out,
                "{rank:>4}  {:<host$}  {:>7}  {:>7}  {:>12}  {:>10.1}  {:>8.3}  {:>8.3}  {:>15.1}  {:>13.1}",
                row.host,
                row.share.clients,
                row.share.threads,
                row.transactions,
                row.tps,
                row.p50_ms,
                row.p99_ms,
                row.late_ns as f64 / 1e3,
                row.clock.bound_ns as f64 / 1e3,
            );
        }
        out
    }

    /// The same as JSON.
    pub fn json(&self) -> Value {
        let ranks = self.rows.iter().enumerate().map(|(rank, row)| {
            json!({
                "rank": rank, "host": row.host,
                "first_client": row.share.first_client, "clients": row.share.clients,
                "first_thread": row.share.first_thread, "threads": row.share.threads,
                "transactions": row.transactions, "tps": row.tps,
                "latency_ms": { "p50": row.p50_ms, "p99": row.p99_ms },
                "begun_late_us": row.late_ns as f64 / 1e3,
                "clock_offset_us": row.clock.offset_ns as f64 / 1e3,
                "clock_bound_us": row.clock.bound_ns as f64 / 1e3,
            })
        });
        ranks.collect()
    }
}

impl RankRow {
    fn of(report: &RankReport, share: RankShare, clock: ClockOffset) -> Self {
        let measurement = &report.measurement;
        let instants = measurement.instants;
        let elapsed_ns = instants.idle_ns.saturating_sub(instants.begin_ns).max(1);
        let transactions = BenchFigures::sum(report.figures.iter().copied()).done;
        let at_ms = |quantile| measurement.latency_ns.value_at_quantile(quantile) as f64 / 1e6;
        Self {
            host: report.host.clone(),
            share,
            transactions,
            tps: transactions as f64 / (elapsed_ns as f64 / 1e9),
            p50_ms: at_ms(0.5),
            p99_ms: at_ms(0.99),
            late_ns: instants.begin_ns.saturating_sub(report.due_ns),
            clock,
        }
    }
}
