//! What moves bytes between sessions and sockets, and tells the time.
//!
//! One driver serves one thread. The worker asks for arrivals one at a time and lends the buffer
//! they are read into, so that one buffer of 64 kB serves all clients of a thread and stays in the
//! processor's cache. Two drivers exist: [`EpollDriver`], and a deterministic one for tests with a
//! clock of its own (`worker::tests`). One on `io_uring` will be the third.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::clock;

/// What happened on a connection.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// So many bytes were read into the buffer.
    Bytes { client: usize, count: usize },
    /// A send that was blocked can go on.
    Writable { client: usize },
    /// The connection ended, with an error or in order.
    Closed {
        client: usize,
        error: Option<io::Error>,
    },
}

/// Moves bytes and tells the time.
pub(crate) trait Driver {
    /// The monotonic clock, in ns.
    fn now_ns(&self) -> u64;
    /// Sends what the kernel takes, and tells how much. If that is not all, an
    /// [`Arrival::Writable`] follows when there is room.
    fn send(&mut self, client: usize, bytes: &[u8]) -> io::Result<usize>;
    /// Waits until something arrives, at most until this moment.
    fn wait(&mut self, until_ns: u64) -> io::Result<()>;
    /// The next arrival of what the last wait found.
    fn next(&mut self, buffer: &mut [u8]) -> io::Result<Option<Arrival>>;
    /// Reads what a connection holds without waiting: its last words, when a send failed.
    fn read_now(&mut self, client: usize, buffer: &mut [u8]) -> io::Result<usize>;
    /// Closes a connection; nothing arrives from it any more.
    fn close(&mut self, client: usize);
    /// Gives a client another connection, connected and non-blocking; an open one is closed.
    fn replace(&mut self, client: usize, fd: OwnedFd) -> io::Result<()>;
}

/// How many ready connections one wait reports.
const EVENTS_MAX: i32 = 256;
/// Only reading is watched, edge-triggered: an idle watch for room to write would double the
/// wake-ups on unix sockets.
const READING: u32 = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET) as u32;
const WRITING: u32 = libc::EPOLLOUT as u32;
const ENDED: u32 = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;

/// The driver on epoll.
pub(crate) struct EpollDriver {
    epoll: OwnedFd,
    sockets: Vec<Socket>,
    events: Vec<libc::epoll_event>,
    /// Events found by the last wait, and how many of them are done.
    found: usize,
    done: usize,
    has_pwait2: bool,
}

struct Socket {
    /// None where the client has no connection.
    fd: Option<OwnedFd>,
    /// Whether a send was blocked and room to write is watched.
    is_blocked: bool,
}

impl EpollDriver {
    pub fn new() -> io::Result<Self> {
        // SAFETY: epoll_create1 has no preconditions; its descriptor is new and ours.
        let epoll = unsafe {
            let fd = checked(libc::epoll_create1(libc::EPOLL_CLOEXEC))?;
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Self {
            epoll,
            sockets: Vec::new(),
            events: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX as usize],
            found: 0,
            done: 0,
            has_pwait2: true,
        })
    }

    /// Adds a connected, non-blocking socket; clients are numbered as they are added.
    pub fn add(&mut self, fd: OwnedFd) -> io::Result<usize> {
        let client = self.add_closed();
        self.replace(client, fd)?;
        Ok(client)
    }

    /// Adds a client without a connection.
    pub fn add_closed(&mut self) -> usize {
        self.sockets.push(Socket {
            fd: None,
            is_blocked: false,
        });
        self.sockets.len() - 1
    }

    /// Whether a client has a connection.
    pub fn is_open(&self, client: usize) -> bool {
        self.sockets[client].fd.is_some()
    }

    /// The client's descriptor; without a connection one that no system call accepts.
    fn fd(&self, client: usize) -> RawFd {
        self.sockets[client]
            .fd
            .as_ref()
            .map_or(-1, AsRawFd::as_raw_fd)
    }

    fn watch(&self, operation: libc::c_int, client: usize, events: u32) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events,
            u64: client as u64,
        };
        // SAFETY: both descriptors are open, being owned by self; the pointer is to our event.
        checked(unsafe {
            libc::epoll_ctl(
                self.epoll.as_raw_fd(),
                operation,
                self.fd(client),
                &raw mut event,
            )
        })?;
        Ok(())
    }

    fn wait_ns(&mut self, timeout_ns: u64) -> io::Result<usize> {
        let (epoll, events) = (self.epoll.as_raw_fd(), self.events.as_mut_ptr());
        if self.has_pwait2 {
            let timeout = libc::timespec {
                tv_sec: (timeout_ns / 1_000_000_000).cast_signed(),
                tv_nsec: (timeout_ns % 1_000_000_000).cast_signed(),
            };
            // SAFETY: the pointers are to our events, as many as is said, and to our timespec; no
            // signal mask is given. The system call is used since older C libraries lack it.
            let found = unsafe {
                libc::syscall(
                    libc::SYS_epoll_pwait2,
                    epoll,
                    events,
                    EVENTS_MAX,
                    &raw const timeout,
                    std::ptr::null::<libc::sigset_t>(),
                    0_usize,
                )
            };
            match checked(found as libc::c_int) {
                // Kernels before 5.11, and some sandboxes.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                    self.has_pwait2 = false;
                }
                found => return found.map(|found| found as usize),
            }
        }
        let timeout_ms = timeout_ns.div_ceil(1_000_000).min(1_000) as libc::c_int;
        // SAFETY: as above.
        let found = unsafe { libc::epoll_wait(epoll, events, EVENTS_MAX, timeout_ms) };
        checked(found).map(|found| found as usize)
    }
}

impl Driver for EpollDriver {
    #[inline]
    fn now_ns(&self) -> u64 {
        clock::monotonic_ns()
    }

    #[inline]
    fn send(&mut self, client: usize, bytes: &[u8]) -> io::Result<usize> {
        let fd = self.fd(client);
        let mut sent = 0;
        while sent < bytes.len() {
            let rest = &bytes[sent..];
            let count = raw_send(fd, rest);
            if count >= 0 {
                sent += count as usize;
                continue;
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock => {
                    if !self.sockets[client].is_blocked {
                        self.sockets[client].is_blocked = true;
                        self.watch(libc::EPOLL_CTL_MOD, client, READING | WRITING)?;
                    }
                    return Ok(sent);
                }
                _ => return Err(error),
            }
        }
        if self.sockets[client].is_blocked {
            self.sockets[client].is_blocked = false;
            self.watch(libc::EPOLL_CTL_MOD, client, READING)?;
        }
        Ok(sent)
    }

    #[inline]
    fn wait(&mut self, until_ns: u64) -> io::Result<()> {
        (self.found, self.done) = (0, 0);
        // A moment that is past already saves the clock.
        let timeout_ns = if until_ns == 0 {
            0
        } else {
            until_ns.saturating_sub(self.now_ns())
        };
        match self.wait_ns(timeout_ns) {
            Ok(found) => self.found = found,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    #[inline]
    fn next(&mut self, buffer: &mut [u8]) -> io::Result<Option<Arrival>> {
        while self.done < self.found {
            let event = self.events[self.done];
            let (flags, client) = (event.events, event.u64 as usize);
            if !self.is_open(client) {
                // It was closed after the wait had found this.
                self.done += 1;
                continue;
            }
            let event = &mut self.events[self.done];
            if flags & WRITING != 0 {
                // The same event may report bytes, too; they are next.
                event.events = flags & !WRITING;
                return Ok(Some(Arrival::Writable { client }));
            }
            match self.read_now(client, buffer) {
                Ok(0) => {
                    self.done += 1;
                    return Ok(Some(Arrival::Closed {
                        client,
                        error: None,
                    }));
                }
                Ok(count) => {
                    // A short read has emptied the socket, unless its end is still to be read.
                    if count < buffer.len() && flags & ENDED == 0 {
                        self.done += 1;
                    }
                    return Ok(Some(Arrival::Bytes { client, count }));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.done += 1,
                Err(error) => {
                    self.done += 1;
                    return Ok(Some(Arrival::Closed {
                        client,
                        error: Some(error),
                    }));
                }
            }
        }
        Ok(None)
    }

    #[inline]
    fn read_now(&mut self, client: usize, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = raw_receive(self.fd(client), buffer);
            if count >= 0 {
                return Ok(count as usize);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    fn close(&mut self, client: usize) {
        // Closing a descriptor ends its watch, since nobody else has it.
        self.sockets[client] = Socket {
            fd: None,
            is_blocked: false,
        };
    }

    fn replace(&mut self, client: usize, fd: OwnedFd) -> io::Result<()> {
        self.close(client);
        self.sockets[client].fd = Some(fd);
        self.watch(libc::EPOLL_CTL_ADD, client, READING)
    }
}

/// send(2) as a bare system call. The C library's is a point of cancellation, which costs about
/// 100 of the 2400 instructions that a transaction executes outside the kernel.
#[inline]
fn raw_send(fd: RawFd, bytes: &[u8]) -> libc::c_long {
    let none = std::ptr::null::<libc::c_void>();
    // SAFETY: pointer and length are those of a slice; there is no address.
    unsafe {
        let flags = libc::MSG_NOSIGNAL;
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

/// recv(2), likewise.
#[inline]
fn raw_receive(fd: RawFd, buffer: &mut [u8]) -> libc::c_long {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: pointer and length are those of a slice that is lent for writing; no address is
    // wanted.
    unsafe {
        let flags: libc::c_int = 0;
        libc::syscall(
            libc::SYS_recvfrom,
            fd,
            buffer.as_mut_ptr(),
            buffer.len(),
            flags,
            none,
            none,
        )
    }
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn pair() -> (EpollDriver, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut driver = EpollDriver::new().unwrap();
        assert_eq!(driver.add(ours.into()).unwrap(), 0);
        (driver, theirs)
    }

    fn soon(driver: &EpollDriver) -> u64 {
        driver.now_ns() + 2_000_000_000
    }

    #[test]
    fn reads_and_the_end() {
        let (mut driver, mut theirs) = pair();
        let mut buffer = [0; 4];
        theirs.write_all(b"abcdef").unwrap();
        drop(theirs);
        driver.wait(soon(&driver)).unwrap();
        let mut read: Vec<u8> = Vec::new();
        loop {
            match driver.next(&mut buffer).unwrap() {
                Some(Arrival::Bytes { client: 0, count }) => read.extend(&buffer[..count]),
                Some(Arrival::Closed {
                    client: 0,
                    error: None,
                }) => break,
                other => panic!("{other:?} after {read:?}"),
            }
        }
        assert_eq!(read, b"abcdef");
    }

    #[test]
    fn a_blocked_send_goes_on_while_bytes_are_read() {
        let (mut driver, mut theirs) = pair();
        let message = vec![7; 4 << 20];
        let mut sent = driver.send(0, &message).unwrap();
        assert!(sent < message.len());
        theirs.write_all(b"meanwhile").unwrap();
        let reader = std::thread::spawn(move || {
            let mut read = vec![0; 4 << 20];
            theirs.read_exact(&mut read).unwrap();
            read
        });
        let (mut buffer, mut read) = ([0; 64], Vec::<u8>::new());
        while sent < message.len() || read.is_empty() {
            driver.wait(soon(&driver)).unwrap();
            while let Some(arrival) = driver.next(&mut buffer).unwrap() {
                match arrival {
                    Arrival::Bytes { count, .. } => read.extend(&buffer[..count]),
                    Arrival::Writable { client } => {
                        sent += driver.send(client, &message[sent..]).unwrap();
                    }
                    Arrival::Closed { .. } => panic!("closed"),
                }
            }
        }
        assert_eq!(reader.join().unwrap(), message);
        assert_eq!(read, b"meanwhile");
    }

    #[test]
    fn waits_end_in_time() {
        let (mut driver, _theirs) = pair();
        for has_pwait2 in [true, false] {
            driver.has_pwait2 = has_pwait2;
            let begin_ns = driver.now_ns();
            driver.wait(begin_ns + 5_000_000).unwrap();
            assert!(driver.now_ns() >= begin_ns + 5_000_000);
            assert!(driver.next(&mut [0; 4]).unwrap().is_none());
        }
    }
}
