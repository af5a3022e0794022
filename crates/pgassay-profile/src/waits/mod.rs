//! Wait events: from the server's memory, or from `pg_stat_activity`.

pub(crate) mod activity;
pub(crate) mod log;
pub(crate) mod reader;
