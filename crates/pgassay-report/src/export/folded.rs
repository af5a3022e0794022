//! Folded stacks: `outer;inner;leaf count`, a line a stack.
//!
//! See `stackcollapse-perf.pl` and `flamegraph.pl` of Brendan Gregg: frames are parted
//! by semicolons, the count stands behind the last space, `_[k]` marks the kernel's functions.
//! A name that holds a semicolon or an end of line would be read as two, so these are replaced.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use pgassay_core::instructions::CallTree;
use pgassay_core::profile::Profile;

/// All stacks, sorted, each once.
pub(super) fn text(profile: &Profile) -> String {
    let stacks = super::stacks_of(profile).map(|(stack, samples)| {
        let names = stack
            .into_iter()
            .map(|frame| super::marked(&profile.frames[frame as usize]));
        (names.collect(), samples)
    });
    lines(stacks)
}

/// The same of counted instructions. A path that executed fewer in the longer run has none.
pub(super) fn counted(tree: &CallTree) -> String {
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
        *lines.entry(names.join(";")).or_default() += count;
    }
    let mut out = String::new();
    for (line, count) in lines {
        // Writing to a String cannot fail.
        _ = writeln!(out, "{line} {count}");
    }
    out
}
