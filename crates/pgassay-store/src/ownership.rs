//! Whether others can have written a run's directory. What it says is executed when the run is continued: the
//! study's SQL, in databases and with programs that it names.

use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::directories::{DETAILS_FILE, STUDY_FILE, TRIALS_FILE};
use crate::error::StoreError;
use crate::run_directory::RunDirectory;

const WRITABLE_BY_OTHERS: u32 = 0o022;
const WRITABLE_BY_ALL: u32 = 0o002;
/// In a directory with this bit, only the owner of a file can replace it.
const STICKY: u32 = 0o1000;

/// Opens a run's directory; `None` if there is none.
///
/// # Errors
/// [`StoreError::OfOthers`] unless the directory and the files that the run is continued from belong to this user, no
/// other may write to them, and none can replace the directory.
pub(crate) fn open_run(root: &Path, id: &str) -> Result<Option<RunDirectory>, StoreError> {
    let Some(directory) = RunDirectory::open(root, id)? else {
        return Ok(None);
    };
    for name in [TRIALS_FILE, DETAILS_FILE, STUDY_FILE] {
        let path = directory.known().join(name);
        match directory.path().join(name).symlink_metadata() {
            Ok(facts) if facts.is_symlink() || !is_ours(&facts) => {
                return Err(StoreError::OfOthers { path });
            }
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(StoreError::reading(&path, error));
            }
            _ => {}
        }
    }
    Ok(Some(directory))
}

/// Whether a file or directory belongs to this user, and no other may write to it.
pub(crate) fn is_ours(facts: &Metadata) -> bool {
    facts.uid() == user() && facts.mode() & WRITABLE_BY_OTHERS == 0
}

/// The user of this process.
pub(crate) fn user() -> u32 {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// Whether no other user, but the members of its group, can replace what is in a directory.
pub(crate) fn keeps_names(directory: &Metadata) -> bool {
    is_of_trusted(directory) && directory.mode() & (WRITABLE_BY_ALL | STICKY) != WRITABLE_BY_ALL
}

/// Whether, in addition, no other user can create files in it.
pub(crate) fn is_closed_to_others(directory: &Metadata) -> bool {
    is_of_trusted(directory) && directory.mode() & WRITABLE_BY_ALL == 0
}

fn is_of_trusted(directory: &Metadata) -> bool {
    [user(), 0].contains(&directory.uid())
}
