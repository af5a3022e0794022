//! The minimum CPU time of a client: what no client can save.
//!
//! `floor SOCKET_DIRECTORY PORT USER DATABASE CLIENTS SECONDS epoll|uring`
//!
//! Runs pgbench's select-only in prepared mode with libpq's messages (Bind, Describe, Execute,
//! Sync) on one thread, with the same system calls as the engine's drivers. It has no scripts, no
//! clock per transaction and no histogram, reads only the last six bytes of each reply, and stops
//! at any error. Prints two lines in pgbench's format. `benchmarks/against-pgbench --floor`
//! compares it with the other programs.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "an example fails by panicking, and prints"
)]

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, squeue, types};

/// As after `pgbench -i -s 10`.
const ROWS: u32 = 1_000_000;
const REPLY_BYTES: usize = 1024;
/// Frequent enough clock readings for a window of seconds.
const ROUNDS_PER_CLOCK_READ: u32 = 64;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, port, user, database, clients, seconds, driver] = &arguments[..] else {
        panic!("usage: floor DIRECTORY PORT USER DATABASE CLIENTS SECONDS epoll|uring")
    };
    let path = format!("{directory}/.s.PGSQL.{port}");
    let clients: usize = clients.parse().unwrap();
    let load = Load {
        streams: (0..clients)
            .map(|_| signed_in(&path, user, database))
            .collect(),
        request: request(),
        random: 42,
    };
    let meter = Meter {
        length: Duration::from_secs_f64(seconds.parse().unwrap()),
        begun: Instant::now(),
        transactions: 0,
        rounds: 0,
    };
    match driver.as_str() {
        "epoll" => epoll(load, meter),
        "uring" => uring(load, meter),
        _ => panic!("epoll or uring"),
    }
}

struct Meter {
    length: Duration,
    begun: Instant,
    transactions: u64,
    rounds: u32,
}

impl Meter {
    /// Whether the time is over, checking the clock only once in some rounds; prints the results
    /// when it is.
    fn is_over(&mut self) -> bool {
        self.rounds += 1;
        let is_read = self.length.is_zero() || self.rounds.is_multiple_of(ROUNDS_PER_CLOCK_READ);
        if !is_read || self.begun.elapsed() < self.length {
            return false;
        }
        println!(
            "number of transactions actually processed: {}\ntps = {:.6}",
            self.transactions,
            self.transactions as f64 / self.begun.elapsed().as_secs_f64()
        );
        true
    }
}

struct Load {
    streams: Vec<UnixStream>,
    request: Vec<u8>,
    random: u64,
}

impl Load {
    /// Returns the next request: another row, in seven digits.
    fn next(&mut self) -> &[u8] {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let mut row = (self.random >> 33) as u32 % ROWS + 1;
        for digit in self.request[DIGITS..DIGITS + 7].iter_mut().rev() {
            *digit = b'0' + (row % 10) as u8;
            row /= 10;
        }
        &self.request
    }
}

/// Offset of the row's digits in the request.
const DIGITS: usize = 1 + 4 + 1 + 2 + 2 + 2 + 4;

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend((body.len() as u32 + 4).to_be_bytes());
    bytes.extend(body);
    bytes
}

fn request() -> Vec<u8> {
    // The unnamed portal of statement "p", all in text format: one seven-byte parameter, one result
    // format.
    let bind = message(b'B', b"\0p\0\0\0\0\x01\0\0\0\x070000001\0\x01\0\0");
    [
        bind,
        message(b'D', b"P\0"),
        message(b'E', b"\0\0\0\0\0"),
        message(b'S', b""),
    ]
    .concat()
}

fn signed_in(path: &str, user: &str, database: &str) -> UnixStream {
    let mut stream = UnixStream::connect(path).unwrap();
    let mut body = 196_608_u32.to_be_bytes().to_vec();
    body.extend(format!("user\0{user}\0database\0{database}\0\0").as_bytes());
    let mut startup = (body.len() as u32 + 4).to_be_bytes().to_vec();
    startup.extend(body);
    stream.write_all(&startup).unwrap();
    until_ready(&mut stream);
    let sql = b"p\0SELECT abalance FROM pgbench_accounts WHERE aid = $1\0\0\0";
    let prepare = [message(b'P', sql), message(b'S', b"")].concat();
    stream.write_all(&prepare).unwrap();
    until_ready(&mut stream);
    stream
}

fn until_ready(stream: &mut UnixStream) {
    let mut seen = Vec::new();
    let mut buffer = [0; REPLY_BYTES];
    while !is_ready(&seen) {
        let count = stream.read(&mut buffer).unwrap();
        assert!(
            count > 0,
            "the server closed the connection: {}",
            String::from_utf8_lossy(&seen)
        );
        seen.extend(&buffer[..count]);
    }
}

/// Whether the reply ends with a `ReadyForQuery` outside a transaction.
fn is_ready(reply: &[u8]) -> bool {
    assert_ne!(
        reply.first(),
        Some(&b'E'),
        "{}",
        String::from_utf8_lossy(reply)
    );
    reply.ends_with(b"Z\0\0\0\x05I")
}

fn send(stream: &UnixStream, bytes: &[u8]) {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the pointer is to this many bytes, and the descriptor is open.
    let sent = unsafe {
        libc::send(
            stream.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            flags,
        )
    };
    assert_eq!(sent, bytes.len().cast_signed());
}

fn epoll(mut load: Load, mut meter: Meter) {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 256];
    let mut buffer = [0_u8; REPLY_BYTES];
    // SAFETY: for all calls, descriptors are open and pointers are to the stated objects.
    unsafe {
        let epoll = libc::epoll_create1(0);
        for index in 0..load.streams.len() {
            let fd = load.streams[index].as_raw_fd();
            let mut event = libc::epoll_event {
                events: (libc::EPOLLIN | libc::EPOLLET) as u32,
                u64: index as u64,
            };
            libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event);
            load.next();
            send(&load.streams[index], &load.request);
        }
        while !meter.is_over() {
            let found = libc::epoll_wait(epoll, events.as_mut_ptr(), 256, 1000);
            for event in &events[..found.max(0) as usize] {
                let index = event.u64 as usize;
                let fd = load.streams[index].as_raw_fd();
                let count = libc::recv(fd, buffer.as_mut_ptr().cast(), REPLY_BYTES, 0);
                assert!(count > 0, "the server closed the connection");
                if is_ready(&buffer[..count as usize]) {
                    meter.transactions += 1;
                    load.next();
                    send(&load.streams[index], &load.request);
                }
            }
        }
    }
}

fn uring(mut load: Load, mut meter: Meter) {
    const FIRST_POLL: u16 = 1;
    let clients = load.streams.len();
    // The kernel may write there after the ring is closed.
    let replies = vec![[0_u8; REPLY_BYTES]; clients].leak();
    let requests = vec![load.request.clone(); clients].leak();
    let mut ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_submit_all()
        .build((2 * clients).next_power_of_two().max(8) as u32)
        .unwrap();
    let fds: Vec<i32> = load.streams.iter().map(AsRawFd::as_raw_fd).collect();
    ring.submitter().register_files(&fds).unwrap();
    let mut ready: Vec<usize> = (0..clients).collect();
    let mut partial: Vec<usize> = Vec::new();
    while !meter.is_over() {
        for &index in &ready {
            requests[index].copy_from_slice(load.next());
            let file = types::Fixed(index as u32);
            let bytes = &requests[index];
            let entry = opcode::Send::new(file, bytes.as_ptr(), bytes.len() as u32)
                .flags(libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | libc::MSG_WAITALL)
                .build()
                .flags(squeue::Flags::SKIP_SUCCESS)
                .user_data(u64::MAX);
            // SAFETY: requests are never freed.
            unsafe { ring.submission().push(&entry).unwrap() };
        }
        for index in ready.drain(..).chain(partial.drain(..)) {
            let file = types::Fixed(index as u32);
            let place = replies[index].as_mut_ptr();
            let entry = opcode::Recv::new(file, place, REPLY_BYTES as u32)
                .ioprio(FIRST_POLL)
                .build()
                .user_data(index as u64);
            // SAFETY: replies are never freed.
            unsafe { ring.submission().push(&entry).unwrap() };
        }
        ring.submit_and_wait(1).unwrap();
        for done in ring.completion() {
            let index = done.user_data() as usize;
            assert!(done.result() > 0, "the server closed the connection");
            let count = done.result() as usize;
            if is_ready(&replies[index][..count]) {
                meter.transactions += 1;
                ready.push(index);
            } else {
                partial.push(index);
            }
        }
    }
}
