//! Any `run.json` yields a run or an error; a run that was read is written and read again as the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pgassay_record::run::Run;

fuzz_target!(|data: &[u8]| {
    let Ok(run) = serde_json::from_slice::<Run>(data) else {
        return;
    };
    let written = serde_json::to_vec(&run).expect("a run can be written");
    let again: Run = serde_json::from_slice(&written).expect("what was written can be read");
    assert_eq!(again, run);
});
