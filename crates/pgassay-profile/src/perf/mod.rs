//! The kernel's performance events: opening them, and reading and decoding their records.

pub(crate) mod error;
pub(crate) mod event;
pub(crate) mod event_counter;
pub(crate) mod open_files;
pub(crate) mod record;
pub(crate) mod ring;
pub(crate) mod switch_record;
pub(crate) mod tracefs;
pub(crate) mod wake;
