//! Assigns stacks to subsystems of PostgreSQL and to phases of statement processing.
//!
//! The outermost anchor of a stack determines its [`Phase`] (what the statement was doing), the leaf
//! its [`Subsystem`] (which mechanism used the time). Rules for name prefixes agree with the source
//! directory for only 53% of PostgreSQL 15's functions, so the primary source is a table from symbols to
//! source paths by major version ([`Symbols`]), with name prefixes as a fallback.
//!
//! The title of a process determines its [`Role`].
//!
//! Invariants: no I/O (the tables are embedded in the program and unpacked at first use); every stack
//! has exactly one subsystem and one phase, so that sums are complete; stacks without any known name are
//! [`Subsystem::Unknown`], never dropped.
//! Sources: the functions of 9.6 to 19 (see `data/README.md`); backend stacks recorded with perf.

mod attribution;
mod class;
mod macros;
pub mod packed;
mod phase;
mod process_role;
mod symbols;
mod tag;
mod wait_event;

pub use attribution::{Attribution, FrameName};
pub use class::Subsystem;
pub use phase::Phase;
pub use process_role::Role;
pub use symbols::{SourceFile, Symbols};
pub use tag::Tag;
pub use wait_event::{WaitEvent, present_spelling, wait_event, wait_number};
