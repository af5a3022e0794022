//! Which pgbench `pgassay bench` reports to be.

use pgassay_script::Compat;

/// The pgbench version to report.
pub fn version(compat: Compat) -> &'static str {
    match compat {
        Compat::V15 => "15.18",
        Compat::V17 => "17.11",
        Compat::V18 => "18.6",
    }
}
