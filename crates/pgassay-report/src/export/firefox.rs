//! The Firefox Profiler's processed format, through the crate of samply's author.
//!
//! One sample per stack, weighted by its number of samples, so that the call tree and the flame graph
//! are complete. Timestamps are synthetic, one interval per sample. A weight has 31 bits: if a stack has more samples,
//! all weights are divided by the same number.

use std::time::Duration;

use fxprof_processed_profile::{
    CategoryColor, CpuDelta, Frame as ShownFrame, FrameFlags, FrameInfo, Profile as Shown,
    ReferenceTimestamp, SamplingInterval, Timestamp, WeightType,
};
use pgassay_model::profile::{Node, Profile};
use pgassay_record::observation::Observation;

/// The file's content.
pub(super) fn json(observation: &Observation, profile: &Profile) -> String {
    let interval_ns = 1_000_000_000 / u64::from(observation.frequency_hz.max(1));
    let since_1970 = Duration::from_micros(observation.started_us.max(0).unsigned_abs());
    let mut shown = Shown::new(
        &super::stacks::title(observation),
        ReferenceTimestamp::from_duration_since_unix_epoch(since_1970),
        SamplingInterval::from_nanos(interval_ns),
    );
    let start = Timestamp::from_nanos_since_reference(0);
    let subject = &observation.subject;
    let pid = subject.backend_pid.or(subject.postmaster_pid).unwrap_or(0);
    let process = shown.add_process("postgres", pid, start);
    let thread = shown.add_thread(process, pid, start, true);
    shown.set_thread_name(thread, "backends");
    shown.set_thread_samples_weight_type(thread, WeightType::Samples);
    let categories = [
        shown.add_category("PostgreSQL", CategoryColor::Blue),
        shown.add_category("Library", CategoryColor::Green),
        shown.add_category("Kernel", CategoryColor::Orange),
    ];
    let frames: Vec<FrameInfo> = profile
        .frames
        .iter()
        .map(|frame| {
            let category = match () {
                () if frame.kernel => 2,
                () if frame.object == "postgres" => 0,
                () => 1,
            };
            let name = match (frame.kernel, frame.object.as_str()) {
                (true, _) | (_, "postgres" | "") => frame.label(),
                (_, object) => format!("{} ({object})", frame.label()),
            };
            FrameInfo {
                frame: ShownFrame::Label(shown.intern_string(&name)),
                category_pair: categories[category].into(),
                flags: FrameFlags::empty(),
            }
        })
        .collect();
    let most = profile.nodes.iter().map(Node::total).max().unwrap_or(0);
    let unit = most.div_ceil(i32::MAX as u64).max(1);
    let mut at_ns = 0;
    for (stack, samples) in super::stacks::stacks_of(profile) {
        let infos = stack
            .into_iter()
            .map(|frame| frames[frame as usize].clone());
        let stack = shown.intern_stack_frames(thread, infos);
        let weight = i32::try_from(samples / unit).unwrap_or(i32::MAX);
        let at = Timestamp::from_nanos_since_reference(at_ns);
        shown.add_sample(thread, at, stack, CpuDelta::from_nanos(interval_ns), weight);
        at_ns += interval_ns;
    }
    serde_json::to_string(&shown).expect("the profile's maps have strings as keys")
}
