//! One direction of a connection: what was read and is not yet due, or not yet taken.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

/// As much may wait in a direction before no more is read.
const HELD_MAX: usize = 4 << 20;

/// What was read at once, and when it is to leave.
struct Piece {
    due_ns: u64,
    bytes: Vec<u8>,
    /// So many have left.
    sent: usize,
}

/// The pieces between one socket's reading and the other's writing.
#[derive(Default)]
pub(crate) struct Direction {
    pieces: VecDeque<Piece>,
    held: usize,
    end: End,
    /// The reader's socket takes no more for now.
    pub is_blocked: bool,
}

/// How far the end of a stream has come.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// It is not in sight.
    #[default]
    Far,
    /// The kernel has announced it, once; it is still to be read, after what came before it.
    Announced,
    /// Nothing more is to be read.
    Read,
    /// It has been passed on.
    Passed,
}

/// What passing on did.
#[derive(Default)]
pub(crate) struct Passed {
    /// Pieces that began to leave.
    pub pieces: u64,
    /// How late they were, all together and at most.
    pub late_sum_ns: u64,
    pub late_max_ns: u64,
}

impl Direction {
    /// Reads what is there. An error ends the direction as the end of the stream does.
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
                    // A short read has emptied the socket, unless its end is still to be read.
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

    /// The kernel has announced the end.
    pub fn announce_end(&mut self) {
        self.end = self.end.max(End::Announced);
    }

    /// Writes what is due, a piece at a time.
    pub fn pass(&mut self, to: &mut TcpStream, now_ns: u64, passed: &mut Passed) -> io::Result<()> {
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
            self.end = End::Passed;
            // The other side may be gone already.
            to.shutdown(std::net::Shutdown::Write).ok();
        }
        Ok(())
    }

    /// When something is to be done next, unless a socket wakes us first.
    pub fn due_ns(&self) -> Option<u64> {
        let first = self.pieces.front().filter(|_| !self.is_blocked);
        first.map(|piece| piece.due_ns)
    }

    /// Whether more may be read.
    pub fn has_room(&self) -> bool {
        self.held < HELD_MAX
    }

    /// Whether everything, the end included, has been passed on.
    pub fn is_done(&self) -> bool {
        self.end == End::Passed
    }
}
