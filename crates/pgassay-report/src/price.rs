//! What a variant takes besides time: memory per backend, and volumes per transaction.

use std::borrow::Cow;
use std::collections::BTreeSet;

use pgassay_account::comparison::{Comparison, PointSummary};
use pgassay_account::counters::{self, CounterUnit};
use pgassay_model::plan::Point;
use pgassay_model::trial::MemoryContext;
use pgassay_record::run::Run;

use crate::number;
use crate::outline::{compared_variants, point};

/// A difference in memory below this share of the larger figure, or below this size, is not shown: it depends on
/// when the allocator returns memory.
const MEMORY_SHARE_MIN: f64 = 0.10;
const MEMORY_BYTES_MIN: f64 = 1_048_576.0;

/// Memory contexts that are shown for a comparison.
const CONTEXTS_MAX: usize = 3;

const WAL: &str = "wal.insert_bytes";

/// The volumes, by counter, with the words of a sentence.
const VOLUMES: [(&str, &str); 4] = [
    (WAL, "WAL"),
    ("pg_stat_database.temp_bytes", "temporary files"),
    ("pg_stat_database.blks_read", "blocks read"),
    ("backends.read_bytes", "read from disk by backends"),
];

/// Full-page images: a page's first change after a checkpoint writes the whole page, so their number per transaction
/// depends on how many transactions follow a checkpoint.
const IMAGES: &str = "pg_stat_wal.wal_fpi";
const IMAGES_TITLE: &str = "full-page images (much of that difference: the more transactions after a checkpoint, the fewer)";

/// A page's size, and the share of a difference in WAL from which on images are much of it. Free space is left out of an
/// image, so their size is at most that.
const PAGE_BYTES: f64 = 8192.0;
const IMAGES_SHARE_MIN: f64 = 0.75;

/// Volumes per unit that differ by less are not shown, as in STATISTICS.
const PER_UNIT_DIFFERENCE_MIN: f64 = 0.01;

/// A figure of the baseline and of a variant.
pub(crate) struct PriceRow {
    /// What it is.
    pub title: Cow<'static, str>,
    /// The baseline's figure; empty for a ratio.
    pub before: String,
    /// The variant's figure.
    pub after: String,
}

/// The price of a comparison's variant: the ratio of latencies, then what differs in memory and volumes. Empty if
/// nothing but time differs.
pub(crate) fn rows(run: &Run, it: &Comparison) -> Vec<PriceRow> {
    let mut rows = Vec::new();
    if let Some(row) = memory(run, it) {
        rows.push(row);
        rows.extend(contexts(run, it));
    }
    for (name, title) in VOLUMES {
        let differing = differing(run, it, name);
        rows.extend(differing.map(|figures| volume(name, figures, title)));
        if name == WAL {
            rows.extend(images(run, it));
        }
    }
    if !rows.is_empty() {
        let is_of_transaction = units(run, it) == [1, 1];
        let time = PriceRow {
            title: if is_of_transaction {
                "mean latency".into()
            } else {
                "mean latency of a transaction".into()
            },
            before: String::new(),
            after: number::ratio(it.latency_mean.ratio),
        };
        rows.insert(0, time);
    }
    rows
}

/// What a transaction of the baseline and of the variant yields.
fn units(run: &Run, it: &Comparison) -> [u64; 2] {
    compared_variants(run, it).map(|variant| {
        let mut points = run.plan.points.iter();
        let planned =
            points.find(|point| (point.condition, point.variant) == (it.condition, variant));
        planned.map_or(1, Point::per_transaction)
    })
}

/// A counter per transaction, or per unit that transactions yield, of both variants, if they differ in it.
fn differing(run: &Run, it: &Comparison, name: &str) -> Option<[f64; 2]> {
    let mut counters = it.counters.iter();
    let row = counters.find(|row| row.name == name)?;
    let units = units(run, it);
    if units[0] == units[1] && !row.differs {
        return None;
    }
    let [before, after] = [
        row.baseline / units[0] as f64,
        row.variant / units[1] as f64,
    ];
    // More in a transaction that yields more may be the same per unit.
    let is_about_equal = || (after - before).abs() <= PER_UNIT_DIFFERENCE_MIN * before.max(after);
    let is_equal = units[0] != units[1] && is_about_equal();
    (!is_equal).then_some([before, after])
}

fn volume(name: &str, figures: [f64; 2], title: &'static str) -> PriceRow {
    let unit = counters::unit(name);
    let [before, after] = figures.map(|it| number::counter_value(it, unit));
    PriceRow {
        title: title.into(),
        before,
        after,
    }
}

/// Full-page images, if they are much of a difference in WAL: it is then no property of the variant's statements.
fn images(run: &Run, it: &Comparison) -> Option<PriceRow> {
    let [wal, images] = [WAL, IMAGES].map(|name| differing(run, it, name));
    let (wal, images) = (wal?, images?);
    let share = PAGE_BYTES * (images[1] - images[0]) / (wal[1] - wal[0]);
    (share >= IMAGES_SHARE_MIN).then(|| volume(IMAGES, images, IMAGES_TITLE))
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
    let [before, after] = compared_variants(run, it).map(of);
    let (before, after) = (before?, after?);
    let by = (before - after).abs();
    let is_shown = by >= MEMORY_BYTES_MIN && by >= MEMORY_SHARE_MIN * before.max(after);
    let figure = |bytes: f64| number::counter_value(bytes, CounterUnit::Bytes);
    is_shown.then(|| PriceRow {
        title: "peak memory per backend".into(),
        before: figure(before),
        after: figure(after),
    })
}

/// The memory contexts that explain a difference in memory: those that differ as much as memory has to, the largest
/// difference first. Memory that a statement needs only while it runs, as for a sort, is in none of them.
fn contexts(run: &Run, it: &Comparison) -> Vec<PriceRow> {
    let of = |variant: usize| -> &[MemoryContext] {
        point(run, it.condition, variant).map_or(&[], |it| &it.memory_contexts)
    };
    let [before, after] = compared_variants(run, it).map(of);
    if before.is_empty() || after.is_empty() {
        return Vec::new();
    }
    let bytes = |all: &[MemoryContext], name: &str| {
        let same = all.iter().find(|context| context.name == name);
        same.map_or(0.0, |context| context.bytes as f64)
    };
    let names: BTreeSet<&str> = before
        .iter()
        .chain(after)
        .map(|it| it.name.as_str())
        .collect();
    let figures = names.into_iter();
    let figures = figures.map(|name| (name, bytes(before, name), bytes(after, name)));
    let mut differing: Vec<_> = figures
        .filter(|(_, before, after)| (after - before).abs() >= MEMORY_BYTES_MIN)
        .collect();
    differing.sort_by(|a, b| (b.2 - b.1).abs().total_cmp(&(a.2 - a.1).abs()));
    let figure = |bytes: f64| number::counter_value(bytes, CounterUnit::Bytes);
    let row = |(name, before, after): (&str, f64, f64)| PriceRow {
        title: format!("memory context {name} after the trial").into(),
        before: figure(before),
        after: figure(after),
    };
    differing.into_iter().take(CONTEXTS_MAX).map(row).collect()
}
