//! Reads files of a run's directory. It may come from elsewhere, or others may write to it: a pipe in
//! place of a file must not be waited for, and an endless file must not exhaust memory.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Take};
use std::path::Path;

use pgassay_rights::UnopenedFile;

use crate::ownership;

/// More than any run has.
const BYTES_MAX: u64 = 1 << 30;
/// The same for a file that another user can have written. A result of a thousand trials has 16 MiB.
const OTHERS_BYTES_MAX: u64 = 256 << 20;
/// More than any line has. The first line of trials has the plan and the text of scripts.
const LINE_BYTES_MAX: u64 = 64 << 20;

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
    let bytes_max = file
        .metadata()
        .map_or(OTHERS_BYTES_MAX, |it| bytes_max(&it));
    BufReader::new(file.take(bytes_max))
}

fn bytes_max(facts: &Metadata) -> u64 {
    if ownership::is_ours(facts) {
        BYTES_MAX
    } else {
        OTHERS_BYTES_MAX
    }
}

/// Opens a file of a run's directory for reading.
///
/// # Errors
/// As [`open`]; or another user can have written it, and it has more than 256 MiB.
pub(crate) fn open_of_run(path: &Path) -> io::Result<File> {
    let file = open(path, OpenOptions::new().read(true))?;
    let facts = file.metadata()?;
    if facts.len() <= bytes_max(&facts) {
        return Ok(file);
    }
    let words = format!(
        "it has more than {} MiB, and another user may have written it; if you trust it, make a copy",
        OTHERS_BYTES_MAX >> 20
    );
    Err(io::Error::new(ErrorKind::InvalidInput, words))
}

/// The JSON text in a file of a run's directory, up to a NUL, which ends it with an error for who parses it: a hole
/// takes another user no space on the disk, and must not take this process time and memory.
///
/// # Errors
/// As [`open_of_run`].
pub(crate) fn read_of_run(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bounded(open_of_run(path)?).read_until(0, &mut bytes)?;
    Ok(bytes)
}

/// The content of a file that no other user can have written.
///
/// # Errors
/// As [`open`]; or another user can have written it, or it has more bytes.
pub(crate) fn read_ours(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = open(path, OpenOptions::new().read(true))?;
    let facts = file.metadata()?;
    if !ownership::is_ours(&facts) || facts.len() > bytes_max {
        return Err(ErrorKind::InvalidInput.into());
    }
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads the next line, with its end; returns whether it has one.
///
/// # Errors
/// [`ErrorKind::InvalidData`] if it has more than 64 MiB.
pub(crate) fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let bytes = reader.take(LINE_BYTES_MAX).read_until(b'\n', line)?;
    let is_complete = line.ends_with(b"\n");
    if bytes as u64 == LINE_BYTES_MAX && !is_complete {
        let words = format!("a line has more than {} MiB", LINE_BYTES_MAX >> 20);
        return Err(io::Error::new(ErrorKind::InvalidData, words));
    }
    Ok(is_complete)
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
