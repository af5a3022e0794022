//! Files that commands write; `-` is stdout. What a path leads to is decided by [`FileToWrite`], before anything is
//! measured and again when the file is written.

use std::fs::{Metadata, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use pgassay_rights::FileToWrite;

use crate::interrupt::NextSignal;
use crate::output::FileOutput;

/// How soon a signal is noticed while a pipe has no reader.
const POLL: Duration = Duration::from_millis(50);

/// Whether the name stands for stdout.
pub fn is_stdout(file: &Path) -> bool {
    file == Path::new("-")
}

/// Fails if a file cannot be written, and leaves it as it is.
pub fn check_writable(file: &Path) -> Result<()> {
    if is_stdout(file) {
        return Ok(());
    }
    let checked = FileToWrite::at(file).and_then(|it| it.check());
    checked.with_context(cannot_write(file))
}

fn cannot_write(file: &Path) -> impl Fn() -> String {
    move || format!("cannot write {}", file.display())
}

/// What is at a path.
fn found(file: &Path) -> Result<FileToWrite> {
    FileToWrite::at(file).with_context(cannot_write(file))
}

/// Whether there is a file already, or a link that leads to none.
fn is_taken(file: &Path, target: &FileToWrite) -> Result<bool> {
    Ok(!target.is_special()? && (target.exists() || file.symlink_metadata().is_ok()))
}

/// Fails if a new file cannot be written, or one exists that is neither a pipe nor a device.
pub fn check_new(file: &Path) -> Result<()> {
    if !is_stdout(file) && is_taken(file, &found(file)?)? {
        return Err(taken(file));
    }
    check_writable(file)
}

fn taken(file: &Path) -> anyhow::Error {
    anyhow!("{} exists; remove it, or give another FILE", file.display())
}

/// Writes the content to a file, or to `out` if the file is `-`; returns whether it wrote to `out`.
pub fn write_to(file: &Path, content: &[u8], out: &mut impl FileOutput) -> Result<bool> {
    if is_stdout(file) {
        out.write_file(content)?;
        return Ok(true);
    }
    write_file(file, content)?;
    Ok(false)
}

/// Writes the content to a new file, or to `out` if the file is `-`; returns whether it wrote to `out`. A regular file
/// that exists is left as it is.
pub fn write_new(file: &Path, content: &[u8], out: &mut impl FileOutput) -> Result<bool> {
    if is_stdout(file) {
        return write_to(file, content, out);
    }
    let target = found(file)?;
    if is_taken(file, &target)? {
        return Err(taken(file));
    }
    write_found(target, content).with_context(cannot_write(file))?;
    Ok(false)
}

/// Writes the content to a file. A signal ends waiting for the reader of a pipe.
pub fn write_file(file: &Path, content: &[u8]) -> Result<()> {
    let written = FileToWrite::at(file).map_err(Into::into);
    let written = written.and_then(|target| write_found(target, content));
    written.with_context(cannot_write(file))
}

fn write_found(target: FileToWrite, content: &[u8]) -> Result<()> {
    if target.is_special()? {
        write_special(target, content)
    } else {
        Ok(target.replace()?.write_all(content)?)
    }
}

/// Adds the content to a file.
pub fn append(file: &Path, content: &[u8]) -> Result<()> {
    let opened = FileToWrite::at(file).and_then(|it| it.append(0o666));
    let written = opened.and_then(|mut opened| opened.write_all(content));
    written.with_context(cannot_write(file))
}

/// Opening and writing continue after a signal, so another thread does it, which ends with the process.
fn write_special(target: FileToWrite, content: &[u8]) -> Result<()> {
    let signal = NextSignal::new()?;
    let (sender, done) = mpsc::sync_channel(1);
    let content = content.to_owned();
    let write = move || target.open_waiting()?.write_all(&content);
    std::thread::Builder::new()
        // Sending fails if the receiver is gone.
        .spawn(move || _ = sender.send(write()))
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
    let target = found(file)?;
    if !target.is_special()? {
        target
            .append(mode_of(other))
            .with_context(cannot_write(file))?;
    }
    Ok(())
}

fn mode_of(file: &Path) -> u32 {
    let metadata = file.metadata();
    metadata.map_or(0o600, |it| it.permissions().mode()) & 0o666
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{lchown, symlink};

    use super::*;

    /// Regression: the file was created and removed before measuring, and its name opened again afterwards.
    #[test]
    fn a_link_that_another_user_put_there_while_measuring_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o1777)).unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("victim"), "precious").unwrap();
        check_writable(&at("out")).unwrap();
        assert!(at("out").symlink_metadata().is_err(), "nothing is left");
        symlink("victim", at("out")).unwrap();
        if lchown(at("out"), Some(65534), None).is_err() {
            pgassay_test_support::skip("a link of another user", "requires root");
            return;
        }
        let mut out = Vec::new();
        for written in [
            write_to(&at("out"), b"x", &mut out).map(drop),
            write_new(&at("out"), b"x", &mut out).map(drop),
            append(&at("out"), b"x"),
            create_like(&at("victim"), &at("out")),
            check_writable(&at("out")),
        ] {
            let error = format!("{:#}", written.unwrap_err());
            let words =
                "out: it is a link of another user, in a directory that others can write to";
            assert!(error.ends_with(words), "{error}");
        }
        assert_eq!(fs::read_to_string(at("victim")).unwrap(), "precious");
    }

    #[test]
    fn an_own_link_is_followed_and_what_exists_is_replaced_but_not_by_a_new_file() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        symlink("file", at("link")).unwrap();
        for content in ["long", "x"] {
            check_writable(&at("link")).unwrap();
            write_file(&at("link"), content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(at("file")).unwrap(), content);
        }
        for name in ["file", "link"] {
            check_new(&at(name)).unwrap_err();
            let error = write_new(&at(name), b"y", &mut Vec::new()).unwrap_err();
            assert!(error.to_string().contains("exists"), "{error}");
        }
        write_new(&at("new"), b"y", &mut Vec::new()).unwrap();
        let full = write_file(Path::new("/dev/full"), b"x").unwrap_err();
        assert!(format!("{full:#}").contains("No space left"), "{full:#}");
    }
}
