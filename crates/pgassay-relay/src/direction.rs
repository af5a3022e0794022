//! One direction of a connection: pieces that were read and are not yet due, or not yet written.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

/// The maximum number of buffered bytes; beyond it, the relay stops reading.
const HELD_MAX: usize = 4 << 20;

/// The bytes of one read, and when they are due.
struct Piece {
    due_ns: u64,
    bytes: Vec<u8>,
    /// The number of bytes already written.
    sent: usize,
}

/// The pieces read from one socket and not yet written to the other.
#[derive(Default)]
pub(crate) struct RelayDirection {
    pieces: VecDeque<Piece>,
    held: usize,
    end: End,
    /// The receiving socket's buffer is full.
    pub is_blocked: bool,
}

/// The state of a stream's end.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// The stream has not ended.
    #[default]
    Far,
    /// The kernel has announced it, which it does only once. Bytes before it are still to be read.
    Announced,
    /// Everything was read.
    Read,
    /// It was forwarded.
    Forwarded,
}

/// The result of forwarding.
#[derive(Default)]
pub(crate) struct Forwarded {
    /// The number of pieces that began to leave.
    pub pieces: u64,
    /// How late they were: sum and maximum.
    pub late_sum_ns: u64,
    pub late_max_ns: u64,
}

impl RelayDirection {
    /// Reads everything available. An error ends the direction, like the end of the stream.
    pub fn read(&mut self, from: &mut TcpStream, buffer: &mut [u8], due_ns: u64) {
        while self.end < End::Read && self.held < HELD_MAX {
            match from.read(buffer) {
                Ok(0) => self.end = End::Read,
                Ok(count) => {
                    self.held += count;
                    self.pieces.push_back(Piece {
                        due_ns,
                        bytes: buffer[..count].to_vec(),
                        sent: 0,
                    });
                    // A short read has emptied the socket, unless the end of the stream is pending.
                    if count < buffer.len() && self.end == End::Far {
                        return;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.end = End::Read,
            }
        }
    }

    /// Notes that the kernel has announced the end of the stream.
    pub fn announce_end(&mut self) {
        self.end = self.end.max(End::Announced);
    }

    /// Writes all due pieces, one at a time.
    pub fn forward(
        &mut self,
        to: &mut TcpStream,
        now_ns: u64,
        passed: &mut Forwarded,
    ) -> io::Result<()> {
        self.is_blocked = false;
        while let Some(piece) = self.pieces.front_mut() {
            if piece.due_ns > now_ns {
                return Ok(());
            }
            if piece.sent == 0 {
                let late_ns = now_ns - piece.due_ns;
                passed.pieces += 1;
                passed.late_sum_ns += late_ns;
                passed.late_max_ns = passed.late_max_ns.max(late_ns);
            }
            match to.write(&piece.bytes[piece.sent..]) {
                Ok(count) => {
                    piece.sent += count;
                    self.held -= count;
                    if piece.sent == piece.bytes.len() {
                        self.pieces.pop_front();
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.is_blocked = true;
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        if self.end == End::Read {
            self.end = End::Forwarded;
            // The other side may have closed already.
            to.shutdown(std::net::Shutdown::Write).ok();
        }
        Ok(())
    }

    /// When the next piece is due, unless the receiving socket must become writable first.
    pub fn due_ns(&self) -> Option<u64> {
        let first = self.pieces.front().filter(|_| !self.is_blocked);
        first.map(|piece| piece.due_ns)
    }

    /// Whether more may be read.
    pub fn has_room(&self) -> bool {
        self.held < HELD_MAX
    }

    /// Whether everything, including the end, was forwarded.
    pub fn is_done(&self) -> bool {
        self.end == End::Forwarded
    }
}
