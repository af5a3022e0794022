//! Requests that cannot be sent in one piece: the rest is kept and sent when there is room.

use std::io;

use super::UringDriver;
use crate::driver::system_calls::{send_now, shut_down};

impl UringDriver {
    /// Handles a send that failed or was cut short.
    #[cold]
    pub(super) fn keep_unsent(&mut self, slot: usize, result: i32) -> io::Result<()> {
        let sent = match result {
            0.. => result as usize,
            _ if matches!(-result, libc::EAGAIN | libc::EINTR) => 0,
            _ => {
                self.fail(slot, io::Error::from_raw_os_error(-result));
                return Ok(());
            }
        };
        let length = self.slots[slot].sending_bytes;
        let rest = self.arena.sending(slot, length)[sent..].to_vec();
        if self.slots[slot].fd.is_none() || rest.is_empty() {
            return Ok(());
        }
        self.slots[slot].unsent = rest;
        self.wait_for_room(slot)
    }

    /// Handles a failed send: the end of the connection arrives after the server's last message.
    #[cold]
    fn fail(&mut self, slot: usize, error: io::Error) {
        let slot = &mut self.slots[slot];
        if let Some(fd) = &slot.fd {
            shut_down(fd);
        }
        slot.unsent.clear();
        slot.error = Some(error);
    }

    /// Sends the unsent rest when there is room; returns whether to report `Arrival::Writable`.
    pub(super) fn use_room(&mut self, slot: usize) -> io::Result<bool> {
        let state = &mut self.slots[slot];
        let Some(fd) = &state.fd else {
            return Ok(false);
        };
        match send_now(fd, &state.unsent) {
            Ok(sent) => {
                state.unsent.drain(..sent);
                if state.unsent.is_empty() {
                    return Ok(std::mem::take(&mut state.wants_room));
                }
                self.wait_for_room(slot).map(|()| false)
            }
            Err(error) => {
                self.fail(slot, error);
                Ok(false)
            }
        }
    }

    /// Sends a long request immediately.
    pub(super) fn send_long(&mut self, slot: usize, bytes: &[u8]) -> io::Result<usize> {
        let Some(fd) = &self.slots[slot].fd else {
            return Ok(bytes.len());
        };
        match send_now(fd, bytes) {
            Ok(sent) if sent < bytes.len() => {
                self.slots[slot].wants_room = true;
                self.wait_for_room(slot)?;
                Ok(sent)
            }
            Ok(sent) => Ok(sent),
            Err(error) => {
                self.fail(slot, error);
                Ok(bytes.len())
            }
        }
    }
}
