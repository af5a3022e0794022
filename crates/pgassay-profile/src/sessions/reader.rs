//! Reads all sessions at one instant from the server's shared memory.
//!
//! A sweep reads the array of entries once, to see which slots are used, and then each used slot in one
//! go: entry, text, application name, wait event, and the entry's change count again. If the count is
//! odd or has changed, the slot is read again at once (`pgstat_read_current_status`). Each slot is read
//! on a schedule that does not depend on what its session does; else short statements would be seen too
//! rarely.
//!
//! With hundreds of sessions, most are idle. Then the entries of some slots are read at once, and the rest
//! only of those that are not idle. A session whose entry has changed meanwhile counts with its first
//! entry, so short statements are still seen as often as they run; an entry that becomes idle keeps the
//! text of its last statement (`pgstat_report_activity`). Its wait event may be that of a later state,
//! so it has none.

use std::io::{self, Read, Write};
use std::ops::Range;
use std::sync::Arc;

use pgassay_wire::Exchange;

use super::entries::StatusArray;
use super::error::SessionsError;
use super::layout::{Entry, u32_at, until_zero};
use super::learning;
use super::reading::{SessionIdentity, SessionReading, SessionState, SessionWait};
use super::shared::mapping_around;
use crate::proc::live::LiveServer;
use crate::proc::memory;
use crate::proc::role::{Role, read_role};
use crate::waits::reader::WaitReader;

/// Vectors per system call (`UIO_MAXIOV`), of which a slot takes five.
const SLOTS_PER_CALL: usize = 1024 / PARTS;
const PARTS: usize = 5;
/// How often a slot that changes meanwhile is read again. A change takes well below a microsecond.
const ATTEMPTS: usize = 10;
/// With more used slots than this, those of idle sessions are recognized by their entries, which are read
/// first, for some slots at once: a tenth of the cost.
const MANY: usize = 256;
/// Slots whose entries are read at once. Their texts follow some microseconds later.
const ENTRIES_AT_ONCE: usize = 64;
/// Slots that were used this many sweeps ago are read without knowing whether they are used, so that
/// short sessions are not missed.
const REMEMBERED_SWEEPS: u64 = 100;

/// Reads the sessions of one server.
#[derive(Debug)]
pub struct SessionReader {
    array: StatusArray,
    waits: WaitReader,
    /// The mapping that contains the entries and all `PGPROC`s.
    mapping: Range<u64>,
    slots: Vec<SlotMemory>,
    sweeps: u64,
    entries: Vec<u8>,
    bytes: Vec<u8>,
}

/// What is known of a slot from earlier sweeps.
#[derive(Debug, Clone, Default)]
struct SlotMemory {
    /// The last sweep that found it used; 0 if none did.
    used: u64,
    identity: Option<Arc<SessionIdentity>>,
    wait_address: Option<u64>,
}

/// One reading of all sessions.
#[derive(Debug, Clone, Default)]
pub struct SessionSweep {
    /// All sessions except idle ones.
    pub sessions: Vec<SessionReading>,
    /// The PIDs of idle sessions.
    pub idle: Vec<u32>,
    /// Sessions that changed each time they were read.
    pub unreadable: u32,
}

impl SessionReader {
    /// Learns the layout of the entries on two connections; see the module `learning`. Both must
    /// be outside of a transaction. Changes settings of the first one; no longer needs either.
    pub fn learn<S: Read + Write>(
        server: &LiveServer,
        waits: WaitReader,
        subject: &mut Exchange<S>,
        observer: &mut Exchange<S>,
    ) -> Result<Self, SessionsError> {
        let array = learning::learn(server, subject, observer)?;
        let pid = server.postmaster_pid;
        let mapping = mapping_around(pid, array.first).map_err(SessionsError::unreadable(pid))?;
        Ok(Self {
            waits,
            mapping: mapping.ok_or(SessionsError::NoEntry)?,
            slots: vec![SlotMemory::default(); array.slots],
            array,
            sweeps: 0,
            entries: Vec::new(),
            bytes: Vec::new(),
        })
    }

    /// Slots for sessions, used or not.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The entries contain query IDs.
    pub fn has_query_ids(&self) -> bool {
        self.array.layout.query_id.is_some()
    }

    /// Reads all sessions. About 2 µs per session; if there are hundreds, a fifth of that per idle one.
    ///
    /// # Errors
    /// The server has stopped, or its memory is no longer readable.
    pub fn sweep(&mut self) -> io::Result<SessionSweep> {
        self.sweeps += 1;
        self.array.read_entries(&mut self.entries)?;
        let stride = self.array.layout.stride;
        for (slot, bytes) in self.entries.chunks_exact(stride).enumerate() {
            if u32_at(bytes, self.array.layout.pid) != 0 {
                self.slots[slot].used = self.sweeps;
            }
        }
        let since = self.sweeps.saturating_sub(REMEMBERED_SWEEPS).max(1);
        let used: Vec<usize> = (0..self.slots.len())
            .filter(|&slot| self.slots[slot].used >= since)
            .collect();
        let mut sweep = SessionSweep::default();
        let mut bytes = std::mem::take(&mut self.bytes);
        let length = self.slot_bytes();
        if used.len() > MANY {
            for slots in used.chunks(ENTRIES_AT_ONCE) {
                let busy = self.skip_idle(slots, &mut sweep)?;
                self.read_slots(&busy, &mut bytes)?;
                for (&slot, bytes) in busy.iter().zip(bytes.chunks_exact_mut(length)) {
                    self.restore_entry(slot, slots[0], bytes)?;
                    self.add(slot, bytes, &mut sweep)?;
                }
            }
        } else {
            for slots in used.chunks(SLOTS_PER_CALL) {
                self.read_slots(slots, &mut bytes)?;
                for (&slot, bytes) in slots.iter().zip(bytes.chunks_exact_mut(length)) {
                    self.add(slot, bytes, &mut sweep)?;
                }
            }
        }
        self.bytes = bytes;
        Ok(sweep)
    }

    /// Reads the entries of these slots, in ascending order, into `entries`. Adds those that are surely of
    /// known idle sessions, and returns the others.
    fn skip_idle(&mut self, slots: &[usize], sweep: &mut SessionSweep) -> io::Result<Vec<usize>> {
        let (Some(&first), Some(&last)) = (slots.first(), slots.last()) else {
            return Ok(Vec::new());
        };
        let layout = &self.array.layout;
        self.entries.resize((last + 1 - first) * layout.stride, 0);
        memory::read(
            self.array.postmaster_pid,
            self.array.entry_address(first),
            &mut self.entries,
        )?;
        let mut busy = Vec::new();
        for &slot in slots {
            let bytes = &self.entries[(slot - first) * layout.stride..][..layout.stride];
            let entry = Entry { bytes, layout };
            let is_consistent = u32_at(bytes, 0).is_multiple_of(2);
            if is_consistent && self.is_known(slot, &entry) && entry.state() == SessionState::Idle {
                sweep.idle.push(entry.pid());
            } else if !(is_consistent && entry.pid() == 0) {
                busy.push(slot);
            }
        }
        Ok(busy)
    }

    /// If the slot's session has become idle since its entry was read with those from `first` on,
    /// replaces its entry by that one.
    fn restore_entry(&self, slot: usize, first: usize, bytes: &mut [u8]) -> io::Result<()> {
        for _ in 0..ATTEMPTS {
            if consistent_count(bytes).is_some() {
                break;
            }
            self.read_into(&[slot], bytes)?;
        }
        let layout = &self.array.layout;
        let at = (slot - first) * layout.stride;
        let (Some(count), Some(earlier)) = (
            consistent_count(bytes),
            self.entries.get(at..at + layout.stride),
        ) else {
            return Ok(());
        };
        let now = Entry { bytes, layout };
        let is_idle_now = now.state() == SessionState::Idle && self.is_known(slot, &now);
        let entry = Entry {
            bytes: earlier,
            layout,
        };
        let was_consistent = u32_at(earlier, 0).is_multiple_of(2);
        if is_idle_now && was_consistent && self.is_known(slot, &entry) {
            bytes[..layout.stride].copy_from_slice(earlier);
            bytes[..4].copy_from_slice(&count.to_ne_bytes());
            let end = bytes.len();
            bytes[end - 8..end - 4].fill(0);
        }
        Ok(())
    }

    /// The slot's session is the one that was last seen there. Since 18, a session has no user and no database yet
    /// while it is authenticated.
    fn is_known(&self, slot: usize, entry: &Entry<'_>) -> bool {
        let known = self.slots[slot].identity.as_ref();
        known.is_some_and(|it| {
            it.pid == entry.pid()
                && it.started_us == entry.started_us()
                && it.user == entry.user()
                && it.database == entry.database()
        })
    }

    /// Bytes that are read of each slot.
    fn slot_bytes(&self) -> usize {
        self.array.layout.stride + self.array.text(0).1 + self.array.application(0).1 + 8
    }

    /// Reads slots in one call, each in the order entry, text, application name, wait, change count.
    fn read_slots(&self, slots: &[usize], into: &mut Vec<u8>) -> io::Result<()> {
        into.resize(slots.len() * self.slot_bytes(), 0);
        self.read_into(slots, into)
    }

    fn read_into(&self, slots: &[usize], into: &mut [u8]) -> io::Result<()> {
        let parts = slots.iter().flat_map(|&slot| {
            let entry = self.array.entry_address(slot);
            // Without a known address, reads the change count in its place.
            let wait = self.slots[slot].wait_address.unwrap_or(entry);
            [
                (entry, self.array.layout.stride),
                self.array.text(slot),
                self.array.application(slot),
                (wait, 4),
                (entry, 4),
            ]
        });
        let parts: Vec<(u64, usize)> = parts.collect();
        memory::read_parts(self.array.postmaster_pid, &parts, into)
    }

    /// Adds one slot's session, after reading it again if it changed meanwhile or is new.
    fn add(&mut self, slot: usize, bytes: &mut [u8], sweep: &mut SessionSweep) -> io::Result<()> {
        for _ in 0..ATTEMPTS {
            if consistent_count(bytes).is_some() {
                let entry = Entry {
                    bytes,
                    layout: &self.array.layout,
                };
                let pid = entry.pid();
                if pid == 0 {
                    return Ok(());
                }
                if self.is_known(slot, &entry) {
                    self.add_consistent(slot, bytes, sweep);
                    return Ok(());
                }
                let identity = self.identity(slot, bytes);
                self.slots[slot].wait_address = self.wait_address(pid);
                self.slots[slot].identity = Some(Arc::new(identity));
            }
            self.read_into(&[slot], bytes)?;
        }
        sweep.unreadable += 1;
        Ok(())
    }

    fn add_consistent(&mut self, slot: usize, bytes: &[u8], sweep: &mut SessionSweep) {
        let entry = Entry {
            bytes,
            layout: &self.array.layout,
        };
        let state = entry.state();
        if state == SessionState::Idle {
            sweep.idle.push(entry.pid());
            return;
        }
        let layout = &self.array.layout;
        let text_bytes = self.array.text(slot).1;
        let text = until_zero(&bytes[layout.stride..][..text_bytes]);
        let application = &bytes[layout.stride + text_bytes..][..self.array.application(slot).1];
        let application = until_zero(application);
        let memory = &mut self.slots[slot];
        let Some(identity) = &mut memory.identity else {
            return;
        };
        if identity.application.as_bytes() != application {
            let application = String::from_utf8_lossy(application);
            if identity.application != application {
                Arc::make_mut(identity).application = application.into_owned();
            }
        }
        let has_wait = memory.wait_address.is_some();
        let wait = match u32_at(bytes, bytes.len() - 8) {
            number if number != 0 && has_wait => SessionWait::Number(number),
            _ => SessionWait::None,
        };
        sweep.sessions.push(SessionReading {
            identity: Arc::clone(identity),
            state,
            transaction_started_us: entry.transaction_started_us(),
            activity_started_us: entry.activity_started_us(),
            state_changed_us: entry.state_changed_us(),
            query_id: entry.query_id(),
            is_cut: text.len() + 1 >= text_bytes,
            text: text.to_vec(),
            wait,
        });
    }

    fn identity(&self, slot: usize, bytes: &[u8]) -> SessionIdentity {
        let layout = &self.array.layout;
        let entry = Entry { bytes, layout };
        let pid = entry.pid();
        let (_, length) = self.array.application(slot);
        let application = &bytes[layout.stride + self.array.text(slot).1..][..length];
        let client = entry.client();
        let backend_type = backend_type(read_role(pid), entry.user(), &client);
        SessionIdentity {
            pid,
            started_us: entry.started_us(),
            backend_type,
            database: entry.database(),
            user: entry.user(),
            application: String::from_utf8_lossy(until_zero(application)).into_owned(),
            client,
        }
    }

    /// The address of a process's wait event in shared memory; `None` while it is not there yet.
    fn wait_address(&self, pid: u32) -> Option<u64> {
        let address = self.waits.address(pid).ok();
        address.filter(|address| self.mapping.contains(address))
    }
}

/// The type of a process from its role, the OID of its user, and its client's address.
fn backend_type(role: Role, user: u32, client: &str) -> String {
    match role {
        Role::Backend => "client backend".to_owned(),
        // The title may be cut off before the client; workers have none.
        Role::Other(_) if !client.is_empty() => "client backend".to_owned(),
        // A backend that is still starting has no title; only backends have users.
        Role::Unknown if user != 0 => "client backend".to_owned(),
        role => role.to_string(),
    }
}

/// The change count of a slot that did not change while it was read.
fn consistent_count(slot: &[u8]) -> Option<u32> {
    let before = u32_at(slot, 0);
    let after = u32_at(slot, slot.len() - 4);
    (before == after && before.is_multiple_of(2)).then_some(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a worker of an extension was a client backend.
    #[test]
    fn a_process_without_a_client_is_no_client_backend() {
        let type_of = |role, client| backend_type(role, 10, client);
        let title = "pg_wait_sampling collector";
        assert_eq!(type_of(Role::Other(title.to_owned()), ""), title);
        for client in ["local", "10.0.0.7"] {
            assert_eq!(type_of(Role::Backend, client), "client backend");
            let cut = Role::Other("ann sh".to_owned());
            assert_eq!(type_of(cut, client), "client backend");
        }
        assert_eq!(type_of(Role::Checkpointer, ""), "checkpointer");
        assert_eq!(type_of(Role::Unknown, ""), "client backend");
    }
}
