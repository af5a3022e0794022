//! From the copy of a stack to the names of its functions.

pub(crate) mod debug_file;
pub(crate) mod frames;
pub(crate) mod kallsyms;
mod object_bytes;
pub(crate) mod object_file;
pub(crate) mod object_functions;
pub(crate) mod quality;
pub(crate) mod realigned;
pub(crate) mod space;
pub(crate) mod stack_reader;
pub(crate) mod symbols;
