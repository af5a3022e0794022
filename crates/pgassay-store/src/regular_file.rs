//! Reads files of a run's directory. It may come from elsewhere, or others may write to it: a pipe in
//! place of a file must not be waited for, and an endless file must not exhaust memory.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Take};
use std::path::Path;

use pgassay_rights::UnopenedFile;

/// More than any run has.
const BYTES_MAX: u64 = 1 << 30;

/// Opens a file as these options say.
///
/// # Errors
/// As [`OpenOptions::open`]; or it is not a regular file, or has more than 1 GiB.
pub(crate) fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let found = UnopenedFile::at(path)?;
    let metadata = found.metadata()?;
    if metadata.is_file() && metadata.len() <= BYTES_MAX {
        return found.open(options);
    }
    let words = format!(
        "it is not a regular file of at most {} GiB",
        BYTES_MAX >> 30
    );
    Err(io::Error::new(io::ErrorKind::InvalidInput, words))
}

/// Reads a file up to the largest size that is accepted: it may grow meanwhile.
pub(crate) type BoundedReader = BufReader<Take<File>>;

/// A reader of a file that was opened with [`open`].
pub(crate) fn bounded(file: File) -> BoundedReader {
    BufReader::new(file.take(BYTES_MAX))
}

/// The content of a file.
///
/// # Errors
/// It cannot be read, is not a regular file, or has more than 1 GiB.
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let file = open(path, OpenOptions::new().read(true))?;
    let mut bytes = Vec::new();
    bounded(file).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a file that grew without a line break filled the memory.
    #[test]
    fn a_file_that_grows_while_it_is_read_is_read_up_to_the_limit() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(BYTES_MAX).unwrap();
        let opened = open(file.path(), OpenOptions::new().read(true)).unwrap();
        file.as_file().set_len(BYTES_MAX + 1).unwrap();
        let read = io::copy(&mut bounded(opened), &mut io::sink()).unwrap();
        assert_eq!(read, BYTES_MAX);
        assert!(open(file.path(), OpenOptions::new().read(true)).is_err());
    }
}
