//! The cache of unpacked installations, shared by every process and readable by every user.
//!
//! `CACHE/postgresql/18.6-x86_64/{bin,lib,share}`. Invariants: an entry is created by a rename after
//! all its files are on disk, so an existing entry is complete; an entry never changes. One process
//! at a time downloads a series and holds the lock `.fetch-18.lock`; reading takes no lock.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use pgassay_rights::{self as rights, Purpose};

use crate::account::OsAccount;
use crate::installation::{Installation, InstallationSource};
use crate::os;
use crate::version::{Series, Version, VersionRequest};

/// Root's cache, readable by the servers' user.
const SYSTEM_CACHE: &str = "/var/cache/pgassay";
const POLL: Duration = Duration::from_millis(100);

/// The cache's directory.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    root: PathBuf,
    /// The user that runs its programs.
    account: OsAccount,
}

/// The lock for downloading a series; released on drop or when the process ends.
#[derive(Debug)]
pub(crate) struct FetchLock {
    _file: File,
}

/// `$PGASSAY_CACHE`; otherwise `/var/cache/pgassay` for root, and `$XDG_CACHE_HOME/pgassay` or
/// `~/.cache/pgassay` for other users. `None` if none of the variables is set.
pub fn default_cache_dir() -> Option<PathBuf> {
    choose_directory(os::effective_uid(), |name| {
        std::env::var_os(name).map(PathBuf::from)
    })
}

fn choose_directory(uid: u32, variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let filled = |name| variable(name).filter(|path| !path.as_os_str().is_empty());
    if let Some(path) = filled("PGASSAY_CACHE") {
        return Some(path);
    }
    if uid == 0 {
        return Some(PathBuf::from(SYSTEM_CACHE));
    }
    // According to the specification of XDG_CACHE_HOME, relative paths must be ignored.
    let base = filled("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    base.or_else(|| filled("HOME").map(|home| home.join(".cache")))
        .map(|base| base.join("pgassay"))
}

impl Cache {
    pub(crate) fn new(root: &Path, account: &OsAccount) -> Self {
        // Servers and checks run in other working directories.
        Self {
            root: std::path::absolute(root).unwrap_or_else(|_| root.to_owned()),
            account: account.clone(),
        }
    }

    pub(crate) fn account(&self) -> &OsAccount {
        &self.account
    }

    fn directory(&self) -> PathBuf {
        self.root.join("postgresql")
    }

    fn entry(&self, version: &Version) -> PathBuf {
        self.directory()
            .join(format!("{version}-{}", std::env::consts::ARCH))
    }

    /// The versions in the cache, oldest first.
    pub(crate) fn versions(&self) -> Vec<Version> {
        let Ok(entries) = fs::read_dir(self.directory()) else {
            return Vec::new();
        };
        let suffix = format!("-{}", std::env::consts::ARCH);
        let mut versions: Vec<Version> = entries
            .flatten()
            .filter_map(|entry| {
                Version::parse(entry.file_name().to_str()?.strip_suffix(&suffix)?).ok()
            })
            .collect();
        versions.sort();
        versions
    }

    /// The newest version that satisfies a request. A broken entry (with deleted files, for
    /// example) is skipped with a warning.
    pub(crate) fn find(&self, request: &VersionRequest) -> Option<Installation> {
        let fitting = self
            .versions()
            .into_iter()
            .rev()
            .filter(|version| request.matches(version));
        fitting.into_iter().find_map(|version| {
            let bin_dir = self.entry(&version).join("bin");
            match Installation::inspect(&bin_dir, InstallationSource::Cache, &self.account) {
                Ok(installation) => Some(installation),
                Err(error) => {
                    tracing::warn!(entry = %bin_dir.display(), %error, "broken cache entry");
                    None
                }
            }
        })
    }

    /// Locks a series, waiting for another process that is downloading it. Calls `waiting`
    /// repeatedly with the time waited so far. `None` after `timeout`.
    pub(crate) fn lock(
        &self,
        series: Series,
        timeout: Duration,
        mut waiting: impl FnMut(Duration),
    ) -> io::Result<Option<FetchLock>> {
        create_open_to_all(&self.directory())?;
        let path = self.directory().join(format!(".fetch-{series}.lock"));
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(path)?;
        let start = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Some(FetchLock { _file: file })),
                Err(TryLockError::WouldBlock) if start.elapsed() > timeout => return Ok(None),
                Err(TryLockError::WouldBlock) => waiting(start.elapsed()),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            sleep(POLL);
        }
    }

    /// A path to unpack into, which does not exist yet, in a directory that only the current user can
    /// enter. Removes what an interrupted download of the series left. Only for the holder of the
    /// lock.
    pub(crate) fn scratch(&self, series: Series, _lock: &FetchLock) -> io::Result<PathBuf> {
        let scratch = self.directory().join(format!(".partial-{series}"));
        match fs::remove_dir_all(&scratch) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => {
                create_open_to_all(&self.directory())?;
                DirBuilder::new().mode(0o700).create(&scratch)?;
                Ok(scratch.join("unpacked"))
            }
        }
    }

    /// Makes an unpacked directory an entry of the cache, and removes the scratch directory.
    /// Only for the holder of the lock.
    pub(crate) fn publish(
        &self,
        unpacked: &Path,
        version: &Version,
        _lock: &FetchLock,
    ) -> io::Result<Installation> {
        // Nobody else could enter the scratch directory, so the files are as they were unpacked.
        open_to_all(unpacked)?;
        if let Some(scratch) = unpacked.parent() {
            fs::set_permissions(scratch, Permissions::from_mode(0o755))?;
        }
        // An archive whose programs do not run, or are another version's, must not become an entry.
        let found = self.inspect_fetched(unpacked)?.version;
        if found != *version {
            let words = format!("the archive of PostgreSQL {version} contains PostgreSQL {found}");
            return Err(io::Error::other(words));
        }
        let directory = File::open(self.directory())?;
        os::sync_file_system(&directory)?;
        let entry = self.entry(version);
        // An existing entry is broken: `find` would have returned it otherwise.
        match fs::remove_dir_all(&entry) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => fs::rename(unpacked, &entry)?,
        }
        directory.sync_all()?;
        if let Some(scratch) = unpacked.parent() {
            fs::remove_dir_all(scratch)?;
        }
        self.inspect_fetched(&entry)
    }

    fn inspect_fetched(&self, directory: &Path) -> io::Result<Installation> {
        let source = InstallationSource::Fetched;
        Installation::inspect(&directory.join("bin"), source, &self.account)
    }
}

/// Creates a directory and its parents accessible to every user, whatever the umask is. Existing
/// directories are not changed.
pub(crate) fn create_open_to_all(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        create_open_to_all(parent)?;
    }
    match DirBuilder::new().mode(0o755).create(path) {
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(0o755)),
        // Another process was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes the current user the owner of an unpacked tree, lets every user read it, and execute the
/// files that its owner can execute.
fn open_to_all(path: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    if metadata.uid() != os::effective_uid() {
        let _raised = rights::raise(Purpose::Owners);
        lchown(path, Some(os::effective_uid()), Some(os::effective_gid()))?;
    }
    if metadata.is_symlink() {
        return Ok(());
    }
    let mode = metadata.permissions().mode();
    let runs = metadata.is_dir() || mode & 0o100 != 0;
    fs::set_permissions(
        path,
        Permissions::from_mode(if runs { 0o755 } else { 0o644 }),
    )?;
    if metadata.is_dir() {
        for entry in fs::read_dir(path)? {
            open_to_all(&entry?.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Processes that other tests start hold our locks between fork and exec.
    const SOON: Duration = Duration::from_secs(5);

    /// A directory that the server's user can enter.
    fn open_directory() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        directory
    }

    fn new_cache(root: &Path) -> Cache {
        Cache::new(root, &OsAccount::choose(None).unwrap())
    }

    fn request(text: &str) -> VersionRequest {
        VersionRequest::parse(text).unwrap()
    }

    fn series(text: &str) -> Series {
        request(text).series().unwrap()
    }

    /// The files of an archive that are needed here.
    fn unpack(directory: &Path, version: &str) {
        fs::create_dir_all(directory.join("bin")).unwrap();
        for name in ["postgres", "initdb"] {
            let path = directory.join("bin").join(name);
            fs::write(
                &path,
                format!("#!/bin/sh\necho '{name} (PostgreSQL) {version}'\n"),
            )
            .unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        }
    }

    fn publish(cache: &Cache, version: &str) -> io::Result<Installation> {
        let version = Version::parse(version).unwrap();
        let lock = cache.lock(version.series(), SOON, |_| ())?.unwrap();
        let scratch = cache.scratch(version.series(), &lock)?;
        unpack(&scratch, &version.to_string());
        cache.publish(&scratch, &version, &lock)
    }

    #[test]
    fn the_directory_depends_on_user_and_environment() {
        let choose = |uid, variables: &[(&str, &str)]| {
            let get = |name: &str| {
                variables
                    .iter()
                    .find(|(n, _)| *n == name)
                    .map(|(_, v)| PathBuf::from(v))
            };
            choose_directory(uid, get).map(|path| path.to_string_lossy().into_owned())
        };
        let home = ("HOME", "/home/me");
        assert_eq!(choose(0, &[home]).as_deref(), Some("/var/cache/pgassay"));
        assert_eq!(
            choose(0, &[("PGASSAY_CACHE", "/c"), home]).as_deref(),
            Some("/c")
        );
        assert_eq!(
            choose(1, &[home]).as_deref(),
            Some("/home/me/.cache/pgassay")
        );
        assert_eq!(
            choose(1, &[home, ("XDG_CACHE_HOME", "/x")]).as_deref(),
            Some("/x/pgassay")
        );
        assert_eq!(
            choose(1, &[home, ("XDG_CACHE_HOME", "x")]).as_deref(),
            Some("/home/me/.cache/pgassay")
        );
        assert_eq!(choose(1, &[("PGASSAY_CACHE", "")]), None);
    }

    #[test]
    fn the_newest_of_a_series_is_found_and_the_scratch_directory_is_removed() {
        let directory = open_directory();
        let cache = new_cache(&directory.path().join("new/cache"));
        assert_eq!(cache.find(&request("18")), None);
        for version in ["18.2", "18.10", "18.9", "17.11"] {
            publish(&cache, version).unwrap();
        }
        let found = |text: &str| {
            cache
                .find(&request(text))
                .map(|found| found.version.to_string())
        };
        assert_eq!(found("18").as_deref(), Some("18.10"));
        assert_eq!(found("18.9").as_deref(), Some("18.9"));
        assert_eq!(found("18.3"), None);
        assert_eq!(found("latest").as_deref(), Some("18.10"));
        let hidden = |name: &str| cache.directory().join(name).exists();
        assert!(!hidden(".partial-18") && hidden(".fetch-18.lock"));
    }

    #[test]
    fn every_user_can_read_and_execute_an_entry() {
        let directory = open_directory();
        let cache = new_cache(directory.path());
        let entry = publish(&cache, "18.6").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&entry.program("postgres")), 0o755);
        assert_eq!(mode(&entry.bin_dir), 0o755);
        assert_eq!(mode(&cache.directory()), 0o755);
    }

    #[test]
    fn an_archive_of_another_version_is_rejected() {
        let directory = open_directory();
        let cache = new_cache(directory.path());
        let lock = cache.lock(series("18"), SOON, |_| ()).unwrap().unwrap();
        let scratch = cache.scratch(series("18"), &lock).unwrap();
        unpack(&scratch, "17.2");
        let version = Version::parse("18.6").unwrap();
        let error = cache.publish(&scratch, &version, &lock).unwrap_err();
        assert!(
            error.to_string().contains("contains PostgreSQL 17.2"),
            "{error}"
        );
        assert_eq!(cache.find(&request("18")), None);
    }

    #[test]
    fn an_interrupted_unpacking_is_not_an_entry() {
        let directory = open_directory();
        let cache = new_cache(directory.path());
        let lock = cache.lock(series("18"), SOON, |_| ()).unwrap().unwrap();
        let scratch = cache.scratch(series("18"), &lock).unwrap();
        unpack(&scratch, "18.6");
        drop(lock);
        assert_eq!(cache.find(&request("18")), None);
        assert!(cache.versions().is_empty());
        let lock = cache.lock(series("18"), SOON, |_| ()).unwrap().unwrap();
        assert!(!cache.scratch(series("18"), &lock).unwrap().exists());
    }

    #[test]
    fn an_archive_that_does_not_run_is_rejected_and_a_broken_entry_is_replaced() {
        let directory = open_directory();
        let cache = new_cache(directory.path());
        let lock = cache.lock(series("18"), SOON, |_| ()).unwrap().unwrap();
        let scratch = cache.scratch(series("18"), &lock).unwrap();
        fs::create_dir_all(scratch.join("bin")).unwrap();
        let version = Version::parse("18.6").unwrap();
        assert!(cache.publish(&scratch, &version, &lock).is_err());
        drop(lock);
        let entry = publish(&cache, "18.6").unwrap();
        fs::remove_file(entry.program("initdb")).unwrap();
        assert_eq!(cache.find(&request("18")), None);
        publish(&cache, "18.6").unwrap();
        assert!(cache.find(&request("18")).is_some());
    }

    #[test]
    fn one_process_at_a_time_downloads_a_series() {
        let directory = open_directory();
        let cache = new_cache(directory.path());
        let held = cache.lock(series("18"), SOON, |_| ()).unwrap().unwrap();
        assert!(cache.lock(series("9.6"), SOON, |_| ()).unwrap().is_some());
        let mut calls = 0;
        let second = cache
            .lock(series("18"), Duration::from_millis(50), |_| calls += 1)
            .unwrap();
        assert!(second.is_none() && calls > 0);
        drop(held);
        assert!(cache.lock(series("18"), SOON, |_| ()).unwrap().is_some());
    }
}
