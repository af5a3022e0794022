//! Finds, fetches, initialises, starts and stops PostgreSQL servers.
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
//! - [`VersionRequest`], [`Version`]: what a study asks for and what there is.
//! - [`Finder`] → [`Installation`]: the programs of one version, fetched into the cache if need be.
//! - [`Server`]: a running server in directories of its own, and [`Connection`] to talk to it, or to
//!   any other over a [`Stream`] of the caller's.
//! - [`CounterReader`]: what server and kernel count by themselves.
//! - [`differ`]: a sentence on two builds that are not alike.
//!
//! # Invariants
//! - A server, its processes and its directories end with the process that started them, however
//!   that ends (`keeper`); what a power cut leaves goes at the next start (`sweep`).
//! - An entry of the cache is complete (`cache`).
//! - Nobody but its own user and root gets at a server's data; nobody but us is let in without a
//!   password (`settings`).
//! - Every wait is bounded, but for statements, which take the time that they need.
//! - Nothing here prints; progress goes to the caller, oddities to `tracing`.

mod account;
mod cache;
mod cluster;
mod connection;
mod counters;
mod error;
mod facts;
mod features;
mod fetch;
mod finder;
mod home;
mod installation;
mod keeper;
mod log;
mod os;
mod place;
mod processes;
mod server;
mod settings;
mod shared_memory;
mod sweep;
#[cfg(feature = "testing")]
pub mod testing;
mod version;

pub use cache::default_cache_dir;
pub use connection::{Connection, ConnectionError, SqlError, Stream};
pub use counters::{Beside, Counted, CounterReader, CounterReading};
pub use error::ServerError;
pub use facts::{BuildFacts, differ};
pub use fetch::FetchError;
pub use finder::{FindError, Finder, Progress};
pub use installation::{Installation, Source};
pub use os::Pid;
pub use pgassay_wire::{Answer, Password};
pub use processes::{Role, ServerProcess, of_postmaster, wait_until_gone};
pub use server::{Server, ServerConfig};
pub use version::{Series, Version, VersionError, VersionRequest};
