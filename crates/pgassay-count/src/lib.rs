//! Counted costs: what a transaction costs in instructions, exactly.
//!
//! A backend runs under callgrind, three times on three connections, with more transactions each
//! time. [`OutFile`] reads what callgrind wrote, [`Tally`] subtracts a short run from a long one and
//! so keeps the transactions alone, [`variant_count`] puts subsystems to functions, [`call_tree`]
//! keeps call paths, and [`against`] compares with counts of an earlier time. What comes of it are
//! the nouns of `pgassay_core::counted`.
//!
//! # Invariants
//! - No I/O and no clock: texts in, plain structs and text out.
//! - Costs are whole instructions over whole transactions; rows add up to totals exactly.
//! - The repeatability of a figure is what was seen in repeats, never assumed.
//!
//! # What a count is not
//! It is the cost of the work in user space on one client: not time, not the kernel's part, not
//! waiting, not cache misses, not contention. It is to be read beside the time, not instead of it.

pub mod against;
mod credit;
mod cycle;
pub mod markdown;
mod outfile;
mod system_call;
mod tally;
pub mod text;
mod tree;
mod variant;

pub use outfile::{Call, Events, Function, OutFile, OutFileError, Resolver};
pub use tally::{FunctionTally, Tally};
pub use tree::call_tree;
pub use variant::variant_count;
