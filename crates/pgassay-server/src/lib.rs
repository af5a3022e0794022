//! Finds, downloads, initializes, starts and stops PostgreSQL servers.
//!
//! ```no_run
//! use pgassay_server::{Finder, Server, ServerConfig, VersionRequest};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let finder = Finder::from_environment()?;
//! let installation = finder.find(&VersionRequest::parse("18")?, &mut |_progress| ())?;
//! let server = Server::start(&installation, &ServerConfig::default())?;
//! assert_eq!(server.connect()?.value("select 1")?.as_deref(), Some("1"));
//! server.stop()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Map
//! - [`VersionRequest`], [`Version`]: the version that a study requests, and an exact version.
//! - [`Finder`] → [`Installation`]: the programs of one version, downloaded into the cache if
//!   necessary.
//! - [`Server`]: a running server in its own directories, and [`Connection`] to use it, or any other
//!   server over a [`Stream`] of the caller's.
//! - [`CounterReader`]: server statistics and kernel statistics.
//! - [`differ`]: describes the differences between two builds.
//! - [`KeptDir`]: a directory for another program's server.
//!
//! # Invariants
//! - A server, its processes and its directories end with the process that started them, however
//!   that ends (`keeper`); what a power failure leaves is removed at the next start (`sweep`).
//! - An entry of the cache is complete (`cache`).
//! - Only its own user and root can access a server's data; only the current user can connect
//!   without a password (`settings`).
//! - Every wait has a time limit, except for statements.
//! - Nothing here prints; progress goes to the caller, warnings go to `tracing`.

mod account;
mod cache;
mod checksums;
mod cluster;
mod connection;
mod counters;
mod data_template;
mod disk;
mod error;
mod facts;
mod features;
mod fetch;
mod file_users;
mod finder;
mod home;
mod installation;
mod keeper;
mod kept_dir;
mod log;
mod log_files;
mod open_dir;
mod os;
mod processes;
mod server;
mod server_dir;
mod settings;
mod shared_memory;
mod socket_closer;
mod sweep;
mod timed_stream;
mod unpack;
mod version;
mod waiting;

pub use cache::default_cache_dir;
pub use connection::{Connection, ConnectionError, SqlError, Stream};
pub use counters::{
    CounterDeltas, CounterReader, CounterReading, FLUSH_STATISTICS, ServerProcesses,
};
pub use disk::data_disk;
pub use error::ServerError;
pub use facts::{BuildFacts, differ};
pub use fetch::{ArchiveRow, FetchError, archive_row};
pub use finder::{FindError, Finder, FinderProgress};
pub use installation::{Installation, InstallationSource};
pub use kept_dir::KeptDir;
pub use log::crash_in;
pub use os::{Pid, end_with_us};
pub use pgassay_wire::{Password, QueryResult};
pub use processes::{ProcessRole, ServerProcess, of_postmaster, wait_until_gone};
pub use server::{Server, ServerConfig};
pub use settings::check_settings;
pub use socket_closer::SocketCloser;
pub use timed_stream::{TimedStream, WaitCheck};
pub use version::{Series, UnsupportedVersion, Version, VersionError, VersionRequest};
