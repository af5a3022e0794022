//! Both drivers on real sockets.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use super::*;
use crate::clock::monotonic_ns;

/// Runs a test on each driver, with one client and the other end of its connection.
fn on_both(test: impl Fn(Io, UnixStream)) {
    for is_uring in [false, true] {
        let (driver, mut theirs) = with_clients(is_uring, 1);
        if let Some(driver) = driver {
            test(driver, theirs.remove(0));
        }
    }
}

fn with_clients(is_uring: bool, count: usize) -> (Option<Io>, Vec<UnixStream>) {
    let mut epoll = EpollDriver::new().unwrap();
    let theirs = (0..count).map(|client| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert_eq!(epoll.add(ours.into()).unwrap(), client);
        theirs
    });
    let theirs = theirs.collect();
    let mut driver = Io::Epoll(epoll);
    if is_uring {
        if let Err(reason) = probe() {
            pgassay_test_support::skip("io_uring", &reason);
            return (None, theirs);
        }
        driver.begin_uring().unwrap();
    }
    (Some(driver), theirs)
}

fn one_second_from_now() -> u64 {
    monotonic_ns() + 2_000_000_000
}

/// Reads everything from a client until its end; returns the data and the error at the end, if any.
fn read_to_end(driver: &mut Io, client: usize) -> (Vec<u8>, Option<io::Error>) {
    let (mut read, deadline_ns) = (Vec::new(), one_second_from_now());
    while monotonic_ns() < deadline_ns {
        driver.wait(deadline_ns).unwrap();
        while let Some(arrival) = driver.next().unwrap() {
            match arrival {
                Arrival::Bytes { client: of, count } if of == client => {
                    read.extend(driver.received(of, count));
                }
                Arrival::Closed { client: of, error } if of == client => return (read, error),
                _ => {}
            }
        }
    }
    panic!("no end after {} bytes", read.len());
}

#[test]
fn reads_until_the_connection_ends() {
    on_both(|mut driver, mut theirs| {
        theirs.write_all(b"abcdef").unwrap();
        drop(theirs);
        let (read, error) = read_to_end(&mut driver, 0);
        assert_eq!((read.as_slice(), error.is_none()), (&b"abcdef"[..], true));
    });
}

/// Regression test: a run panicked at its end if no epoll instance could be created for its
/// connections.
#[test]
fn a_driver_that_lost_its_connections_drops_what_is_sent() {
    on_both(|mut driver, _theirs| {
        match &mut driver {
            Io::Epoll(driver) => drop(driver.take_connections()),
            Io::Uring(driver) => drop(driver.take_connections().unwrap()),
        }
        assert_eq!(driver.send(0, b"terminate").unwrap(), 9);
    });
}

#[test]
fn reads_more_than_one_buffer() {
    on_both(|mut driver, mut theirs| {
        let message: Vec<u8> = (0..300_000_u32).map(|i| (i % 251) as u8).collect();
        let sent = message.clone();
        let writer = std::thread::spawn(move || theirs.write_all(&sent).unwrap());
        assert_eq!(read_to_end(&mut driver, 0).0, message);
        writer.join().unwrap();
    });
}

#[test]
fn blocked_send_continues_while_reading() {
    on_both(|mut driver, mut theirs| {
        let message: Vec<u8> = (0..4 << 20).map(|i: u32| (i % 253) as u8).collect();
        let mut sent = driver.send(0, &message).unwrap();
        assert!(sent < message.len());
        theirs.write_all(b"meanwhile").unwrap();
        let length = message.len();
        let reader = std::thread::spawn(move || {
            let mut read = vec![0; length];
            theirs.read_exact(&mut read).unwrap();
            // The connection stays open until the driver has seen everything else.
            (read, theirs)
        });
        let mut read: Vec<u8> = Vec::new();
        while sent < message.len() || read.is_empty() {
            driver.wait(one_second_from_now()).unwrap();
            while let Some(arrival) = driver.next().unwrap() {
                match arrival {
                    Arrival::Bytes { count, .. } => read.extend(driver.received(0, count)),
                    Arrival::Writable { client } => {
                        sent += driver.send(client, &message[sent..]).unwrap();
                    }
                    Arrival::Closed { .. } => panic!("closed"),
                }
            }
        }
        let (arrived, _theirs) = reader.join().unwrap();
        assert_eq!(arrived, message);
        assert_eq!(read, b"meanwhile");
    });
}

/// Short requests into a full socket: `io_uring` takes each one whole and sends it when there is
/// room.
#[test]
fn short_sends_into_a_full_socket() {
    on_both(|mut driver, mut theirs| {
        let piece: Vec<u8> = (0..5000_u32).map(|i| (i % 249) as u8).collect();
        let (mut expected, mut blocked) = (Vec::<u8>::new(), Vec::new());
        while blocked.is_empty() {
            let sent = driver.send(0, &piece).unwrap();
            driver.wait(0).unwrap();
            assert!(driver.next().unwrap().is_none());
            expected.extend(&piece);
            blocked.extend(&piece[sent..]);
            assert!(expected.len() < 16 << 20, "the socket does not fill up");
        }
        let length = expected.len();
        let reader = std::thread::spawn(move || {
            let mut read = vec![0; length];
            theirs.read_exact(&mut read).unwrap();
            (read, theirs)
        });
        while !blocked.is_empty() {
            driver.wait(one_second_from_now()).unwrap();
            while let Some(arrival) = driver.next().unwrap() {
                assert!(matches!(arrival, Arrival::Writable { client: 0 }));
                let sent = driver.send(0, &blocked).unwrap();
                blocked.drain(..sent);
            }
        }
        driver.wait(0).unwrap();
        assert!(reader.join().unwrap().0 == expected);
    });
}

#[test]
fn several_sends_between_waits_keep_their_order() {
    on_both(|mut driver, mut theirs| {
        for part in [&b"one "[..], b"two ", b"three"] {
            assert_eq!(driver.send(0, part).unwrap(), part.len());
        }
        driver.wait(0).unwrap();
        let mut read = [0; 13];
        theirs.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"one two three");
    });
}

#[test]
fn failed_send_ends_connection_after_last_message() {
    on_both(|mut driver, mut theirs| {
        theirs.write_all(b"goodbye").unwrap();
        drop(theirs);
        assert_eq!(driver.send(0, b"request").unwrap(), 7);
        let (read, error) = read_to_end(&mut driver, 0);
        assert_eq!(read, b"goodbye");
        assert_eq!(error.unwrap().kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(driver.send(0, b"more").unwrap(), 4);
    });
}

#[test]
fn closed_connection_sends_rest_and_causes_no_arrivals() {
    on_both(|mut driver, mut theirs| {
        driver.wait(0).unwrap();
        driver.send(0, b"X").unwrap();
        theirs.write_all(b"late").unwrap();
        driver.close(0);
        assert!(!driver.is_open(0));
        let mut read: Vec<u8> = Vec::new();
        theirs.read_to_end(&mut read).unwrap_or_default();
        assert_eq!(read, b"X");
        driver.wait(0).unwrap();
        assert!(driver.next().unwrap().is_none());
        assert_eq!(driver.send(0, b"nobody").unwrap(), 6);
    });
}

/// More connections than there are slots, each closed at a different stage.
#[test]
fn connections_are_replaced_many_times() {
    for is_uring in [false, true] {
        let (Some(mut driver), mut theirs) = with_clients(is_uring, 2) else {
            return;
        };
        for round in 0..200_usize {
            let client = round % 2;
            if round % 3 > 0 {
                theirs[client].write_all(b"stale").unwrap();
            }
            if round % 3 > 1 {
                driver.wait(one_second_from_now()).unwrap();
            }
            let (ours, new) = UnixStream::pair().unwrap();
            driver.replace(client, ours.into()).unwrap();
            theirs[client] = new;
            let text = format!("round {round}");
            theirs[client].write_all(text.as_bytes()).unwrap();
            let mut read: Vec<u8> = Vec::new();
            while read.is_empty() {
                driver.wait(one_second_from_now()).unwrap();
                while let Some(arrival) = driver.next().unwrap() {
                    match arrival {
                        Arrival::Bytes { client: of, count } if of == client => {
                            read.extend(driver.received(of, count));
                        }
                        Arrival::Bytes { .. } => {}
                        other => panic!("{other:?} in round {round}"),
                    }
                }
            }
            assert_eq!(read, text.as_bytes());
        }
    }
}

#[test]
fn waits_end_in_time() {
    on_both(|mut driver, _theirs| {
        for has_pwait2 in [true, false] {
            if let Io::Epoll(epoll) = &mut driver {
                epoll.has_pwait2 = has_pwait2;
            }
            let begin_ns = driver.now_ns();
            driver.wait(begin_ns + 5_000_000).unwrap();
            assert!(driver.now_ns() >= begin_ns + 5_000_000);
            assert!(driver.next().unwrap().is_none());
        }
    });
}

/// What arrives while drivers are switched is not lost, wherever it was buffered.
#[test]
fn switching_drivers_loses_nothing() {
    let (Some(mut driver), mut theirs) = with_clients(true, 1) else {
        return;
    };
    let mut theirs = theirs.remove(0);
    let (mut expected, mut read): (Vec<u8>, Vec<u8>) = (Vec::new(), Vec::new());
    for round in 0..40 {
        let text = format!("<{round}>");
        expected.extend(text.as_bytes());
        theirs.write_all(text.as_bytes()).unwrap();
        if round % 4 < 2 {
            driver.wait(0).unwrap();
        }
        if round % 2 == 0 {
            driver.end_uring().unwrap();
            driver.begin_uring().unwrap();
        } else {
            driver.end_uring().unwrap();
        }
        if round % 4 == 3 {
            while read.len() < expected.len() {
                driver.wait(one_second_from_now()).unwrap();
                while let Some(arrival) = driver.next().unwrap() {
                    let Arrival::Bytes { client: 0, count } = arrival else {
                        panic!("{arrival:?}");
                    };
                    read.extend(driver.received(0, count));
                }
            }
            driver.begin_uring().unwrap();
        }
    }
    assert_eq!(read, expected);
}

#[test]
fn upcoming_arrivals_are_known_before_they_are_read() {
    for is_uring in [false, true] {
        let (Some(mut driver), mut theirs) = with_clients(is_uring, 2) else {
            continue;
        };
        for their in &mut theirs {
            their.write_all(b"x").unwrap();
        }
        let mut left = 2;
        while left > 0 {
            driver.wait(one_second_from_now()).unwrap();
            loop {
                let upcoming = [driver.upcoming(0), driver.upcoming(1)];
                let Some(Arrival::Bytes { client, .. }) = driver.next().unwrap() else {
                    break;
                };
                assert_eq!(upcoming[0], Some(client));
                assert!(upcoming[1].is_none_or(|later| later != client));
                left -= 1;
            }
        }
        assert_eq!(driver.upcoming(0), None);
    }
}
