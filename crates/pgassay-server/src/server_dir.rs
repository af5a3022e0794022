//! Server directories, and whether they are in use.
//!
//! A server directory is named `pgassay-…` and contains a file `lock`. The process that created it
//! and its keeper share an open file with an exclusive `flock` on it; the kernel releases it when
//! the last of them ends for any reason. A directory whose lock is free is stale, and the next
//! start removes it (see `sweep`).
//! Invariant: `lock` is created by renaming a file that is already locked, so a directory that is
//! just being created never has a free lock.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::account::OsAccount;
use crate::os;

const PREFIX: &str = "pgassay-";
const LOCK: &str = "lock";

/// How long a directory may have no lock file; enough for a slow machine to create one.
const GRACE: Duration = Duration::from_mins(1);

/// A server directory, in use until this is dropped *and* its keeper has ended.
#[derive(Debug)]
pub(crate) struct ServerDir {
    path: PathBuf,
    lock: File,
}

impl ServerDir {
    /// Creates a directory that only the current user can access, until `hand_over`.
    pub(crate) fn create(parent: &Path) -> io::Result<Self> {
        let parent = parent.canonicalize()?;
        let name = u64::from_ne_bytes(os::random_bytes()?);
        let path = parent.join(format!("{PREFIX}{name:016x}"));
        DirBuilder::new().mode(0o700).create(&path)?;
        match lock_new(&path) {
            Ok(lock) => Ok(Self { path, lock }),
            Err(error) => {
                // The first error matters more than one of the cleanup.
                let _ = fs::remove_dir_all(&path);
                Err(error)
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn lock(&self) -> &File {
        &self.lock
    }

    /// Makes the server's user the owner of the directory. Then only that user and root can access
    /// it.
    pub(crate) fn hand_over(&self, account: &OsAccount) -> io::Result<()> {
        chown(&self.path, Some(account.user.uid), Some(account.user.gid))
    }

    /// Takes over a stale server directory. `None` if it is in use, is not a server directory, or is
    /// owned neither by the current user nor by the server's user.
    pub(crate) fn adopt(path: &Path, account: &OsAccount) -> io::Result<Option<Self>> {
        if !path.file_name().is_some_and(is_server_dir_name) {
            return Ok(None);
        }
        let metadata = fs::symlink_metadata(path)?;
        let owners = [account.ourselves.uid, account.user.uid];
        if !metadata.is_dir() || !owners.contains(&metadata.uid()) {
            return Ok(None);
        }
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path.join(LOCK));
        let lock = match opened {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let age = metadata.modified()?.elapsed().unwrap_or_default();
                if age < GRACE {
                    return Ok(None);
                }
                lock_new(path)?
            }
            // Created by root for a server that runs as the current user: not ours to take over.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
            Err(error) => return Err(error),
        };
        match lock.try_lock() {
            Ok(()) => Ok(Some(Self {
                path: path.to_owned(),
                lock,
            })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Removes the directory and its contents, if it still exists.
    pub(crate) fn remove(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// The server directories in `parent`, in use or not.
pub(crate) fn server_dirs_in(parent: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(parent) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| is_server_dir_name(&entry.file_name()))
        .map(|entry| entry.path())
        .collect()
}

fn is_server_dir_name(name: &OsStr) -> bool {
    name.to_str()
        .and_then(|name| name.strip_prefix(PREFIX))
        .is_some_and(|rest| rest.len() == 16 && rest.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn lock_new(path: &Path) -> io::Result<File> {
    let unnamed = path.join("lock.new");
    let lock = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&unnamed)?;
    lock.try_lock().map_err(|error| match error {
        TryLockError::Error(error) => error,
        TryLockError::WouldBlock => io::Error::other("another process holds the lock"),
    })?;
    fs::rename(&unnamed, path.join(LOCK))?;
    Ok(lock)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account() -> OsAccount {
        OsAccount::choose(None).unwrap()
    }

    /// Processes that other tests start hold our locks between fork and exec.
    fn adopt_soon(path: &Path) -> ServerDir {
        let mut adopted = None;
        crate::sweep::wait_until(Duration::from_secs(5), || {
            adopted = ServerDir::adopt(path, &account()).unwrap();
            adopted.is_some()
        });
        adopted.unwrap()
    }

    #[test]
    fn only_a_stale_directory_can_be_adopted() {
        let parent = tempfile::tempdir().unwrap();
        let place = ServerDir::create(parent.path()).unwrap();
        let path = place.path().to_owned();
        assert_eq!(server_dirs_in(parent.path()), [path.as_path()]);
        assert!(ServerDir::adopt(&path, &account()).unwrap().is_none());
        drop(place);
        let adopted = adopt_soon(&path);
        adopted.remove().unwrap();
        adopted.remove().unwrap();
        assert!(!path.exists());
    }

    /// Regression test: every start by an unprivileged user warned about the servers that root was
    /// running.
    #[test]
    fn a_directory_created_by_root_is_left_alone_by_the_user_of_its_server() {
        let account = account();
        if account.ourselves.uid != 0 {
            pgassay_test_support::skip("a directory created by root", "requires root");
            return;
        }
        let parent = tempfile::tempdir().unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(parent.path(), open).unwrap();
        let place = ServerDir::create(parent.path()).unwrap();
        place.hand_over(&account).unwrap();
        let path = place.path().to_owned();
        drop(place);
        let adopting = std::thread::spawn(move || {
            let uid = account.user.uid;
            // SAFETY: the raw system call, unlike the library function, changes only this thread's
            // user, and the thread ends right after it.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
            assert_eq!(changed, 0);
            ServerDir::adopt(&path, &account).unwrap().is_none()
        });
        assert!(adopting.join().unwrap());
    }

    #[test]
    fn a_directory_that_is_just_being_created_is_left_alone() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("pgassay-0123456789abcdef");
        fs::create_dir(&path).unwrap();
        assert!(ServerDir::adopt(&path, &account()).unwrap().is_none());
        let old = std::time::SystemTime::now() - 2 * GRACE;
        File::open(&path).unwrap().set_modified(old).unwrap();
        assert_eq!(adopt_soon(&path).path(), path);
    }

    #[test]
    fn directories_with_other_names_are_left_alone() {
        let parent = tempfile::tempdir().unwrap();
        for name in [
            "pgassay-",
            "pgassay-notes",
            "pgassay-0123456789abcdeg",
            "0123456789abcdef",
        ] {
            fs::create_dir(parent.path().join(name)).unwrap();
            assert!(
                ServerDir::adopt(&parent.path().join(name), &account())
                    .unwrap()
                    .is_none()
            );
        }
        assert!(server_dirs_in(parent.path()).is_empty());
    }

    #[test]
    fn a_symbolic_link_is_not_followed() {
        let parent = tempfile::tempdir().unwrap();
        let target = tempfile::tempdir().unwrap();
        let link = parent.path().join("pgassay-0123456789abcdef");
        std::os::unix::fs::symlink(target.path(), &link).unwrap();
        assert!(ServerDir::adopt(&link, &account()).unwrap().is_none());
    }
}
