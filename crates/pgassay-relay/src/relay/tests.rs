use std::io::{Read, Write};
use std::time::Instant;

use super::*;

/// A server that echoes until its client closes, then sends `bye`.
fn echo() -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut buffer = [0; 4096];
        loop {
            match socket.read(&mut buffer).unwrap() {
                0 => break,
                count => socket.write_all(&buffer[..count]).unwrap(),
            }
        }
        // Some clients have closed the connection by now.
        socket.write_all(b"bye").ok();
    });
    (address, thread)
}

fn client(relay: &Relay) -> TcpStream {
    let socket = TcpStream::connect(relay.address()).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    socket.set_nodelay(true).unwrap();
    socket
}

#[test]
fn a_round_trip_takes_at_least_the_delay_and_keeps_its_bytes() {
    let (address, server) = echo();
    let relay = Relay::start(address, Duration::from_millis(4)).unwrap();
    let mut socket = client(&relay);
    let mut answer = [0; 5];
    for _ in 0..5 {
        let begin = Instant::now();
        socket.write_all(b"hello").unwrap();
        socket.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"hello");
        assert!(begin.elapsed() >= Duration::from_millis(4));
    }
    // A piece is counted after it has left, so its reader may see it earlier.
    let deadline = Instant::now() + Duration::from_mins(1);
    while relay.lateness().pieces < 10 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(relay.lateness().pieces >= 10);
    drop(socket);
    server.join().unwrap();
}

/// Requests in flight do not wait for each other: this is what makes a pipeline fast.
#[test]
fn requests_in_flight_do_not_wait_for_each_other() {
    let (address, server) = echo();
    let relay = Relay::start(address, Duration::from_millis(200)).unwrap();
    let mut socket = client(&relay);
    let begin = Instant::now();
    for _ in 0..50 {
        socket.write_all(b"x").unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut answer = [0; 50];
    socket.read_exact(&mut answer).unwrap();
    // Sequentially, they would take 10 s.
    assert!(
        begin.elapsed() < Duration::from_secs(5),
        "{:?}",
        begin.elapsed()
    );
    drop(socket);
    server.join().unwrap();
}

#[test]
fn megabytes_arrive_in_order_in_both_directions_before_the_end() {
    let (address, server) = echo();
    let relay = Relay::start(address, Duration::from_millis(1)).unwrap();
    let socket = client(&relay);
    let sent: Vec<u8> = (0..20_000_000_u32).map(|at| (at % 251) as u8).collect();
    let mut writing = socket.try_clone().unwrap();
    let expected = sent.clone();
    let writer = std::thread::spawn(move || {
        writing.write_all(&sent).unwrap();
        writing.shutdown(Shutdown::Write).unwrap();
    });
    let mut got = Vec::new();
    (&socket).read_to_end(&mut got).unwrap();
    writer.join().unwrap();
    server.join().unwrap();
    let (words, bye) = got.split_at(got.len() - 3);
    assert_eq!(bye, b"bye");
    assert!(words == expected);
}

#[test]
fn the_connection_closes_if_the_server_is_unreachable() {
    let nobody = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .unwrap()
        .local_addr()
        .unwrap();
    let relay = Relay::start(nobody, Duration::ZERO).unwrap();
    let mut socket = client(&relay);
    let mut byte = [0];
    assert!(matches!(socket.read(&mut byte), Ok(0) | Err(_)));
}

/// Regression: with two servers, the lateness of the second one's relay was left out.
#[test]
fn the_lateness_of_two_relays_is_that_of_all_their_pieces() {
    let of = |pieces, mean_us, max_us| Lateness {
        pieces,
        mean_us,
        max_us,
    };
    assert_eq!(of(30, 2.0, 9.0).merged(of(10, 6.0, 7.0)), of(40, 3.0, 9.0));
    let none = Lateness::default();
    assert_eq!(none.merged(none), none);
}

#[test]
fn round_trips_measures_the_overhead_of_the_relay() {
    let found = crate::round_trips(Duration::from_millis(2)).unwrap();
    assert!(
        found.direct_us > 0.0 && found.relayed_us >= 2000.0,
        "{found:?}"
    );
}
