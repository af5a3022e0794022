//! Two sources of how blocked time is divided by reason, compared: stacks in slices of recorded context
//! switches, and wait events sampled at instants.
//!
//! Only stacks divide the time if there are both, so wrong weights of theirs would be a wrong ledger. A
//! factor on the weight of one reason is a factor on its odds (its weight over that of all others),
//! whatever its share, so limits are odds, translated to shares of the blocked time.

use std::collections::{BTreeMap, BTreeSet};

use pgassay_stats as stats;

use super::LedgerRow;
use super::account::BlockedWeights;
use super::consistency::{CheckName, ConsistencyCheck};
use super::row::Part;
use super::weights::{BLOCKS_MIN, ByBlock};
use crate::cost_row::CostRow;

/// The odds of a reason may differ by this factor, and its share by [`SHARE_ERROR`]: events miss short waits.
const ODDS_ERROR: f64 = 1.45;
/// See [`ODDS_ERROR`].
const SHARE_ERROR: f64 = 0.02;
/// Fewer wait events show nothing.
const EVENTS_MIN: f64 = 20.0;
/// A second source would notice this factor.
const NOTICED: f64 = 2.0;
/// Confidence of the interval of the blocks' differences.
const LEVEL: f64 = 0.95;
/// Reasons that have no wait event.
const WITHOUT_EVENT: &str = "no wait event";
/// What has an event in 9.6.
const WITH_EVENT_IN_9_6: [&str; 3] = ["Lock", "LWLock", "buffer pin"];

/// A reason, or several that one of the sources does not distinguish, as shares of the time in which
/// backends are blocked and do not wait for their clients.
struct Compared {
    class: String,
    by_stacks: f64,
    by_events: f64,
    limit: f64,
    /// Whether wrong weights would be noticed.
    is_guarded: bool,
}

/// The comparison of both sources.
pub(super) struct ReasonSources {
    compared: Vec<Compared>,
    is_9_6: bool,
}

/// The class of a row of blocked time. Events name the lock, stacks its type.
fn class(part: Part, mechanism: &str, is_9_6: bool) -> Option<&str> {
    let name = match mechanism {
        _ if part == Part::Unexplained => WITHOUT_EVENT,
        _ if part != Part::Blocked => return None,
        "logging pipe" | "page fault" => WITHOUT_EVENT,
        "sleep" | "Timeout PgSleep" | "Timeout VacuumDelay" => "sleep",
        "synchronous replication" | "IPC SyncRep" => "synchronous replication",
        "data file read" | "IPC BufferIo" | "IPC BufferIO" => "data file read",
        lock if lock == "Lock" || lock.starts_with("Lock ") => "Lock",
        lock if lock.starts_with("LWLock") => "LWLock",
        other => other,
    };
    let has_event = !is_9_6 || WITH_EVENT_IN_9_6.contains(&name);
    Some(if has_event { name } else { WITHOUT_EVENT })
}

type Classes = BTreeMap<String, f64>;

fn classes(weights: &BlockedWeights, is_9_6: bool) -> Classes {
    let mut classes = Classes::new();
    for (key, weight) in weights {
        if let Some(class) = class(key.reason.part, &key.reason.mechanism, is_9_6) {
            *classes.entry(class.to_owned()).or_default() += weight;
        }
    }
    classes
}

fn share(classes: &Classes, class: &str) -> Option<f64> {
    let all: f64 = classes.values().sum();
    (all > 0.0).then(|| classes.get(class).copied().unwrap_or(0.0) / all)
}

/// The share after its odds changed by this factor.
fn shifted(share: f64, factor: f64) -> f64 {
    factor * share / (1.0 - share + factor * share)
}

impl ReasonSources {
    /// Compares both sources; `None` if they have too few blocks in common, or too few events.
    pub fn compare(
        stacks: &ByBlock<BlockedWeights>,
        events: &ByBlock<BlockedWeights>,
        major: &str,
    ) -> Option<Self> {
        let is_9_6 = major == "9.6";
        let blocks: Vec<(Classes, Classes)> = stacks
            .blocks
            .iter()
            .filter_map(|(number, weights)| {
                let events = classes(events.blocks.get(number)?, is_9_6);
                let stacks = classes(weights, is_9_6);
                let have_any = [&stacks, &events].iter().all(|it| !it.is_empty());
                have_any.then_some((stacks, events))
            })
            .collect();
        let samples: f64 = blocks.iter().flat_map(|(_, events)| events.values()).sum();
        if blocks.len() < BLOCKS_MIN || samples < EVENTS_MIN {
            return None;
        }
        let names: BTreeSet<&String> = blocks
            .iter()
            .flat_map(|(stacks, events)| stacks.keys().chain(events.keys()))
            .collect();
        let compared = names
            .into_iter()
            .filter_map(|class| compare(class, &blocks, samples));
        Some(Self {
            compared: compared.collect(),
            is_9_6,
        })
    }

    /// The check of the reason on which the sources disagree most, beyond its limit if any is.
    pub fn check(&self) -> Option<ConsistencyCheck> {
        let size = |it: &&Compared| {
            let error = (it.by_stacks - it.by_events).abs();
            (error > it.limit, error)
        };
        let worst = self.compared.iter().max_by(|a, b| {
            let (a, b) = (size(a), size(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        })?;
        let error = worst.by_events - worst.by_stacks;
        let name = CheckName::BlockedReasons;
        Some(ConsistencyCheck::new(name, error, worst.limit))
    }

    /// Whether wrong weights of the row's reason would be noticed.
    fn guards(&self, part: Part, mechanism: &str) -> bool {
        let class = class(part, mechanism, self.is_9_6);
        let mut compared = self.compared.iter();
        class.is_none_or(|class| compared.any(|it| it.class == class && it.is_guarded))
    }
}

/// Whether both sides have a second source of a blocked row's reason.
fn are_guarded(sides: [Option<&ReasonSources>; 2], row: &LedgerRow) -> bool {
    let mut sides = sides.into_iter();
    sides.all(|it| it.is_some_and(|it| it.guards(row.part, &row.cost.name)))
}

/// How much of the difference may be in another row of blocked time, because the reasons have only one
/// source: no more than there is outside of the row that differs most.
pub(super) fn single_source_us(groups: &[LedgerRow], sides: [Option<&ReasonSources>; 2]) -> f64 {
    let blocked = || groups.iter().filter(|row| row.part == Part::Blocked);
    let size = |row: &&LedgerRow| row.cost.difference_us.abs();
    let single_us: f64 = blocked()
        .filter(|row| !are_guarded(sides, row))
        .map(|row| size(&row))
        .sum();
    let Some(lead) = blocked().max_by(|a, b| size(a).total_cmp(&size(b))) else {
        return 0.0;
    };
    let outside =
        |of: fn(&CostRow) -> f64| blocked().map(|row| of(&row.cost)).sum::<f64>() - of(&lead.cost);
    let outside_us = outside(|it| it.baseline_us).max(outside(|it| it.variant_us));
    single_us.min(outside_us)
}

fn compare(class: &str, blocks: &[(Classes, Classes)], samples: f64) -> Option<Compared> {
    let shares = blocks
        .iter()
        .map(|(stacks, events)| Some((share(stacks, class)?, share(events, class)?)));
    let shares: Vec<(f64, f64)> = shares.collect::<Option<_>>()?;
    let count = shares.len() as f64;
    let by_stacks = shares.iter().map(|it| it.0).sum::<f64>() / count;
    let by_events = shares.iter().map(|it| it.1).sum::<f64>() / count;
    let differences: Vec<f64> = shares.iter().map(|it| it.1 - it.0).collect();
    let mean = stats::mean_difference(&differences, LEVEL).ok()?;
    let by_blocks = mean.interval.map(|it| (it.high - it.low) / 2.0)?;
    // Laplace's estimate: a share of few samples that is 0 or 1 is not certain.
    let estimate = (by_events * samples + 1.0) / (samples + 2.0);
    let by_samples = 2.0 * (estimate * (1.0 - estimate) / samples).sqrt();
    let chance = by_blocks.max(by_samples);
    let distance = |factor: f64| (shifted(estimate, factor) - estimate).abs();
    let limit = |factor: f64| distance(factor).max(SHARE_ERROR) + chance;
    let [more, less] = [limit(ODDS_ERROR), limit(1.0 / ODDS_ERROR)];
    Some(Compared {
        class: class.to_owned(),
        by_stacks,
        by_events,
        limit: if by_stacks > by_events { more } else { less },
        is_guarded: more <= distance(NOTICED) && less <= distance(1.0 / NOTICED),
    })
}
