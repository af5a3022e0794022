//! Delays in the client thread: waiting for other clients, and for a CPU.
//!
//! The server waits for a client from the arrival of its reply until its next request is sent. Meanwhile
//! the client's thread is on a CPU for other clients ("thread busy"), or it waits for a CPU ("run queue",
//! by the kernel's `schedstat`). What is known of each request and reply:
//!
//! - From the wait for arrivals that found the reply (a *batch*) until it is read: certain.
//! - From a request's writing until it is sent: certain. A driver may send all requests of a batch
//!   together when it next waits ([`BatchTraits::sends_in_wait`]); then the thread may lose its CPU with
//!   any of them unsent. The time within such a joint sending is divided evenly among its requests.
//! - From the end of a `\sleep` until the client continues, unless the thread sleeps: certain.
//! - Before the batch: the reply arrived at an unknown time after the client's request was sent, and
//!   after the last instant at which no reply was available. The thread's time since then, on a CPU or
//!   in the run queue but not asleep, is *possible*: an upper bound. The server knows how much of it
//!   was waiting, since it measures its own waiting for clients.
//!
//! A thread that falls asleep had no reply available, and the first reply wakes it.
//!
//! The four figures do not overlap, and all lie between the reading of a reply and the reading of the
//! next.
//!
//! Reading `schedstat` costs a system call (0.7 µs), so it is read only after intervals longer than
//! [`GAP_NS`] without a clock reading; the next reading includes any wait in shorter ones. A thread
//! with a single client reads it twice per run.

use super::thread_time::{Instant, ThreadTime};
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
    traits: BatchTraits,
    /// Requests written since the last wait, and the clients of those that are not sent yet.
    written: usize,
    unsent: Vec<usize>,
    /// Clients found so far in the last batch.
    found: usize,
    /// Whether there is a single client: all delay is its own, so batches need not be examined.
    is_of_one: bool,
    /// Whether the kernel reports the thread's run-queue wait.
    has_delay: bool,
    /// The last readings.
    now: Instant,
    /// When the last wait began.
    wait: Instant,
    /// Whether no reply was available when the last wait began, if that is known.
    begins_empty: Option<bool>,
    /// The last batch: its number, and its time.
    batch: u64,
    batch_at: Instant,
    /// No reply of the last batch was available before this instant.
    empty: Instant,
    /// With a single client: the run-queue wait at the beginning of the window, once that has
    /// passed.
    delay_at_window_ns: Option<u64>,
    certain: ThreadTime,
    possible: ThreadTime,
}

/// A client's last request.
#[derive(Clone, Copy, Default)]
struct LastRequest {
    /// When it was written or, from then on, sent.
    at: Instant,
    /// The last batch that found the client.
    batch: u64,
}

impl DelayAccount {
    /// Creates an account for this many clients of a run that begins now. `is_alone` means that only
    /// replies wake the thread.
    pub fn new(
        clients: usize,
        traits: BatchTraits,
        is_alone: bool,
        now_ns: u64,
        mut read: ReadDelay,
    ) -> Self {
        let first = read();
        let now = Instant {
            clock_ns: now_ns,
            delay_ns: first.unwrap_or(0),
        };
        Self {
            read,
            clients: vec![LastRequest::default(); clients],
            traits,
            written: 0,
            unsent: Vec::with_capacity(clients),
            found: 0,
            is_of_one: is_alone && clients == 1,
            has_delay: first.is_some(),
            now,
            wait: now,
            begins_empty: None,
            batch: 0,
            batch_at: now,
            empty: now,
            delay_at_window_ns: None,
            certain: ThreadTime::default(),
            possible: ThreadTime::default(),
        }
    }

    /// Returns how long clients certainly waited in the window for their thread.
    pub fn certain(&self) -> ThreadTime {
        self.certain
    }

    /// Returns how much longer they waited in the window at most.
    pub fn possible(&self) -> ThreadTime {
        self.possible
    }

    /// Returns the run-queue wait in this time, if the kernel reports it.
    pub fn run_queue_ns(&self, of: ThreadTime) -> Option<u64> {
        self.has_delay.then_some(of.run_queue_ns)
    }

    /// Records that a client's request was written.
    #[inline]
    pub fn request_sent(&mut self, client: usize) {
        self.clients[client].at = self.now;
        self.written += 1;
        if self.traits.sends_in_wait && !self.is_of_one {
            self.unsent.push(client);
        }
    }

    /// Whether the thread should check for arrivals before it waits for them, so that it is known whether
    /// it sleeps, and when requests are sent. After one request to a driver that finds everything, the
    /// duration of the wait says as much.
    #[inline]
    pub fn wants_check(&self) -> bool {
        (self.written > 1 || self.may_have_left()) && !self.is_of_one
    }

    /// Whether the last batch may have left arrivals.
    fn may_have_left(&self) -> bool {
        self.found >= self.traits.max
    }

    /// Records that the thread is about to wait for arrivals, and to send what is unsent.
    #[inline]
    pub fn wait_begins(&mut self, now_ns: u64) {
        if self.is_of_one {
            return;
        }
        self.stamp(now_ns);
        self.wait = self.now;
        self.begins_empty = None;
        if !self.may_have_left() {
            self.empty = self.batch_at;
        }
    }

    /// Records that the thread has sent everything, and has checked for arrivals.
    pub fn checked(&mut self, now_ns: u64, has_arrivals: bool, recorder: &Recorder) {
        let began = self.wait;
        self.stamp(now_ns);
        self.book_sending(began, self.now, recorder);
        self.wait = self.now;
        self.begins_empty = Some(!has_arrivals);
    }

    /// Records that the wait for arrivals returned.
    #[inline]
    pub fn batch_arrived(&mut self, now_ns: u64, recorder: &Recorder) {
        if self.is_of_one {
            self.book_one(now_ns, recorder);
            return;
        }
        self.book_sending(self.wait, self.wait, recorder);
        self.stamp(now_ns);
        let delayed_ns = self.now.delay_ns - self.wait.delay_ns;
        let active_ns = now_ns.saturating_sub(delayed_ns);
        let is_long = active_ns > self.wait.clock_ns + self.traits.work_ns;
        if self.begins_empty.unwrap_or(is_long) {
            self.empty = Instant {
                clock_ns: active_ns,
                delay_ns: self.wait.delay_ns,
            };
        }
        self.found = 0;
        self.written = 0;
        self.batch += 1;
        self.batch_at = self.now;
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
        self.possible.add(asked.at.max(self.empty), self.batch_at);
        self.certain.add(self.batch_at, self.now);
    }

    /// Records that a client whose `\sleep` ended at `due_ns` continues. Returns since when it waited for
    /// its thread: before that, the thread slept, too.
    pub fn sleep_ended(&mut self, due_ns: u64, now_ns: u64, recorder: &Recorder) -> u64 {
        self.stamp(now_ns);
        let (wait, batch) = (self.wait, self.batch_at);
        let last = if due_ns < wait.clock_ns { wait } else { batch };
        let mut since = Instant {
            clock_ns: due_ns,
            ..last
        };
        if (wait.clock_ns..batch.clock_ns).contains(&due_ns) {
            // The thread is in the run queue at the end of a wait, from its wake-up on.
            let queued_ns = (batch.delay_ns - wait.delay_ns).min(batch.clock_ns - due_ns);
            since = Instant {
                clock_ns: batch.clock_ns - queued_ns,
                delay_ns: batch.delay_ns - queued_ns,
            };
        }
        if recorder.is_in_window(now_ns) {
            self.certain.add(since, self.now);
        }
        since.clock_ns
    }

    /// Books the time until each unsent request was sent, in the order of their writing.
    fn book_sending(&mut self, began: Instant, ended: Instant, recorder: &Recorder) {
        let is_in_window = recorder.is_in_window(began.clock_ns);
        let count = self.unsent.len() as u64;
        for (place, client) in (0..).zip(self.unsent.drain(..)) {
            let sent = began.towards(ended, place, count);
            let written = std::mem::replace(&mut self.clients[client].at, sent);
            if is_in_window {
                self.certain.add(written, sent);
            }
        }
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
                self.delay_at_window_ns = Some(self.now.delay_ns);
            }
            Some(begin_ns)
                if now_ns >= recorder.window_end_ns && self.certain.run_queue_ns == 0 =>
            {
                self.read_delay();
                self.certain.run_queue_ns = self.now.delay_ns - begin_ns;
            }
            _ => {}
        }
    }

    #[inline]
    fn stamp(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.now.clock_ns) > GAP_NS {
            self.read_delay();
        }
        self.now.clock_ns = now_ns;
    }

    #[cold]
    fn read_delay(&mut self) {
        if let Some(delay_ns) = (self.read)() {
            self.now.delay_ns = delay_ns.max(self.now.delay_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const MS: u64 = 1_000_000;
    const US: u64 = 1_000;
    const EPOLL: BatchTraits = BatchTraits {
        max: 256,
        sends_in_wait: false,
        work_ns: 10 * US,
    };
    const URING: BatchTraits = BatchTraits {
        max: 1,
        sends_in_wait: true,
        ..EPOLL
    };

    /// A thread whose clock and run-queue wait the test sets.
    struct Thread {
        account: DelayAccount,
        recorder: Recorder,
        delay: Arc<AtomicU64>,
        now_ns: u64,
    }

    impl Thread {
        /// All clients have just written their first request.
        fn new(clients: usize, traits: BatchTraits) -> Self {
            let delay = Arc::new(AtomicU64::new(0));
            let known = Arc::clone(&delay);
            let read = Box::new(move || Some(known.load(Ordering::Relaxed)));
            let mut recorder = Recorder::new(1, clients);
            recorder.reset(0, u64::MAX);
            let mut account = DelayAccount::new(clients, traits, true, MS, read);
            (0..clients).for_each(|client| account.request_sent(client));
            Self {
                account,
                recorder,
                delay,
                now_ns: MS,
            }
        }

        fn runs(&mut self, ns: u64) {
            self.now_ns += ns;
        }

        fn waits_for_a_cpu(&mut self, ns: u64) {
            self.now_ns += ns;
            self.delay.fetch_add(ns, Ordering::Relaxed);
        }

        /// Begins to wait after it has checked for arrivals.
        fn checks(&mut self, sending_ns: u64, has_arrivals: bool) {
            self.account.wait_begins(self.now_ns);
            assert!(self.account.wants_check());
            self.runs(sending_ns);
            self.account
                .checked(self.now_ns, has_arrivals, &self.recorder);
        }

        fn finds_arrivals(&mut self) {
            self.account.batch_arrived(self.now_ns, &self.recorder);
        }

        /// Reads replies and writes the next requests, 1 µs each.
        fn answers(&mut self, clients: std::ops::Range<usize>) {
            for client in clients {
                self.runs(US);
                self.account
                    .read_begins(client, self.now_ns, &self.recorder);
                self.account.request_sent(client);
            }
        }

        fn continues(&mut self, due_ns: u64) -> u64 {
            self.account
                .sleep_ended(due_ns, self.now_ns, &self.recorder)
        }

        fn certain_us(&self) -> (u64, u64) {
            let time = self.account.certain();
            (time.busy_ns / US, time.run_queue_ns / US)
        }

        fn possible_us(&self) -> (u64, u64) {
            let time = self.account.possible();
            (time.busy_ns / US, time.run_queue_ns / US)
        }
    }

    /// Regression: a client whose `\sleep` ended while another program had the thread's CPU slept until the
    /// thread had it again, according to the account, as if its script required that.
    #[test]
    fn after_the_end_of_its_sleep_a_client_waits_for_the_thread() {
        let mut thread = Thread::new(4, EPOLL);
        thread.checks(US, false);
        let due_ns = thread.now_ns + 3 * MS;
        // The thread is woken for another client, and gets its CPU 10 ms later.
        thread.runs(2 * MS);
        thread.waits_for_a_cpu(10 * MS);
        thread.finds_arrivals();
        thread.runs(50 * US);
        assert_eq!(thread.continues(due_ns), due_ns);
        assert_eq!(thread.certain_us(), (50, 9000));
        // Nobody wakes the thread earlier: it sleeps until the timer, and 60 µs longer.
        thread.account.wait_begins(thread.now_ns);
        let due_ns = thread.now_ns + MS;
        thread.runs(MS + 60 * US);
        thread.waits_for_a_cpu(100 * US);
        thread.finds_arrivals();
        assert_eq!(thread.continues(due_ns), due_ns + 60 * US);
        assert_eq!(thread.certain_us(), (50, 9100));
        // The thread is busy when it ends.
        let due_ns = thread.now_ns + 10 * US;
        thread.runs(40 * US);
        assert_eq!(thread.continues(due_ns), due_ns);
        assert_eq!(thread.certain_us(), (80, 9100));
    }

    fn sum_to(clients: u64) -> u64 {
        (1..=clients).sum()
    }

    /// One thread, 64 clients: all of them may have waited for the thread's CPU, and then they wait
    /// for the clients before them.
    #[test]
    fn every_ready_client_waits_for_the_threads_processor() {
        let mut thread = Thread::new(64, EPOLL);
        thread.checks(0, false);
        thread.runs(MS);
        thread.waits_for_a_cpu(3 * MS);
        thread.finds_arrivals();
        thread.answers(0..64);
        assert_eq!(thread.possible_us(), (0, 64 * 3_000));
        assert_eq!(thread.certain_us(), (sum_to(64), 0));
    }

    /// On a saturated machine the thread loses its CPU to the servers that it wakes, and finds all
    /// their replies at once when it has it again.
    #[test]
    fn replies_to_a_thread_that_never_sleeps_may_have_waited_since_their_requests() {
        let mut thread = Thread::new(64, EPOLL);
        thread.checks(0, false);
        thread.runs(MS);
        thread.finds_arrivals();
        thread.answers(0..32);
        thread.waits_for_a_cpu(MS);
        thread.answers(32..64);
        // To find 64 arrivals takes longer than an idle wait, which once counted as sleep.
        thread.checks(20 * US, true);
        thread.finds_arrivals();
        thread.answers(0..64);
        let (busy_us, run_queue_us) = thread.possible_us();
        assert_eq!(run_queue_us, 32 * 1_000);
        assert_eq!(busy_us, 64 * 20 + (0..64).sum::<u64>());
        assert_eq!(thread.certain_us(), (2 * sum_to(64), 32 * 1_000));
    }

    #[test]
    fn delay_within_a_batch_is_certain() {
        let mut thread = Thread::new(4, EPOLL);
        thread.checks(0, true);
        thread.finds_arrivals();
        thread.answers(0..2);
        thread.waits_for_a_cpu(2 * MS);
        thread.answers(2..4);
        assert_eq!(thread.certain_us(), (sum_to(4), 2 * 2_000));
        assert_eq!(thread.possible_us(), (0, 0));
    }

    #[test]
    fn no_client_waited_through_a_delay_before_its_thread_slept() {
        let mut thread = Thread::new(2, EPOLL);
        thread.waits_for_a_cpu(5 * MS);
        thread.checks(0, false);
        thread.runs(MS);
        thread.finds_arrivals();
        thread.answers(0..2);
        assert_eq!(thread.certain_us(), (3, 0));
        assert_eq!(thread.possible_us(), (0, 0));
    }

    #[test]
    fn one_request_needs_no_check_and_a_long_wait_is_sleep() {
        let mut thread = Thread::new(2, EPOLL);
        thread.checks(0, false);
        thread.finds_arrivals();
        thread.answers(0..1);
        for (wait_us, possible_us) in [(100, 0), (5, 5)] {
            thread.account.wait_begins(thread.now_ns);
            assert!(!thread.account.wants_check());
            thread.runs(wait_us * US);
            thread.finds_arrivals();
            let before_us = thread.possible_us().0;
            thread.answers(0..1);
            assert_eq!(thread.possible_us().0 - before_us, possible_us);
        }
    }

    /// A wait takes no more than 256 arrivals.
    #[test]
    fn leftover_arrivals_include_the_earlier_wait() {
        let mut thread = Thread::new(512, EPOLL);
        thread.checks(0, false);
        thread.waits_for_a_cpu(3 * MS);
        for batch in [0..256, 256..512] {
            thread.finds_arrivals();
            thread.answers(batch);
            thread.account.wait_begins(thread.now_ns);
            thread
                .account
                .checked(thread.now_ns, true, &thread.recorder);
        }
        assert_eq!(thread.possible_us(), (256 * 256, 512 * 3_000));
    }

    /// A thread that was woken sees one arrival, though others came while it waited for a CPU.
    #[test]
    fn arrivals_after_a_wake_up_with_one_include_the_wake_up() {
        let mut thread = Thread::new(3, URING);
        thread.checks(0, false);
        thread.runs(MS);
        thread.waits_for_a_cpu(2 * MS);
        thread.finds_arrivals();
        thread.answers(0..1);
        // To receive them takes longer than an idle wait.
        thread.checks(50 * US, true);
        thread.finds_arrivals();
        thread.answers(1..3);
        assert_eq!(thread.possible_us(), (2 * 51, 3 * 2_000));
    }

    /// Requests that are sent together wait for those before them, and for a CPU.
    #[test]
    fn joint_sending_delays_requests() {
        let mut thread = Thread::new(4, URING);
        thread.runs(50 * US);
        thread.account.wait_begins(thread.now_ns);
        thread.runs(8 * US);
        thread.waits_for_a_cpu(400 * US);
        thread
            .account
            .checked(thread.now_ns, false, &thread.recorder);
        // Sent after 0, 1/4, 2/4 and 3/4 of the sending.
        let shares = 6;
        let busy_us = 4 * 50 + shares * 8 / 4;
        assert_eq!(thread.certain_us(), (busy_us, shares * 400 / 4));
        assert_eq!(thread.possible_us(), (0, 0));
    }

    #[test]
    fn one_client_waits_through_all_its_threads_delays_in_the_window() {
        let mut thread = Thread::new(1, EPOLL);
        thread.recorder.reset(10 * MS, 20 * MS);
        for now_ms in 1..25 {
            thread.delay.store(now_ms * 1_000, Ordering::Relaxed);
            thread.account.batch_arrived(now_ms * MS, &thread.recorder);
        }
        thread.account.run_ended(&thread.recorder);
        assert_eq!(thread.account.certain().run_queue_ns, 10_000);
    }

    #[test]
    fn run_queue_wait_is_none_if_not_reported() {
        let account = DelayAccount::new(3, EPOLL, false, 0, Box::new(|| None));
        assert_eq!(account.run_queue_ns(account.certain()), None);
    }
}
