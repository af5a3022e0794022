//! Waits for sockets and deadlines; reads the clock. See epoll(7).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const EVENTS_MAX: i32 = 64;

/// Waits for sockets to become readable or writable, edge-triggered.
pub(crate) struct Poller {
    epoll: OwnedFd,
    events: Vec<libc::epoll_event>,
    has_epoll_pwait2: bool,
}

impl Poller {
    pub fn new() -> io::Result<Self> {
        // SAFETY: epoll_create1 has no preconditions; its descriptor is new and ours.
        let epoll = unsafe {
            let fd = checked(libc::epoll_create1(libc::EPOLL_CLOEXEC).into())?;
            OwnedFd::from_raw_fd(fd as RawFd)
        };
        Ok(Self {
            epoll,
            events: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX as usize],
            has_epoll_pwait2: true,
        })
    }

    /// Watches a socket, identified by a number, until it is closed.
    pub fn add(&self, socket: &impl AsRawFd, number: u64) -> io::Result<()> {
        let events = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
        let mut event = libc::epoll_event {
            events: events as u32,
            u64: number,
        };
        let (epoll, fd) = (self.epoll.as_raw_fd(), socket.as_raw_fd());
        // SAFETY: both descriptors are open; the pointer is to our event.
        let added = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        checked(added.into())?;
        Ok(())
    }

    /// Waits for events until the timeout. Returns the numbers of the sockets, and whether their
    /// stream ended.
    pub fn wait(&mut self, timeout_ns: u64) -> io::Result<impl Iterator<Item = (u64, bool)> + '_> {
        let found = match self.wait_for_events(timeout_ns) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            found => found?,
        };
        let ended = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;
        let events = self.events[..found].iter();
        Ok(events.map(move |event| (event.u64, event.events & ended != 0)))
    }

    fn wait_for_events(&mut self, timeout_ns: u64) -> io::Result<usize> {
        let (epoll, events) = (self.epoll.as_raw_fd(), self.events.as_mut_ptr());
        if self.has_epoll_pwait2 {
            let timeout = libc::timespec {
                tv_sec: (timeout_ns / 1_000_000_000).cast_signed(),
                tv_nsec: (timeout_ns % 1_000_000_000).cast_signed(),
            };
            // SAFETY: the pointers are to our buffer of EVENTS_MAX events and to our timespec; there
            // is no signal mask. Older C libraries have no wrapper for this system call.
            let found = checked(unsafe {
                libc::syscall(
                    libc::SYS_epoll_pwait2,
                    epoll,
                    events,
                    EVENTS_MAX,
                    &raw const timeout,
                    std::ptr::null::<libc::sigset_t>(),
                    0_usize,
                )
            });
            match found {
                // Kernels before 5.11 and some sandboxes lack it.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                    self.has_epoll_pwait2 = false;
                }
                found => return found.map(|found| found as usize),
            }
        }
        let timeout_ms = timeout_ns.div_ceil(1_000_000).min(1_000) as libc::c_int;
        // SAFETY: as above.
        let found = unsafe { libc::epoll_wait(epoll, events, EVENTS_MAX, timeout_ms) };
        checked(found.into()).map(|found| found as usize)
    }
}

/// Reads the monotonic clock.
pub(crate) fn now_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to our timespec; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Sets the timer slack of the calling thread to 1 ns. By default, the kernel delays wake-ups by up to
/// 50 µs to combine them.
pub(crate) fn minimize_timer_slack() {
    // SAFETY: this changes only an attribute of the calling thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_usize) };
}

fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
