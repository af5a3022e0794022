//! What clients wait for their own thread: for the clients before them, and for a processor.
//!
//! A reply that is there waits until the thread reads it. The thread tells since when it knows of the
//! reply (its wait for arrivals returned: a *harvest*) and when it reads it; the kernel tells how
//! long the thread was ready to run without a processor (`schedstat`). So for each client that a
//! harvest found:
//!
//! - run queue: what the thread waited for a processor since the client's request, or since the
//!   harvest before if that is later. If the thread slept until this harvest, no reply was there when
//!   it began to, and only what it waited since then counts; if the harvest before was as large as
//!   the driver makes them, this one holds what it left over, and counts from where that did. A
//!   reply that came in the middle of such a stretch waited less, so this is an upper bound; it is
//!   exact for replies that were there before.
//! - turn: the time from the harvest to the reading, less what of it was run queue.
//!
//! The two exclude each other, and both lie between the request and the reading of its reply. What a
//! reply waited while the thread served others and had not yet asked for arrivals again is in
//! neither: nobody knows when it came.
//!
//! Reading `schedstat` costs a system call (0.7 µs), so it is read only after stretches longer than
//! [`GAP_NS`] in which the clock was not read; what is waited in shorter ones is found by the
//! next reading. A thread with a single client reads it twice in a run.

use crate::driver::Harvests;
use crate::recorder::Recorder;

/// Shorter stretches hold no delay worth a system call.
const GAP_NS: u64 = 20_000;

/// Reads how long the thread has waited for a processor in its life, in ns.
pub(crate) type ReadDelay = Box<dyn FnMut() -> Option<u64> + Send>;

/// A thread's account of what its clients wait for it.
pub(crate) struct Account {
    read: ReadDelay,
    clients: Vec<Asked>,
    harvests: Harvests,
    /// Clients of the last harvest, so far.
    found: usize,
    /// Whether every delay is the only client's, so that no harvest has to be looked at.
    is_of_one: bool,
    /// The thread's delay as it was read last, and whether it can be read at all.
    delay_ns: u64,
    has_delay: bool,
    /// When the clock was read last.
    stamp_ns: u64,
    /// The last wait's begin, and the delay then.
    wait_ns: u64,
    delay_at_wait_ns: u64,
    /// The last harvest: its count, its moment, the delay then.
    harvest: u64,
    harvest_ns: u64,
    delay_at_harvest_ns: u64,
    /// Since this delay the clients of the last harvest may have been ready.
    delay_since_ns: u64,
    /// With a single client: the delay at the window's begin, once that is past.
    delay_at_window_ns: Option<u64>,
    turn_ns: u64,
    run_queue_ns: u64,
}

/// A client's last request.
#[derive(Clone, Copy, Default)]
struct Asked {
    delay_ns: u64,
    /// The last harvest that found the client.
    harvest: u64,
}

impl Account {
    /// Of so many clients. `is_alone` says that nothing but a reply ever wakes the thread.
    pub fn new(clients: usize, harvests: Harvests, is_alone: bool, mut read: ReadDelay) -> Self {
        let first = read();
        let delay_ns = first.unwrap_or(0);
        Self {
            read,
            clients: vec![Asked::default(); clients],
            harvests,
            found: 0,
            is_of_one: is_alone && clients == 1,
            delay_ns,
            has_delay: first.is_some(),
            stamp_ns: 0,
            wait_ns: 0,
            delay_at_wait_ns: delay_ns,
            harvest: 0,
            harvest_ns: 0,
            delay_at_harvest_ns: delay_ns,
            delay_since_ns: delay_ns,
            delay_at_window_ns: None,
            turn_ns: 0,
            run_queue_ns: 0,
        }
    }

    /// What clients waited in the window for the thread while it served others, in ns.
    pub fn turn_ns(&self) -> u64 {
        self.turn_ns
    }

    /// What clients waited in the window for a processor of their thread, in ns, where the kernel
    /// tells.
    pub fn run_queue_ns(&self) -> Option<u64> {
        self.has_delay.then_some(self.run_queue_ns)
    }

    /// A client's request is sent.
    #[inline]
    pub fn asked(&mut self, client: usize) {
        self.clients[client].delay_ns = self.delay_ns;
    }

    /// The thread is about to wait for arrivals.
    #[inline]
    pub fn waits(&mut self, now_ns: u64) {
        if self.is_of_one {
            return;
        }
        self.stamp(now_ns);
        self.wait_ns = now_ns;
        self.delay_at_wait_ns = self.delay_ns;
    }

    /// The wait for arrivals has returned.
    #[inline]
    pub fn harvested(&mut self, now_ns: u64, recorder: &Recorder) {
        if self.is_of_one {
            self.book_one(now_ns, recorder);
            return;
        }
        self.stamp(now_ns);
        let delayed_ns = self.delay_ns - self.delay_at_wait_ns;
        let has_slept = (now_ns - self.wait_ns).saturating_sub(delayed_ns) > self.harvests.work_ns;
        if has_slept {
            self.delay_since_ns = self.delay_at_wait_ns;
        } else if self.found < self.harvests.max {
            self.delay_since_ns = self.delay_at_harvest_ns;
        }
        self.found = 0;
        self.harvest += 1;
        self.harvest_ns = now_ns;
        self.delay_at_harvest_ns = self.delay_ns;
    }

    /// Bytes of a client that waits for a reply are about to be looked at.
    #[inline]
    pub fn reads(&mut self, client: usize, now_ns: u64, recorder: &Recorder) {
        if self.is_of_one {
            return;
        }
        self.stamp(now_ns);
        let asked = &mut self.clients[client];
        let is_new = std::mem::replace(&mut asked.harvest, self.harvest) != self.harvest;
        self.found += usize::from(is_new);
        if !is_new || !recorder.is_in_window(now_ns) {
            return;
        }
        self.run_queue_ns += self.delay_ns - asked.delay_ns.max(self.delay_since_ns);
        let delayed_ns = self.delay_ns - self.delay_at_harvest_ns;
        self.turn_ns += (now_ns - self.harvest_ns).saturating_sub(delayed_ns);
    }

    /// The run is over.
    pub fn ends(&mut self, recorder: &Recorder) {
        if self.is_of_one {
            self.book_one(recorder.window_end_ns, recorder);
        }
    }

    /// A single client has nobody before it, and all its thread's delay is its own.
    fn book_one(&mut self, now_ns: u64, recorder: &Recorder) {
        match self.delay_at_window_ns {
            None if recorder.is_in_window(now_ns) => {
                self.read_delay();
                self.delay_at_window_ns = Some(self.delay_ns);
            }
            Some(begin_ns) if now_ns >= recorder.window_end_ns && self.run_queue_ns == 0 => {
                self.read_delay();
                self.run_queue_ns = self.delay_ns - begin_ns;
            }
            _ => {}
        }
    }

    #[inline]
    fn stamp(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.stamp_ns) > GAP_NS {
            self.read_delay();
        }
        self.stamp_ns = now_ns;
    }

    #[cold]
    fn read_delay(&mut self) {
        if let Some(delay_ns) = (self.read)() {
            self.delay_ns = delay_ns.max(self.delay_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const MS: u64 = 1_000_000;
    const HARVESTS: Harvests = Harvests {
        max: 256,
        work_ns: 10_000,
    };

    /// An account of some clients whose thread's delay the test sets.
    fn account(clients: usize) -> (Account, Recorder, Arc<AtomicU64>) {
        let delay = Arc::new(AtomicU64::new(0));
        let told = Arc::clone(&delay);
        let read = Box::new(move || Some(told.load(Ordering::Relaxed)));
        let mut recorder = Recorder::new(1, clients);
        recorder.reset(0, u64::MAX);
        (Account::new(clients, HARVESTS, true, read), recorder, delay)
    }

    /// One thread, 64 clients: every client that is ready waits through the thread's delay, and
    /// then for those before it.
    #[test]
    fn every_ready_client_waits_for_the_threads_processor() {
        let (mut account, recorder, delay) = account(64);
        (0..64).for_each(|client| account.asked(client));
        account.waits(MS);
        delay.store(3 * MS, Ordering::Relaxed);
        // It slept for 1 ms, and waited for a processor for 3.
        account.harvested(5 * MS, &recorder);
        for client in 0..64 {
            account.reads(client, 5 * MS + client as u64 * 1_000, &recorder);
            account.asked(client);
        }
        assert_eq!(account.run_queue_ns(), Some(64 * 3 * MS));
        assert_eq!(account.turn_ns(), (0..64).sum::<u64>() * 1_000);
    }

    #[test]
    fn a_delay_in_the_middle_of_a_harvest_is_no_turn() {
        let (mut account, recorder, delay) = account(4);
        (0..4).for_each(|client| account.asked(client));
        account.waits(0);
        account.harvested(1_000, &recorder);
        for (client, now_ns) in [(0, 2_000), (1, 3_000)] {
            account.reads(client, now_ns, &recorder);
            account.asked(client);
        }
        delay.store(2 * MS, Ordering::Relaxed);
        for (client, now_ns) in [(2, 2 * MS + 4_000), (3, 2 * MS + 5_000)] {
            account.reads(client, now_ns, &recorder);
            account.asked(client);
        }
        assert_eq!(account.run_queue_ns(), Some(2 * 2 * MS));
        assert_eq!(account.turn_ns(), 1_000 + 2_000 + 3_000 + 4_000);
        // Replies that are there at once had come before: the first two waited through it, too.
        account.waits(2 * MS + 6_000);
        account.harvested(2 * MS + 7_000, &recorder);
        (0..4).for_each(|client| account.reads(client, 2 * MS + 7_000, &recorder));
        assert_eq!(account.run_queue_ns(), Some(4 * 2 * MS));
    }

    #[test]
    fn no_client_waited_through_a_delay_before_its_thread_slept() {
        let (mut account, recorder, delay) = account(2);
        (0..2).for_each(|client| account.asked(client));
        delay.store(5 * MS, Ordering::Relaxed);
        account.waits(6 * MS);
        account.harvested(7 * MS, &recorder);
        (0..2).for_each(|client| account.reads(client, 7 * MS, &recorder));
        assert_eq!((account.run_queue_ns(), account.turn_ns()), (Some(0), 0));
    }

    #[test]
    fn what_a_harvest_leaves_over_waited_as_long() {
        let (mut account, recorder, delay) = account(512);
        (0..512).for_each(|client| account.asked(client));
        account.waits(0);
        delay.store(3 * MS, Ordering::Relaxed);
        for harvest in [0..256, 256..512] {
            account.harvested(4 * MS, &recorder);
            harvest.for_each(|client| account.reads(client, 4 * MS, &recorder));
            account.waits(4 * MS);
        }
        assert_eq!(account.run_queue_ns(), Some(512 * 3 * MS));
    }

    #[test]
    fn one_client_waits_through_all_its_threads_delays_in_the_window() {
        let (mut account, mut recorder, delay) = account(1);
        recorder.reset(10 * MS, 20 * MS);
        for now_ms in 1..25 {
            delay.store(now_ms * 1_000, Ordering::Relaxed);
            account.harvested(now_ms * MS, &recorder);
        }
        account.ends(&recorder);
        assert_eq!(account.run_queue_ns(), Some(10_000));
    }

    #[test]
    fn nothing_is_said_of_a_run_queue_that_the_kernel_does_not_tell() {
        let account = Account::new(3, HARVESTS, false, Box::new(|| None));
        assert_eq!((account.run_queue_ns(), account.turn_ns()), (None, 0));
    }
}
