//! Finds out whether `io_uring` works here, by using it.
//!
//! A kernel may lack all or parts of it, an administrator may have disabled it
//! (`kernel.io_uring_disabled`), and a container's system call filter may reject it or report that
//! it does not exist.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use super::UringDriver;
use crate::clock;
use crate::driver::{Arrival, Driver, DriverConnection};

/// How long a byte may take from one end of a socket to the other.
const PROBE_LIMIT_NS: u64 = 1_000_000_000;

/// Tries `io_uring` on the calling thread; the error explains why it is unavailable.
pub(crate) fn probe() -> Result<(), String> {
    exchange_bytes().map_err(|error| explain(&error))
}

/// Sends a byte through the driver and receives another.
fn exchange_bytes() -> io::Result<()> {
    let (ours, mut theirs) = UnixStream::pair()?;
    theirs.set_nonblocking(true)?;
    let mut driver = UringDriver::new(1)?;
    driver.adopt(vec![Some(DriverConnection {
        fd: ours.into(),
        early: Vec::new(),
    })])?;
    driver.send(0, b"?")?;
    driver.wait(0)?;
    let mut heard = [0];
    theirs.read_exact(&mut heard)?;
    theirs.write_all(b"!")?;
    driver.wait(clock::monotonic_ns() + PROBE_LIMIT_NS)?;
    match driver.next()? {
        Some(Arrival::Bytes {
            client: 0,
            count: 1,
        }) if driver.received(0, 1) == b"!" => Ok(()),
        _ => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Explains an error and what the user can do about it.
pub(crate) fn explain(error: &io::Error) -> String {
    let reason = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "permission denied; check the setting kernel.io_uring_disabled and the container's \
             seccomp profile"
        }
        Some(libc::ENOSYS) => "the kernel or a sandbox does not provide it",
        Some(libc::EINVAL) => "the kernel is too old; Linux 6.1 or later is required",
        Some(libc::ENOMEM) => "not enough memory for its rings; raise the limit (ulimit -l)",
        Some(libc::EMFILE | libc::ENFILE) => "too many open files; raise the limit (ulimit -n)",
        _ if error.kind() == io::ErrorKind::Unsupported => {
            "the kernel is too old; Linux 6.1 or later is required"
        }
        _ if error.kind() == io::ErrorKind::TimedOut => {
            "it exists but does not work: a test message did not arrive"
        }
        _ => return format!("io_uring is not available: {error}"),
    };
    format!("io_uring is not available: {reason} ({error})")
}
