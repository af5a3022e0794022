//! Streams that the system refuses to write to.

use std::io::{self, Read, Write};

use pgassay_wire::{Exchange, ExchangeError, Login};

/// `AuthenticationOk` and `ReadyForQuery`.
const SIGNED_IN: &[u8] = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I";
/// The FATAL error of a server that shuts down.
const SHUTDOWN: &[u8] = b"E\0\0\0\x1dSFATAL\0C57P01\0Mshutting\0\0";

/// A server that lets a client in; then writes fail with this error, and `after` can be read.
struct Refusing {
    errno: i32,
    writes: u32,
    read: usize,
    after: &'static [u8],
}

impl Refusing {
    fn with(errno: i32, after: &'static [u8]) -> Self {
        Self {
            errno,
            writes: 0,
            read: 0,
            after,
        }
    }
}

impl Read for Refusing {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read += 1;
        let bytes = match self.read {
            1 => SIGNED_IN,
            2 => self.after,
            _ => b"",
        };
        assert!(
            self.read == 1 || !self.after.is_empty(),
            "a real server would not answer"
        );
        buffer[..bytes.len()].copy_from_slice(bytes);
        Ok(bytes.len())
    }
}

impl Write for Refusing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writes += 1;
        match self.writes {
            1 => Ok(bytes.len()),
            _ => Err(io::Error::from_raw_os_error(self.errno)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn error_of(stream: Refusing) -> ExchangeError {
    let mut exchange = Exchange::open(stream, &Login::default()).unwrap();
    exchange.query("select 1").unwrap_err()
}

/// Regression test: `pgassay bench -i` waited for ever for the answer to a statement that it could not
/// send.
#[test]
fn a_request_that_cannot_be_sent_is_an_error_at_once() {
    const ENOMEM: i32 = 12;
    let error = error_of(Refusing::with(ENOMEM, b""));
    assert!(error.to_string().contains("os error 12"), "{error}");
}

#[test]
fn a_server_that_closed_the_connection_has_the_last_word() {
    const EPIPE: i32 = 32;
    let error = error_of(Refusing::with(EPIPE, SHUTDOWN));
    assert!(error.to_string().contains("shutting"), "{error}");
}

/// Regression: "… may be in use: Resource temporarily unavailable".
#[test]
fn a_failed_stream_is_described_once() {
    use std::error::Error;

    let late = ExchangeError::from(io::Error::from(io::ErrorKind::WouldBlock));
    assert!(late.to_string().contains("within the time limit"));
    assert!(late.source().is_none());
}
