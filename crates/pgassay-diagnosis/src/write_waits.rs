//! Waits for writes.

/// Waits for the WAL and for data files to be written, as in the evidence.
pub(super) const WRITES: [&str; 12] = [
    "WAL sync",
    "IO WALSync",
    "IO WalSync",
    "WAL write",
    "IO WALWrite",
    "IO WalWrite",
    "LWLock WALWrite",
    "data file write",
    "IO DataFileWrite",
    "IO DataFileFlush",
    "data file extension",
    "IO DataFileExtend",
];
