//! Runs, observations and scalability curves as JSON, and the JSON Schemas of these and of studies.

use pgassay_account::scalability::ScalabilityCurve;
use pgassay_model::study::Study;
use pgassay_record::baseline::GateBaseline;
use pgassay_record::observation::Observation;
use pgassay_record::run::Run;
use schemars::{JsonSchema, schema_for};

/// The run as indented JSON with a final newline: the format of `run.json`, see `docs/schema`.
///
/// # Panics
/// Never: all maps of a run have strings as keys, as JSON requires.
pub fn json(run: &Run) -> String {
    let text = serde_json::to_string_pretty(run);
    text.expect("a run's maps have strings as keys, and JSON can represent all other parts") + "\n"
}

/// The JSON Schema of `run.json`, version 1.
pub fn run_schema() -> String {
    schema::<Run>()
}

/// The JSON Schema of a baseline file of `pgassay gate`, version 1.
pub fn baseline_schema() -> String {
    schema::<GateBaseline>()
}

/// An observation as indented JSON with a final newline; see `docs/schema`.
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

/// A scalability curve as indented JSON with a final newline; see `docs/schema`.
///
/// # Panics
/// Never, for the same reason as [`json`].
pub fn scalability_json(curve: &ScalabilityCurve) -> String {
    let text = serde_json::to_string_pretty(curve);
    text.expect("a curve has no maps") + "\n"
}

/// The JSON Schema of a scalability curve, version 1.
pub fn scalability_schema() -> String {
    schema::<ScalabilityCurve>()
}

/// The JSON Schema of study files (for editors; the files are TOML), version 1.
pub fn study_schema() -> String {
    schema::<Study>()
}

/// The schema of a type, in the default dialect of `schemars`.
fn schema<T: JsonSchema>() -> String {
    let text = serde_json::to_string_pretty(&schema_for!(T));
    text.expect("a schema is JSON") + "\n"
}
