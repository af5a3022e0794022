//! The run as JSON, and the schemas of what programs read and people write.

use pgassay_core::observation::Observation;
use pgassay_core::run::Run;
use pgassay_core::study::Study;
use schemars::{JsonSchema, schema_for};

/// The run as indented JSON, ended by a newline: the form of `run.json`, see `docs/schema`.
///
/// # Panics
/// Never: a run has no maps but those with text for keys, which is all that JSON asks.
pub fn json(run: &Run) -> String {
    let text = serde_json::to_string_pretty(run);
    text.expect("a run's maps have text for keys, and its other parts have a form in JSON") + "\n"
}

/// The JSON Schema of `run.json`, version 1.
pub fn run_schema() -> String {
    schema::<Run>()
}

/// An observation as indented JSON, ended by a newline; see `docs/schema`.
///
/// # Panics
/// Never, for the same reason as [`json`].
pub fn observation_json(observation: &Observation) -> String {
    let text = serde_json::to_string_pretty(observation);
    text.expect("an observation has no maps") + "\n"
}

/// The JSON Schema of an observation, version 1.
pub fn observation_schema() -> String {
    schema::<Observation>()
}

/// The JSON Schema of study files (for editors; the files are TOML), version 1.
pub fn study_schema() -> String {
    schema::<Study>()
}

/// The schema of a type, in the dialect that `schemars` writes by default.
fn schema<T: JsonSchema>() -> String {
    let text = serde_json::to_string_pretty(&schema_for!(T));
    text.expect("a schema is JSON") + "\n"
}
