//! Whether the file in place of the index is one: a program of the user may have a database of the same name.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::path::Path;

use crate::regular_file;

/// `pgas` in ASCII, in the header of an index: `pragma application_id`.
pub(crate) const APPLICATION_ID: i32 = 0x7067_6173;
/// Where the header of an `SQLite` file has it.
const APPLICATION_ID_AT: usize = 68;
/// The length of the header.
const HEADER_BYTES: usize = 100;
/// Earlier versions of an index have no application ID, but this statement in one of the first pages.
const EARLIER: &[u8] = b"CREATE TABLE run_row (\n  id text primary key, study text, question text";
/// How much is searched for it.
const SEARCHED_BYTES: u64 = 256 << 10;

/// Whether a file that pgassay did not write is in place of the index. An empty file is none, nor is one whose header
/// a crash left as zeros.
///
/// # Errors
/// It cannot be read.
pub(crate) fn is_another_file(path: &Path) -> io::Result<bool> {
    let file = match regular_file::open(path, OpenOptions::new().read(true)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened?,
    };
    let mut begin = Vec::new();
    file.take(SEARCHED_BYTES).read_to_end(&mut begin)?;
    Ok(!is_of_index(&begin))
}

/// Whether this is the beginning of an index.
fn is_of_index(begin: &[u8]) -> bool {
    let header = &begin[..begin.len().min(HEADER_BYTES)];
    let id = header.get(APPLICATION_ID_AT..APPLICATION_ID_AT + 4);
    let has_id = header.starts_with(b"SQLite format 3\0")
        && id.is_some_and(|it| it == APPLICATION_ID.to_be_bytes());
    let is_blank = header.iter().all(|byte| *byte == 0);
    has_id || is_blank || begin.windows(EARLIER.len()).any(|it| it == EARLIER)
}
