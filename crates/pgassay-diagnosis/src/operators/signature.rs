//! What a signature for operators is.

use super::detection::Detection;
use super::live_view::LiveView;

/// A problem that operators know by name.
pub(crate) struct OperatorSignature {
    /// Stable name.
    pub id: &'static str,
    /// What happens, in a few words.
    pub title: &'static str,
    /// The section of PostgreSQL's manual to read.
    pub manual: &'static str,
    /// Detects it, once for each object.
    pub detect: fn(&LiveView<'_>) -> Vec<Detection>,
}
