//! One thread with 64 clients, and a CPU hog pinned to the same CPU.
//!
//! A scripted server answers in rounds: it waits until every client has sent its request, lets the
//! client thread fall asleep, and writes all replies, taking a timestamp for each. A reply's delay
//! is the time from its timestamp to the end of its transaction, independent of the account under
//! test.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pgassay_load::{
    ClientPool, ClientPoolConfig, FailedTry, IoChoice, LoadError, Measurement, Observer, RunLength,
    Transaction,
};
use pgassay_script::{ParseOptions, ParsedScript, VariableNames};
use pgassay_test_support::{not_applicable, skip, timing_tests};
use pgassay_wire::conninfo::Target;

timing_tests! {
    a_hog_beside_64_clients_of_one_thread_is_seen_64_times,
}

const CLIENTS: u32 = 64;
/// Next to a hog of nice 0, the client thread gets 1.5% of the CPU. It needs more than that, so it
/// waits for many milliseconds in most rounds. That is long compared with the server's writing of all
/// replies, and with the kernel's receiving of all of them (0.1 ms), which the account leaves out.
/// With nice 10 it needed less than its share, and often ran as soon as it woke.
const NICE: i32 = 19;
/// A client that is silent for this long has ended.
const HEAR: Duration = Duration::from_millis(300);
/// On a busy machine the server may be unable to write its replies together.
const TRIES: u32 = 4;

fn io() -> IoChoice {
    if module_path!().ends_with("on_uring") {
        IoChoice::Auto
    } else {
        IoChoice::Epoll
    }
}

fn monotonic_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to our own timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Keeps the calling thread, and those that it starts, on one CPU; returns `false` if that is not
/// permitted.
fn pin(processor: usize) -> bool {
    // SAFETY: the set is our own, and its size is given.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) == 0
    }
}

fn processors() -> Vec<usize> {
    // SAFETY: the set is our own, and its size is given.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set);
        set
    };
    // SAFETY: every index is below the set's size.
    let is_in = |it: &usize| unsafe { libc::CPU_ISSET(*it, &set) };
    (0..libc::CPU_SETSIZE as usize).filter(is_in).collect()
}

/// When each client's replies were written, in the order of its transactions.
type Stamps = Arc<Mutex<HashMap<u32, Vec<u64>>>>;

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap();
    [&[tag][..], &length.to_be_bytes(), body].concat()
}

/// Accepts the start-up message and lets the client in.
fn sign_in(stream: &mut UnixStream) {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut body = vec![0; u32::from_be_bytes(length) as usize - 4];
    stream.read_exact(&mut body).unwrap();
    let messages = [
        message(b'R', &[0; 4]),
        message(b'K', &[0, 0, 0, 77, 0, 0, 0, 1]),
        message(b'Z', b"I"),
    ];
    stream.write_all(&messages.concat()).unwrap();
}

/// What a client sent.
enum Said {
    /// A simple query of one number: the client.
    Query(u32),
    /// Nothing for a while: its last transaction has ended.
    Nothing,
    Goodbye,
}

fn hear(stream: &mut UnixStream) -> Said {
    let mut head = [0; 5];
    match stream.read_exact(&mut head) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Said::Nothing,
        Err(_) => return Said::Goodbye,
        Ok(()) => {}
    }
    let mut body = vec![0; u32::from_be_bytes(*head.last_chunk().unwrap()) as usize - 4];
    stream.read_exact(&mut body).unwrap();
    let text = String::from_utf8(body).unwrap();
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    digits.parse().map_or(Said::Goodbye, Said::Query)
}

/// Serves all clients in rounds, until the first one leaves.
fn serve(listener: &UnixListener, stamps: &Stamps) {
    let accepted = listener.incoming().take(CLIENTS as usize);
    let mut streams: Vec<_> = accepted
        .map(|stream| {
            let mut stream = stream.unwrap();
            sign_in(&mut stream);
            stream.set_read_timeout(Some(HEAR)).unwrap();
            stream
        })
        .collect();
    let reply = [message(b'C', b"SELECT 1\0"), message(b'Z', b"I")].concat();
    loop {
        let mut asking = Vec::new();
        for (index, stream) in streams.iter_mut().enumerate() {
            match hear(stream) {
                Said::Query(client) => asking.push((index, client)),
                Said::Nothing => {}
                Said::Goodbye => return,
            }
        }
        std::thread::sleep(Duration::from_millis(2));
        for (index, client) in asking {
            // The timestamp is stored before anything can look for it.
            let mut stamps = stamps.lock().unwrap();
            stamps.entry(client).or_default().push(monotonic_ns());
            streams[index].write_all(&reply).ok();
        }
    }
}

/// Keeps when transactions ended.
#[derive(Clone, Default)]
struct Ends(Arc<Mutex<Vec<Transaction>>>);

impl Observer for Ends {
    fn transaction(&mut self, transaction: &Transaction) {
        self.0.lock().unwrap().push(*transaction);
    }
    fn failed_try(&mut self, _: &FailedTry<'_>) {}
    fn aborted(&mut self, _: u32, _: &LoadError) {}
}

/// Spins on the calling thread's CPU until told to stop.
fn hog(is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
}

/// Runs the load on one thread next to the hog; returns the measurement and the clients' delay in
/// µs.
fn run_next_to_hog(processor: usize) -> (Measurement, f64) {
    let directory = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(directory.path().join(".s.PGSQL.1")).unwrap();
    let (stamps, ends) = (Stamps::default(), Ends::default());
    let is_over = AtomicBool::new(false);
    let measured = std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(&listener, &stamps));
        let load = scope.spawn(|| {
            pin(processor);
            // SAFETY: the call changes only the calling thread's priority, to one that any user may
            // set; threads that it starts inherit it.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
            let mut names = VariableNames::new();
            let text = "select :client_id;";
            let script =
                ParsedScript::parse("test", text, &ParseOptions::default(), &mut names).unwrap();
            let target = Target::unix(directory.path().to_str().unwrap(), 1, "me", "me");
            let config = ClientPoolConfig {
                clients: CLIENTS,
                io: io(),
                ..ClientPoolConfig::new(target, Arc::new(script), Arc::new(names))
            };
            let mut pool = ClientPool::connect(&config, &Arc::new(AtomicBool::new(false))).unwrap();
            pool.keep_account(true);
            pool.observe(|_| Some(Box::new(ends.clone())));
            let measured = pool.run(&RunLength::Timed {
                settle: Duration::from_millis(50),
                measure: Duration::from_millis(1500),
            });
            pool.close();
            measured.unwrap()
        });
        scope.spawn(|| {
            pin(processor);
            hog(&is_over);
        });
        let measured = load.join();
        is_over.store(true, Ordering::Relaxed);
        server.join().unwrap();
        measured.unwrap()
    });
    let stamps = stamps.lock().unwrap();
    let window = measured.instants.window_begin_ns..measured.instants.window_end_ns;
    let ended = ends.0.lock().unwrap();
    let in_window = ended.iter().filter(|it| window.contains(&it.end_ns));
    let waited_ns = in_window.map(|it| {
        let written_ns = stamps[&it.client][usize::try_from(it.ended_before).unwrap()];
        it.end_ns.saturating_sub(written_ns)
    });
    let waited_us = waited_ns.sum::<u64>() as f64 / 1e3;
    (measured, waited_us)
}

/// The thread's own delay, counted once, is a small part of what its clients wait.
fn a_hog_beside_64_clients_of_one_thread_is_seen_64_times() {
    let processors = processors();
    let (Some(processor), true) = (processors.last(), processors.len() > 1) else {
        not_applicable(
            "a hog beside clients",
            "the server and the load need a CPU each",
        );
        return;
    };
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        let (measured, waited_us) = run_next_to_hog(*processor);
        let time = measured.time;
        let sum = |certain: Option<u64>, possible: Option<u64>| Some(certain? + possible?);
        // The hog delays the thread after the replies have been written, so all possible time was spent.
        let (Some(turn_us), Some(run_queue_us)) = (
            sum(time.thread_busy_us, time.possible_thread_busy_us),
            sum(time.client_run_queue_us, time.possible_run_queue_us),
        ) else {
            skip(
                "a hog beside clients",
                "the kernel does not report run-queue wait",
            );
            return;
        };
        let accounted_us = (turn_us + run_queue_us) as f64;
        let threads_own_us = measured.threads[0].run_queue_wait_us.unwrap() as f64;
        assert!(accounted_us <= time.in_transaction_us as f64);
        seen.push((waited_us, turn_us, run_queue_us, threads_own_us));
        let is_right = (0.9..1.1).contains(&(accounted_us / waited_us));
        // The hog causes run-queue wait, and it counts for all 64 clients, not once.
        let is_of_all = run_queue_us as f64 > 0.8 * waited_us && threads_own_us < 0.1 * waited_us;
        if is_right && is_of_all {
            return;
        }
    }
    panic!("waited, client thread busy, run queue, the thread's own wait, in µs: {seen:?}");
}
