//! The known causes of lost time, one file per family.

mod client;
mod locks;
mod machine;
mod raising;
mod statements;
mod storage;
mod wal;

use crate::evaluation::Signature;

/// All signatures, by family.
pub fn signatures() -> impl Iterator<Item = &'static Signature> {
    [
        statements::SIGNATURES,
        client::SIGNATURES,
        locks::SIGNATURES,
        wal::SIGNATURES,
        storage::SIGNATURES,
        machine::SIGNATURES,
    ]
    .into_iter()
    .flatten()
}
