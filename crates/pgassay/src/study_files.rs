//! Reads the files that a study names. They must be in the study's folder: a study from elsewhere must
//! not show the files of the user who runs it, or wait for a file that has no end.

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::path::Path;

use pgassay_rights::UnopenedFile;

/// Limit on a file's size.
const FILE_MAX_BYTES: u64 = 16 << 20;

/// Reads a file that a study in `folder` names, relative to it.
///
/// # Errors
/// A message, if the file, after resolving links, is outside the folder, is not a regular file, exceeds
/// 16 MiB, or cannot be read.
pub fn read(folder: &Path, name: &str) -> Result<String, String> {
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    let path = folder.join(name);
    let cannot_read = |error| format!("cannot read {}: {error}", path.display());
    let folder = fs::canonicalize(folder).map_err(cannot_read)?;
    let found = UnopenedFile::at(&path).map_err(cannot_read)?;
    // The links cannot change any more.
    if !found.path().map_err(cannot_read)?.starts_with(&folder) {
        return Err(format!(
            "{} is outside the study's folder {}; copy it there",
            path.display(),
            folder.display()
        ));
    }
    let metadata = found.metadata().map_err(cannot_read)?;
    if !metadata.is_file() || metadata.len() > FILE_MAX_BYTES {
        return Err(format!(
            "{} is not a regular file of at most {} MiB",
            path.display(),
            FILE_MAX_BYTES >> 20
        ));
    }
    let file = found
        .open(OpenOptions::new().read(true))
        .map_err(cannot_read)?;
    let mut text = String::new();
    file.take(FILE_MAX_BYTES)
        .read_to_string(&mut text)
        .map_err(cannot_read)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn files_outside_the_study_folder_are_not_read() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("study");
        fs::create_dir_all(folder.join("scripts")).unwrap();
        fs::write(root.path().join("secret"), "root:x").unwrap();
        fs::create_dir(root.path().join("study-2")).unwrap();
        fs::write(root.path().join("study-2/secret"), "root:x").unwrap();
        fs::write(folder.join("scripts/a.sql"), "select 1;").unwrap();
        symlink("../secret", folder.join("link")).unwrap();
        symlink("..", folder.join("up")).unwrap();
        symlink("scripts/a.sql", folder.join("inside")).unwrap();

        for name in ["scripts/a.sql", "inside", "../study/scripts/a.sql"] {
            assert_eq!(read(&folder, name).unwrap(), "select 1;", "{name}");
        }
        let absolute = root.path().join("secret");
        for name in [
            "../secret",
            "link",
            "up/secret",
            "../study-2/secret",
            "/etc/shadow",
            absolute.to_str().unwrap(),
        ] {
            let message = read(&folder, name).unwrap_err();
            assert!(!message.contains("root:x"), "{message}");
            let is_clear = message.contains("outside the study's folder");
            // The tests may run as a user who cannot open that one.
            assert!(is_clear || name == "/etc/shadow", "{message}");
        }
        let message = read(&folder, "none.sql").unwrap_err();
        assert!(message.contains("cannot read"), "{message}");
    }

    #[test]
    fn a_pipe_or_an_endless_file_of_a_study_is_not_read() {
        let root = tempfile::tempdir().unwrap();
        let pipe = root.path().join("pipe");
        let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
        // SAFETY: the name is a valid C string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        fs::write(root.path().join("large"), vec![b' '; 17 << 20]).unwrap();
        for name in ["pipe", "large", "."] {
            let message = read(root.path(), name).unwrap_err();
            assert!(message.contains("not a regular file"), "{message}");
        }
    }
}
