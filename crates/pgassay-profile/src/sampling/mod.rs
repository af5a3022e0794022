//! Sampling of CPU stacks over a window, and the resulting samples.

pub(crate) mod kept_time;
pub(crate) mod sampler;
pub(crate) mod samples;
pub(crate) mod span;
pub(crate) mod tally;
