//! What taking plans results in.

use pgassay_record::plans::PointPlans;
use pgassay_record::run::Warning;

/// Plans, and warnings about those that are missing.
#[derive(Debug, Default)]
pub struct TakenPlans {
    /// The statements of each point, ordered by variant.
    pub points: Vec<PointPlans>,
    /// One warning for each variant with a statement that EXPLAIN failed on.
    pub warnings: Vec<Warning>,
}
