//! Any ELF file, with any symbols and unwind tables, yields functions or an error.

#![no_main]

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use pgassay_profile::ObjectFunctions;

fuzz_target!(|data: &[u8]| {
    // The reader takes a path; a file in memory has one.
    // SAFETY: the name is a valid C string, and the descriptor is new.
    let mut file = unsafe {
        let fd = libc::memfd_create(c"fuzzed".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0);
        File::from_raw_fd(fd)
    };
    file.write_all(data).expect("memory is enough");
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let Ok(functions) = ObjectFunctions::read(Path::new(&path)) else {
        return;
    };
    let _ = functions.is_stripped();
    for address in [0, 1, 0x1000, 0x1139, 0x40_1000, u64::MAX - 1, u64::MAX] {
        let _ = functions.at(address);
    }
});
