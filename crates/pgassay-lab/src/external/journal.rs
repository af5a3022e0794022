//! What a run changes on an external server, written before it happens, so that a later start can
//! undo it after a crash.
//!
//! A journal is a file with one JSON value per line: the server, then its objects before the run, databases
//! and settings. The run that writes it holds a lock on it; a journal without a lock is that of a run that was killed. It
//! contains no password: neither that of the connection, nor values of settings that may be one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::backup::{BackupScope, SettingBackup};

/// The format of journals.
pub const FORMAT: u32 = 5;
const ENDING: &str = "jsonl";
/// A run writes the first line at once. An older empty journal is that of a run that was killed
/// before it changed anything.
const EMPTY_AGE: Duration = Duration::from_mins(1);

/// A line of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JournalLine {
    /// The server; the first line.
    Server(JournaledServer),
    /// The objects that all databases share, before the run: `role bob`.
    Objects(BTreeSet<String>),
    /// The kinds of such objects that the study creates, by its text: `role`.
    Creates(BTreeSet<String>),
    /// The name of a database that is about to be created.
    Database(String),
    /// A setting that is about to be changed, with the values that it is about to get.
    Setting(SettingBackup),
    /// Another value that such a setting was given.
    Given(GivenValue),
}

/// The value that a study gave a setting, where the text of its statement did not show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenValue {
    /// What has the setting.
    pub scope: BackupScope,
    /// The setting's name, in lower case.
    pub name: String,
    /// `None` if it was reset.
    pub value: Option<String>,
}

/// How to find the server again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournaledServer {
    /// [`FORMAT`].
    pub format: u32,
    /// The connection string, without secrets.
    pub dsn: String,
    /// Whether it may get the user's passwords, as in the run.
    #[serde(default)]
    pub allow_passwords: bool,
    /// The environment variables that supplied missing parameters, without `PGPASSWORD`.
    pub environment: BTreeMap<String, String>,
    /// `pg_control_system().system_identifier`, if the role can read it.
    pub system_identifier: Option<String>,
    /// The server's address, for messages.
    pub place: String,
    /// The journal's file, which a copy is not: [`UndoJournal::is_original`].
    #[serde(default)]
    pub file: String,
}

/// The journal of a run in progress, or of one that was killed.
#[derive(Debug)]
pub struct UndoJournal {
    /// Locked while this exists.
    file: File,
    path: PathBuf,
}

impl UndoJournal {
    /// Creates a journal in this directory, which is created if necessary.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn create(directory: &Path, key: &str, mut server: JournaledServer) -> Result<Self> {
        let path = directory.join(format!("{key}.{ENDING}"));
        let create = || -> io::Result<File> {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory)?;
            check_is_no_link(directory)?;
            let file = OpenOptions::new()
                .append(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)?;
            file.lock()?;
            File::open(directory)?.sync_all()?;
            Ok(file)
        };
        let file = create().with_context(|| cannot_write(&path))?;
        server.file = identity(&file.metadata()?);
        let mut journal = Self { file, path };
        journal.append(&JournalLine::Server(server))?;
        Ok(journal)
    }

    /// Appends a line and syncs it to disk.
    ///
    /// # Errors
    /// It cannot be written; then nothing must be changed on the server. The lines before stay readable.
    pub fn append(&mut self, line: &JournalLine) -> Result<()> {
        let mut text = serde_json::to_string(line)?;
        text.push('\n');
        let mut write = || -> io::Result<()> {
            let length = self.file.metadata()?.len();
            let written = self.file.write_all(text.as_bytes());
            written
                .and_then(|()| self.file.sync_data())
                .inspect_err(|_| {
                    // On a full disk, a part of the line was written, and the next one would follow it.
                    _ = self.file.set_len(length);
                })
        };
        write().with_context(|| cannot_write(&self.path))
    }

    /// Removes it: everything in it is undone.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(self) -> Result<()> {
        fs::remove_file(&self.path)
            .with_context(|| format!("cannot remove {}", self.path.display()))
    }

    /// Whether this user's pgassay wrote this file. A copy of results may come from someone else, who could have
    /// chosen the settings and the server.
    pub fn is_original(&self, server: &JournaledServer) -> bool {
        let facts = self.file.metadata();
        facts.is_ok_and(|facts| server.file == identity(&facts))
    }

    /// The key of its run, which begins the names of its databases.
    pub fn key(&self) -> String {
        let stem = self.path.file_stem().unwrap_or_default();
        stem.to_string_lossy().into_owned()
    }

    /// Its file, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The journals of runs that were killed, in this directory. Journals of runs in progress are
    /// left alone, and empty ones removed.
    pub fn abandoned(directory: &Path) -> Vec<Self> {
        // Empty files are removed, so a link must not lead elsewhere.
        let entries = check_is_no_link(directory).and_then(|()| fs::read_dir(directory));
        let entries = entries.into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        let mut paths: Vec<PathBuf> = paths
            .filter(|path| path.extension().is_some_and(|it| it == ENDING))
            .collect();
        paths.sort();
        let open = |path: PathBuf| match Self::open_abandoned(path.clone()) {
            Ok(journal) => journal,
            Err(error) => {
                tracing::warn!("cannot read {}: {error}", path.display());
                None
            }
        };
        paths.into_iter().filter_map(open).collect()
    }

    fn open_abandoned(path: PathBuf) -> io::Result<Option<Self>> {
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&path)?;
        // SAFETY: it only returns a number.
        check_is_of(unsafe { libc::geteuid() }, &file.metadata()?)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let facts = file.metadata()?;
        if facts.len() == 0 {
            // The lock of a run that is about to write comes after the file.
            if facts.modified()?.elapsed().is_ok_and(|age| age > EMPTY_AGE) {
                fs::remove_file(&path)?;
            }
            return Ok(None);
        }
        Ok(Some(Self { file, path }))
    }

    /// Its lines. The last one is left out if a crash cut it off: nothing was changed yet.
    ///
    /// # Errors
    /// It cannot be read, or a line before the last is not one of a journal.
    pub fn lines(&mut self) -> Result<Vec<JournalLine>> {
        let mut text = String::new();
        self.file
            .rewind()
            .and_then(|()| self.file.read_to_string(&mut text))
            .with_context(|| format!("cannot read {}", self.path.display()))?;
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let lines = whole.lines().map(|line| {
            serde_json::from_str(line)
                .with_context(|| format!("{} is not a valid journal", self.path.display()))
        });
        lines.collect()
    }
}

/// What a copy of a file does not have in common with it, and no one can choose: its inode and the time of its
/// creation, if the file system has one. Device numbers may differ after a restart of the machine.
fn identity(facts: &Metadata) -> String {
    let created = facts.created().ok();
    let created = created.and_then(|it| it.duration_since(UNIX_EPOCH).ok());
    format!("{}:{}", facts.ino(), created.unwrap_or_default().as_nanos())
}

/// Fails if a user who can write to the results directory has put a link in place of this one.
fn check_is_no_link(directory: &Path) -> io::Result<()> {
    if directory.symlink_metadata()?.is_dir() {
        return Ok(());
    }
    let words = format!(
        "{} is a link, or not a directory; remove it",
        directory.display()
    );
    Err(io::Error::new(io::ErrorKind::NotADirectory, words))
}

/// Fails unless a journal is a file of this user that no other may write: what it names is dropped and set on a
/// server with the rights of this user's role.
fn check_is_of(user: u32, facts: &Metadata) -> io::Result<()> {
    let others_write = facts.mode() & 0o022 != 0;
    if facts.is_file() && facts.nlink() == 1 && facts.uid() == user && !others_write {
        return Ok(());
    }
    let words = "it is not a file that only you can write, so nothing in it is undone";
    Err(io::Error::new(io::ErrorKind::PermissionDenied, words))
}

fn cannot_write(path: &Path) -> String {
    format!(
        "cannot write {}, which is needed to undo changes of the external server after a crash",
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use pgassay_test_support::{SmallDisk, wait_until};

    use super::*;

    fn server() -> JournaledServer {
        JournaledServer {
            format: FORMAT,
            dsn: "host=h".to_owned(),
            allow_passwords: false,
            environment: BTreeMap::new(),
            system_identifier: None,
            place: "h".to_owned(),
            file: String::new(),
        }
    }

    fn server_of(journal: &mut UndoJournal) -> JournaledServer {
        match journal.lines().unwrap().remove(0) {
            JournalLine::Server(server) => server,
            other => panic!("{other:?}"),
        }
    }

    /// Programs that other tests start hold our locks between fork and exec.
    fn found_soon<T>(mut find: impl FnMut() -> Option<T>) -> T {
        let mut found = None;
        wait_until("no other process has the lock", || {
            found = find();
            found.is_some()
        });
        found.unwrap()
    }

    #[test]
    fn a_journal_is_left_alone_while_its_run_is_in_progress() {
        let directory = tempfile::tempdir().unwrap();
        let below = directory.path().join("journals");
        let mut journal = UndoJournal::create(&below, "pgassay_1", server()).unwrap();
        let line = JournalLine::Database("pgassay_0123abcd_data_0".to_owned());
        journal.append(&line).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&below), mode(journal.path())), (0o700, 0o600));
        assert!(UndoJournal::abandoned(&below).is_empty());

        // A crash cuts off the last line.
        journal.file.write_all(b"{\"datab").unwrap();
        drop(journal);
        let found = || Some(UndoJournal::abandoned(&below)).filter(|it| !it.is_empty());
        let mut found = found_soon(found);
        assert_eq!(found.len(), 1);
        let server = server_of(&mut found[0]);
        assert!(found[0].is_original(&server));
        assert_eq!(
            found[0].lines().unwrap(),
            [JournalLine::Server(server), line]
        );
        found.remove(0).remove().unwrap();
        assert!(UndoJournal::abandoned(&below).is_empty());
    }

    /// Regression: on a full disk, a part of a line stayed, and with the next line the journal could not be read.
    #[test]
    fn a_line_that_could_not_be_written_leaves_no_part_of_it() {
        let Some(disk) = SmallDisk::mount("8k") else {
            return;
        };
        let mut journal = UndoJournal::create(disk.path(), "pgassay_1", server()).unwrap();
        let before = journal.file.metadata().unwrap().len();
        let long = JournalLine::Database("x".repeat(100_000));
        assert!(journal.append(&long).is_err());
        assert_eq!(journal.file.metadata().unwrap().len(), before);
        let line = JournalLine::Database("pgassay_0123abcd_data_0".to_owned());
        journal.append(&line).unwrap();
        let text = fs::read_to_string(journal.path()).unwrap();
        let lines: Vec<JournalLine> = text
            .lines()
            .map(|it| serde_json::from_str(it).unwrap())
            .collect();
        assert_eq!(lines[1..], [line]);
    }

    /// Regression: in a copy of someone else's results, a journal named settings and a server, and the next run changed
    /// them there with the rights of its user.
    #[test]
    fn a_copy_of_a_journal_is_not_undone() {
        let directory = tempfile::tempdir().unwrap();
        let journal = UndoJournal::create(directory.path(), "pgassay_1", server()).unwrap();
        let path = journal.path().to_owned();
        drop(journal);
        let copied = directory.path().join("copied.jsonl");
        fs::copy(&path, &copied).unwrap();
        for (name, is_original) in [(path, true), (copied, false)] {
            let mut journal = found_soon(|| UndoJournal::open_abandoned(name.clone()).unwrap());
            let server = server_of(&mut journal);
            assert_eq!(journal.is_original(&server), is_original);
        }
    }

    #[test]
    fn an_empty_journal_is_kept_until_its_run_had_the_time_to_write() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pgassay_1.jsonl");
        let file = File::create(&path).unwrap();
        assert!(UndoJournal::abandoned(directory.path()).is_empty() && path.exists());
        file.set_modified(std::time::SystemTime::now() - 2 * EMPTY_AGE)
            .unwrap();
        wait_until("it is removed", || {
            UndoJournal::abandoned(directory.path()).is_empty() && !path.exists()
        });
    }

    /// Regression: journals were written through it, and empty files behind it removed.
    #[test]
    fn a_link_in_place_of_the_directory_of_journals_is_not_followed() {
        let base = tempfile::tempdir().unwrap();
        let (elsewhere, link) = (base.path().join("elsewhere"), base.path().join("link"));
        fs::create_dir(&elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
        let empty = File::create(elsewhere.join("empty.jsonl")).unwrap();
        empty
            .set_modified(std::time::SystemTime::now() - 2 * EMPTY_AGE)
            .unwrap();
        assert!(UndoJournal::abandoned(&link).is_empty());
        assert!(elsewhere.join("empty.jsonl").exists());
        let error = UndoJournal::create(&link, "pgassay_1", server()).unwrap_err();
        assert!(format!("{error:#}").contains("is a link"), "{error:#}");
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 1);
    }

    /// Regression: it was undone with the rights of the next user who ran pgassay, and a link was followed.
    #[test]
    fn a_journal_that_another_user_could_have_written_is_not_undone() {
        let directory = tempfile::tempdir().unwrap();
        let journal = UndoJournal::create(directory.path(), "pgassay_1", server()).unwrap();
        let path = journal.path().to_owned();
        drop(journal);
        let found = || UndoJournal::abandoned(directory.path()).len();
        wait_until("it is found", || found() == 1);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).unwrap();
        assert_eq!(found(), 0);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        wait_until("it is found", || found() == 1);

        let user = fs::metadata(&path).unwrap().uid();
        assert!(check_is_of(user, &fs::metadata(&path).unwrap()).is_ok());
        assert!(check_is_of(user + 1, &fs::metadata(&path).unwrap()).is_err());

        let elsewhere = directory.path().join("elsewhere");
        fs::rename(&path, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert_eq!(found(), 0);
        fs::remove_file(&path).unwrap();
        fs::hard_link(&elsewhere, &path).unwrap();
        assert_eq!(found(), 0);
    }
}
