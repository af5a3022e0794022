//! The weights of stacks and wait events, which divide exact totals.

use std::collections::BTreeMap;

use pgassay_knowledge::{Attribution, FrameName, Phase, Subsystem, Symbols};
use pgassay_model::profile::{BlockedStack, Frame, Profile};
use pgassay_model::trial::TrialKind;

use super::account::{BlockedKey, BlockedWeights, CpuKey, CpuWeights};
use super::divider::Divider;
use super::measurements::{PointMeasurements, of_kind, only_activity_samples};
use super::reason::Reason;

/// Weights by block, and pooled weights for blocks that have none.
pub(super) struct ByBlock<W> {
    pub blocks: BTreeMap<u32, W>,
    pub pooled: W,
}

fn names<'a>(stack: &[&'a Frame]) -> Vec<FrameName<'a>> {
    let name = |frame: &&'a Frame| FrameName {
        symbol: frame.symbol.as_deref(),
        object: &frame.object,
        kernel: frame.kernel,
    };
    stack.iter().map(name).collect()
}

/// The key of an on-CPU stack.
pub(super) fn cpu_key(symbols: &Symbols, stack: &[&Frame]) -> CpuKey {
    let names = names(stack);
    let subsystem = Attribution::of(symbols, &names).subsystem;
    let no_stack = names.iter().all(|name| name.object.is_empty());
    CpuKey {
        phase: Phase::of(&names).to_string(),
        mechanism: subsystem.to_string(),
        is_unknown: subsystem == Subsystem::Unknown || no_stack,
    }
}

/// The key of a blocked stack and its wait event.
pub fn blocked_key(stack: &[&Frame], kind: &str, event: &str) -> BlockedKey {
    let names = names(stack);
    let phase = match &names[..] {
        [] => String::new(),
        names => Phase::of_blocked(names).to_string(),
    };
    BlockedKey {
        phase,
        reason: Reason::of_stack(&names, kind, event),
    }
}

/// The key of a blocked stack in a profile.
pub(super) fn key_in_profile(profile: &Profile, blocked: &BlockedStack) -> BlockedKey {
    let node = blocked.node.map(|node| profile.stack(node));
    let stack = node.unwrap_or_default();
    blocked_key(&stack, &blocked.wait_event_type, &blocked.wait_event)
}

/// Weights that divide on-CPU time, over all blocks.
pub fn cpu_weights(profile: &Profile, major: &str) -> CpuWeights {
    cpu_by_block(profile, major).pooled
}

/// Weights that divide blocked time, over all blocks; empty if no context switch was observed.
pub fn blocked_weights(profile: &Profile) -> BlockedWeights {
    blocked_by_stacks(profile).pooled
}

pub(super) fn cpu_by_block(profile: &Profile, major: &str) -> ByBlock<CpuWeights> {
    let symbols = Symbols::for_major(major);
    let mut weights = ByBlock {
        blocks: BTreeMap::new(),
        pooled: CpuWeights::new(),
    };
    for (index, node) in (0u32..).zip(&profile.nodes) {
        if node.total() == 0 {
            continue;
        }
        let stack = profile.stack(index);
        let key = cpu_key(&symbols, &stack);
        let in_kernel = stack.last().is_some_and(|leaf| leaf.kernel);
        for (block, samples) in (0u32..).zip(&node.samples).filter(|(_, count)| **count > 0) {
            let of_block: &mut CpuWeights = weights.blocks.entry(block).or_default();
            for all in [of_block, &mut weights.pooled] {
                let weight = all.entry(key.clone()).or_default();
                weight[0] += f64::from(*samples);
                weight[1] += if in_kernel { f64::from(*samples) } else { 0.0 };
            }
        }
    }
    weights
}

pub(super) fn blocked_by_stacks(profile: &Profile) -> ByBlock<BlockedWeights> {
    let mut weights = no_blocked();
    for blocked in &profile.blocked {
        let key = key_in_profile(profile, blocked);
        for (block, &ns) in (0u32..).zip(&blocked.blocked_ns).filter(|(_, ns)| **ns > 0) {
            weights.add(block, &key, ns as f64);
        }
    }
    weights
}

pub(super) fn blocked_by_events(
    measured: &PointMeasurements<'_>,
) -> (ByBlock<BlockedWeights>, Divider) {
    let mut weights = no_blocked();
    let mut divider = Divider::Nothing;
    // If the on-CPU total is known, samples of active sessions do not divide it: they miss too many.
    let is_asked = only_activity_samples(measured);
    for trial in of_kind(measured, TrialKind::Profiled) {
        let Some(waits) = &trial.waits else { continue };
        if is_asked && waits.runnable_samples > 0 {
            weights.add(
                trial.block,
                &BlockedKey::running(),
                waits.runnable_samples as f64,
            );
        }
        for event in waits.events.iter().filter(|event| event.samples > 0) {
            let key = blocked_key(&[], &event.kind, &event.name);
            weights.add(trial.block, &key, event.samples as f64);
            divider = waits.source.into();
        }
    }
    if is_asked {
        divider = Divider::ActivityStates;
    }
    (weights, divider)
}

fn no_blocked() -> ByBlock<BlockedWeights> {
    ByBlock {
        blocks: BTreeMap::new(),
        pooled: BlockedWeights::new(),
    }
}

impl ByBlock<BlockedWeights> {
    fn add(&mut self, block: u32, key: &BlockedKey, weight: f64) {
        for all in [self.blocks.entry(block).or_default(), &mut self.pooled] {
            *all.entry(key.clone()).or_default() += weight;
        }
    }
}
