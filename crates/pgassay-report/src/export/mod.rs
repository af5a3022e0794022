//! Stacks in the formats of other viewers.
//!
//! Each format gets all stacks of an observation, so that a viewer's total is ours. If the format has a
//! unit of time, a sample weighs its share of the exact CPU time ([`Observation::cpu_us_per_sample`]) or
//! blocked time, else it counts 1. Samples have no timestamps: if a format requires a time axis, stacks
//! are placed on it one after the other.

mod firefox;
mod folded;
mod perf_text;
mod pprof;
mod speedscope;
mod stacks;

use pgassay_account::instructions::CallTree;
use pgassay_record::observation::Observation;

pub use stacks::ExportedStacks;
use stacks::WeightedStacks;

/// A stack format of other programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportFormat {
    /// One line per stack, as Brendan Gregg's `flamegraph.pl` and most viewers read.
    Folded,
    /// JSON of speedscope.
    Speedscope,
    /// The protocol buffer of `pprof`.
    Pprof,
    /// JSON of the Firefox Profiler.
    Firefox,
    /// Text in the layout of `perf report --stdio`.
    Perf,
}

impl ExportFormat {
    /// All formats with their names on the command line.
    pub const ALL: [(&'static str, Self); 5] = [
        ("folded", Self::Folded),
        ("speedscope", Self::Speedscope),
        ("pprof", Self::Pprof),
        ("firefox", Self::Firefox),
        ("perf", Self::Perf),
    ];
}

/// The file's content; `None` if there are no stacks to export.
pub fn export(
    observation: &Observation,
    stacks: ExportedStacks,
    format: ExportFormat,
) -> Option<Vec<u8>> {
    let weighed = WeightedStacks::of(observation, stacks)?;
    Some(match format {
        ExportFormat::Folded => folded::text(&weighed).into_bytes(),
        ExportFormat::Speedscope => speedscope::json(observation, &weighed).into_bytes(),
        ExportFormat::Pprof => pprof::message(observation, &weighed),
        ExportFormat::Firefox => firefox::json(observation, &weighed.profile).into_bytes(),
        ExportFormat::Perf => perf_text::text(observation, &weighed).into_bytes(),
    })
}

/// Instruction counts by call path, as folded stacks or in the layout of `perf report`; `None` for the
/// other formats, which have a time axis. A stack weighs its instructions in all counted transactions.
pub fn export_instruction_counts(
    tree: &CallTree,
    title: &str,
    format: ExportFormat,
) -> Option<Vec<u8>> {
    Some(match format {
        ExportFormat::Folded => folded::instruction_counts(tree).into_bytes(),
        ExportFormat::Perf => perf_text::counted(tree, title).into_bytes(),
        ExportFormat::Speedscope | ExportFormat::Pprof | ExportFormat::Firefox => return None,
    })
}
