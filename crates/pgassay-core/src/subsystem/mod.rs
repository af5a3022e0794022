//! Which part of PostgreSQL a stack belongs to, and which phase of a statement it serves.
//!
//! Two axes: [`Phase`] is named by the outermost anchor of a stack (what the statement was
//! doing), [`Subsystem`] by its leaf (which mechanism spent the time). A name-prefix rule agrees
//! with the source directory for only 53 % of PostgreSQL 15's functions, so the primary key is
//! a table of symbol → source path by major version ([`Symbols`]), with names as the fallback.
//!
//! Invariants: no I/O (the tables are inside the program, unpacked once at first use); every
//! stack gets exactly one subsystem and one phase, so that sums stay whole; what cannot be told
//! is [`Subsystem::Unresolved`], never dropped.
//! Sources: the functions of 9.6 to 19 (see `data/README.md`); backend stacks as seen by perf.

mod class;
mod credit;
mod macros;
pub mod packed;
mod phase;
mod symbols;
mod tag;
mod wait_event;

pub use class::Subsystem;
pub use credit::{Credit, FrameName};
pub use phase::Phase;
pub use symbols::{Home, Symbols};
pub use tag::Tag;
pub use wait_event::{WaitEvent, wait_event, wait_number};
