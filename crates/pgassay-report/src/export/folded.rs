//! Folded stacks: `outer;inner;leaf count`, a line a stack.
//!
//! See `stackcollapse-perf.pl` and `flamegraph.pl` of Brendan Gregg: frames are parted
//! by semicolons, the count stands behind the last space, `_[k]` marks the kernel's functions.
//! A name that holds a semicolon or an end of line would be read as two, so these are replaced.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use pgassay_core::profile::Profile;

/// All stacks, sorted, each once.
pub(super) fn text(profile: &Profile) -> String {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for (stack, samples) in super::stacks(profile) {
        let names: Vec<String> = stack
            .into_iter()
            .map(|frame| super::marked(&profile.frames[frame as usize]).replace([';', '\n'], ":"))
            .collect();
        *lines.entry(names.join(";")).or_default() += samples;
    }
    let mut out = String::new();
    for (line, samples) in lines {
        // Writing to a String cannot fail.
        _ = writeln!(out, "{line} {samples}");
    }
    out
}
