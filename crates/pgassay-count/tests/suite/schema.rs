//! The published schema matches the types.

use pgassay_account::instructions::Counts;

#[test]
fn the_published_schema_matches_the_types() {
    let path = format!(
        "{}/../../docs/schema/count-1.json",
        env!("CARGO_MANIFEST_DIR")
    );
    let schema = serde_json::to_string_pretty(&schemars::schema_for!(Counts)).unwrap() + "\n";
    // To publish an intended change: UPDATE_SCHEMA=1 cargo test -p pgassay-count
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        std::fs::write(&path, &schema).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), schema, "{path}");
}
