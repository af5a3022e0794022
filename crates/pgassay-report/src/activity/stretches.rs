//! The time axis, in as many stretches as there is room for.

use pgassay_record::activity::{Activity, LoadInterval, LoadMark};

use super::wait_class::ClassLoads;

/// The load of one stretch of the window.
#[derive(Debug, Clone, PartialEq)]
pub struct TimeStretch<'a> {
    /// Its start, in microseconds since the window's start.
    pub start_us: f64,
    /// Its length, in microseconds.
    pub length_us: f64,
    /// Average active sessions.
    pub loads: ClassLoads,
    /// Average sessions idle in a transaction.
    pub idle_in_transaction: f64,
    /// Transactions that ended, per second; `None` if unknown.
    pub transactions_per_s: Option<f64>,
    /// What began in it.
    pub marks: Vec<&'a LoadMark>,
}

/// The timeline in at most `most` stretches of about the same length.
pub fn stretches(activity: &Activity, most: usize) -> Vec<TimeStretch<'_>> {
    let together = activity.timeline.len().div_ceil(most.max(1)).max(1);
    let mut found: Vec<TimeStretch<'_>> = activity.timeline.chunks(together).map(joined).collect();
    for mark in &activity.marks {
        // Before the first stretch belongs to the first.
        let at = found.iter().rposition(|it| it.start_us <= mark.at_us);
        if let Some(stretch) = found.get_mut(at.unwrap_or(0)) {
            stretch.marks.push(mark);
        }
    }
    found
}

fn joined<'a>(intervals: &[LoadInterval]) -> TimeStretch<'a> {
    let length_us: f64 = intervals.iter().map(|it| it.length_us).sum();
    let weight = |it: &LoadInterval| it.length_us / length_us.max(f64::MIN_POSITIVE);
    let mut loads = ClassLoads::default();
    for interval in intervals {
        for (kind, load) in &interval.active {
            loads.add(kind, load * weight(interval));
        }
    }
    // Where the rate of a few intervals is unknown, that of the others stands for them.
    let known = intervals.iter();
    let known = known.filter_map(|it| Some((it.transactions_per_s?, weight(it))));
    let (transactions, share) = known.fold((0.0, 0.0), |(sum, share), (rate, weight)| {
        (sum + rate * weight, share + weight)
    });
    TimeStretch {
        start_us: intervals.first().map_or(0.0, |it| it.start_us),
        length_us,
        loads,
        idle_in_transaction: intervals
            .iter()
            .map(|it| it.idle_in_transaction * weight(it))
            .sum(),
        transactions_per_s: (share >= 0.5).then(|| transactions / share),
        marks: Vec::new(),
    }
}
