//! One side of a comparison: the evidence of a point over all blocks, and of each block.
//!
//! A signature weighs each block as it weighs the whole point, so the difference of its weight has
//! an interval over paired blocks, as a verdict has.

use std::collections::BTreeMap;

use pgassay_account::counters::{PointCounters, per_transaction};
use pgassay_account::ledger::{self, PointMeasurements};
use pgassay_model::trial::{Trial, TrialKind};
use pgassay_record::finding::Confidence;
use pgassay_record::run::Run;
use pgassay_stats as stats;

use super::evidence::Evidence;
use crate::evaluation::Signature;

/// Confidence of each interval.
const LEVEL: f64 = 0.95;

/// A cause is seen in a block from this share of its mean weight on.
const PRESENT_MIN: f64 = 0.25;

/// The evidence of a point, and of each of its blocks.
pub(super) struct EvidenceByBlock {
    pub whole: Evidence,
    pub blocks: BTreeMap<u32, Evidence>,
}

impl EvidenceByBlock {
    /// `whole` must be the evidence of the same point.
    pub fn new(run: &Run, whole: Evidence, condition: usize, variant: usize) -> Self {
        let blocks = blocks(run, &whole, condition, variant);
        Self { whole, blocks }
    }

    /// Whether a signature weighs something in more than half of the blocks: a single stall of the disk may make up its
    /// whole weight.
    pub fn is_in_most_blocks(&self, signature: &Signature) -> bool {
        let least_us = PRESENT_MIN * (signature.measure)(&self.whole).weight_us;
        let seen = self
            .blocks
            .values()
            .filter(|it| (signature.measure)(it).weight_us >= least_us);
        2 * seen.count() > self.blocks.len()
    }

    /// This confidence, or at most [`Confidence::Hint`] with fewer than two blocks: what happened once may be chance,
    /// however many sources saw it.
    pub fn most(&self, confidence: Confidence) -> Confidence {
        if self.blocks.len() < 2 {
            confidence.min(Confidence::Hint)
        } else {
            confidence
        }
    }
}

/// Confidence interval of a signature's weight under the variant minus that under the baseline.
/// `None` with fewer than two common blocks, or if nothing varies: a width of 0 means no knowledge.
pub(super) fn interval(
    signature: &Signature,
    baseline: &EvidenceByBlock,
    variant: &EvidenceByBlock,
) -> Option<[f64; 2]> {
    let weight = |evidence: &Evidence| (signature.measure)(evidence).weight_us;
    let differences: Vec<f64> = baseline
        .blocks
        .iter()
        .filter_map(|(number, of_baseline)| {
            let of_variant = variant.blocks.get(number)?;
            Some(weight(of_variant) - weight(of_baseline))
        })
        .collect();
    let mean = stats::mean_difference(&differences, LEVEL).ok()?;
    let interval = mean.interval?;
    (interval.high > interval.low).then_some([interval.low, interval.high])
}

fn blocks(
    run: &Run,
    whole: &Evidence,
    condition: usize,
    variant: usize,
) -> BTreeMap<u32, Evidence> {
    let trials: Vec<&Trial> = run
        .trials
        .iter()
        .filter(|it| (it.condition, it.variant) == (condition, variant))
        .collect();
    let mut points = run.plan.points.iter();
    let place = points.position(|it| (it.condition, it.variant) == (condition, variant));
    let profile = place.and_then(|place| run.profiles.get(place));
    let mut ledgers = run.ledgers.iter();
    let ledger = ledgers.find(|it| (it.condition, it.variant) == (condition, variant));
    let blocked_by = ledger.map(|it| it.blocked_by).unwrap_or_default();
    let major = whole.major.to_string();
    let measured = PointMeasurements {
        condition,
        variant,
        trials: trials.clone(),
        profile,
        major: &major,
    };
    // The assessment has already reported a damaged histogram.
    let rows = ledger::rows_by_block(&measured).unwrap_or_default();
    rows.into_iter()
        .filter_map(|(number, rows)| {
            let of_block = || trials.iter().copied().filter(|it| it.block == number);
            let cpu_us = cpu_us(of_block())?;
            let counted = PointCounters::new(of_block()).figures();
            let mut counters = whole.counters.clone();
            for (name, value) in per_transaction(&counted) {
                counters.insert(name.to_owned(), value);
            }
            let stacks = profile.map(|it| whole.stacks.in_block(it, cpu_us, number));
            let evidence = Evidence {
                cpu_us,
                stacks: stacks.unwrap_or_default(),
                counters,
                ..whole.clone()
            };
            Some((number, evidence.with_rows(&rows, blocked_by)))
        })
        .collect()
}

/// The backends' CPU time per transaction of the timed trials.
fn cpu_us<'a>(trials: impl Iterator<Item = &'a Trial>) -> Option<f64> {
    let (mut on_cpu_us, mut transactions) = (0.0, 0);
    for trial in trials.filter(|it| it.kind == TrialKind::Timed) {
        on_cpu_us += trial.server?.on_cpu_us;
        transactions += trial.transactions_total;
    }
    (transactions > 0).then(|| on_cpu_us / transactions as f64)
}
