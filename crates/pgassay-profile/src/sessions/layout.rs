//! Where the fields of a status entry are.
//!
//! `PgBackendStatus` in `src/include/utils/backend_status.h` (before 14 `pgstat.h`). The order of its
//! fields is stable, their offsets are not. Microseconds in it count from 2000.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::reading::SessionState;

/// 2000-01-01 in microseconds since 1970 (`POSTGRES_EPOCH_JDATE`).
pub(super) const EPOCH_US: i64 = 946_684_800_000_000;
/// No entry is larger (18: 456 bytes).
pub(super) const ENTRY_BYTES_MAX: usize = 1024;
/// Address families of Linux (`socket.h`).
const AF_UNIX: u16 = 1;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// Offsets of an entry's fields, in bytes. The change count is the first field, which learning confirms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EntryLayout {
    /// Distance between two entries.
    pub stride: usize,
    pub pid: usize,
    pub backend_start: usize,
    pub transaction_start: usize,
    pub activity_start: usize,
    pub state_change: usize,
    /// The database's OID; the user's follows it, and then the client's address.
    pub database: usize,
    pub state: usize,
    /// The number of the state `idle`; the other states follow it in a stable order.
    pub idle: u32,
    /// Pointer to the application name.
    pub application: usize,
    /// Pointer to the text.
    pub text: usize,
    /// `None` if the server computes none for us.
    pub query_id: Option<usize>,
}

/// The bytes of one entry.
#[derive(Clone, Copy)]
pub(super) struct Entry<'a> {
    pub bytes: &'a [u8],
    pub layout: &'a EntryLayout,
}

impl Entry<'_> {
    pub fn pid(&self) -> u32 {
        u32_at(self.bytes, self.layout.pid)
    }

    pub fn started_us(&self) -> i64 {
        self.time_us(self.layout.backend_start)
    }

    pub fn transaction_started_us(&self) -> Option<i64> {
        Some(self.time_us(self.layout.transaction_start)).filter(|&time| time != 0)
    }

    pub fn activity_started_us(&self) -> i64 {
        self.time_us(self.layout.activity_start)
    }

    pub fn state_changed_us(&self) -> i64 {
        self.time_us(self.layout.state_change)
    }

    pub fn database(&self) -> u32 {
        u32_at(self.bytes, self.layout.database)
    }

    pub fn user(&self) -> u32 {
        u32_at(self.bytes, self.layout.database + 4)
    }

    pub fn query_id(&self) -> i64 {
        let offset = self.layout.query_id;
        offset.map_or(0, |offset| i64_at(self.bytes, offset))
    }

    /// States in the order of `BackendState`: idle, running, idle in transaction, fast-path call,
    /// idle in aborted transaction, disabled.
    pub fn state(&self) -> SessionState {
        match u32_at(self.bytes, self.layout.state).checked_sub(self.layout.idle) {
            Some(0) => SessionState::Idle,
            Some(1 | 3) => SessionState::Active,
            Some(2) => SessionState::IdleInTransaction,
            Some(4) => SessionState::IdleInAbortedTransaction,
            Some(5) => SessionState::Disabled,
            _ => SessionState::None,
        }
    }

    /// The client's address, from a `sockaddr`; empty if there is none.
    pub fn client(&self) -> String {
        let address = &self.bytes[self.layout.database + 8..];
        match u16::from_ne_bytes([address[0], address[1]]) {
            AF_UNIX => "local".to_owned(),
            AF_INET => {
                let octets: [u8; 4] = std::array::from_fn(|at| address[4 + at]);
                Ipv4Addr::from(octets).to_string()
            }
            AF_INET6 => {
                let octets: [u8; 16] = std::array::from_fn(|at| address[8 + at]);
                Ipv6Addr::from(octets).to_string()
            }
            _ => String::new(),
        }
    }

    fn time_us(&self, offset: usize) -> i64 {
        match i64_at(self.bytes, offset) {
            0 => 0,
            time => time.saturating_add(EPOCH_US),
        }
    }
}

pub(super) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_ne_bytes(std::array::from_fn(|at| bytes[offset + at]))
}

pub(super) fn i64_at(bytes: &[u8], offset: usize) -> i64 {
    i64::from_ne_bytes(std::array::from_fn(|at| bytes[offset + at]))
}

pub(super) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    i64_at(bytes, offset).cast_unsigned()
}

/// The bytes up to the first zero.
pub(super) fn until_zero(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|&byte| byte == 0);
    &bytes[..end.unwrap_or(bytes.len())]
}
