//! Whether others can have written a run's directory. What it says is executed when the run is continued: the
//! study's SQL, in databases and with programs that it names.

use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::directories::{DETAILS_FILE, STUDY_FILE, TRIALS_FILE};
use crate::error::StoreError;

const WRITABLE_BY_OTHERS: u32 = 0o022;
const WRITABLE_BY_ALL: u32 = 0o002;
/// In a directory with this bit, only the owner of a file can replace it.
const STICKY: u32 = 0o1000;

/// Returns an error unless the run's directory and the files that it is continued from belong to this user, no
/// other may write to them, and none can replace the directory.
pub(crate) fn check_run(root: &Path, directory: &Path) -> Result<(), StoreError> {
    let check = |path: &Path, is_safe: &dyn Fn(&Metadata) -> bool| match path.symlink_metadata() {
        Ok(facts) if is_safe(&facts) => Ok(()),
        Ok(_) => Err(StoreError::OfOthers {
            path: path.to_owned(),
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(source) => Err(StoreError::reading(path, source)),
    };
    let root = fs::canonicalize(root).map_err(|source| StoreError::reading(root, source))?;
    check(&root, &|it| keeps_names(it))?;
    check(directory, &|it| it.is_dir() && is_ours(it))?;
    for name in [TRIALS_FILE, DETAILS_FILE, STUDY_FILE] {
        check(&directory.join(name), &|it| !it.is_symlink() && is_ours(it))?;
    }
    Ok(())
}

/// Whether a file or directory belongs to this user, and no other may write to it.
pub(crate) fn is_ours(facts: &Metadata) -> bool {
    facts.uid() == user() && facts.mode() & WRITABLE_BY_OTHERS == 0
}

fn user() -> u32 {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// Whether no other user, but the members of its group, can replace what is in a directory.
pub(crate) fn keeps_names(directory: &Metadata) -> bool {
    let mode = directory.mode();
    [user(), 0].contains(&directory.uid()) && (mode & WRITABLE_BY_ALL == 0 || mode & STICKY != 0)
}
