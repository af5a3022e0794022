//! Which scheduler a plan asks for.

use pgassay_account::comparison::{RunningComparisons, RunningPrecision};
use pgassay_model::plan::Plan;

use crate::precision_blocks::PrecisionBlocks;
use crate::scheduler::{FixedBlocks, Scheduler};
use crate::sequential_blocks::SequentialBlocks;

/// The scheduler that a plan asks for.
pub fn scheduler_of(plan: &Plan) -> Box<dyn Scheduler + '_> {
    if let Some(running) = RunningComparisons::of(plan) {
        return Box::new(SequentialBlocks::new(plan, running));
    }
    match RunningPrecision::of(plan) {
        Some(running) => Box::new(PrecisionBlocks::new(plan, running)),
        None => Box::new(FixedBlocks::of(plan)),
    }
}
