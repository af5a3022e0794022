//! Off-CPU time: slices in which every context switch is recorded.

pub(crate) mod data;
pub(crate) mod site;
pub(crate) mod slicer;
pub(crate) mod slices;
pub(crate) mod state_sample;
pub(crate) mod timeline;
