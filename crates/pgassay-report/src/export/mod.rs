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

use std::borrow::Cow;

use pgassay_core::instructions::CallTree;
use pgassay_core::observation::Observation;
use pgassay_core::profile::{Frame, Profile};

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

/// Which stacks of an observation to export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportedStacks {
    /// Stacks on CPU.
    OnCpu,
    /// Blocked stacks; a sample is one microsecond of recorded blocked time.
    OffCpu,
}

/// Stacks with the weight of a sample.
struct WeightedStacks<'a> {
    stacks: ExportedStacks,
    profile: Cow<'a, Profile>,
    us_per_sample: f64,
    /// The name in a heading.
    noun: &'static str,
    /// The name of the event in `perf`.
    event: &'static str,
    /// The name of the value in `pprof`.
    value: &'static str,
}

impl<'a> WeightedStacks<'a> {
    fn of(observation: &'a Observation, stacks: ExportedStacks) -> Option<Self> {
        Some(match stacks {
            ExportedStacks::OnCpu => Self {
                stacks,
                profile: Cow::Borrowed(observation.sampled()?),
                us_per_sample: observation.cpu_us_per_sample(),
                noun: "CPU",
                event: "cpu-clock",
                value: "cpu",
            },
            ExportedStacks::OffCpu => {
                let profile = observation.seen_blocked()?;
                Self {
                    stacks,
                    us_per_sample: observation.blocked_us() / profile.total() as f64,
                    profile: Cow::Owned(profile),
                    noun: "Off-CPU time",
                    event: "off-cpu",
                    value: "off-cpu",
                }
            }
        })
    }
}

/// The file's content; `None` if there are no stacks to export.
pub fn export(
    observation: &Observation,
    stacks: ExportedStacks,
    format: ExportFormat,
) -> Option<Vec<u8>> {
    let weighed = WeightedStacks::of(observation, stacks)?;
    Some(match format {
        ExportFormat::Folded => folded::text(&weighed.profile).into_bytes(),
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

/// What was observed, in a few words.
fn title(observation: &Observation) -> String {
    let subject = &observation.subject;
    let version = subject
        .major
        .as_ref()
        .map_or_else(String::new, |major| format!(" {major}"));
    match (subject.backend_pid, subject.postmaster_pid) {
        (Some(pid), _) => format!("PostgreSQL{version}, backend {pid}"),
        (None, Some(pid)) => format!("PostgreSQL{version}, server {pid}"),
        (None, None) => format!("PostgreSQL{version}"),
    }
}

/// Every stack with samples of its own, as frame numbers, outermost first.
fn stacks_of(profile: &Profile) -> impl Iterator<Item = (Vec<u32>, u64)> {
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

/// A frame's name with a mark for kernel functions, for viewers without one of their own.
fn marked(frame: &Frame) -> String {
    let suffix = if frame.kernel { "_[k]" } else { "" };
    format!("{}{suffix}", frame.label())
}
