//! The stacks to export, and what the formats say about them.

use std::borrow::Cow;

use pgassay_model::profile::{Frame, Profile};
use pgassay_record::observation::Observation;

/// Which stacks of an observation to export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportedStacks {
    /// Stacks on CPU.
    OnCpu,
    /// Blocked stacks; a sample is one microsecond of recorded blocked time (see [`Profile::off_cpu`]).
    OffCpu,
}

/// Stacks with the weight of a sample.
pub(super) struct WeightedStacks<'a> {
    pub(super) stacks: ExportedStacks,
    pub(super) profile: Cow<'a, Profile>,
    pub(super) us_per_sample: f64,
    /// How many samples each count of the profile stands for.
    pub(super) samples_per_count: u64,
    /// The name in a heading.
    pub(super) noun: &'static str,
    /// The name of the event in `perf`.
    pub(super) event: &'static str,
    /// The name of the value in `pprof`.
    pub(super) value: &'static str,
}

impl<'a> WeightedStacks<'a> {
    pub(super) fn of(observation: &'a Observation, stacks: ExportedStacks) -> Option<Self> {
        Some(match stacks {
            ExportedStacks::OnCpu => Self {
                stacks,
                profile: Cow::Borrowed(observation.sampled()?),
                us_per_sample: observation.cpu_us_per_sample(),
                samples_per_count: 1,
                noun: "CPU",
                event: "cpu-clock",
                value: "cpu",
            },
            ExportedStacks::OffCpu => {
                let (recorded, profile) =
                    (observation.profile.as_ref(), observation.seen_blocked()?);
                Self {
                    stacks,
                    us_per_sample: observation.blocked_us() / profile.total() as f64,
                    samples_per_count: recorded.map_or(1, Profile::off_cpu_unit_us),
                    profile: Cow::Owned(profile),
                    noun: "Off-CPU time",
                    event: "off-cpu",
                    value: "off-cpu",
                }
            }
        })
    }
}

/// What was observed, in a few words.
pub(super) fn title(observation: &Observation) -> String {
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
pub(super) fn stacks_of(profile: &Profile) -> impl Iterator<Item = (Vec<u32>, u64)> {
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
pub(super) fn marked(frame: &Frame) -> String {
    let suffix = if frame.kernel { "_[k]" } else { "" };
    format!("{}{suffix}", frame.label())
}
