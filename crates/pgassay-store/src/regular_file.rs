//! Reads files of a run's directory. It may come from elsewhere, or others may write to it: a pipe in
//! place of a file must not be waited for, and an endless file must not exhaust memory.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// More than any run has.
const BYTES_MAX: u64 = 1 << 30;

/// Opens a file as these options say.
///
/// # Errors
/// As [`OpenOptions::open`]; or it is not a regular file, or has more than 1 GiB.
pub(crate) fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() && metadata.len() <= BYTES_MAX {
        return Ok(file);
    }
    let words = format!(
        "it is not a regular file of at most {} GiB",
        BYTES_MAX >> 30
    );
    Err(io::Error::new(io::ErrorKind::InvalidInput, words))
}

/// The content of a file.
///
/// # Errors
/// It cannot be read, is not a regular file, or has more than 1 GiB.
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let file = open(path, OpenOptions::new().read(true))?;
    let mut bytes = Vec::new();
    // It may grow meanwhile.
    file.take(BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}
