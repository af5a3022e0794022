//! `mpirun … pgassay bench`: several ranks on one machine. Requires the feature `mpi`, and so mpicc
//! and libclang; the last step of `.ci/run` runs it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod faults;
mod mpirun;
mod results;
