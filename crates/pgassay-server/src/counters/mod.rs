//! What the server and the kernel count by themselves: commits, rows, WAL, blocks, log lines,
//! switches, faults, bytes. Counted facts do not depend on how busy the machine is.
//!
//! A counter's name is where PostgreSQL's manual has it, `view.column`, with the row in
//! parentheses where the view has several: `pg_stat_io(client backend, relation).reads`. The
//! kernel's have names of ours, all listed in [`kernel`] and [`log`].
//!
//! # When counters can be read
//! A server process keeps its counters to itself for a while (`src/backend/utils/activity/pgstat.c`,
//! before 15 `src/backend/postmaster/pgstat.c`):
//! - since 15 it hands them over at the end of a statement, a second after the last time, or at
//!   once where that statement called `pg_stat_force_next_flush()`;
//! - until 14 it sends them to the statistics collector at the end of a statement, half a second
//!   after the last time; and a reader is served from a file that may be half a second old.
//!
//! So before each [`read_views`] every process of the load must carry out [`flush_statement`], after
//! [`flush_wait`] of idleness. The reader itself holds one connection, to `template1`, whose own
//! counters are left out. What [`read_beside`] counts would see those statements, so it comes after
//! them at the beginning and before them at the end.
//!
//! Of a server that is not ours alone, `pg_stat_database` is read for our own databases; what is
//! counted for the whole server, such as its WAL and its I/O, is also that of its other users.
//!
//! [`flush_statement`]: CounterReader::flush_statement
//! [`flush_wait`]: CounterReader::flush_wait
//! [`read_views`]: CounterReader::read_views
//! [`read_beside`]: CounterReader::read_beside

mod beside;
mod kernel;
mod log;
mod numbered;
mod views;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::connection::Connection;
use crate::error::ServerError;
use crate::server::Server;
pub use beside::Beside;
use log::LogSizes;
use views::Views;

/// How long a process of 9.6 to 14 keeps its counters, and a little more
/// (`PGSTAT_STAT_INTERVAL`).
const COLLECTOR_INTERVAL: Duration = Duration::from_millis(520);

/// What passed between two readings, by name.
pub type Counted = BTreeMap<String, f64>;

/// Reads a server's counters over a connection of its own.
#[derive(Debug)]
pub struct CounterReader {
    views: Views,
    has_collector: bool,
}

/// One reading; only differences of two mean anything.
#[derive(Debug, Clone, Default)]
pub struct CounterReading {
    values: BTreeMap<String, f64>,
    /// `None` where the log's files are not known.
    log: Option<LogSizes>,
}

impl CounterReader {
    /// Connects to a server of ours, whose databases are all counted but the connection's own.
    ///
    /// # Errors
    /// A server that cannot be reached.
    pub fn open(server: &Server) -> Result<Self, ServerError> {
        let number = server.installation().version.number();
        let connection = server.connect_as(server.superuser(), "template1", None)?;
        let databases = "datname <> 'template1'";
        Ok(Self::new(connection, number, databases))
    }

    /// Over a connection to any server, of a version as `server_version_num` has it. Its own
    /// database must not be among those that are counted.
    pub fn over(connection: Connection, version: u32, databases: &[String]) -> Self {
        let quoted = databases
            .iter()
            .map(|name| format!("'{}'", name.replace('\'', "''")));
        let names = quoted.collect::<Vec<_>>().join(", ");
        Self::new(connection, version, &format!("datname in ({names})"))
    }

    fn new(connection: Connection, version: u32, databases: &str) -> Self {
        Self {
            views: Views::new(connection, version, databases),
            has_collector: version < 150_000,
        }
    }

    /// What makes a process hand over its counters.
    pub fn flush_statement(&self) -> &'static str {
        if self.has_collector {
            "select 1"
        } else {
            "select pg_stat_force_next_flush()"
        }
    }

    /// How long a process must have done nothing before that works; nothing since 15.
    pub fn flush_wait(&self) -> Duration {
        if self.has_collector {
            COLLECTOR_INTERVAL
        } else {
            Duration::ZERO
        }
    }

    /// Reads what the kernel counts of these processes, of the server's own ones and of the
    /// machine, and the log's size: all that takes no statement. What cannot be read is left out.
    pub fn read_beside(&self, beside: &Beside<'_>, reading: &mut CounterReading) {
        beside.kernel().read(&mut reading.values);
        reading.log = beside.log_files.as_deref().map(LogSizes::settled);
    }

    /// Adds what the server counts to a reading.
    ///
    /// # Errors
    /// A connection that broke.
    pub fn read_views(&mut self, reading: &mut CounterReading) -> Result<(), ServerError> {
        reading.values.extend(self.views.read()?);
        Ok(())
    }
}

impl CounterReading {
    /// What passed since an earlier reading. A counter that only one of them has, and one that was
    /// set back, is left out.
    pub fn since(&self, earlier: &Self) -> Counted {
        let mut counted: Counted = self
            .values
            .iter()
            .filter_map(|(name, now)| {
                let before = match earlier.values.get(name) {
                    Some(before) => *before,
                    // Rows that are all zero are not kept.
                    None if name.contains('(') => 0.0,
                    None => return None,
                };
                (*now >= before).then(|| (name.clone(), now - before))
            })
            .collect();
        let (Some(log), Some(earlier)) = (&self.log, &earlier.log) else {
            return counted;
        };
        let written = log.since(earlier);
        counted.insert("log.bytes".to_owned(), written.bytes as f64);
        counted.insert("log.lines".to_owned(), written.lines as f64);
        // Only a CSV or JSON log has numbers.
        if written.entries > 0 {
            counted.insert("log.entries".to_owned(), written.entries as f64);
            counted.insert("log.entries_lost".to_owned(), written.entries_lost as f64);
        }
        counted
    }
}
