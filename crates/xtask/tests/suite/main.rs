//! The tables of PostgreSQL's functions, against source trees and programs.

mod binaries;
mod debian_source;
mod source_trees;
