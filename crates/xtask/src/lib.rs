//! Developer tasks: the tables of PostgreSQL's names and archives, and the licenses of dependencies.
//!
//! - [`archives`]: the checksums of the archives that pgassay downloads;
//! - [`source_tree`]: the functions of one PostgreSQL source tree, read with universal-ctags;
//! - [`licenses`]: the licenses of all dependencies;
//! - [`presence`]: which file defines which function in which major versions, merged over trees;
//! - [`tables`]: writes and checks the packed tables in `pgassay-knowledge`.
//!
//! Invariants: the same rows always produce the same bytes; nothing here is linked into pgassay.

pub mod archives;
pub mod licenses;
pub mod presence;
pub mod source_tree;
pub mod tables;
