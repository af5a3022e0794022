//! The `io_uring` driver: one system call sends all requests of a round, arms the receives and
//! waits, where epoll needs two per transaction.
//!
//! Each connection has a slot: a registered file, and a region of the arena that the kernel reads
//! from and writes to. A receive is always in flight (single-shot; it waits for data before its
//! first try). Sends produce no completion when they succeed. They execute during submission,
//! because they must not wait, so their bytes belong to the driver again afterwards. A short or
//! failed send does produce a completion; the rest is kept and sent when there is room. Long
//! requests use send(2), so that the arena stays small.
//!
//! # Invariants
//! - A slot's region is not reused while a receive into it is in flight, so a closed connection
//!   keeps its slot until the kernel has released it.
//! - Only the thread that created the ring uses it (`IORING_SETUP_SINGLE_ISSUER`).
//! - Nothing is in flight when the arena is freed; if that cannot be guaranteed, the arena is
//!   leaked.
//!
//! Sources: `io_uring/net.c` (`io_send`, `io_recv`, `io_net_retry`) and `io_uring/io_uring.c`
//! (`io_queue_async`, `io_req_defer_failed`) in Linux 6.1 to 6.18. We tried multishot receives,
//! waiting for several completions and explicit batches; none was faster.

mod arena;
mod probe;
mod sending;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use super::interface::{Arrival, BatchTraits, Driver, DriverConnection};
use super::system_calls::shut_down;
use crate::clock;
use arena::{Arena, SEND_BYTES};
pub(crate) use probe::{explain, probe};

/// Slots beyond one per client, for connections that are being closed.
const SPARE_SLOTS: usize = 48;
const ENTRIES_MAX: usize = 4096;
/// `IORING_RECVSEND_POLL_FIRST`: do not try before data is available.
const POLL_FIRST: u16 = 1;
/// Longest wait for the kernel when connections are handed over.
const QUIESCE_NS: u64 = 5_000_000_000;
const TICK_NS: u64 = 20_000_000;
/// A woken thread sees one completion. Other waits process 20 events (`IO_LOCAL_TW_DEFAULT_MAX`, Linux
/// 6.14), of which an arrival may take several. So any wait may leave arrivals.
const BATCH_MAX: usize = 1;
/// Waits also receive what has arrived, and may send one request.
const WAIT_WORK_NS: u64 = 40_000;
/// How many consecutive times the kernel may report a lack of resources.
const SHORTAGES_MAX: u32 = 10_000;

/// The operation, in the lowest bits of the user data; the slot is above it.
const RECEIVE: u64 = 0;
const SEND: u64 = 1;
const ROOM: u64 = 2;
const CANCEL: u64 = 3;
const KIND_BITS: u32 = 2;

/// The `io_uring` driver.
pub(crate) struct UringDriver {
    ring: IoUring,
    arena: Arena,
    slots: Vec<UringSlot>,
    free: Vec<usize>,
    /// The slot of each client's connection.
    clients: Vec<Option<usize>>,
    /// Completions of the last wait, and how many of them were taken.
    completions: Vec<Completion>,
    taken: usize,
    /// The slot whose bytes were lent last; its next receive begins after they are processed.
    lent: Option<Lent>,
    /// Bytes that another driver had read.
    early: Vec<(usize, Vec<u8>)>,
    /// Bytes from `early` that are lent now.
    early_lent: Option<Vec<u8>>,
    /// Counts submissions: a send with this number has not executed yet.
    submission: u64,
}

#[derive(Default)]
struct UringSlot {
    /// `None` while the slot is free, or its closed connection is not released yet.
    fd: Option<OwnedFd>,
    client: usize,
    /// Distinguishes successive connections in the same slot.
    generation: u32,
    is_receiving: bool,
    is_waiting_for_room: bool,
    /// Whether the client waits for [`Arrival::Writable`].
    wants_room: bool,
    /// The submission of the last send, and its length.
    submission: u64,
    sending_bytes: usize,
    /// The unsent rest of a request.
    unsent: Vec<u8>,
    /// Why a send failed.
    error: Option<io::Error>,
}

#[derive(Clone, Copy)]
struct Completion {
    slot: usize,
    generation: u32,
    kind: u64,
    result: i32,
    /// Whether the socket holds more data than was received.
    has_more: bool,
}

struct Lent {
    slot: usize,
    generation: u32,
    has_more: bool,
}

impl UringDriver {
    /// Creates a ring for the calling thread with room for this many clients.
    pub fn new(clients: usize) -> io::Result<Self> {
        let slots = clients + clients.min(SPARE_SLOTS);
        let entries = (2 * slots).next_power_of_two().clamp(8, ENTRIES_MAX);
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            .build(entries as u32)?;
        let params = ring.params();
        if !params.is_feature_ext_arg() || !params.is_feature_skip_cqe_on_success() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        ring.submitter().register_files_sparse(slots as u32)?;
        Ok(Self {
            ring,
            arena: Arena::new(slots)?,
            slots: std::iter::repeat_with(UringSlot::default)
                .take(slots)
                .collect(),
            free: (0..slots).rev().collect(),
            clients: Vec::with_capacity(clients),
            completions: Vec::with_capacity(slots),
            taken: 0,
            lent: None,
            early: Vec::new(),
            early_lent: None,
            submission: 1,
        })
    }

    /// Whether a client has a connection.
    pub fn is_open(&self, client: usize) -> bool {
        self.clients[client].is_some()
    }

    /// Adds clients with the connections of another driver. After an error,
    /// [`Self::take_connections`] can still remove them.
    pub fn adopt(&mut self, connections: Vec<Option<DriverConnection>>) -> io::Result<()> {
        for connection in connections {
            let client = self.clients.len();
            self.clients.push(None);
            let Some(DriverConnection { fd, early }) = connection else {
                continue;
            };
            let slot = self.free.pop().ok_or(io::ErrorKind::QuotaExceeded)?;
            self.occupy(slot, client, fd);
            if !early.is_empty() {
                self.early.push((client, early));
            }
        }
        for slot in self.clients.clone().into_iter().flatten() {
            self.start(slot)?;
        }
        Ok(())
    }

    fn occupy(&mut self, slot: usize, client: usize, fd: OwnedFd) {
        self.clients[client] = Some(slot);
        let generation = self.slots[slot].generation.wrapping_add(1);
        self.slots[slot] = UringSlot {
            fd: Some(fd),
            client,
            generation,
            ..UringSlot::default()
        };
    }

    /// Registers a slot's file and begins to receive.
    fn start(&mut self, slot: usize) -> io::Result<()> {
        let fd = self.slots[slot].fd.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        self.register(slot, fd)?;
        self.receive(slot, true)
    }

    fn register(&self, slot: usize, fd: i32) -> io::Result<()> {
        let submitter = self.ring.submitter();
        submitter.register_files_update(slot as u32, &[fd])?;
        Ok(())
    }

    /// Removes and returns all connections, after ending everything in flight.
    pub fn take_connections(&mut self) -> io::Result<Vec<Option<DriverConnection>>> {
        self.end_in_flight()?;
        let mut early = std::mem::take(&mut self.early);
        let rest = self.completions.drain(self.taken..);
        for done in rest.filter(|done| done.kind == RECEIVE && done.result > 0) {
            let slot = &self.slots[done.slot];
            if slot.generation == done.generation {
                let bytes = self.arena.received(done.slot, done.result as usize);
                early.push((slot.client, bytes.to_vec()));
            }
        }
        let clients = std::mem::take(&mut self.clients).into_iter().enumerate();
        let connections = clients.map(|(client, slot)| {
            let fd = self.slots[slot?].fd.take()?;
            let of_client = early.iter().filter(|(of, _)| *of == client);
            let early = of_client.flat_map(|(_, bytes)| bytes.clone()).collect();
            Some(DriverConnection { fd, early })
        });
        Ok(connections.collect())
    }

    /// Ends everything in flight.
    fn end_in_flight(&mut self) -> io::Result<()> {
        self.lent = None;
        self.early_lent = None;
        let is_busy = |slot: &UringSlot| slot.is_receiving || slot.is_waiting_for_room;
        if !self.slots.iter().any(is_busy) {
            return Ok(());
        }
        let any = types::CancelBuilder::any();
        self.push(&opcode::AsyncCancel2::new(any).build().user_data(CANCEL))?;
        let deadline_ns = clock::monotonic_ns() + QUIESCE_NS;
        while self.slots.iter().any(is_busy) {
            self.enter(1, TICK_NS)?;
            if clock::monotonic_ns() > deadline_ns {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }

    /// Begins to receive, immediately or when data is available.
    #[inline]
    fn receive(&mut self, slot: usize, poll_first: bool) -> io::Result<()> {
        let (place, length) = self.arena.receiving(slot);
        let entry = opcode::Recv::new(types::Fixed(slot as u32), place, length)
            .ioprio(if poll_first { POLL_FIRST } else { 0 })
            .build()
            .user_data((slot as u64) << KIND_BITS | RECEIVE);
        self.push(&entry)?;
        self.slots[slot].is_receiving = true;
        Ok(())
    }

    /// Waits for room to write.
    fn wait_for_room(&mut self, slot: usize) -> io::Result<()> {
        if self.slots[slot].is_waiting_for_room {
            return Ok(());
        }
        let entry = opcode::PollAdd::new(types::Fixed(slot as u32), libc::POLLOUT as u32)
            .build()
            .user_data((slot as u64) << KIND_BITS | ROOM);
        self.push(&entry)?;
        self.slots[slot].is_waiting_for_room = true;
        Ok(())
    }

    #[inline]
    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        loop {
            // SAFETY: the entry points into the arena, to memory that is not touched until the
            // operation completes, as the module's invariants state.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            self.enter(0, 0)?;
        }
    }

    /// Submits what is queued, waits for up to `wanted` completions but no longer than the timeout,
    /// and collects the completions.
    fn enter(&mut self, wanted: usize, timeout_ns: u64) -> io::Result<()> {
        let timeout = types::Timespec::new()
            .sec(timeout_ns / 1_000_000_000)
            .nsec((timeout_ns % 1_000_000_000) as u32);
        let arguments = types::SubmitArgs::new().timespec(&timeout);
        for _ in 0..SHORTAGES_MAX {
            let waiting = self.ring.submission().len() as u32;
            let submitter = self.ring.submitter();
            let entered = if wanted > 0 {
                submitter.submit_with_args(wanted, &arguments)
            } else {
                // Some completions are reported only on request, even without waiting.
                const GET_EVENTS: u32 = 1;
                // SAFETY: there is no argument; `push` explains why the entries' pointers are
                // valid.
                unsafe { submitter.enter::<libc::sigset_t>(waiting, 0, GET_EVENTS, None) }
            };
            match entered.map_err(|error| error.raw_os_error()) {
                Ok(submitted) if submitted >= waiting as usize => {
                    self.submission += 1;
                    return self.collect();
                }
                // The kernel is temporarily short of resources, or its completion queue is full.
                Ok(_) | Err(Some(libc::EAGAIN | libc::EBUSY)) => self.collect()?,
                // The time is over or a signal arrived; nothing was left to submit.
                Err(Some(libc::ETIME | libc::EINTR)) if waiting == 0 => return self.collect(),
                Err(Some(libc::ETIME | libc::EINTR)) => {}
                Err(code) => return Err(io::Error::from_raw_os_error(code.unwrap_or(0))),
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// Takes completions off the ring.
    fn collect(&mut self) -> io::Result<()> {
        let mut cut_short = Vec::new();
        let Self {
            ring,
            slots,
            completions,
            ..
        } = self;
        for entry in ring.completion() {
            let kind = entry.user_data() & ((1 << KIND_BITS) - 1);
            let index = (entry.user_data() >> KIND_BITS) as usize;
            match kind {
                RECEIVE => slots[index].is_receiving = false,
                ROOM => slots[index].is_waiting_for_room = false,
                SEND => {
                    cut_short.push((index, entry.result()));
                    continue;
                }
                _ => continue,
            }
            completions.push(Completion {
                slot: index,
                generation: slots[index].generation,
                kind,
                result: entry.result(),
                has_more: cqueue::sock_nonempty(entry.flags()),
            });
        }
        for (slot, result) in cut_short {
            self.keep_unsent(slot, result)?;
        }
        Ok(())
    }

    /// Frees the slot of a closed connection once the kernel has released it.
    fn release(&mut self, slot: usize, generation: u32) {
        let state = &mut self.slots[slot];
        if state.generation == generation
            && state.fd.is_none()
            && !state.is_receiving
            && !state.is_waiting_for_room
        {
            state.generation = generation.wrapping_add(1);
            self.free.push(slot);
        }
    }

    /// Returns a slot that is free, waiting for one if necessary.
    fn free_slot(&mut self) -> io::Result<usize> {
        let deadline_ns = clock::monotonic_ns() + QUIESCE_NS;
        loop {
            if let Some(slot) = self.free.pop() {
                return Ok(slot);
            }
            if clock::monotonic_ns() > deadline_ns {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.enter(1, TICK_NS)?;
            // Their completions will be ignored, because their generation is older.
            let found = self.completions[self.taken..].iter();
            let found: Vec<_> = found.map(|done| (done.slot, done.generation)).collect();
            for (slot, generation) in found {
                self.release(slot, generation);
            }
        }
    }

    /// Translates a completion into an arrival, if it is one.
    #[inline]
    fn arrival(&mut self, done: &Completion) -> io::Result<Option<Arrival>> {
        let state = &mut self.slots[done.slot];
        if state.generation != done.generation {
            return Ok(None);
        }
        if state.fd.is_none() {
            self.release(done.slot, done.generation);
            return Ok(None);
        }
        let client = state.client;
        if done.kind == ROOM {
            let is_awaited = self.use_room(done.slot)?;
            return Ok(is_awaited.then_some(Arrival::Writable { client }));
        }
        if done.result > 0 {
            self.lent = Some(Lent {
                slot: done.slot,
                generation: done.generation,
                has_more: done.has_more,
            });
            return Ok(Some(Arrival::Bytes {
                client,
                count: done.result as usize,
            }));
        }
        let error = match -done.result {
            0 => state.error.take(),
            libc::EAGAIN | libc::EINTR => {
                self.receive(done.slot, true)?;
                return Ok(None);
            }
            code => Some(io::Error::from_raw_os_error(code)),
        };
        Ok(Some(Arrival::Closed { client, error }))
    }

    /// Takes back lent bytes, and begins to receive more.
    #[inline]
    fn take_back(&mut self) -> io::Result<()> {
        self.early_lent = None;
        let Some(lent) = self.lent.take() else {
            return Ok(());
        };
        let slot = &self.slots[lent.slot];
        if slot.generation != lent.generation {
            return Ok(());
        }
        if slot.fd.is_none() {
            self.release(lent.slot, lent.generation);
            return Ok(());
        }
        self.receive(lent.slot, !lent.has_more)
    }
}

impl Driver for UringDriver {
    #[inline]
    fn now_ns(&self) -> u64 {
        clock::monotonic_ns()
    }

    #[inline]
    fn send(&mut self, client: usize, bytes: &[u8]) -> io::Result<usize> {
        // After a failed hand-over there may be no client.
        let Some(&Some(slot)) = self.clients.get(client) else {
            return Ok(bytes.len());
        };
        if self.slots[slot].submission == self.submission {
            // Another send of this client is queued.
            self.enter(0, 0)?;
        }
        let state = &mut self.slots[slot];
        if state.error.is_some() || bytes.is_empty() {
            return Ok(bytes.len());
        }
        if state.is_waiting_for_room || !state.unsent.is_empty() {
            state.wants_room = true;
            return Ok(0);
        }
        if bytes.len() > SEND_BYTES {
            return self.send_long(slot, bytes);
        }
        let place = self.arena.put(slot, bytes);
        // Sends as much as there is room for; completes visibly only if that is not all.
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | libc::MSG_WAITALL;
        let entry = opcode::Send::new(types::Fixed(slot as u32), place, bytes.len() as u32)
            .flags(flags)
            .build()
            .flags(squeue::Flags::SKIP_SUCCESS)
            .user_data((slot as u64) << KIND_BITS | SEND);
        self.slots[slot].sending_bytes = bytes.len();
        self.push(&entry)?;
        self.slots[slot].submission = self.submission;
        Ok(bytes.len())
    }

    #[inline]
    fn wait(&mut self, until_ns: u64) -> io::Result<()> {
        self.take_back()?;
        if self.taken < self.completions.len() && self.ring.submission().is_empty() {
            return Ok(());
        }
        let timeout_ns =
            if until_ns == 0 || self.taken < self.completions.len() || !self.early.is_empty() {
                0
            } else {
                until_ns.saturating_sub(self.now_ns())
            };
        self.enter(usize::from(timeout_ns > 0), timeout_ns)
    }

    fn check(&mut self) -> io::Result<bool> {
        self.take_back()?;
        self.enter(0, 0)?;
        Ok(self.taken < self.completions.len())
    }

    #[inline]
    fn next(&mut self) -> io::Result<Option<Arrival>> {
        self.take_back()?;
        if let Some((client, bytes)) = self.early.pop() {
            let count = bytes.len();
            self.early_lent = Some(bytes);
            return Ok(Some(Arrival::Bytes { client, count }));
        }
        while self.taken < self.completions.len() {
            let index = self.taken;
            self.taken += 1;
            let done = self.completions[index];
            if let Some(arrival) = self.arrival(&done)? {
                return Ok(Some(arrival));
            }
        }
        self.completions.clear();
        self.taken = 0;
        Ok(None)
    }

    #[inline]
    fn upcoming(&self, after: usize) -> Option<usize> {
        let done = self.completions.get(self.taken + after)?;
        Some(self.slots[done.slot].client)
    }

    fn batch_traits(&self) -> BatchTraits {
        BatchTraits {
            max: BATCH_MAX,
            sends_in_wait: true,
            work_ns: WAIT_WORK_NS,
        }
    }

    #[inline]
    fn received(&self, client: usize, count: usize) -> &[u8] {
        if let Some(early) = &self.early_lent {
            return &early[..count];
        }
        match self.clients[client] {
            Some(slot) => self.arena.received(slot, count),
            None => &[],
        }
    }

    fn close(&mut self, client: usize) {
        let Some(slot) = self.clients[client].take() else {
            return;
        };
        if self.slots[slot].submission == self.submission {
            // Send the Terminate message first. If the ring fails, the connection is closed anyway.
            self.enter(0, 0).ok();
        }
        self.early.retain(|(of, _)| *of != client);
        let state = &mut self.slots[slot];
        if let Some(fd) = state.fd.take() {
            // This also ends the receive.
            shut_down(&fd);
        }
        state.unsent.clear();
        let is_lent = self.lent.as_ref().is_some_and(|lent| lent.slot == slot);
        self.register(slot, -1).ok();
        if !is_lent {
            self.release(slot, self.slots[slot].generation);
        }
    }

    fn replace(&mut self, client: usize, fd: OwnedFd) -> io::Result<()> {
        self.close(client);
        let slot = self.free_slot()?;
        self.occupy(slot, client, fd);
        self.start(slot)
    }
}

impl Drop for UringDriver {
    fn drop(&mut self) {
        if self.end_in_flight().is_err() {
            // The kernel may still write to it.
            self.arena.leak();
        }
    }
}
