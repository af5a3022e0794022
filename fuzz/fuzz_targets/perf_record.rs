//! Any contents of a perf ring yield records or errors, and every byte is used once.

#![no_main]
#![allow(
    dead_code,
    unused_imports,
    reason = "the sampler uses the rest of these modules"
)]

#[path = "../../crates/pgassay-profile/src/arch.rs"]
mod arch;
#[path = "../../crates/pgassay-profile/src/perf/record.rs"]
mod record;

use libfuzzer_sys::fuzz_target;
use record::{HEADER_BYTES, RawRecords, Record, Records};

fuzz_target!(|data: &[u8]| {
    let mut bytes = 0;
    for raw in RawRecords::new(data) {
        bytes += match raw {
            Ok(raw) => raw.bytes.len() + HEADER_BYTES,
            Err(malformed) => malformed.len,
        };
    }
    assert_eq!(bytes, data.len());
    for record in Records::new(data) {
        if let Ok(Record::Sample(sample)) = record {
            assert!(sample.stack.len() <= data.len());
            let _ = sample.kernel_chain().count();
        }
    }
});
