//! Files that a user names: studies, scripts, SQL, baselines. In a checkout from elsewhere, a link to an endless file may
//! be in their place, which must not exhaust memory. Pipes are read, as in `-f <(…)`.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// More than any such file has.
const BYTES_MAX: u64 = 1 << 30;
const BYTE_ORDER_MARK: char = '\u{feff}';

/// The text of a file, without a byte order mark, which psql skips, too.
///
/// # Errors
/// It cannot be read, is not UTF-8, or has more than 1 GiB.
pub fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    let not_text = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    let mut text = String::from_utf8(read(File::open(path)?, BYTES_MAX)?)
        .map_err(|error| not_text(error.utf8_error()))?;
    if text.starts_with(BYTE_ORDER_MARK) {
        text.remove(0);
    }
    Ok(text)
}

/// The content of an open file.
///
/// # Errors
/// It cannot be read, or has more than 1 GiB.
pub fn read_open(file: File) -> io::Result<Vec<u8>> {
    read(file, BYTES_MAX)
}

fn read(file: File, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if read as u64 > bytes_max {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a link to `/dev/zero` in place of a study or a baseline was read until memory was exhausted.
    #[test]
    fn an_endless_file_in_place_of_an_input_is_an_error() {
        let zeros = File::open("/dev/zero").unwrap();
        let error = read(zeros, 1 << 20).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("all");
        std::fs::write(&path, "1234").unwrap();
        assert_eq!(read(File::open(&path).unwrap(), 4).unwrap(), b"1234");
        assert!(read(File::open(&path).unwrap(), 3).is_err());
        std::fs::write(&path, b"\xff").unwrap();
        assert!(read_text(&path).is_err());
    }

    /// Regression: `syntax error at or near "create"`, with an invisible character before it.
    #[test]
    fn a_byte_order_mark_is_not_part_of_the_sql() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("setup.sql");
        std::fs::write(&path, "\u{feff}create table t ()").unwrap();
        assert_eq!(read_text(&path).unwrap(), "create table t ()");
    }
}
