//! Instruction counts: the exact number of instructions that a transaction executes.
//!
//! A backend runs under callgrind, three times on three connections, with more transactions each
//! time. [`OutFile`] parses callgrind's output, [`InstructionTally`] subtracts a short run from a long one,
//! which leaves the transactions only, [`variant_count`] assigns functions to subsystems,
//! [`call_tree`] keeps call paths, and [`against`] compares with earlier counts. The results are
//! types of `pgassay_account::instructions`.
//!
//! # Invariants
//! - No I/O and no clock: text in, plain structs and text out.
//! - Costs are whole instructions over whole transactions; rows add up to totals exactly.
//! - The repeatability of a figure is observed in repeats, never assumed.
//!
//! # Limits
//! A count is the work of one client in user space. It includes no time, kernel work, waits,
//! cache misses or contention. It supplements timing and does not replace it.

pub mod against;
mod call_changes;
mod credit;
mod cycle;
pub mod markdown;
mod method;
mod outfile;
mod system_call;
mod tally;
pub mod text;
mod tree;
mod variant;

pub use outfile::{Call, CallgrindEvents, CallgrindFunction, OutFile, OutFileError, Resolver};
pub use tally::{FunctionTally, InstructionTally};
pub use tree::call_tree;
pub use variant::variant_count;
