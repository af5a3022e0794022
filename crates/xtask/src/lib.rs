//! Chores of the repository: how the tables of PostgreSQL's names are made and kept.
//!
//! - [`source_tree`]: the functions of one PostgreSQL source tree, read with universal-ctags;
//! - [`licences`]: the licences of everything that pgassay is built from;
//! - [`presence`]: which function is in which file in which majors, merged over trees;
//! - [`tables`]: the packed form that `pgassay-core` carries, written and checked.
//!
//! Invariants: the same rows always give the same bytes; nothing here is linked into pgassay.

pub mod licences;
pub mod presence;
pub mod source_tree;
pub mod tables;
