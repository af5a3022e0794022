//! Files that commands write; `-` is stdout.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, Result};

/// Whether the name stands for stdout.
pub fn is_stdout(file: &Path) -> bool {
    file == Path::new("-")
}

/// Fails if a file cannot be written, and leaves it as it is.
pub fn check_writable(file: &Path) -> Result<()> {
    // Opening a pipe would wait for its reader, and closing it would end what it reads.
    let is_special = || {
        file.metadata()
            .is_ok_and(|it| !it.is_file() && !it.is_dir())
    };
    if is_stdout(file) || is_special() {
        return Ok(());
    }
    // A link to nothing is not new: what it names is created, and stays.
    let is_new = file.symlink_metadata().is_err();
    OpenOptions::new()
        .append(true)
        .create(!is_new)
        .create_new(is_new)
        .open(file)
        .with_context(|| format!("cannot write {}", file.display()))?;
    if is_new {
        // What cannot be removed will be written soon.
        let _ = std::fs::remove_file(file);
    }
    Ok(())
}

/// Writes the content to a file, or to `out` if the file is `-`; returns whether it wrote to `out`.
pub fn write_to(file: &Path, content: &[u8], out: &mut impl Write) -> Result<bool> {
    if is_stdout(file) {
        out.write_all(content)?;
        return Ok(true);
    }
    std::fs::write(file, content).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(false)
}

/// Creates a file that no one may read who may not read another one, of which it has the content. A file that exists
/// keeps its mode.
pub fn create_like(other: &Path, file: &Path) -> Result<()> {
    let mode = other.metadata().map_or(0o600, |it| it.permissions().mode());
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(mode & 0o666)
        .open(file)
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok(())
}
