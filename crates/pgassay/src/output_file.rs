//! Files that commands write; `-` is stdout.

use std::fs::{Metadata, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use crate::interrupt::NextSignal;

/// How soon a signal is noticed while a pipe has no reader.
const POLL: Duration = Duration::from_millis(50);

/// Whether the name stands for stdout.
pub fn is_stdout(file: &Path) -> bool {
    file == Path::new("-")
}

/// Whether it is a pipe or a device.
fn is_special(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|it| !it.is_file() && !it.is_dir())
}

/// Fails if a file cannot be written, and leaves it as it is.
pub fn check_writable(file: &Path) -> Result<()> {
    // Opening a pipe would wait for its reader, and closing it would end what it reads.
    if is_stdout(file) || is_special(file) {
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

/// Fails if a new file cannot be written, or one exists that is neither a pipe nor a device.
pub fn check_new(file: &Path) -> Result<()> {
    let is_taken = !is_stdout(file) && !is_special(file) && file.symlink_metadata().is_ok();
    if is_taken {
        return Err(taken(file));
    }
    check_writable(file)
}

fn taken(file: &Path) -> anyhow::Error {
    anyhow!("{} exists; remove it, or give another FILE", file.display())
}

/// Writes the content to a file, or to `out` if the file is `-`; returns whether it wrote to `out`.
pub fn write_to(file: &Path, content: &[u8], out: &mut impl Write) -> Result<bool> {
    if is_stdout(file) {
        out.write_all(content)?;
        return Ok(true);
    }
    write_file(file, content)?;
    Ok(false)
}

/// Writes the content to a new file, or to `out` if the file is `-`; returns whether it wrote to `out`. A regular file
/// that exists is left as it is.
pub fn write_new(file: &Path, content: &[u8], out: &mut impl Write) -> Result<bool> {
    if is_stdout(file) || is_special(file) {
        return write_to(file, content, out);
    }
    let cannot = || format!("cannot write {}", file.display());
    let new = OpenOptions::new().write(true).create_new(true).open(file);
    let exists = |error: &std::io::Error| error.kind() == ErrorKind::AlreadyExists;
    if new.as_ref().is_err_and(exists) {
        return Err(taken(file));
    }
    new.with_context(cannot)?
        .write_all(content)
        .with_context(cannot)?;
    Ok(false)
}

/// Writes the content to a file. A signal ends waiting for the reader of a pipe.
pub fn write_file(file: &Path, content: &[u8]) -> Result<()> {
    let written = if is_special(file) {
        write_special(file, content)
    } else {
        std::fs::write(file, content).map_err(Into::into)
    };
    written.with_context(|| format!("cannot write {}", file.display()))
}

/// Opening and writing continue after a signal, so another thread does it, which ends with the process.
fn write_special(file: &Path, content: &[u8]) -> Result<()> {
    let signal = NextSignal::new()?;
    let (sender, done) = mpsc::sync_channel(1);
    let (path, content) = (file.to_owned(), content.to_owned());
    std::thread::Builder::new()
        // Sending fails if the receiver is gone.
        .spawn(move || _ = sender.send(std::fs::write(path, content)))
        .context("cannot start a thread")?;
    loop {
        match done.recv_timeout(POLL) {
            Ok(written) => return Ok(written?),
            Err(RecvTimeoutError::Timeout) => signal.check()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(anyhow!("writing ended unexpectedly; please report it"));
            }
        }
    }
}

/// Writes the content to a file in a directory that may come from elsewhere: a link, a pipe or another name of a file
/// is replaced, and what it leads to stays as it is. The mode is that of [`create_like`].
pub fn replace_like(other: &Path, file: &Path, content: &[u8]) -> Result<()> {
    let before = file.symlink_metadata().ok().filter(Metadata::is_file);
    let mode = before.map_or_else(|| mode_of(other), |it| it.permissions().mode() & 0o666);
    let removed = match std::fs::remove_file(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    };
    removed
        .and_then(|()| {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(mode).open(file)
        })
        .and_then(|mut new| new.write_all(content))
        .with_context(|| format!("cannot write {}", file.display()))
}

/// Creates a file that no one may read who may not read another one, of which it has the content. A file that exists
/// keeps its mode.
pub fn create_like(other: &Path, file: &Path) -> Result<()> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(mode_of(other))
        .open(file)
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok(())
}

fn mode_of(file: &Path) -> u32 {
    let metadata = file.metadata();
    metadata.map_or(0o600, |it| it.permissions().mode()) & 0o666
}
