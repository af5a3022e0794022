//! Stacks in the forms of other people's viewers.
//!
//! Each form takes the whole of an observation's stacks: no sample is left out, so that a viewer's
//! total is ours. Where a form has a unit of time, a sample weighs its share of the exact CPU time
//! ([`Observation::cpu_us_per_sample`]) or blocked time, else it counts 1. Samples have no moments here: where a
//! form wants an axis of time, stacks lie on it one after the other.

mod firefox;
mod folded;
mod perf_text;
mod pprof;
mod speedscope;

use std::borrow::Cow;

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

/// Which stacks of an observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stacks {
    /// Of what was on a CPU.
    OnCpu,
    /// Of what was blocked; a sample is a microsecond that a slice of the window saw.
    OffCpu,
}

/// Stacks with what their counts stand for.
struct Weighed<'a> {
    stacks: Stacks,
    profile: Cow<'a, Profile>,
    us_per_sample: f64,
    /// In a heading.
    noun: &'static str,
    /// As `perf` would call the event.
    event: &'static str,
    /// As `pprof` would call the value.
    value: &'static str,
}

impl<'a> Weighed<'a> {
    fn of(observation: &'a Observation, stacks: Stacks) -> Option<Self> {
        Some(match stacks {
            Stacks::OnCpu => Self {
                stacks,
                profile: Cow::Borrowed(observation.sampled()?),
                us_per_sample: observation.cpu_us_per_sample(),
                noun: "CPU",
                event: "cpu-clock",
                value: "cpu",
            },
            Stacks::OffCpu => {
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

/// The file's content; `None` if there is no stack to export.
pub fn export(observation: &Observation, stacks: Stacks, format: ExportFormat) -> Option<Vec<u8>> {
    let weighed = Weighed::of(observation, stacks)?;
    Some(match format {
        ExportFormat::Folded => folded::text(&weighed.profile).into_bytes(),
        ExportFormat::Speedscope => speedscope::json(observation, &weighed).into_bytes(),
        ExportFormat::Pprof => pprof::message(observation, &weighed),
        ExportFormat::Firefox => firefox::json(observation, &weighed.profile).into_bytes(),
        ExportFormat::Perf => perf_text::text(observation, &weighed).into_bytes(),
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

/// A frame's name where a viewer has no other mark for the kernel's.
fn marked(frame: &Frame) -> String {
    let suffix = if frame.kernel { "_[k]" } else { "" };
    format!("{}{suffix}", frame.label())
}
