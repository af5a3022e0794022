//! Modes of relation locks, in order of strength, and which conflict.
//!
//! PostgreSQL's `src/backend/storage/lmgr/lock.c` (`LockConflicts`), the same in 9.6 to 18.

/// Their names in `pg_locks`, weakest first.
pub(super) const LOCK_MODES: [&str; 8] = [
    "AccessShareLock",
    "RowShareLock",
    "RowExclusiveLock",
    "ShareUpdateExclusiveLock",
    "ShareLock",
    "ShareRowExclusiveLock",
    "ExclusiveLock",
    "AccessExclusiveLock",
];

/// For each mode, the modes that conflict with it: bit 0 is the weakest.
const CONFLICTS: [u8; 8] = [
    0b1000_0000,
    0b1100_0000,
    0b1111_0000,
    0b1111_1000,
    0b1110_1100,
    0b1111_1100,
    0b1111_1110,
    0b1111_1111,
];

/// 1 for the weakest mode; 0 for a mode of other locks, such as `SIReadLock`.
pub(super) fn strength(mode: &str) -> usize {
    let found = LOCK_MODES.iter().position(|it| *it == mode);
    found.map_or(0, |at| at + 1)
}

/// Whether a lock in one mode must wait for a lock in the other.
pub(super) fn conflicts(mode: &str, other: &str) -> bool {
    match (strength(mode), strength(other)) {
        (0, _) | (_, 0) => false,
        (one, other) => CONFLICTS[one - 1] & (1 << (other - 1)) != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflicts_are_mutual_and_readers_wait_only_for_the_strongest() {
        for a in LOCK_MODES {
            for b in LOCK_MODES {
                assert_eq!(conflicts(a, b), conflicts(b, a), "{a} {b}");
            }
            let is_strongest = a == "AccessExclusiveLock";
            assert_eq!(conflicts("AccessShareLock", a), is_strongest);
        }
        assert!(!conflicts("RowExclusiveLock", "RowExclusiveLock"));
        assert!(conflicts("ShareLock", "RowExclusiveLock"));
        assert!(!conflicts("SIReadLock", "AccessExclusiveLock"));
    }
}
