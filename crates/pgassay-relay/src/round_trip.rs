//! Measures a round trip of one byte, with and without a relay.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::relay::Relay;

/// Untimed round trips at the beginning, until both threads have run and the sockets are warm.
const WARM_UP: u32 = 20;
/// Timed round trips, unless the delay is long.
const TIMED: u32 = 300;
/// Approximate time limit for the timed round trips.
const TIME_MAX: Duration = Duration::from_millis(300);

/// Median round trips of one byte between two threads, over TCP on loopback.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RoundTrips {
    /// Without a relay.
    pub direct_us: f64,
    /// Through a relay.
    pub relayed_us: f64,
}

/// Measures both, with a relay that adds `delay`.
///
/// # Errors
/// No socket or no thread is available.
pub fn round_trips(delay: Duration) -> io::Result<RoundTrips> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let echo = std::thread::Builder::new().spawn(move || {
        // One connection directly, one through the relay.
        for _ in 0..2 {
            let Ok((socket, _)) = listener.accept() else {
                return;
            };
            echo(socket).ok();
        }
    })?;
    let direct_us = median_us(address, Duration::ZERO)?;
    let relay = Relay::start(address, delay).map_err(io::Error::other)?;
    let relayed_us = median_us(relay.address(), delay)?;
    drop(relay);
    // Both connections have ended, so the thread ends.
    echo.join().ok();
    Ok(RoundTrips {
        direct_us,
        relayed_us,
    })
}

fn echo(mut socket: TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let mut byte = [0];
    while socket.read(&mut byte)? > 0 {
        socket.write_all(&byte)?;
    }
    Ok(())
}

fn median_us(address: SocketAddr, delay: Duration) -> io::Result<f64> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    let affordable = TIME_MAX.as_nanos() / delay.as_nanos().max(1);
    let timed = TIMED.min(affordable as u32).max(5);
    let mut took_us = Vec::new();
    let mut byte = [7];
    for _ in 0..WARM_UP.min(timed) + timed {
        let begin = Instant::now();
        socket.write_all(&byte)?;
        socket.read_exact(&mut byte)?;
        took_us.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    let timed = &mut took_us[WARM_UP.min(timed) as usize..];
    timed.sort_by(f64::total_cmp);
    Ok(timed[timed.len() / 2])
}
