//! The server's end of a connection, with a scripted behavior.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// A message of the server.
pub fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap();
    [&[tag][..], &length.to_be_bytes(), body].concat()
}

/// One connection of the server, with unprocessed input.
pub struct Peer {
    pub stream: UnixStream,
    read: Vec<u8>,
}

impl Peer {
    pub fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            read: Vec::new(),
        }
    }

    /// Accepts the start-up message and lets the client in.
    pub fn sign_in(&mut self) {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).unwrap();
        let mut body = vec![0; u32::from_be_bytes(length) as usize - 4];
        self.stream.read_exact(&mut body).unwrap();
        self.send(&[
            message(b'R', &[0; 4]),
            message(b'K', &[0, 0, 0, 77, 0, 0, 0, 1]),
            message(b'Z', b"I"),
        ]);
    }

    /// Reads messages up to one that requires an answer; returns their types.
    pub fn request(&mut self) -> Option<String> {
        let mut types = String::new();
        loop {
            while let Some(length) = self.read.get(1..5) {
                let length = u32::from_be_bytes(length.try_into().unwrap()) as usize;
                if self.read.len() < 1 + length {
                    break;
                }
                let tag = char::from(self.read[0]);
                self.read.drain(..=length);
                types.push(tag);
                if matches!(tag, 'Q' | 'S') {
                    return Some(types);
                }
                if tag == 'X' {
                    return None;
                }
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer) {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.read.extend(&buffer[..count]),
            }
        }
    }

    pub fn send(&mut self, messages: &[Vec<u8>]) {
        // A client may have given up.
        self.stream.write_all(&messages.concat()).ok();
    }
}

/// A result of one row.
pub fn row() -> Vec<Vec<u8>> {
    let columns = b"\0\x01name\0\0\0\0\0\0\0\0\0\0\x19\xff\xff\xff\xff\xff\xff\0\0";
    vec![
        message(b'T', columns),
        message(b'D', &[0, 1, 0, 0, 0, 3, b'a', b'b', b'c']),
        message(b'C', b"SELECT 1\0"),
        message(b'Z', b"I"),
    ]
}
