//! A relay on loopback that makes round trips take longer, as a network would.
//!
//! A [`Relay`] listens on a port of 127.0.0.1 and passes what it reads on to another address, each
//! piece after half the delay that was asked for, in both directions. Its clients need no
//! privileges, unlike those of `tc netem`, and no other connection of the machine is delayed.
//!
//! # Invariants
//! - Bytes of a direction leave in the order in which they came, and no earlier than half the delay
//!   after they were read. What was read at once is written at once; two pieces are never joined
//!   here, though TCP may join them behind our back, as it may on any network.
//! - There is no limit to bandwidth, and no loss; what a reader does not take is held back, 4 MB
//!   a direction, and then no longer read.
//! - A side that ends ends the other, after what came before it has been passed on.
//! - The relay is a thread of its own. It ends with the value that stands for it.
//!
//! # What it costs
//! Four system calls and two wake-ups of its thread a round trip, beside the delay. [`Relay::lateness`]
//! tells how much later than asked pieces left; [`round_trips`] measures what a round trip of one
//! byte takes with and without it, which belongs beside every figure that was had through it.

mod direction;
mod poller;
mod relay;
mod round_trip;

pub use relay::{Lateness, Relay, RelayError};
pub use round_trip::{RoundTrips, round_trips};
