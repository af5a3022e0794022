//! The integration tests, on real servers: one program, so that it is linked once.

mod catalog_blocking;
mod catalog_common;
mod catalog_counters;
mod catalog_endings;
mod catalog_evidence;
mod catalog_indexes;
mod catalog_processes;
mod catalog_rights;
mod catalog_state;
mod memory;
mod slow_transactions;
mod suspended;
mod two_stages;
mod watch_counters;
mod watch_log;
mod watch_sessions;
