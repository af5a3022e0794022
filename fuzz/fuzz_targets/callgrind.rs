//! Any file of callgrind yields counts or an error with its line.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pgassay_count::OutFile;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let _ = OutFile::is_complete(&text);
    if let Err(error) = OutFile::parse(&text) {
        let _ = error.to_string();
    }
    let mut resolve = |_: &str, address: u64| (address % 2 == 0).then(|| format!("f{address}"));
    let _ = OutFile::parse_with(&text, &mut resolve);
});
