//! What a variant takes besides time: memory per backend, and volumes per transaction.

use pgassay_account::comparison::{Comparison, PointSummary};
use pgassay_account::counters::{self, CounterUnit};
use pgassay_record::run::Run;

use crate::number;
use crate::outline::point;

/// A difference in memory below this share of the larger figure, or below this size, is not shown: it depends on
/// when the allocator returns memory.
const MEMORY_SHARE_MIN: f64 = 0.10;
const MEMORY_BYTES_MIN: f64 = 1_048_576.0;

/// The volumes, by counter, with the words of a sentence.
const VOLUMES: [(&str, &str); 5] = [
    ("wal.insert_bytes", "WAL"),
    ("pg_stat_database.temp_bytes", "temporary files"),
    ("pg_stat_database.blks_read", "blocks read"),
    ("backends.read_bytes", "read from disk by backends"),
    ("backends.write_bytes", "written to disk by backends"),
];

/// A figure of the baseline and of a variant.
pub(crate) struct PriceRow {
    /// What it is.
    pub title: &'static str,
    /// The baseline's figure; empty for a ratio.
    pub before: String,
    /// The variant's figure.
    pub after: String,
}

/// The price of a comparison's variant: the ratio of latencies, then what differs in memory and volumes. Empty if
/// nothing but time differs.
pub(crate) fn rows(run: &Run, it: &Comparison) -> Vec<PriceRow> {
    let mut rows = Vec::new();
    rows.extend(memory(run, it));
    for (name, title) in VOLUMES {
        let differing = it
            .counters
            .iter()
            .find(|row| row.name == name && row.differs);
        if let Some(row) = differing {
            let unit = counters::unit(name);
            let figure = |value: f64| number::counter_value(value, unit);
            rows.push(PriceRow {
                title,
                before: figure(row.baseline),
                after: figure(row.variant),
            });
        }
    }
    if !rows.is_empty() {
        let time = PriceRow {
            title: "mean latency",
            before: String::new(),
            after: number::ratio(it.latency_mean.ratio),
        };
        rows.insert(0, time);
    }
    rows
}

/// `mean latency ×0.601; peak memory per backend 12.1 MB → 71.3 MB`.
pub(crate) fn sentence(rows: &[PriceRow]) -> String {
    let part = |row: &PriceRow| {
        if row.before.is_empty() {
            format!("{} {}", row.title, row.after)
        } else {
            format!("{} {} → {}", row.title, row.before, row.after)
        }
    };
    let parts: Vec<String> = rows.iter().map(part).collect();
    parts.join("; ")
}

fn memory(run: &Run, it: &Comparison) -> Option<PriceRow> {
    let of = |variant: usize| -> Option<f64> {
        let summary: &PointSummary = point(run, it.condition, variant)?;
        Some(summary.backend_memory_bytes? as f64)
    };
    let (before, after) = (of(0)?, of(it.variant)?);
    let by = (before - after).abs();
    let is_shown = by >= MEMORY_BYTES_MIN && by >= MEMORY_SHARE_MIN * before.max(after);
    let figure = |bytes: f64| number::counter_value(bytes, CounterUnit::Bytes);
    is_shown.then(|| PriceRow {
        title: "peak memory per backend",
        before: figure(before),
        after: figure(after),
    })
}
