//! JSON output, and the committed schemas.

use pgassay_record::run::Run;
use pgassay_report::{
    baseline_schema, json, observation_schema, run_schema, scalability_schema, study_schema,
};
use serde_json::Value;

/// The committed schemas match the types; `UPDATE_SCHEMA=1 cargo test` rewrites them.
#[test]
fn the_committed_schemas_are_current() {
    for (name, schema) in [
        ("baseline-1.json", baseline_schema()),
        ("curve-1.json", scalability_schema()),
        ("observation-2.json", observation_schema()),
        ("run-2.json", run_schema()),
        ("study-1.json", study_schema()),
    ] {
        let path = format!("{}/../../docs/schema/{name}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("UPDATE_SCHEMA").is_some() {
            std::fs::create_dir_all(std::path::Path::new(&path).parent().unwrap()).unwrap();
            std::fs::write(&path, &schema).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(
            committed, schema,
            "{path} is outdated; set UPDATE_SCHEMA=1 to rewrite it"
        );
    }
}

#[test]
fn run_json_round_trips() {
    for run in [
        crate::fixture::run(),
        crate::fixture::doubtful_run(),
        crate::fixture::hostile_run(),
    ] {
        let back: Run = serde_json::from_str(&json(&run)).unwrap();
        assert_eq!(back, run);
    }
}

/// Regression: a run of two blocks and 50 variants could not be read again ("this result is damaged"): the interval of
/// a p99 reached to infinity, which JSON does not have.
#[test]
fn an_interval_without_an_upper_end_is_read_as_it_was_written() {
    let mut run = crate::fixture::run();
    run.comparisons[0].latency_p99.high = f64::INFINITY;
    let text = json(&run);
    assert!(text.contains("\"high\": null") || text.contains("\"high\":null"));
    let back: Run = serde_json::from_str(&text).unwrap();
    assert_eq!(back, run);
}

#[test]
fn every_field_of_a_run_is_in_the_schema() {
    let schema: Value = serde_json::from_str(&run_schema()).unwrap();
    let run: Value = serde_json::from_str(&json(&crate::fixture::run())).unwrap();
    let mut checked = 0;
    known(&schema, &schema, &run, "run", &mut checked);
    assert!(checked > 10_000, "only {checked} fields were checked");
}

/// Asserts that the schema names every property of the value, at any depth.
fn known(root: &Value, schema: &Value, value: &Value, path: &str, checked: &mut usize) {
    let schema = resolved(root, schema);
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let property = &schema["properties"][name];
                let property = if property.is_null() {
                    &schema["additionalProperties"]
                } else {
                    property
                };
                assert!(property.is_object(), "{path}.{name} is not in the schema");
                *checked += 1;
                known(root, property, field, &format!("{path}.{name}"), checked);
            }
        }
        Value::Array(items) => {
            for item in items {
                known(root, &schema["items"], item, path, checked);
            }
        }
        _ => {}
    }
}

/// The schema behind a reference or an optional type.
fn resolved<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    if let Some(reference) = schema["$ref"].as_str() {
        return resolved(
            root,
            root.pointer(reference.trim_start_matches('#')).unwrap(),
        );
    }
    match schema["anyOf"].as_array() {
        Some(choices) => resolved(root, &choices[0]),
        None => schema,
    }
}
