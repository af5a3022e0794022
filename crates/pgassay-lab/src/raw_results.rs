//! The measurements of a run so far.

use pgassay_model::plan::{Plan, PointId};
use pgassay_model::trial::Trial;

use crate::load::Statements;
use crate::observe::Profiles;

/// The measurements of a run so far.
pub struct RawResults {
    /// Every trial, in the order they ran.
    pub trials: Vec<Trial>,
    /// The profile of each point.
    pub profiles: Profiles,
    /// Latencies of statements, for transactions with more than one.
    pub statements: Statements,
    /// Points whose throughput was not stable at the end of warm-up, once per block.
    pub unsteady: Vec<PointId>,
}

impl RawResults {
    /// An empty result.
    pub fn new(plan: &Plan) -> Self {
        Self {
            trials: Vec::new(),
            profiles: Profiles::new(plan),
            statements: Statements::default(),
            unsteady: Vec::new(),
        }
    }
}
