//! The curve that a run's directory has.

use std::path::Path;

use pgassay_account::scalability::ScalabilityCurve;
use pgassay_store::read_regular;

/// Its name.
pub const FILE: &str = "curve.json";

/// The curve in a run's directory, if it has a readable one.
pub fn curve(directory: &Path) -> Option<ScalabilityCurve> {
    let text = read_regular(&directory.join(FILE)).ok()?;
    serde_json::from_slice(&text).ok()
}
