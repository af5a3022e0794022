//! The directories that servers live in, and who still needs them.
//!
//! A place is a directory `pgassay-…` with a file `lock` in it. Whoever has a use for the place
//! (the process that made it, and its keeper) holds a shared open file with an exclusive `flock`
//! on that file; the kernel lets go of it when the last of them ends, however it ends. A place
//! whose lock is free is stale and the next start removes it (see `sweep`).
//! Invariant: `lock` appears by renaming a file that is locked already, so a free lock never
//! means a place that is just being made.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::account::Account;
use crate::os;

const PREFIX: &str = "pgassay-";
const LOCK: &str = "lock";

/// How long a place may be without its lock file: long enough for a slow machine to make it.
const GRACE: Duration = Duration::from_mins(1);

/// A directory that is ours until it is dropped *and* its keeper has ended.
#[derive(Debug)]
pub(crate) struct Place {
    path: PathBuf,
    lock: File,
}

impl Place {
    /// Makes a directory that only we may enter yet; `hand_over` gives it to the server's user.
    pub(crate) fn create(parent: &Path) -> io::Result<Self> {
        let parent = parent.canonicalize()?;
        let name = u64::from_ne_bytes(os::random_bytes()?);
        let path = parent.join(format!("{PREFIX}{name:016x}"));
        DirBuilder::new().mode(0o700).create(&path)?;
        match lock_new(&path) {
            Ok(lock) => Ok(Self { path, lock }),
            Err(error) => {
                // The error that the caller gets matters more than one in tidying up after it.
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

    /// Gives the directory to the server's user. After this that user, and no other but root, may
    /// enter and change it.
    pub(crate) fn hand_over(&self, account: &Account) -> io::Result<()> {
        chown(&self.path, Some(account.user.uid), Some(account.user.gid))
    }

    /// Takes over a place that nobody holds any more. None if somebody does, if it is not a
    /// place, or if it is not owned by us or the server's user.
    pub(crate) fn adopt(path: &Path, account: &Account) -> io::Result<Option<Self>> {
        if !path.file_name().is_some_and(is_place_name) {
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
            // Root's, though its server runs as the user that we are: not ours to take over.
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

    /// Removes the directory and all in it. Not an error if it is gone already.
    pub(crate) fn remove(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// The places in a directory, whether they are in use or not.
pub(crate) fn places_in(parent: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(parent) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| is_place_name(&entry.file_name()))
        .map(|entry| entry.path())
        .collect()
}

fn is_place_name(name: &OsStr) -> bool {
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
        TryLockError::WouldBlock => io::Error::other("somebody else holds the lock"),
    })?;
    fs::rename(&unnamed, path.join(LOCK))?;
    Ok(lock)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account() -> Account {
        Account::choose(None).unwrap()
    }

    /// Other tests start processes, and between fork and exec those hold our locks for a moment.
    fn adopt_soon(path: &Path) -> Place {
        let mut adopted = None;
        crate::sweep::wait_until(Duration::from_secs(5), || {
            adopted = Place::adopt(path, &account()).unwrap();
            adopted.is_some()
        });
        adopted.unwrap()
    }

    #[test]
    fn a_place_in_use_cannot_be_adopted_and_a_stale_one_can() {
        let parent = tempfile::tempdir().unwrap();
        let place = Place::create(parent.path()).unwrap();
        let path = place.path().to_owned();
        assert_eq!(places_in(parent.path()), [path.as_path()]);
        assert!(Place::adopt(&path, &account()).unwrap().is_none());
        drop(place);
        let adopted = adopt_soon(&path);
        adopted.remove().unwrap();
        adopted.remove().unwrap();
        assert!(!path.exists());
    }

    /// An unprivileged user was warned at every start of the servers that root had running.
    #[test]
    fn a_place_of_root_is_left_alone_by_the_user_of_its_server() {
        let account = account();
        if account.ourselves.uid != 0 {
            crate::testing::skip("a place of root", "only root can become somebody else");
            return;
        }
        let parent = tempfile::tempdir().unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(parent.path(), open).unwrap();
        let place = Place::create(parent.path()).unwrap();
        place.hand_over(&account).unwrap();
        let path = place.path().to_owned();
        drop(place);
        let adopting = std::thread::spawn(move || {
            let uid = account.user.uid;
            // SAFETY: the bare system call, unlike the library's function, changes the user of this
            // thread alone, and the thread ends right after.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
            assert_eq!(changed, 0);
            Place::adopt(&path, &account).unwrap().is_none()
        });
        assert!(adopting.join().unwrap());
    }

    #[test]
    fn a_place_that_is_just_being_made_is_left_alone() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("pgassay-0123456789abcdef");
        fs::create_dir(&path).unwrap();
        assert!(Place::adopt(&path, &account()).unwrap().is_none());
        let old = std::time::SystemTime::now() - 2 * GRACE;
        File::open(&path).unwrap().set_modified(old).unwrap();
        assert_eq!(adopt_soon(&path).path(), path);
    }

    #[test]
    fn only_the_names_that_we_give_are_places() {
        let parent = tempfile::tempdir().unwrap();
        for name in [
            "pgassay-",
            "pgassay-notes",
            "pgassay-0123456789abcdeg",
            "0123456789abcdef",
        ] {
            fs::create_dir(parent.path().join(name)).unwrap();
            assert!(
                Place::adopt(&parent.path().join(name), &account())
                    .unwrap()
                    .is_none()
            );
        }
        assert!(places_in(parent.path()).is_empty());
    }

    #[test]
    fn a_link_with_a_places_name_is_not_followed() {
        let parent = tempfile::tempdir().unwrap();
        let target = tempfile::tempdir().unwrap();
        let link = parent.path().join("pgassay-0123456789abcdef");
        std::os::unix::fs::symlink(target.path(), &link).unwrap();
        assert!(Place::adopt(&link, &account()).unwrap().is_none());
    }
}
