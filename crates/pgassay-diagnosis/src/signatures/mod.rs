//! The known causes of lost time, one file per family.

mod client;
mod locks;
mod machine;
mod statements;
mod storage;
mod wal;

use pgassay_record::remedy::RemedyVariant;

use crate::evaluation::Signature;
use crate::evidence::Evidence;

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

/// A server with a larger value of a setting, unless the study has set it to as much already.
fn larger(e: &Evidence, name: &str, value: &str) -> Option<RemedyVariant> {
    e.is_less(name, value)
        .then(|| RemedyVariant::settings(&[(name, value)]))
}
