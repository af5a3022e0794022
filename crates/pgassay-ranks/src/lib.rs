//! A load on several machines: how clients are dealt to MPI ranks, and how the ranks talk.
//!
//! Without the feature `mpi`, this crate knows only whether a launcher started several ranks
//! ([`Launched`]), what each would run ([`shares`]), how far two clocks are apart ([`ClockOffset`]), and in which
//! order to ask for them ([`ClockRounds`]).
//! With it, a `World` connects the ranks. It knows nothing about loads or measurements: what travels is bytes.
//!
//! # Invariants
//! - The shares of all ranks are those of one process that was cut between its threads.
//! - The true distance of two clocks lies within a [`ClockOffset`]'s bound.
//! - A `World` makes no call of MPI on its own: between the start and `World::report`, there is none.
//! - While ranks report, each wait ends: with the report, or when another rank was silent too long.

mod clock_offset;
mod clock_rounds;
mod launched;
mod shares;
#[cfg(feature = "mpi")]
mod transfer;
#[cfg(feature = "mpi")]
mod world;

pub use clock_offset::{ClockOffset, ClockReading};
pub use clock_rounds::{ClockRounds, at_once};
pub use launched::Launched;
pub use shares::{RankShare, shares};
#[cfg(feature = "mpi")]
pub use world::{RankError, World};
