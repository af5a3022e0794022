//! Stacks in the forms of other people's viewers.
//!
//! Each form takes the whole of an observation's stacks: no sample is left out, so that a viewer's
//! total is ours. Where a form has a unit of time, a sample weighs its share of the exact CPU time
//! ([`Observation::cpu_us_per_sample`]), else it counts 1. Samples have no moments here: where a
//! form wants an axis of time, stacks lie on it one after the other.

mod firefox;
mod folded;
mod perf_text;
mod pprof;
mod speedscope;

use pgassay_core::instructions::CallTree;
use pgassay_core::observation::Observation;
use pgassay_core::profile::{Frame, Profile};

/// A form of stacks that other programs read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportFormat {
    /// A line a stack, as Brendan Gregg's `flamegraph.pl` and most viewers take it.
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
    /// All of them, with the names that a user gives.
    pub const ALL: [(&'static str, Self); 5] = [
        ("folded", Self::Folded),
        ("speedscope", Self::Speedscope),
        ("pprof", Self::Pprof),
        ("firefox", Self::Firefox),
        ("perf", Self::Perf),
    ];
}

/// The file's content; `None` if there is no stack to export.
pub fn export(observation: &Observation, format: ExportFormat) -> Option<Vec<u8>> {
    let profile = observation.sampled()?;
    Some(match format {
        ExportFormat::Folded => folded::text(profile).into_bytes(),
        ExportFormat::Speedscope => speedscope::json(observation, profile).into_bytes(),
        ExportFormat::Pprof => pprof::message(observation, profile),
        ExportFormat::Firefox => firefox::json(observation, profile).into_bytes(),
        ExportFormat::Perf => perf_text::text(observation, profile).into_bytes(),
    })
}

/// Counted instructions by call path, as folded stacks or in the layout of `perf report`; the other
/// forms have an axis of time. A stack weighs its instructions in all counted transactions.
pub fn export_counted(tree: &CallTree, title: &str, format: ExportFormat) -> Option<Vec<u8>> {
    Some(match format {
        ExportFormat::Folded => folded::counted(tree).into_bytes(),
        ExportFormat::Perf => perf_text::counted(tree, title).into_bytes(),
        ExportFormat::Speedscope | ExportFormat::Pprof | ExportFormat::Firefox => return None,
    })
}

/// What was watched, in a few words.
fn title(observation: &Observation) -> String {
    let subject = &observation.subject;
    let version = subject
        .major
        .as_ref()
        .map_or_else(String::new, |major| format!(" {major}"));
    match subject.backend_pid {
        Some(pid) => format!("PostgreSQL{version}, backend {pid}"),
        None => format!("PostgreSQL{version}, server {}", subject.postmaster_pid),
    }
}

/// Every stack with samples of its own, as frame numbers, outermost first.
fn stacks(profile: &Profile) -> impl Iterator<Item = (Vec<u32>, u64)> {
    profile
        .nodes
        .iter()
        .filter(|node| node.total() > 0)
        .map(|node| {
            let mut frames = vec![node.frame];
            let mut parent = node.parent;
            while let Some(at) = parent {
                let node = &profile.nodes[at as usize];
                frames.push(node.frame);
                parent = node.parent;
            }
            frames.reverse();
            (frames, node.total())
        })
}

/// A frame's name where a viewer has no other mark for the kernel's.
fn marked(frame: &Frame) -> String {
    let suffix = if frame.kernel { "_[k]" } else { "" };
    format!("{}{suffix}", frame.label())
}
