//! Server statistics and kernel statistics: commits, rows, WAL, blocks, log lines, context switches,
//! page faults, bytes. Unlike times, they do not depend on the machine's load.
//!
//! A counter's name is `view.column`, as in PostgreSQL's manual, with the row in parentheses if the
//! view has several: `pg_stat_io(client backend, relation).reads`. The kernel's have names of our
//! own, listed in [`kernel`] and [`log`].
//!
//! # When counters can be read
//! A server process accumulates its counters for a while (`src/backend/utils/activity/pgstat.c`,
//! before 15 `src/backend/postmaster/pgstat.c`):
//! - since 15 it flushes them at the end of a statement, at most once a second, or at once if that
//!   statement called `pg_stat_force_next_flush()`; but only if it has counted something of a relation,
//!   WAL or I/O (`pgstat_report_stat`): transactions without tables alone are kept;
//! - until 14 it sends them to the statistics collector at the end of a statement, at most every
//!   half second; and a reader gets them from a file that may be half a second old.
//!
//! So before each [`read_views`] every backend of the load must execute [`flush_statement`] after
//! being idle for [`flush_wait`]. The reader has one connection, to `template1`, whose own counters
//! are excluded. [`read_kernel_statistics`] would count those statements, so call it after them at the
//! beginning and before them at the end.
//!
//! `pg_stat_database` is read only for the load's databases, not for the one in which pgassay itself asks for
//! wait events. Counters of the whole server, such as WAL and I/O, include other users of an external server.
//!
//! [`flush_statement`]: CounterReader::flush_statement
//! [`flush_wait`]: CounterReader::flush_wait
//! [`read_views`]: CounterReader::read_views
//! [`read_kernel_statistics`]: CounterReader::read_kernel_statistics

mod kernel;
mod kernel_statistics;
mod log;
mod numbered;
mod views;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::connection::Connection;
use crate::error::ServerError;
use crate::server::Server;
pub use kernel_statistics::ServerProcesses;
use log::LogSizes;
use views::Views;

/// How long a process of 9.6 to 14 accumulates its counters (`PGSTAT_STAT_INTERVAL`), plus a margin.
const COLLECTOR_INTERVAL: Duration = Duration::from_millis(520);

/// The differences between two readings, by name.
pub type CounterDeltas = BTreeMap<String, f64>;

/// Reads a server's counters over its own connection.
#[derive(Debug)]
pub struct CounterReader {
    views: Views,
    has_collector: bool,
}

/// The statement that makes a backend flush its counters, since 15. It reads a table, so that there is something to
/// flush: a number of transactions alone is not. The table is an empty one that all databases share, so that nothing is
/// added to the load's rows and blocks.
pub const FLUSH_STATISTICS: &str = "select pg_catalog.pg_stat_force_next_flush() \
                         from (select pg_catalog.count(*) from pg_catalog.pg_shseclabel) t";

/// One reading; only differences between two are meaningful.
#[derive(Debug, Clone, Default)]
pub struct CounterReading {
    values: BTreeMap<String, f64>,
    /// `None` if the log's files are not known.
    log: Option<LogSizes>,
}

impl CounterReader {
    /// Reads the statistics of these databases of a server that pgassay started, over a connection to another
    /// database.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn open(server: &Server, databases: &[String]) -> Result<Self, ServerError> {
        let number = server.installation().version.number();
        let connection = server.connect_as(server.superuser(), "template1", None)?;
        Self::over(connection, number, databases)
    }

    /// Uses a connection to any server; `version` is its `server_version_num`. `databases` must not
    /// include the connection's own database.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn over(
        mut connection: Connection,
        version: u32,
        databases: &[String],
    ) -> Result<Self, ServerError> {
        // Between two trials, the connection may be idle for longer than the server permits.
        connection.execute(
            "select pg_catalog.set_config(name, '0', false) from pg_catalog.pg_settings \
             where name = 'idle_session_timeout'",
        )?;
        let quoted = databases
            .iter()
            .map(|name| format!("'{}'", name.replace('\'', "''")));
        // No database has an empty name.
        let names: Vec<String> = quoted.chain(["''".to_owned()]).collect();
        let named = format!("datname in ({})", names.join(", "));
        Ok(Self {
            views: Views::new(connection, version, &named),
            has_collector: version < 150_000,
        })
    }

    /// The statement that makes a backend flush its counters.
    pub fn flush_statement(&self) -> &'static str {
        if self.has_collector {
            "select 1"
        } else {
            FLUSH_STATISTICS
        }
    }

    /// How long a process must be idle before `flush_statement` has an effect; zero since 15.
    pub fn flush_wait(&self) -> Duration {
        if self.has_collector {
            COLLECTOR_INTERVAL
        } else {
            Duration::ZERO
        }
    }

    /// Reads everything that requires no statement: the kernel statistics of the backends, the
    /// background processes and the machine, and the log's size. Omits what cannot be read.
    pub fn read_kernel_statistics(
        &self,
        sources: &ServerProcesses<'_>,
        reading: &mut CounterReading,
    ) {
        sources.kernel().read(&mut reading.values);
        reading.log = sources.log().map(LogSizes::settled);
    }

    /// Adds the server statistics to a reading.
    ///
    /// # Errors
    /// The connection failed.
    pub fn read_views(&mut self, reading: &mut CounterReading) -> Result<(), ServerError> {
        reading.values.extend(self.views.read()?);
        Ok(())
    }
}

impl CounterReading {
    /// The differences from an earlier reading. Omits counters that only one of them has, and those
    /// that were reset in between.
    pub fn since(&self, earlier: &Self) -> CounterDeltas {
        let mut counted: CounterDeltas = self
            .values
            .iter()
            .filter_map(|(name, now)| {
                let before = match earlier.values.get(name) {
                    Some(before) => *before,
                    // Zero values of such rows are not stored.
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
        // Only CSV and JSON logs number their entries.
        if written.entries > 0 {
            counted.insert("log.entries".to_owned(), written.entries as f64);
            counted.insert("log.entries_lost".to_owned(), written.entries_lost as f64);
        }
        counted
    }
}
