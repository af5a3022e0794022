//! Maps wait event numbers in a server's memory to their names.
//!
//! A backend publishes `wait_event_info`, 32 bits: the class in the highest byte, the event in the
//! lower two. Numbers change between major versions, especially those of lightweight locks, so the table
//! is by major version. See `src/include/utils/wait_event.h` (before 15 `pgstat.h`), `wait_event_names.txt`
//! (17+) and `lwlocknames.txt`; 9.6 has only lock and buffer-pin waits.
//!
//! Invariant: numbers that are not in the table are not guessed; those in the range of extensions are
//! named `extension`.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::packed::{self, WaitEventRow};

/// Class byte of lightweight locks; 9.6 had another one for tranches.
const LWLOCK: u32 = 0x0100_0000;
/// Class byte of extensions' waits.
const EXTENSION: u32 = 0x0700_0000;
const CLASS: u32 = 0xff00_0000;

static TEXT: LazyLock<String> = LazyLock::new(|| {
    packed::unpack(include_bytes!("../data/wait-events.zlib"))
        .expect("a test checks the format of the embedded table")
});

static TABLE: LazyLock<Vec<WaitEventRow<'static>>> = LazyLock::new(|| {
    packed::wait_events(&TEXT).expect("a test checks the format of the embedded table")
});

/// The last spelling of each name, by class and [`spelled_alike`]. The rows begin with the oldest version.
static SPELLINGS: LazyLock<HashMap<(&str, String), &str>> = LazyLock::new(|| {
    let key = |row: &WaitEventRow<'static>| (class(row.kind), spelled_alike(row.name));
    TABLE.iter().map(|row| (key(row), row.name)).collect()
});

/// A wait event, as in `pg_stat_activity`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaitEvent {
    /// `wait_event_type`, such as `LWLock`.
    pub kind: &'static str,
    /// `wait_event`, such as `WALWrite`; `extension` for a lock or wait event defined by an extension.
    pub name: &'static str,
}

/// The wait event with number `info` in a server of major version `major` (`9.6`, `18`).
///
/// `None` for 0 (not waiting), for numbers unknown to this version, and for versions that are not in the
/// table, because the numbers of another version would give wrong names.
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
        // 10 to 16 have one number for all extensions; later versions let each extension register its own.
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

/// The number of a wait event in a server of major version `major`, by its names in `pg_stat_activity`.
pub fn wait_number(major: &str, kind: &str, name: &str) -> Option<u32> {
    let mut rows = TABLE.iter().filter(|row| row.major == major);
    rows.find(|row| row.kind == kind && row.name == name)
        .map(|row| row.info)
}

/// The name in the newest version of a wait event that was spelled in another way before, as `WALSync` and
/// `ProcArrayLock`; the name itself if it is unknown. Names that have become others are not known to be the same.
pub fn present_spelling<'a>(kind: &str, name: &'a str) -> &'a str {
    let key = (class(kind), spelled_alike(name));
    SPELLINGS.get(&key).copied().unwrap_or(name)
}

/// 9.6 distinguishes two types of lightweight locks.
fn class(kind: &str) -> &str {
    if kind.starts_with("LWLock") {
        "LWLock"
    } else {
        kind
    }
}

/// What a name has in common in all versions: the letters, without the suffix of lightweight locks up to 12.
fn spelled_alike(name: &str) -> String {
    let letters = name.chars().filter(|it| !matches!(it, '_' | '/'));
    let lower: String = letters.map(|it| it.to_ascii_lowercase()).collect();
    lower.strip_suffix("lock").unwrap_or(&lower).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: of two releases, a report had two rows for the same wait.
    #[test]
    fn a_name_that_is_spelled_anew_is_the_same_in_all_releases() {
        let mut versions: HashMap<_, Vec<usize>> = HashMap::new();
        let mut majors: Vec<&str> = Vec::new();
        for row in TABLE.iter() {
            if majors.last() != Some(&row.major) {
                majors.push(row.major);
            }
            let of_name = versions.entry((class(row.kind), row.name)).or_default();
            of_name.push(majors.len());
        }
        let alike = |name: &str| {
            let plain = name.to_lowercase().replace(['_', '/'], "");
            plain
                .strip_suffix("lock")
                .map_or(plain.clone(), str::to_owned)
        };
        let mut renamed = 0;
        for ((kind, before), known) in &versions {
            for ((_, after), since) in versions.iter().filter(|((it, _), _)| it == kind) {
                let is_next = known.iter().max().map(|it| it + 1) == since.iter().min().copied();
                if is_next && alike(before) == alike(after) {
                    let present = present_spelling(kind, before);
                    assert_eq!(present, present_spelling(kind, after), "{before}");
                    renamed += 1;
                }
            }
        }
        assert!(renamed > 60, "{renamed}");
        assert_eq!(
            present_spelling("IO", "DSMFillZeroWrite"),
            "DsmFillZeroWrite"
        );
        assert_eq!(present_spelling("LWLockNamed", "XidGenLock"), "XidGen");
        assert_eq!(present_spelling("Extension", "MyWait"), "MyWait");
    }

    fn named(major: &str, info: u32) -> Option<(&'static str, &'static str)> {
        wait_event(major, info).map(|wait| (wait.kind, wait.name))
    }

    #[test]
    fn numbers_map_to_the_names_of_their_version() {
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
        // Verified on 13.23; the lock type `frozenid` was added shortly before 13.0.
        assert_eq!(named("13", 0x0300_000a), Some(("Lock", "advisory")));
        assert_eq!(named("14", 0x0700_0000), Some(("Extension", "Extension")));
        assert_eq!(named("18", 0x0700_0000), Some(("Extension", "Extension")));
        assert_eq!(named("18", 0), None);
    }

    #[test]
    fn names_map_to_numbers() {
        assert_eq!(wait_number("18", "Client", "ClientRead"), Some(0x0600_0000));
        assert_eq!(wait_number("9.6", "Client", "ClientRead"), None);
        let advisory = wait_number("9.6", "Lock", "advisory").unwrap();
        assert_eq!(named("9.6", advisory), Some(("Lock", "advisory")));
    }

    #[test]
    fn unknown_numbers_have_no_name() {
        assert_eq!(named("18", 0x0100_00ff), Some(("LWLock", "extension")));
        assert_eq!(named("18", 0x0700_0003), Some(("Extension", "extension")));
        assert_eq!(named("18", 0x0a00_ffff), None);
        assert_eq!(named("18", 0xee00_0001), None);
        assert_eq!(named("42", 0x0600_0000), None);
    }
}
