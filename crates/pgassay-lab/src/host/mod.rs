//! The servers of a run: started here, external, or fake.

mod builds;
mod checkpoint_counter;
mod data;
mod external_facts;
mod external_server;
mod idle;
mod location;
mod maintenance;
mod own_server;
mod planned_maintenance;
mod same_build;
mod servers;

pub(crate) use builds::same_executables;
pub use data::reset;
pub use external_server::ExternalServer;
pub use location::DataLocation;
pub use maintenance::MaintenanceRunner;
pub use own_server::{at_setting, check_settings, facts_of, find, start, start_with_data};
pub use planned_maintenance::PlannedMaintenance;
pub use servers::{Servers, death_or};

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Result;
use pgassay_model::study::Network;
use pgassay_profile::LiveServer;
use pgassay_record::run::{ServerFacts, Warning};
use pgassay_server::{
    BuildFacts, Connection, ConnectionError, CounterReader, Pid, ServerProcesses, SocketCloser,
};
use pgassay_wire::BackendKey;
use pgassay_wire::conninfo::Target;

use crate::cancel::Canceler;
use crate::external::ExternalUse;
use crate::run_context::RunContext;

/// A connection outside the load, for setup, resets and maintenance.
pub trait SqlConnection: Send {
    /// Runs one or more statements and drops their rows.
    fn execute(&mut self, sql: &str) -> Result<(), ConnectionError>;

    /// Runs one or more statements and returns the rows of the last one, each value as text or null.
    fn query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, ConnectionError>;

    /// The backend that serves it, as the server numbers it.
    fn backend_pid(&self) -> Option<Pid>;

    /// Whether a transaction is open.
    fn is_in_transaction(&self) -> bool {
        false
    }

    /// What cancels its statements, and closes it if the server does not answer.
    fn cancel_handle(&self) -> Option<(BackendKey, SocketCloser)> {
        None
    }
}

impl SqlConnection for Connection {
    fn execute(&mut self, sql: &str) -> Result<(), ConnectionError> {
        Connection::execute(self, sql)
    }

    fn query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, ConnectionError> {
        Connection::query(self, sql)
    }

    fn backend_pid(&self) -> Option<Pid> {
        Connection::backend_pid(self)
    }

    fn is_in_transaction(&self) -> bool {
        Connection::is_in_transaction(self)
    }

    fn cancel_handle(&self) -> Option<(BackendKey, SocketCloser)> {
        Some((self.backend_key()?, self.closer().ok()?))
    }
}

/// How often [`Host::is_alive_for`] checks.
const ALIVE_POLL: Duration = Duration::from_millis(10);

/// What a run requires of a server.
pub trait Host {
    /// Version and, for an external server, address, for messages: "PostgreSQL 18.1".
    fn name(&self) -> String;

    /// Whether it is an external server.
    fn is_external(&self) -> bool {
        false
    }

    /// Prepares an external server for what a plan does there: checks that the user allows it, and
    /// makes sure that it can be undone.
    fn prepare(&mut self, _planned: &ExternalUse, _context: &RunContext<'_>) -> Result<()> {
        Ok(())
    }

    /// What cancels statements in one of its databases; `None` if that is not possible.
    fn canceler(&self, database: &str) -> Option<Canceler> {
        let target = self.target(database, Network::Unix, None).ok()?;
        Some(Canceler::new(target, false))
    }

    /// Creates the database `planned` and returns its actual name.
    fn make_database(&mut self, planned: &str) -> Result<String>;

    /// Connects to one of its databases, for setup and inspection.
    fn connect(&self, database: &str) -> Result<Box<dyn SqlConnection>>;

    /// The connection target of the load's clients; over TCP if `address` is given.
    fn target(
        &self,
        database: &str,
        network: Network,
        address: Option<SocketAddr>,
    ) -> Result<Target>;

    /// Its TCP address, if it listens on TCP.
    fn tcp_address(&self) -> Option<SocketAddr>;

    /// The database for queries outside the load.
    fn database(&self) -> &str;

    /// How it was built, as far as known.
    fn build(&self) -> &BuildFacts;

    /// The facts to store with the result.
    fn facts(&self) -> ServerFacts;

    /// Its processes on this machine; `None` if they run elsewhere or are not accessible.
    ///
    /// # Errors
    /// If the processes of a temporary server cannot be found.
    fn live(&self) -> Result<Option<LiveServer>>;

    /// Processes that serve only this run, as all of their descendants do; without the load's backends.
    fn own_pids(&self) -> Vec<u32>;

    /// Opens a reader of its statistics for these databases.
    fn counters(&self, databases: &[String]) -> Result<CounterReader>;

    /// Its processes and files for kernel statistics; `None` as for [`Host::live`].
    fn kernel_sources<'a>(&self, backends: &'a [Pid]) -> Option<ServerProcesses<'a>>;

    /// Truncates a large log; no effect on an external server.
    fn trim_log(&self) -> Result<()>;

    /// The last lines of its log; `None` for an external server.
    fn log_tail(&self) -> Option<String>;

    /// Returns an error if it has stopped.
    fn is_alive(&self) -> Result<()>;

    /// The same, until this time has passed: clients notice the death of a server before its exit
    /// status is available.
    fn is_alive_for(&self, patience: Duration) -> Result<()> {
        let until = Instant::now() + patience;
        loop {
            self.is_alive()?;
            if Instant::now() >= until {
                return Ok(());
            }
            std::thread::sleep(ALIVE_POLL);
        }
    }

    /// Restarts it on the same data; no effect on an external server.
    fn restart(&mut self) -> Result<()>;

    /// Stops and removes a temporary server. On an external one, drops the run's databases, puts
    /// settings back, and returns warnings about what is different from before the run.
    fn stop(self: Box<Self>) -> Result<Vec<Warning>>;
}
