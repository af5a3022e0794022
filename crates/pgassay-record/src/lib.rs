//! What is stored and reported: a [`run`] of a study, and an [`observation`] of a live server.
//!
//! A [`baseline`] is what a gate keeps of a run, to compare later ones with.
//!
//! A run and an observation hold measurements and accounts, and what `pgassay-diagnosis` concludes from them: [`finding`]s
//! with their suggested fixes, the outcome of each [`expectation`], and how the [`plans`] of statements differ. The [`activity`] of an observation is its part
//! in a DBA's terms. So this crate is between the two:
//! reports and the store know what a conclusion is, but not how it is reached.
//!
//! Nothing here does I/O or reads a clock.

pub mod activity;
pub mod baseline;
pub mod expectation;
pub mod finding;
pub mod observation;
pub mod plans;
pub mod remedy;
pub mod run;
