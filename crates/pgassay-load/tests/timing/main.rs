//! The timing tier: tests whose outcome depends on timing, on each driver.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::duplicate_mod, reason = "each driver runs the same tests")]

#[path = "rates.rs"]
mod rates_on_epoll;
#[path = "rates.rs"]
mod rates_on_uring;
#[path = "waiting.rs"]
mod waiting_on_epoll;
#[path = "waiting.rs"]
mod waiting_on_uring;
