//! Whether `io_uring` can be used here, found out by using it.
//!
//! A kernel may lack it or parts of it, an administrator may have forbidden it
//! (`kernel.io_uring_disabled`), and a container's filter of system calls may refuse it or pretend
//! that it does not exist.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use super::UringDriver;
use crate::clock;
use crate::driver::{Arrival, Connection, Driver};

/// How long a byte may take from one end of a socket to the other.
const PATIENCE_NS: u64 = 1_000_000_000;

/// Tries `io_uring` on the calling thread; why it cannot be used, for a user.
pub(crate) fn probe() -> Result<(), String> {
    talk().map_err(|error| explain(&error))
}

/// Sends a byte through the driver and receives another.
fn talk() -> io::Result<()> {
    let (ours, mut theirs) = UnixStream::pair()?;
    theirs.set_nonblocking(true)?;
    let mut driver = UringDriver::new(1)?;
    driver.adopt(vec![Some(Connection {
        fd: ours.into(),
        early: Vec::new(),
    })])?;
    driver.send(0, b"?")?;
    driver.wait(0)?;
    let mut heard = [0];
    theirs.read_exact(&mut heard)?;
    theirs.write_all(b"!")?;
    driver.wait(clock::monotonic_ns() + PATIENCE_NS)?;
    match driver.next()? {
        Some(Arrival::Bytes {
            client: 0,
            count: 1,
        }) if driver.received(0, 1) == b"!" => Ok(()),
        _ => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// What a user can do about it.
pub(crate) fn explain(error: &io::Error) -> String {
    let reason = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "not allowed here; see the setting kernel.io_uring_disabled, or the seccomp profile \
             of the container"
        }
        Some(libc::ENOSYS) => "this kernel, or the sandbox around it, has no io_uring",
        Some(libc::EINVAL) => "this kernel is too old; it takes Linux 6.1 or later",
        Some(libc::ENOMEM) => "no memory for its rings; see the limit of locked memory (ulimit -l)",
        Some(libc::EMFILE | libc::ENFILE) => "too few open files are allowed (ulimit -n)",
        _ if error.kind() == io::ErrorKind::Unsupported => {
            "this kernel is too old; it takes Linux 6.1 or later"
        }
        _ if error.kind() == io::ErrorKind::TimedOut => {
            "it is there but does not work: nothing was received"
        }
        _ => return format!("io_uring cannot be used: {error}"),
    };
    format!("io_uring cannot be used: {reason} ({error})")
}
