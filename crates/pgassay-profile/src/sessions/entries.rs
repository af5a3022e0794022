//! The array of status entries, and the texts they point to.

use std::io;

use super::layout::{ENTRY_BYTES_MAX, EntryLayout, u64_at};
use crate::proc::memory;

/// Longer texts are cut: reading them at each sweep would cost too much.
const TEXT_BYTES_MAX: usize = 16 << 10;
/// More slots than any server has (`MAX_BACKENDS` is larger, its memory is not).
const SLOTS_MAX: usize = 1 << 17;
/// Entries read in one step when the array's bounds are searched.
const STEP: usize = 32;

/// The entries of all slots. `CreateSharedBackendStatus` lays out entries, application names and
/// texts as three arrays, and sets all pointers once.
#[derive(Debug, Clone)]
pub(super) struct StatusArray {
    /// Any process of the server: shared memory is at the same address in all.
    pub postmaster_pid: u32,
    pub layout: EntryLayout,
    /// Address of the first entry.
    pub first: u64,
    pub slots: usize,
    /// Address of the first slot's application name, and the distance to the next one.
    pub applications: (u64, usize),
    /// Likewise for texts.
    pub texts: (u64, usize),
}

/// The pointers of one entry, from which the array's bounds follow.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownSlot {
    pub entry: u64,
    pub application: u64,
    pub text: u64,
    pub application_bytes: usize,
    pub text_bytes: usize,
}

impl StatusArray {
    /// Finds the bounds: in every slot, also an unused one, the pointers differ from those of its
    /// neighbor by constants.
    pub fn around(postmaster_pid: u32, layout: EntryLayout, known: &KnownSlot) -> io::Result<Self> {
        let after = count_slots(postmaster_pid, &layout, known, true)?;
        let before = count_slots(postmaster_pid, &layout, known, false)?;
        let back = |address: u64, distance: usize| address - (before * distance) as u64;
        Ok(Self {
            postmaster_pid,
            layout,
            first: back(known.entry, layout.stride),
            slots: before + 1 + after,
            applications: (
                back(known.application, known.application_bytes),
                known.application_bytes,
            ),
            texts: (back(known.text, known.text_bytes), known.text_bytes),
        })
    }

    pub fn entry_address(&self, slot: usize) -> u64 {
        self.first + (slot * self.layout.stride) as u64
    }

    /// Address and length of a slot's application name.
    pub fn application(&self, slot: usize) -> (u64, usize) {
        let (first, bytes) = self.applications;
        (first + (slot * bytes) as u64, bytes)
    }

    /// Address and readable length of a slot's text.
    pub fn text(&self, slot: usize) -> (u64, usize) {
        let (first, bytes) = self.texts;
        (first + (slot * bytes) as u64, bytes.min(TEXT_BYTES_MAX))
    }

    /// All entries, in one read.
    pub fn read_entries(&self, into: &mut Vec<u8>) -> io::Result<()> {
        into.resize(self.slots * self.layout.stride, 0);
        memory::read(self.postmaster_pid, self.first, into)
    }
}

/// The number of slots after (or before) the known one.
fn count_slots(
    pid: u32,
    layout: &EntryLayout,
    known: &KnownSlot,
    forward: bool,
) -> io::Result<usize> {
    let mut found = 0;
    let mut bytes = vec![0; STEP * layout.stride];
    while found < SLOTS_MAX {
        let first = found + 1;
        let (from, length) = if forward {
            let from = known.entry + (first * layout.stride) as u64;
            (from, memory::read_some(pid, from, &mut bytes).unwrap_or(0))
        } else {
            let back = ((first + STEP - 1) * layout.stride) as u64;
            // Whatever lies before shared memory is not an entry.
            let from = known.entry.saturating_sub(back);
            let read = memory::read_some(pid, from, &mut bytes).unwrap_or(0);
            if read < bytes.len() {
                return Ok(found + count_back_singly(pid, layout, known, first)?);
            }
            (from, read)
        };
        debug_assert!(from > 0);
        for step in 0..STEP {
            let at = if forward { step } else { STEP - 1 - step } * layout.stride;
            let is_whole = at + layout.stride <= length;
            let entry = bytes.get(at..at + layout.stride).unwrap_or_default();
            if !is_whole || !is_neighbor(entry, layout, known, first + step, forward) {
                return Ok(found);
            }
            found += 1;
        }
    }
    Ok(found)
}

/// Counts slots before the known one near the start of the mapping.
fn count_back_singly(
    pid: u32,
    layout: &EntryLayout,
    known: &KnownSlot,
    first: usize,
) -> io::Result<usize> {
    let mut entry = [0; ENTRY_BYTES_MAX];
    let entry = &mut entry[..layout.stride];
    for step in 0..STEP {
        let distance = first + step;
        let from = known.entry - (distance * layout.stride) as u64;
        let is_read = memory::read(pid, from, entry).is_ok();
        if !is_read || !is_neighbor(entry, layout, known, distance, false) {
            return Ok(step);
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

fn is_neighbor(
    entry: &[u8],
    layout: &EntryLayout,
    known: &KnownSlot,
    distance: usize,
    forward: bool,
) -> bool {
    let expected = |address: u64, bytes: usize| {
        let offset = (distance * bytes) as u64;
        if forward {
            address.wrapping_add(offset)
        } else {
            address.wrapping_sub(offset)
        }
    };
    u64_at(entry, layout.text) == expected(known.text, known.text_bytes)
        && u64_at(entry, layout.application) == expected(known.application, known.application_bytes)
}
