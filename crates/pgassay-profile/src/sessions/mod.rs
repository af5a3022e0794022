//! Reads what all sessions of a server do: from their status entries in shared memory, or from
//! `pg_stat_activity`.

pub(crate) mod entries;
pub(crate) mod error;
mod layout;
mod learning;
pub(crate) mod query;
pub(crate) mod reader;
pub(crate) mod reading;
mod shared;
