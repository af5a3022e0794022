//! The machine: its clocks, its conditions, and which data it permits.

pub(crate) mod awake_cpus;
pub(crate) mod clock;
pub(crate) mod conditions;
pub(crate) mod tier;
