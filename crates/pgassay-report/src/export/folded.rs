//! Folded stacks: `outer;inner;leaf count`, one line per stack.
//!
//! See `stackcollapse-perf.pl` and `flamegraph.pl` of Brendan Gregg: semicolons separate frames, the
//! count follows the last space, `_[k]` marks kernel functions. Semicolons and line breaks in names are
//! replaced, since they would split a name in two.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use pgassay_account::instructions::CallTree;

use super::stacks::{WeightedStacks, marked, stacks_of};

/// All stacks, sorted and unique.
pub(super) fn text(weighed: &WeightedStacks<'_>) -> String {
    let profile = &*weighed.profile;
    let stacks = stacks_of(profile).map(|(stack, count)| {
        let names = stack
            .into_iter()
            .map(|frame| marked(&profile.frames[frame as usize]));
        (
            names.collect(),
            count.saturating_mul(weighed.samples_per_count),
        )
    });
    lines(stacks)
}

/// Stacks of instruction counts. A path that executed fewer instructions in the longer run is left out.
pub(super) fn instruction_counts(tree: &CallTree) -> String {
    let paths = tree.paths.iter().enumerate();
    let stacks = paths.filter_map(|(at, path)| {
        let instructions = u64::try_from(path.instructions).ok().filter(|it| *it > 0)?;
        let names = tree.stack(at).into_iter();
        let names = names.map(|it| tree.functions[it as usize].name.clone());
        Some((names.collect(), instructions))
    });
    lines(stacks)
}

fn lines(stacks: impl Iterator<Item = (Vec<String>, u64)>) -> String {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for (names, count) in stacks {
        let names: Vec<String> = names
            .iter()
            .map(|name| name.replace([';', '\n'], ":"))
            .collect();
        let sum = lines.entry(names.join(";")).or_default();
        *sum = sum.saturating_add(count);
    }
    let mut out = String::new();
    for (line, count) in lines {
        // Writing to a String cannot fail.
        _ = writeln!(out, "{line} {count}");
    }
    out
}
