//! Waits until there are data to read or another thread wakes the waiter.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// An eventfd(2): its holders can wake the waiting thread.
#[derive(Debug)]
pub(crate) struct Wake {
    fd: OwnedFd,
}

impl Wake {
    pub fn new() -> io::Result<Self> {
        // SAFETY: the call takes no pointer.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd })
    }

    /// Ends the current or the next wait.
    pub fn wake(&self) -> io::Result<()> {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: the buffer has the stated size.
        let written = unsafe { libc::write(self.fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        // A full counter wakes the waiter too, so the error can be ignored.
        match io::Error::last_os_error() {
            error if written < 0 && error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    /// Waits until woken, until one of `fds` is readable, or for `limit`.
    pub fn wait(&self, fds: &[i32], limit: Option<Duration>) -> io::Result<()> {
        let mut polled: Vec<libc::pollfd> = std::iter::once(self.fd.as_raw_fd())
            .chain(fds.iter().copied())
            .map(|fd| libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            })
            .collect();
        let limit_ms = limit.map_or(-1, |l| i32::try_from(l.as_millis()).unwrap_or(i32::MAX));
        // SAFETY: the array has the stated length and outlives the call.
        let ready =
            unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, limit_ms) };
        if ready < 0 {
            let error = io::Error::last_os_error();
            // An interruption by a signal is not an error; the caller waits again.
            return if error.kind() == io::ErrorKind::Interrupted {
                Ok(())
            } else {
                Err(error)
            };
        }
        let mut count = [0_u8; 8];
        if polled[0].revents != 0 {
            // SAFETY: the buffer has the stated size. The read only resets the counter; it does not
            // block.
            unsafe { libc::read(self.fd.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_wake_before_the_wait_ends_it_at_once_and_only_once() {
        let wake = Wake::new().unwrap();
        wake.wake().unwrap();
        let began = Instant::now();
        wake.wait(&[], Some(Duration::from_secs(20))).unwrap();
        assert!(began.elapsed() < Duration::from_secs(10));
        let began = Instant::now();
        wake.wait(&[], Some(Duration::from_millis(30))).unwrap();
        assert!(began.elapsed() >= Duration::from_millis(25));
    }
}
