//! The epoll driver. One 64 kB buffer serves all clients of a thread and stays in the CPU cache.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::interface::{Arrival, BatchTraits, Driver, DriverConnection};
use super::system_calls::{checked, raw_receive, send_now, shut_down};
use crate::clock;

/// How many ready connections one wait reports.
const EVENTS_MAX: i32 = 256;
/// Longer than a wait takes that finds events immediately.
const WAIT_WORK_NS: u64 = 10_000;
/// One buffer serves all clients of a thread.
const READ_BYTES: usize = 64 << 10;
/// How many arrivals one wait reports at most. A server that sends faster than the client reads
/// would otherwise keep the client from its time limits and from the stop flag.
const ARRIVALS_MAX: u32 = 1024;
/// Registered for reading only, edge-triggered: permanent interest in writability would double the
/// wake-ups on Unix sockets.
const READING: u32 = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET) as u32;
const WRITING: u32 = libc::EPOLLOUT as u32;
const ENDED: u32 = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;

/// The driver on epoll.
pub(crate) struct EpollDriver {
    epoll: OwnedFd,
    sockets: Vec<EpollSocket>,
    events: Vec<libc::epoll_event>,
    buffer: Box<[u8]>,
    /// Bytes that another driver had read.
    early: Vec<(usize, Vec<u8>)>,
    /// Events of the last wait, and how many of them are processed.
    found: usize,
    done: usize,
    /// How many arrivals the last wait may still report.
    left: u32,
    pub(super) has_pwait2: bool,
}

#[derive(Default)]
struct EpollSocket {
    /// `None` if the client has no connection.
    fd: Option<OwnedFd>,
    /// Whether a send was blocked, so that writability is watched.
    is_blocked: bool,
    /// Why a send failed.
    error: Option<io::Error>,
}

impl EpollDriver {
    pub fn new() -> io::Result<Self> {
        // SAFETY: epoll_create1 has no preconditions; we own its new descriptor.
        let epoll = unsafe {
            let fd = checked(libc::epoll_create1(libc::EPOLL_CLOEXEC))?;
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Self {
            epoll,
            sockets: Vec::new(),
            events: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX as usize],
            buffer: vec![0; READ_BYTES].into_boxed_slice(),
            early: Vec::new(),
            found: 0,
            done: 0,
            left: ARRIVALS_MAX,
            has_pwait2: true,
        })
    }

    /// Adds a connected, blocking socket; clients are numbered in the order they are added.
    pub fn add(&mut self, fd: OwnedFd) -> io::Result<usize> {
        let client = self.add_closed();
        self.replace(client, fd)?;
        Ok(client)
    }

    /// Adds a client without a connection.
    pub fn add_closed(&mut self) -> usize {
        self.sockets.push(EpollSocket::default());
        self.sockets.len() - 1
    }

    /// Whether a client has a connection.
    pub fn is_open(&self, client: usize) -> bool {
        self.sockets[client].fd.is_some()
    }

    /// How many clients there are.
    pub fn clients(&self) -> usize {
        self.sockets.len()
    }

    /// Adds clients with the connections of another driver.
    pub fn adopt(&mut self, connections: Vec<Option<DriverConnection>>) -> io::Result<()> {
        for connection in connections {
            let client = self.add_closed();
            if let Some(DriverConnection { fd, early }) = connection {
                self.replace(client, fd)?;
                if !early.is_empty() {
                    self.early.push((client, early));
                }
            }
        }
        Ok(())
    }

    /// Removes and returns all connections.
    pub fn take_connections(&mut self) -> Vec<Option<DriverConnection>> {
        let mut early = std::mem::take(&mut self.early);
        let sockets = std::mem::take(&mut self.sockets).into_iter().enumerate();
        let connections = sockets.map(|(client, socket)| {
            let mine = early.iter_mut().find(|(of, _)| *of == client);
            let early = mine.map(|(_, bytes)| std::mem::take(bytes));
            let fd = socket.fd?;
            // Even an unused epoll registration costs time at each arrival.
            self.watch_fd(libc::EPOLL_CTL_DEL, fd.as_raw_fd(), 0, 0)
                .ok();
            Some(DriverConnection {
                fd,
                early: early.unwrap_or_default(),
            })
        });
        connections.collect()
    }

    /// Returns the client's descriptor, or one that no system call accepts.
    fn fd(&self, client: usize) -> RawFd {
        self.sockets[client]
            .fd
            .as_ref()
            .map_or(-1, AsRawFd::as_raw_fd)
    }

    fn watch(&self, operation: libc::c_int, client: usize, events: u32) -> io::Result<()> {
        self.watch_fd(operation, self.fd(client), client, events)
    }

    fn watch_fd(
        &self,
        operation: libc::c_int,
        fd: RawFd,
        client: usize,
        events: u32,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events,
            u64: client as u64,
        };
        // SAFETY: both descriptors are open, owned by self or the caller; the pointer is to our own
        // event.
        checked(unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd, &raw mut event) })?;
        Ok(())
    }

    #[inline]
    fn read(&mut self, client: usize) -> io::Result<usize> {
        loop {
            let count = raw_receive(self.fd(client), &mut self.buffer);
            if count >= 0 {
                return Ok(count as usize);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    fn wait_ns(&mut self, timeout_ns: u64) -> io::Result<usize> {
        let (epoll, events) = (self.epoll.as_raw_fd(), self.events.as_mut_ptr());
        if self.has_pwait2 {
            let timeout = libc::timespec {
                tv_sec: (timeout_ns / 1_000_000_000).cast_signed(),
                tv_nsec: (timeout_ns % 1_000_000_000).cast_signed(),
            };
            // SAFETY: the pointers are to our own events, as many as stated, and to our own
            // timespec; there is no signal mask. This is a raw system call because older C
            // libraries lack it.
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
        // After a failed hand-over there may be no client.
        let Some(socket) = self.sockets.get_mut(client) else {
            return Ok(bytes.len());
        };
        let Some(fd) = &socket.fd else {
            return Ok(bytes.len());
        };
        if socket.error.is_some() {
            return Ok(bytes.len());
        }
        let sent = match send_now(fd, bytes) {
            Ok(sent) => sent,
            Err(error) => {
                shut_down(fd);
                socket.error = Some(error);
                return Ok(bytes.len());
            }
        };
        let is_blocked = sent < bytes.len();
        if is_blocked != socket.is_blocked {
            socket.is_blocked = is_blocked;
            let events = if is_blocked {
                READING | WRITING
            } else {
                READING
            };
            self.watch(libc::EPOLL_CTL_MOD, client, events)?;
        }
        Ok(sent)
    }

    #[inline]
    fn wait(&mut self, until_ns: u64) -> io::Result<()> {
        self.left = ARRIVALS_MAX;
        if self.done < self.found {
            return Ok(());
        }
        (self.found, self.done) = (0, 0);
        // A deadline that has already passed saves reading the clock.
        let timeout_ns = if until_ns == 0 || !self.early.is_empty() {
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

    fn check(&mut self) -> io::Result<bool> {
        self.wait(0)?;
        Ok(self.done < self.found || !self.early.is_empty())
    }

    #[inline]
    fn next(&mut self) -> io::Result<Option<Arrival>> {
        let Some(left) = self.left.checked_sub(1) else {
            return Ok(None);
        };
        self.left = left;
        if let Some((client, bytes)) = self.early.pop() {
            let count = bytes.len().min(self.buffer.len());
            self.buffer[..count].copy_from_slice(&bytes[..count]);
            if count < bytes.len() {
                self.early.push((client, bytes[count..].to_vec()));
            }
            return Ok(Some(Arrival::Bytes { client, count }));
        }
        while self.done < self.found {
            let event = self.events[self.done];
            let (flags, client) = (event.events, event.u64 as usize);
            if !self.is_open(client) {
                // Closed after the wait that returned this event.
                self.done += 1;
                continue;
            }
            let event = &mut self.events[self.done];
            if flags & WRITING != 0 {
                // The same event may also report bytes; they come next.
                event.events = flags & !WRITING;
                return Ok(Some(Arrival::Writable { client }));
            }
            match self.read(client) {
                Ok(0) => {
                    self.done += 1;
                    let error = self.sockets[client].error.take();
                    return Ok(Some(Arrival::Closed { client, error }));
                }
                Ok(count) => {
                    // A short read emptied the socket, unless its end is still to be read.
                    if count < self.buffer.len() && flags & ENDED == 0 {
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
    fn upcoming(&self, after: usize) -> Option<usize> {
        let events = &self.events[..self.found];
        events.get(self.done + after).map(|it| it.u64 as usize)
    }

    fn batch_traits(&self) -> BatchTraits {
        BatchTraits {
            max: EVENTS_MAX as usize,
            sends_in_wait: false,
            work_ns: WAIT_WORK_NS,
        }
    }

    #[inline]
    fn received(&self, _client: usize, count: usize) -> &[u8] {
        &self.buffer[..count]
    }

    fn close(&mut self, client: usize) {
        // Closing the only descriptor also removes its epoll registration.
        self.sockets[client] = EpollSocket::default();
        self.early.retain(|(of, _)| *of != client);
    }

    fn replace(&mut self, client: usize, fd: OwnedFd) -> io::Result<()> {
        self.close(client);
        self.sockets[client].fd = Some(fd);
        self.watch(libc::EPOLL_CTL_ADD, client, READING)
    }
}
