//! The weights of stacks and wait events, which divide exact totals.

use std::collections::BTreeMap;

use pgassay_knowledge::{Attribution, FrameName, Phase, Subsystem, Symbols};
use pgassay_model::profile::{BlockedStack, Frame, Profile};
use pgassay_model::trial::TrialKind;

use super::account::{BlockedKey, BlockedWeights, CpuKey, CpuWeights, client_weight, is_client};
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

/// Fewer blocks do not show how much the shares of two sources vary.
pub(super) const BLOCKS_MIN: usize = 3;

impl ByBlock<BlockedWeights> {
    /// Corrects the share of waiting for the client by wait events.
    ///
    /// Slices record every wait exactly, but are few: if waits last longer than a slice, their share varies
    /// widely between blocks. Instants at which wait events are read are ten times as many, but see none of
    /// the short waits between them. So each share counts by its precision, which is the inverse of its
    /// variance over the blocks. Nothing changes if events do not show waiting for the client (9.6).
    pub fn correct_client_share(&mut self, events: &Self) {
        let pairs = self.blocks.iter().filter_map(|(block, stacks)| {
            let of_block = events.blocks.get(block)?;
            client_share(stacks).zip(client_share(of_block))
        });
        let (by_stacks, by_events): (Vec<f64>, Vec<f64>) = pairs.unzip();
        if by_stacks.len() < BLOCKS_MIN {
            return;
        }
        let variances = [&by_stacks, &by_events].map(|shares| variance(shares));
        let of_events = variances[0] / (variances[0] + variances[1]).max(f64::MIN_POSITIVE);
        for (block, stacks) in &mut self.blocks {
            if let Some(of_block) = events.blocks.get(block) {
                move_client_share(stacks, of_block, of_events);
            }
        }
        move_client_share(&mut self.pooled, &events.pooled, of_events);
    }

    fn add(&mut self, block: u32, key: &BlockedKey, weight: f64) {
        for all in [self.blocks.entry(block).or_default(), &mut self.pooled] {
            *all.entry(key.clone()).or_default() += weight;
        }
    }
}

/// The share of waiting for the client; `None` if it is all or nothing.
fn client_share(weights: &BlockedWeights) -> Option<f64> {
    let (for_client, all) = client_weight(weights);
    let share = for_client / all;
    (share > 0.0 && share < 1.0).then_some(share)
}

/// Moves the share of waiting for the client by this part of the way to that of `events`.
fn move_client_share(weights: &mut BlockedWeights, events: &BlockedWeights, part: f64) {
    let Some((before, goal)) = client_share(weights).zip(client_share(events)) else {
        return;
    };
    let share = before + part * (goal - before);
    for (key, weight) in weights {
        *weight *= if is_client(key) {
            share / before
        } else {
            (1.0 - share) / (1.0 - before)
        };
    }
}

fn variance(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    squares / (count - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(for_client: f64, asleep: f64) -> BlockedWeights {
        let [client, sleep] = [("Client", "ClientRead"), ("Timeout", "PgSleep")];
        BlockedWeights::from([
            (blocked_key(&[], client.0, client.1), for_client),
            (blocked_key(&[], sleep.0, sleep.1), asleep),
        ])
    }

    /// Weights with these shares of waiting for the client, of `all` in each block.
    fn by_block(shares: &[f64], all: f64) -> ByBlock<BlockedWeights> {
        let mut found = no_blocked();
        for (block, share) in (0..).zip(shares) {
            for (key, weight) in weights(share * all, (1.0 - share) * all) {
                found.add(block, &key, weight);
            }
        }
        found
    }

    fn shares(found: &ByBlock<BlockedWeights>) -> Vec<f64> {
        found.blocks.values().filter_map(client_share).collect()
    }

    /// Regression: of 64 clients that sleep 20 ms in the statement and 20 ms between transactions, slices
    /// of 10 ms saw 43% to 55% of the time in the client, and the ledger averaged what was too high as
    /// network time and what was too low as nothing.
    #[test]
    fn the_share_of_long_waits_is_that_of_the_more_precise_source() {
        let seen = [0.539, 0.547, 0.458, 0.524, 0.427, 0.519];
        let mut stacks = by_block(&seen, 1e9);
        let events = by_block(&[0.497, 0.493, 0.496, 0.495, 0.493, 0.491], 1784.0);
        stacks.correct_client_share(&events);
        for share in shares(&stacks) {
            assert!((share - 0.495).abs() < 0.01, "{share}");
        }
        let all: f64 = stacks.blocks[&0].values().sum();
        assert!((all - 1e9).abs() < 1.0, "{all}");
        // The other way round, slices are the better source.
        let mut stacks = by_block(&[0.301, 0.300, 0.302, 0.299], 1e9);
        stacks.correct_client_share(&by_block(&[0.25, 0.45, 0.2, 0.4], 100.0));
        for share in shares(&stacks) {
            assert!((share - 0.3).abs() < 0.01, "{share}");
        }
    }

    #[test]
    fn events_that_do_not_show_the_client_correct_nothing() {
        let seen = [0.4, 0.6, 0.5];
        for events in [vec![0.0, 0.0, 0.0], vec![0.5, 0.5], vec![]] {
            let mut stacks = by_block(&seen, 1e9);
            stacks.correct_client_share(&by_block(&events, 100.0));
            let found = shares(&stacks);
            let is_same = found.iter().zip(&seen).all(|(a, b)| (a - b).abs() < 1e-9);
            assert!(is_same, "{events:?}: {found:?}");
        }
    }
}
