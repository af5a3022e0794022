//! Client pools with scripted and real servers, on each driver.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::duplicate_mod, reason = "each driver runs the same tests")]

#[path = "connecting.rs"]
mod connecting_on_epoll;
#[path = "connecting.rs"]
mod connecting_on_uring;
#[path = "fake_server.rs"]
mod fake_server_on_epoll;
#[path = "fake_server.rs"]
mod fake_server_on_uring;
mod peer;
#[path = "real_server.rs"]
mod real_server_on_epoll;
#[path = "real_server.rs"]
mod real_server_on_uring;

use pgassay_load::IoChoice;

/// The driver that a module's name selects. If the kernel refuses `io_uring`, it is epoll too; the
/// driver's own tests report that.
fn io(module: &str) -> IoChoice {
    if module.ends_with("on_uring") {
        IoChoice::Auto
    } else {
        IoChoice::Epoll
    }
}
