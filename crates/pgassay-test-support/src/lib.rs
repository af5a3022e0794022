//! What the tests of several crates share: temporary servers, one policy for tests that cannot run
//! here, waiting for a condition, and the timing tier.
//!
//! Only a dev-dependency: no part of the product uses it.
//!
//! # Map
//! - [`skip`], [`skip_comparison`], [`not_applicable`]: a test that cannot run on this machine.
//! - [`wait_until`], [`wait_within`]: waits for a condition instead of for a time.
//! - [`timing`], [`timing_tests`]: tests whose outcome depends on timing.
//! - [`Scratch`]: the program `pgassay` in a scratch directory.
//! - [`server_directory`]: where servers go: in memory, if there is room.
//! - [`SmallDisk`]: a file system to fill.
//! - [`memory`]: how much memory a piece of work takes.
//! - [`os`]: users, signals, processes, refused system calls.
//! - With the feature `servers`: `servers`, as pgassay starts them; `BareServer`, a postmaster started
//!   by hand, with its own `pg_hba.conf`; `Certificates` for TLS.
//! - With the feature `sampling`: `sampling_is_permitted`.
//! - With the feature `terminals`: `PseudoTerminal`, a program in a terminal.

#![allow(
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    reason = "helpers of tests fail as tests do: by panicking"
)]

#[cfg(feature = "servers")]
mod bare_server;
#[cfg(feature = "servers")]
mod certificates;
pub mod memory;
pub mod os;
mod program;
#[cfg(feature = "terminals")]
mod pseudo_terminal;
mod quiet;
#[cfg(feature = "sampling")]
mod sampling;
mod server_directory;
#[cfg(feature = "servers")]
pub mod servers;
mod skipping;
mod small_disk;
mod waiting;

#[cfg(feature = "servers")]
pub use bare_server::{BareServer, bin_directory};
#[cfg(feature = "servers")]
pub use certificates::{CERTIFIED_HOST, Certificates};
pub use program::{Finished, SMALL_STUDY, Scratch, collapse_whitespace, copy_program};
#[cfg(feature = "terminals")]
pub use pseudo_terminal::PseudoTerminal;
pub use quiet::timing;
#[cfg(feature = "sampling")]
pub use sampling::sampling_is_permitted;
pub use server_directory::server_directory;
pub use skipping::{not_applicable, skip, skip_comparison};
pub use small_disk::SmallDisk;
pub use waiting::{wait_for_exit, wait_until, wait_within};
