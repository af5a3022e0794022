//! Speedscope's own format: a list of frames and a `sampled` profile of weighted stacks.
//!
//! See `src/lib/file-format-spec.ts` of speedscope: stacks are outermost first, `weights` are in
//! the profile's `unit`, and `endValue` is at least the sum of the weights.

use pgassay_record::observation::Observation;
use serde_json::{Value, json};

use super::stacks::{self, WeightedStacks};

/// The file's content.
pub(super) fn json(observation: &Observation, weighed: &WeightedStacks<'_>) -> String {
    let (profile, us_per_sample) = (&*weighed.profile, weighed.us_per_sample);
    let frames: Vec<Value> = profile
        .frames
        .iter()
        .map(|frame| json!({ "name": stacks::marked(frame), "file": frame.object }))
        .collect();
    let (samples, weights): (Vec<Vec<u32>>, Vec<f64>) = stacks::stacks_of(profile)
        .map(|(stack, samples)| (stack, samples as f64 * us_per_sample))
        .unzip();
    let title = stacks::title(observation);
    json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": title,
        "exporter": format!("pgassay {}", observation.pgassay_version),
        "activeProfileIndex": 0,
        "shared": { "frames": frames },
        "profiles": [{
            "type": "sampled",
            "name": format!("{} of {title}", weighed.noun),
            "unit": "microseconds",
            "startValue": 0,
            "endValue": weights.iter().sum::<f64>(),
            "samples": samples,
            "weights": weights,
        }],
    })
    .to_string()
}
