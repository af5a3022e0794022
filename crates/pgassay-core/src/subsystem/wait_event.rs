//! From the number that a server keeps in its memory to the name of a wait.
//!
//! A backend publishes `wait_event_info`, 32 bits: the class in the uppermost byte, the event in
//! the lower two. Numbers change between majors (lightweight locks above all), so the table is by
//! major. See `src/include/utils/wait_event.h` (before 15 `pgstat.h`), `wait_event_names.txt`
//! (17+) and `lwlocknames.txt`; 9.6 knows only lock and buffer-pin waits.
//!
//! Invariant: numbers that the table does not have are not guessed; those in the range of
//! extensions are called by that name.

use std::sync::LazyLock;

use super::packed::{self, WaitEventRow};

/// Class byte of lightweight locks; 9.6 had a second one, for tranches.
const LWLOCK: u32 = 0x0100_0000;
/// Class byte of extensions' waits.
const EXTENSION: u32 = 0x0700_0000;
const CLASS: u32 = 0xff00_0000;

static TEXT: LazyLock<String> = LazyLock::new(|| {
    packed::unpack(include_bytes!("../../data/wait-events.zlib"))
        .expect("a test holds the embedded table to its format")
});

static TABLE: LazyLock<Vec<WaitEventRow<'static>>> = LazyLock::new(|| {
    packed::wait_events(&TEXT).expect("a test holds the embedded table to its format")
});

/// A wait, as `pg_stat_activity` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaitEvent {
    /// `wait_event_type`, as `LWLock`.
    pub kind: &'static str,
    /// `wait_event`, as `WALWrite`; `extension` for a lock or wait that an extension defined.
    pub name: &'static str,
}

/// The wait behind `info` in a server of `major` (`9.6`, `18`).
///
/// `None` for 0 (not waiting), for numbers that this version does not know, and for versions
/// that the table does not have: numbers of a neighbouring version would be wrong names.
pub fn wait_event(major: &str, info: u32) -> Option<WaitEvent> {
    if info == 0 {
        return None;
    }
    let of_major = || TABLE.iter().filter(|row| row.major == major);
    if let Some(row) = of_major().find(|row| row.info == info) {
        return Some(WaitEvent {
            kind: row.kind,
            name: row.name,
        });
    }
    let known = of_major()
        .map(|row| row.info)
        .filter(|known| known & CLASS == info & CLASS)
        .max();
    match (info & CLASS, known) {
        (LWLOCK, Some(last)) if info > last => Some(WaitEvent {
            kind: "LWLock",
            name: "extension",
        }),
        // 10 to 16 have one number for all extensions, later ones let each register its own.
        (EXTENSION, Some(last)) if info > last => Some(WaitEvent {
            kind: "Extension",
            name: "extension",
        }),
        (EXTENSION, None) if of_major().next().is_some() && major != "9.6" => Some(WaitEvent {
            kind: "Extension",
            name: "Extension",
        }),
        _ => None,
    }
}

/// The number of a wait in a server of `major`, by the names that `pg_stat_activity` shows.
pub fn wait_number(major: &str, kind: &str, name: &str) -> Option<u32> {
    let mut rows = TABLE.iter().filter(|row| row.major == major);
    rows.find(|row| row.kind == kind && row.name == name)
        .map(|row| row.info)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(major: &str, info: u32) -> Option<(&'static str, &'static str)> {
        wait_event(major, info).map(|wait| (wait.kind, wait.name))
    }

    #[test]
    fn numbers_have_the_names_of_their_version() {
        assert_eq!(named("18", 0x0600_0000), Some(("Client", "ClientRead")));
        assert_eq!(named("18", 0x0100_0001), Some(("LWLock", "ShmemIndex")));
        assert_eq!(named("10", 0x0100_0001), Some(("LWLock", "ShmemIndexLock")));
        assert_eq!(
            named("9.6", 0x0100_0003),
            Some(("LWLockNamed", "XidGenLock"))
        );
        assert_eq!(
            named("12", 0x0300_0006),
            Some(("Lock", "speculative token"))
        );
        // A server of 13.23 says so; the kind `frozenid` came in just before 13.0.
        assert_eq!(named("13", 0x0300_000a), Some(("Lock", "advisory")));
        assert_eq!(named("14", 0x0700_0000), Some(("Extension", "Extension")));
        assert_eq!(named("18", 0x0700_0000), Some(("Extension", "Extension")));
        assert_eq!(named("18", 0), None);
    }

    #[test]
    fn names_lead_back_to_numbers() {
        assert_eq!(wait_number("18", "Client", "ClientRead"), Some(0x0600_0000));
        assert_eq!(wait_number("9.6", "Client", "ClientRead"), None);
        let advisory = wait_number("9.6", "Lock", "advisory").unwrap();
        assert_eq!(named("9.6", advisory), Some(("Lock", "advisory")));
    }

    #[test]
    fn what_is_not_known_is_not_guessed() {
        assert_eq!(named("18", 0x0100_00ff), Some(("LWLock", "extension")));
        assert_eq!(named("18", 0x0700_0003), Some(("Extension", "extension")));
        assert_eq!(named("18", 0x0a00_ffff), None);
        assert_eq!(named("18", 0xee00_0001), None);
        assert_eq!(named("42", 0x0600_0000), None);
    }
}
