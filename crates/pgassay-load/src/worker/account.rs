//! Delays in the client thread: waiting for other clients, and for a CPU.
//!
//! An available reply waits until its client's thread reads it. The thread knows when it learned of
//! the reply (its wait for arrivals returned: a *batch*) and when it reads it; the kernel reports
//! the thread's run-queue wait (`schedstat`). For each client that a batch found:
//!
//! - Run queue: the thread's run-queue wait since the client's request, or since the previous
//!   batch if that is later. If the thread slept until this batch, no reply was available when
//!   it fell asleep, and only the wait since then counts. If the previous batch reached the
//!   driver's maximum, this one contains the rest of it, and the wait counts from where that one's
//!   did. A reply that arrived during such an interval waited for less time, so this is an upper
//!   bound; it is exact for replies that arrived before.
//! - Client thread busy ("turn"): the time from the batch to the reading, minus any run-queue
//!   wait in it.
//!
//! The two do not overlap, and both lie between the request and the reading of its reply. Neither
//! includes the time a reply waited while the thread served other clients before its next wait for
//! arrivals: when the reply arrived is unknown.
//!
//! Reading `schedstat` costs a system call (0.7 µs), so it is read only after intervals longer than
//! [`GAP_NS`] without a clock reading; the next reading includes any wait in shorter ones. A thread
//! with a single client reads it twice per run.

use crate::driver::BatchTraits;
use crate::recorder::Recorder;

/// Shorter intervals contain no delay worth a system call.
const GAP_NS: u64 = 20_000;

/// Reads the thread's total run-queue wait in ns.
pub(crate) type ReadDelay = Box<dyn FnMut() -> Option<u64> + Send>;

/// A thread's account of its clients' delays.
pub(crate) struct DelayAccount {
    read: ReadDelay,
    clients: Vec<LastRequest>,
    harvests: BatchTraits,
    /// Clients found so far in the last batch.
    found: usize,
    /// Whether there is a single client: all delay is its own, so batches need not be examined.
    is_of_one: bool,
    /// The thread's run-queue wait when last read, and whether it is available.
    delay_ns: u64,
    has_delay: bool,
    /// When the clock was last read.
    stamp_ns: u64,
    /// When the last wait began, and the run-queue wait then.
    wait_ns: u64,
    delay_at_wait_ns: u64,
    /// The last batch: its number, its time, and the run-queue wait then.
    batch: u64,
    harvest_ns: u64,
    delay_at_harvest_ns: u64,
    /// The clients of the last batch may have been ready since the run-queue wait had this value.
    delay_since_ns: u64,
    /// With a single client: the run-queue wait at the beginning of the window, once that has
    /// passed.
    delay_at_window_ns: Option<u64>,
    turn_ns: u64,
    run_queue_ns: u64,
}

/// A client's last request.
#[derive(Clone, Copy, Default)]
struct LastRequest {
    delay_ns: u64,
    /// The last batch that found the client.
    batch: u64,
}

impl DelayAccount {
    /// Creates an account for this many clients. `is_alone` means that only replies wake the
    /// thread.
    pub fn new(clients: usize, harvests: BatchTraits, is_alone: bool, mut read: ReadDelay) -> Self {
        let first = read();
        let delay_ns = first.unwrap_or(0);
        Self {
            read,
            clients: vec![LastRequest::default(); clients],
            harvests,
            found: 0,
            is_of_one: is_alone && clients == 1,
            delay_ns,
            has_delay: first.is_some(),
            stamp_ns: 0,
            wait_ns: 0,
            delay_at_wait_ns: delay_ns,
            batch: 0,
            harvest_ns: 0,
            delay_at_harvest_ns: delay_ns,
            delay_since_ns: delay_ns,
            delay_at_window_ns: None,
            turn_ns: 0,
            run_queue_ns: 0,
        }
    }

    /// Returns how long clients waited in the window while the thread served others, in ns.
    pub fn turn_ns(&self) -> u64 {
        self.turn_ns
    }

    /// Returns how long clients waited in the window while their thread waited for a CPU, in ns, if
    /// the kernel reports it.
    pub fn run_queue_ns(&self) -> Option<u64> {
        self.has_delay.then_some(self.run_queue_ns)
    }

    /// Records that a client's request is being sent.
    #[inline]
    pub fn request_sent(&mut self, client: usize) {
        self.clients[client].delay_ns = self.delay_ns;
    }

    /// Records that the thread is about to wait for arrivals.
    #[inline]
    pub fn wait_begins(&mut self, now_ns: u64) {
        if self.is_of_one {
            return;
        }
        self.stamp(now_ns);
        self.wait_ns = now_ns;
        self.delay_at_wait_ns = self.delay_ns;
    }

    /// Records that the wait for arrivals returned.
    #[inline]
    pub fn batch_arrived(&mut self, now_ns: u64, recorder: &Recorder) {
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
        self.batch += 1;
        self.harvest_ns = now_ns;
        self.delay_at_harvest_ns = self.delay_ns;
    }

    /// Records that the thread is about to read bytes of a waiting client.
    #[inline]
    pub fn read_begins(&mut self, client: usize, now_ns: u64, recorder: &Recorder) {
        if self.is_of_one {
            return;
        }
        self.stamp(now_ns);
        let asked = &mut self.clients[client];
        let is_new = std::mem::replace(&mut asked.batch, self.batch) != self.batch;
        self.found += usize::from(is_new);
        if !is_new || !recorder.is_in_window(now_ns) {
            return;
        }
        self.run_queue_ns += self.delay_ns - asked.delay_ns.max(self.delay_since_ns);
        let delayed_ns = self.delay_ns - self.delay_at_harvest_ns;
        self.turn_ns += (now_ns - self.harvest_ns).saturating_sub(delayed_ns);
    }

    /// Records the end of the run.
    pub fn run_ended(&mut self, recorder: &Recorder) {
        if self.is_of_one {
            self.book_one(recorder.window_end_ns, recorder);
        }
    }

    /// A single client never waits for other clients, and all of its thread's delay is its own.
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
    const HARVESTS: BatchTraits = BatchTraits {
        max: 256,
        work_ns: 10_000,
    };

    /// Returns an account for some clients whose thread's delay the test sets.
    fn account(clients: usize) -> (DelayAccount, Recorder, Arc<AtomicU64>) {
        let delay = Arc::new(AtomicU64::new(0));
        let known = Arc::clone(&delay);
        let read = Box::new(move || Some(known.load(Ordering::Relaxed)));
        let mut recorder = Recorder::new(1, clients);
        recorder.reset(0, u64::MAX);
        (
            DelayAccount::new(clients, HARVESTS, true, read),
            recorder,
            delay,
        )
    }

    /// One thread, 64 clients: every client that is ready waits for the thread's CPU, and then for
    /// the clients before it.
    #[test]
    fn every_ready_client_waits_for_the_threads_processor() {
        let (mut account, recorder, delay) = account(64);
        (0..64).for_each(|client| account.request_sent(client));
        account.wait_begins(MS);
        delay.store(3 * MS, Ordering::Relaxed);
        // It slept for 1 ms and waited for a CPU for 3 ms.
        account.batch_arrived(5 * MS, &recorder);
        for client in 0..64 {
            account.read_begins(client, 5 * MS + client as u64 * 1_000, &recorder);
            account.request_sent(client);
        }
        assert_eq!(account.run_queue_ns(), Some(64 * 3 * MS));
        assert_eq!(account.turn_ns(), (0..64).sum::<u64>() * 1_000);
    }

    #[test]
    fn delay_within_a_wait_batch_is_run_queue_wait() {
        let (mut account, recorder, delay) = account(4);
        (0..4).for_each(|client| account.request_sent(client));
        account.wait_begins(0);
        account.batch_arrived(1_000, &recorder);
        for (client, now_ns) in [(0, 2_000), (1, 3_000)] {
            account.read_begins(client, now_ns, &recorder);
            account.request_sent(client);
        }
        delay.store(2 * MS, Ordering::Relaxed);
        for (client, now_ns) in [(2, 2 * MS + 4_000), (3, 2 * MS + 5_000)] {
            account.read_begins(client, now_ns, &recorder);
            account.request_sent(client);
        }
        assert_eq!(account.run_queue_ns(), Some(2 * 2 * MS));
        assert_eq!(account.turn_ns(), 1_000 + 2_000 + 3_000 + 4_000);
        // Replies that are available immediately had arrived before: the first two waited through
        // it too.
        account.wait_begins(2 * MS + 6_000);
        account.batch_arrived(2 * MS + 7_000, &recorder);
        (0..4).for_each(|client| account.read_begins(client, 2 * MS + 7_000, &recorder));
        assert_eq!(account.run_queue_ns(), Some(4 * 2 * MS));
    }

    #[test]
    fn no_client_waited_through_a_delay_before_its_thread_slept() {
        let (mut account, recorder, delay) = account(2);
        (0..2).for_each(|client| account.request_sent(client));
        delay.store(5 * MS, Ordering::Relaxed);
        account.wait_begins(6 * MS);
        account.batch_arrived(7 * MS, &recorder);
        (0..2).for_each(|client| account.read_begins(client, 7 * MS, &recorder));
        assert_eq!((account.run_queue_ns(), account.turn_ns()), (Some(0), 0));
    }

    #[test]
    fn leftover_arrivals_include_the_earlier_wait() {
        let (mut account, recorder, delay) = account(512);
        (0..512).for_each(|client| account.request_sent(client));
        account.wait_begins(0);
        delay.store(3 * MS, Ordering::Relaxed);
        for harvest in [0..256, 256..512] {
            account.batch_arrived(4 * MS, &recorder);
            harvest.for_each(|client| account.read_begins(client, 4 * MS, &recorder));
            account.wait_begins(4 * MS);
        }
        assert_eq!(account.run_queue_ns(), Some(512 * 3 * MS));
    }

    #[test]
    fn one_client_waits_through_all_its_threads_delays_in_the_window() {
        let (mut account, mut recorder, delay) = account(1);
        recorder.reset(10 * MS, 20 * MS);
        for now_ms in 1..25 {
            delay.store(now_ms * 1_000, Ordering::Relaxed);
            account.batch_arrived(now_ms * MS, &recorder);
        }
        account.run_ended(&recorder);
        assert_eq!(account.run_queue_ns(), Some(10_000));
    }

    #[test]
    fn run_queue_wait_is_none_if_not_reported() {
        let account = DelayAccount::new(3, HARVESTS, false, Box::new(|| None));
        assert_eq!((account.run_queue_ns(), account.turn_ns()), (None, 0));
    }
}
