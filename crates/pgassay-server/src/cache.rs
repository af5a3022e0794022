//! The cache of unpacked installations, shared by every process and readable by every user.
//!
//! `CACHE/postgresql/18.6-x86_64/{bin,lib,share}`. Invariants: an entry appears by a rename after
//! everything in it has reached the disk, so an entry that is there is complete; an entry is never
//! changed. One process at a time fetches into a series, holding the lock `.fetch-18.lock`;
//! reading takes no lock.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::installation::{Installation, Source};
use crate::os;
use crate::version::{Series, Version, VersionRequest};

/// Where root keeps it, so that the servers' user can read it.
const SYSTEM_CACHE: &str = "/var/cache/pgassay";
const POLL: Duration = Duration::from_millis(100);

/// The cache's directory.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    root: PathBuf,
}

/// The right to fetch a series; held until dropped, or until the process ends.
#[derive(Debug)]
pub(crate) struct FetchLock {
    _file: File,
}

/// `$PGASSAY_CACHE`; else for root `/var/cache/pgassay`, else `$XDG_CACHE_HOME/pgassay` or
/// `~/.cache/pgassay`. None if there is neither of these variables nor a home.
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
    // The specification of XDG_CACHE_HOME says that a relative path is to be ignored.
    let base = filled("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    base.or_else(|| filled("HOME").map(|home| home.join(".cache")))
        .map(|base| base.join("pgassay"))
}

impl Cache {
    pub(crate) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    fn directory(&self) -> PathBuf {
        self.root.join("postgresql")
    }

    fn entry(&self, version: &Version) -> PathBuf {
        self.directory()
            .join(format!("{version}-{}", std::env::consts::ARCH))
    }

    /// The versions that the cache has, oldest first.
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

    /// The newest version that answers a request. An entry that does not work (somebody deleted
    /// half of it) is passed over with a warning.
    pub(crate) fn find(&self, request: &VersionRequest) -> Option<Installation> {
        let fitting = self
            .versions()
            .into_iter()
            .rev()
            .filter(|version| request.matches(version));
        fitting.into_iter().find_map(|version| {
            let bin_dir = self.entry(&version).join("bin");
            match Installation::inspect(&bin_dir, Source::Cache) {
                Ok(installation) => Some(installation),
                Err(error) => {
                    tracing::warn!(entry = %bin_dir.display(), %error, "an entry of the cache does not work");
                    None
                }
            }
        })
    }

    /// Takes the lock of a series, waiting for a process that fetches already. `waiting` is called
    /// now and then with the time waited so far. None when the time is over.
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

    /// A directory to unpack into, which does not exist yet; what an earlier, interrupted fetch
    /// of the series left is removed. Only for who holds the lock.
    pub(crate) fn scratch(&self, series: Series, _lock: &FetchLock) -> io::Result<PathBuf> {
        let scratch = self.directory().join(format!(".partial-{series}"));
        match fs::remove_dir_all(&scratch) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => {
                create_open_to_all(&scratch)?;
                Ok(scratch.join("unpacked"))
            }
        }
    }

    /// Makes an unpacked directory an entry of the cache, and removes the scratch directory.
    /// Only for who holds the lock.
    pub(crate) fn publish(
        &self,
        unpacked: &Path,
        version: &Version,
        _lock: &FetchLock,
    ) -> io::Result<Installation> {
        open_to_all(unpacked)?;
        // An archive that does not run here must not become an entry.
        Installation::inspect(&unpacked.join("bin"), Source::Fetched)?;
        let directory = File::open(self.directory())?;
        os::sync_file_system(&directory)?;
        let entry = self.entry(version);
        // Only an entry that did not work can be in the way: `find` would have given another.
        match fs::remove_dir_all(&entry) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => fs::rename(unpacked, &entry)?,
        }
        directory.sync_all()?;
        if let Some(scratch) = unpacked.parent() {
            fs::remove_dir_all(scratch)?;
        }
        Installation::inspect(&entry.join("bin"), Source::Fetched)
    }
}

/// Creates a directory and those above it that every user may enter, whatever our umask is.
/// Directories that were there stay as they are.
fn create_open_to_all(path: &Path) -> io::Result<()> {
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

/// Lets every user read an unpacked tree, and run what its owner may run.
fn open_to_all(path: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
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

    /// Other tests start processes, and between fork and exec those hold our locks for a moment.
    const SOON: Duration = Duration::from_secs(5);

    fn request(text: &str) -> VersionRequest {
        VersionRequest::parse(text).unwrap()
    }

    fn series(text: &str) -> Series {
        request(text).series().unwrap()
    }

    /// What an archive would hold, as far as it is looked at.
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
    fn the_directory_follows_user_and_environment() {
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
    fn the_newest_of_a_series_is_found_and_the_scratch_goes() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::new(&directory.path().join("new/cache"));
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
    fn every_user_may_read_and_run_an_entry() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::new(directory.path());
        let entry = publish(&cache, "18.6").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&entry.program("postgres")), 0o755);
        assert_eq!(mode(&entry.bin_dir), 0o755);
        assert_eq!(mode(&cache.directory()), 0o755);
    }

    #[test]
    fn an_unpacking_cut_off_half_way_is_not_an_entry() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::new(directory.path());
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
    fn an_archive_that_does_not_run_is_refused_and_a_broken_entry_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::new(directory.path());
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
    fn one_at_a_time_fetches_a_series() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::new(directory.path());
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
