//! The system calls of the drivers on connected sockets.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Sends without waiting, until all is sent or the kernel takes no more; returns the number of
/// bytes sent.
pub(super) fn send_now(fd: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    let mut sent = 0;
    while sent < bytes.len() {
        let count = raw_send(fd.as_raw_fd(), &bytes[sent..]);
        if count >= 0 {
            sent += count as usize;
            continue;
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::Interrupted => {}
            io::ErrorKind::WouldBlock => break,
            _ => return Err(error),
        }
    }
    Ok(sent)
}

/// send(2) as a bare system call. The C library's wrapper is a cancellation point, which costs
/// about 100 of the 2400 user-space instructions of a transaction.
#[inline]
pub(super) fn raw_send(fd: RawFd, bytes: &[u8]) -> libc::c_long {
    let none = std::ptr::null::<libc::c_void>();
    // SAFETY: pointer and length are those of a slice; there is no address.
    unsafe {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        libc::syscall(
            libc::SYS_sendto,
            fd,
            bytes.as_ptr(),
            bytes.len(),
            flags,
            none,
            0_usize,
        )
    }
}

/// recv(2) as a bare system call.
#[inline]
pub(super) fn raw_receive(fd: RawFd, buffer: &mut [u8]) -> libc::c_long {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: pointer and length are those of a mutable slice; no address is requested.
    unsafe {
        libc::syscall(
            libc::SYS_recvfrom,
            fd,
            buffer.as_mut_ptr(),
            buffer.len(),
            libc::MSG_DONTWAIT,
            none,
            none,
        )
    }
}

/// Shuts down both directions of a failed connection, so that its end arrives.
pub(super) fn shut_down(fd: &OwnedFd) {
    // SAFETY: the descriptor is open. An error means that the connection is already gone.
    unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_RDWR) };
}

pub(super) fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
