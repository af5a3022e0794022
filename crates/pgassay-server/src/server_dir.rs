//! Server directories, and whether they are in use.
//!
//! A server directory is named `pgassay-…` and contains a file `lock`. The process that created it
//! and its keeper share an open file with an exclusive `flock` on it; the kernel releases it when
//! the last of them ends for any reason. A directory whose lock is free is stale, and the next
//! start removes it (see `sweep`).
//! Invariant: `lock` is created by renaming a file that is already locked, so a directory that is
//! just being created never has a free lock. `lock` is also removed last, so a directory without one has nothing
//! in it but perhaps `lock.new`; any other one is not ours, whatever its name. All this holds only in a parent
//! directory in which no other user can rename directories, so others are neither used nor cleaned.

use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::account::OsAccount;
use crate::open_dir::{NameInfo, OpenDir};
use crate::os;

const PREFIX: &str = "pgassay-";
const LOCK: &str = "lock";
const NEW_LOCK: &str = "lock.new";

/// How long a directory may have no lock file; enough for a slow machine to create one.
const GRACE: Duration = Duration::from_mins(1);

/// A server directory, in use until this is dropped *and* its keeper has ended.
#[derive(Debug)]
pub(crate) struct ServerDir {
    path: PathBuf,
    parent: OpenDir,
    directory: Arc<OpenDir>,
    lock: File,
}

impl ServerDir {
    /// Creates a directory that only the current user can access, until `hand_over`.
    pub(crate) fn create(parent: &Path) -> io::Result<Self> {
        let parent_path = parent.canonicalize()?;
        let parent = OpenDir::open_parent(&parent_path)?;
        let random = u64::from_ne_bytes(os::random_bytes()?);
        let name = format!("{PREFIX}{random:016x}");
        let directory = parent.create_dir(OsStr::new(&name))?;
        let path = parent_path.join(&name);
        // Members of the parent's group can be able to rename.
        if directory.info()?.owner != os::effective_uid() {
            let words = "another user replaced the directory that was just created";
            return Err(io::Error::other(words));
        }
        match lock_new(&directory) {
            Ok(lock) => Ok(Self {
                path,
                parent,
                directory: Arc::new(directory),
                lock,
            }),
            Err(error) => {
                // The first error matters more than one of the cleanup.
                let _ = directory.remove_file(OsStr::new(NEW_LOCK));
                let _ = parent.remove_empty_dir(OsStr::new(&name));
                Err(error)
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The directory itself, for everything that is read in it.
    pub(crate) fn directory(&self) -> &Arc<OpenDir> {
        &self.directory
    }

    pub(crate) fn lock(&self) -> &File {
        &self.lock
    }

    /// uid of its owner: the server's user after `hand_over`.
    pub(crate) fn owner(&self) -> io::Result<u32> {
        Ok(self.directory.info()?.owner)
    }

    /// Makes the server's user the owner of the directory. Then only that user and root can access
    /// it.
    pub(crate) fn hand_over(&self, account: &OsAccount) -> io::Result<()> {
        self.directory.set_owner(account.user.uid, account.user.gid)
    }

    /// Takes over a stale server directory. `None` if it is in use, is not a server directory, or its
    /// owner is not one of `owners` (uids). The owner is checked before anything is opened: any user
    /// can create such a name in a directory that all share.
    pub(crate) fn adopt(path: &Path, owners: &[u32]) -> io::Result<Option<Self>> {
        let (Some(name), Some(parent)) = (path.file_name(), path.parent()) else {
            return Ok(None);
        };
        if !is_server_dir_name(name) {
            return Ok(None);
        }
        let parent = OpenDir::open_parent(parent)?;
        let is_ours = |found: &NameInfo| found.is_dir && owners.contains(&found.owner);
        let found = parent.info_of(name)?;
        if !is_ours(&found) {
            return Ok(None);
        }
        let directory = parent.open_dir(name)?;
        if directory.info()?.identity != found.identity {
            // Replaced between the two calls.
            return Ok(None);
        }
        let lock = match directory.open_file(OsStr::new(LOCK)) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if age(&found) < GRACE {
                    return Ok(None);
                }
                check_was_being_created(&directory)?;
                lock_new(&directory)?
            }
            // Created by root for a server that runs as the current user: not ours to take over.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
            Err(error) => return Err(error),
        };
        match lock.try_lock() {
            Ok(()) => Ok(Some(Self {
                path: path.to_owned(),
                parent,
                directory: Arc::new(directory),
                lock,
            })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Removes the directory and its contents, if it still exists. Returns an error at the deadline.
    pub(crate) fn remove(&self, deadline: Instant) -> io::Result<()> {
        self.directory.remove_contents_but(LOCK, deadline)?;
        self.directory.remove_file(OsStr::new(LOCK))?;
        let name = self.path.file_name().unwrap_or_default();
        self.parent.remove_empty_dir(name)
    }
}

/// The server directories in `parent`, in use or not, that belong to one of `owners` (uids). None where another user
/// could have put another directory in place of one.
pub(crate) fn server_dirs_in(parent: &Path, owners: &[u32]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(directory) = OpenDir::open_trusted(parent) else {
        return found;
    };
    let listed = directory.each_name(|name| {
        let is_ours = |info: NameInfo| info.is_dir && owners.contains(&info.owner);
        if is_server_dir_name(name) && directory.info_of(name).is_ok_and(is_ours) {
            found.push(parent.join(name));
        }
        true
    });
    if let Err(error) = listed {
        let path = parent.display();
        tracing::warn!(%path, %error, "cannot list the directories of earlier servers");
    }
    if !found.is_empty()
        && let Err(reason) = OpenDir::open_parent(parent)
    {
        let path = parent.display();
        tracing::warn!(%path, %reason, "directories of earlier servers are not removed");
        found.clear();
    }
    found
}

fn age(found: &NameInfo) -> Duration {
    let modified = u64::try_from(found.modified_ns).unwrap_or(0);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    now.saturating_sub(Duration::from_nanos(modified))
}

fn is_server_dir_name(name: &OsStr) -> bool {
    name.to_str()
        .and_then(|name| name.strip_prefix(PREFIX))
        .is_some_and(|rest| rest.len() == 16 && rest.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Returns an error if a directory without a lock has anything that a killed start does not leave there.
fn check_was_being_created(directory: &OpenDir) -> io::Result<()> {
    let mut is_it = true;
    directory.each_name(|name| {
        let info = directory.info_of(name);
        is_it = name == NEW_LOCK && info.is_ok_and(|it| it.is_file && it.bytes == 0);
        is_it
    })?;
    if is_it {
        return Ok(());
    }
    let words =
        "it is named like a server's directory, but it has files and no lock: remove it yourself";
    Err(io::Error::other(words))
}

fn lock_new(directory: &OpenDir) -> io::Result<File> {
    // Left by a process that was killed between the two steps below.
    directory.remove_file(OsStr::new(NEW_LOCK))?;
    let lock = directory.create_file(NEW_LOCK)?;
    lock.try_lock().map_err(|error| match error {
        TryLockError::Error(error) => error,
        TryLockError::WouldBlock => io::Error::other("another process holds the lock"),
    })?;
    directory.rename(NEW_LOCK, LOCK)?;
    Ok(lock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn account() -> OsAccount {
        OsAccount::choose(None).unwrap()
    }

    fn owners() -> Vec<u32> {
        account().owners()
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_mins(1)
    }

    /// Processes that other tests start hold our locks between fork and exec.
    fn adopt_soon(path: &Path) -> ServerDir {
        let mut adopted = None;
        crate::waiting::wait_until(Duration::from_secs(5), || {
            adopted = ServerDir::adopt(path, &owners()).unwrap();
            adopted.is_some()
        });
        adopted.unwrap()
    }

    #[test]
    fn only_a_stale_directory_can_be_adopted() {
        let parent = tempfile::tempdir().unwrap();
        let place = ServerDir::create(parent.path()).unwrap();
        let path = place.path().to_owned();
        assert_eq!(server_dirs_in(parent.path(), &owners()), [path.as_path()]);
        assert!(ServerDir::adopt(&path, &owners()).unwrap().is_none());
        drop(place);
        let adopted = adopt_soon(&path);
        adopted.remove(soon()).unwrap();
        adopted.remove(soon()).unwrap();
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
            ServerDir::adopt(&path, &account.owners())
                .unwrap()
                .is_none()
        });
        assert!(adopting.join().unwrap());
    }

    #[test]
    fn a_directory_that_is_just_being_created_is_left_alone() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("pgassay-0123456789abcdef");
        fs::create_dir(&path).unwrap();
        assert!(ServerDir::adopt(&path, &owners()).unwrap().is_none());
        make_old(&path);
        assert_eq!(adopt_soon(&path).path(), path);
    }

    fn make_old(path: &Path) {
        let old = std::time::SystemTime::now() - 2 * GRACE;
        File::open(path).unwrap().set_modified(old).unwrap();
    }

    /// Regression: in a directory in which another user could rename entries, that user gave a directory of root
    /// such a name, and root's next start removed all that was in it.
    #[test]
    fn a_directory_with_files_and_no_lock_is_not_removed() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("pgassay-0123456789abcdef");
        fs::create_dir(&path).unwrap();
        for (important, text) in [("notes", ""), ("lock.new", "text")] {
            let file = path.join(important);
            fs::write(&file, text).unwrap();
            make_old(&path);
            let error = ServerDir::adopt(&path, &owners()).unwrap_err();
            assert!(error.to_string().contains("no lock"), "{error}");
            crate::sweep::stale(&[parent.path().to_owned()], &account());
            assert!(file.exists());
            fs::remove_file(&file).unwrap();
        }
        // What a killed start leaves.
        fs::write(path.join(NEW_LOCK), "").unwrap();
        make_old(&path);
        adopt_soon(&path).remove(soon()).unwrap();
        assert!(!path.exists());
    }

    /// Regression: as above, and a directory that had just been created could be another one when it was opened.
    #[test]
    fn a_parent_in_which_others_can_rename_is_neither_used_nor_cleaned() {
        let parent = tempfile::tempdir().unwrap();
        let allow = |mode| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            fs::set_permissions(parent.path(), mode).unwrap();
        };
        let path = ServerDir::create(parent.path()).unwrap().path().to_owned();
        allow(0o777);
        let error = ServerDir::create(parent.path()).unwrap_err().to_string();
        assert!(
            error.contains("choose another with --data-parent or TMPDIR"),
            "{error}"
        );
        assert!(server_dirs_in(parent.path(), &owners()).is_empty());
        assert!(ServerDir::adopt(&path, &owners()).is_err());
        crate::sweep::stale(&[parent.path().to_owned()], &account());
        assert!(path.join(LOCK).exists());
        allow(0o1777);
        assert_eq!(server_dirs_in(parent.path(), &owners()), [path.as_path()]);
        adopt_soon(&path).remove(soon()).unwrap();
        ServerDir::create(parent.path()).unwrap();
    }

    /// Without a lock, what is left of a removal that is killed would stay.
    #[test]
    fn the_lock_is_removed_last() {
        let parent = tempfile::tempdir().unwrap();
        let place = ServerDir::create(parent.path()).unwrap();
        for number in 0..20 {
            // Deeper than what is removed.
            let deep: PathBuf = std::iter::repeat_n("d", 100).collect();
            fs::create_dir_all(place.path().join(format!("{number}")).join(deep)).unwrap();
            place.remove(soon()).unwrap_err();
            assert!(place.path().join(LOCK).exists());
        }
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
                ServerDir::adopt(&parent.path().join(name), &owners())
                    .unwrap()
                    .is_none()
            );
        }
        assert!(server_dirs_in(parent.path(), &owners()).is_empty());
    }

    #[test]
    fn a_symbolic_link_is_not_followed() {
        let parent = tempfile::tempdir().unwrap();
        let target = tempfile::tempdir().unwrap();
        let link = parent.path().join("pgassay-0123456789abcdef");
        std::os::unix::fs::symlink(target.path(), &link).unwrap();
        assert!(ServerDir::adopt(&link, &owners()).unwrap().is_none());
    }
}
