//! A loopback relay that adds latency to round trips, as a network would.
//!
//! A [`Relay`] listens on a port of 127.0.0.1 and forwards what it reads to another address, each
//! piece after half of the configured delay, in both directions. Unlike `tc netem`, it needs no
//! privileges, and it does not delay other connections of the machine.
//!
//! # Invariants
//! - Bytes of a direction leave in the order in which they arrived, and no earlier than half the
//!   delay after they were read. The relay never joins two pieces, although TCP may, as on any
//!   network.
//! - Bandwidth is unlimited and nothing is lost. If a reader is slow, the relay buffers 4 MB per
//!   direction and then stops reading.
//! - When one side closes, the other is closed too, after everything before has been forwarded.
//! - The relay runs in its own thread, which ends when the [`Relay`] is dropped.
//!
//! # Overhead
//! A round trip takes four system calls and two wake-ups of the relay's thread in addition to the
//! delay. [`Relay::lateness`] returns how late pieces left. [`round_trips`] measures a round trip of
//! one byte with and without the relay; report it with every figure measured through the relay.

mod direction;
mod poller;
mod relay;
mod round_trip;

pub use relay::{Lateness, Relay, RelayError};
pub use round_trip::{RoundTrips, round_trips};
