//! Finds the PostgreSQL that a study asks for: in the directory that the user names, else in the
//! cache, else in the archives, else among what is installed.

use std::fmt::Display;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::cache::{Cache, default_cache_dir};
use crate::fetch::{FetchError, Repository};
use crate::installation::{Installation, Source};
use crate::version::{Series, Version, VersionRequest};

/// How long one exchange with the archives may take, the download of 15 MB included.
const NETWORK_TIMEOUT: Duration = Duration::from_mins(3);
/// Where Debian and its kin put each series.
const SYSTEM_INSTALLATIONS: &str = "/usr/lib/postgresql";

/// Where to look, and how.
#[derive(Clone, Debug)]
pub struct Finder {
    /// The cache's directory.
    pub cache_dir: PathBuf,
    /// Never use the network.
    pub offline: bool,
    /// The address of another Maven repository's root than the library's default.
    pub mirror: Option<String>,
    /// A directory to look into, and nowhere else: an installation's own directory, its `bin`, or
    /// one that holds a directory for each series, such as `18/bin`.
    pub named_dir: Option<PathBuf>,
    /// Look among what is installed when all else fails.
    pub use_installed: bool,
    /// How long one exchange with the archives may take.
    pub network_timeout: Duration,
}

/// What a finder is doing, for whoever shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// Asks the archives what there is.
    Asking {
        /// For which version.
        request: VersionRequest,
        /// For how long already.
        elapsed: Duration,
    },
    /// Fetches and unpacks.
    Fetching {
        /// Which version.
        version: Version,
        /// For how long already.
        elapsed: Duration,
    },
    /// Waits for another process that fetches the same series.
    Waiting {
        /// Which series.
        series: Series,
        /// For how long already.
        elapsed: Duration,
    },
}

/// Why nothing was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FindError {
    /// There is no directory for the cache.
    #[error("there is no directory for the cache: set PGASSAY_CACHE or HOME")]
    NoCacheDir,
    /// The directory that the user named does not hold what was asked for.
    #[error("no PostgreSQL {request} in {}, the directory given for it: {reason}", dir.display())]
    Named {
        /// What was asked for.
        request: VersionRequest,
        /// The directory.
        dir: PathBuf,
        /// What is there instead.
        reason: String,
    },
    /// The archives have no such version.
    #[error(
        "there is no PostgreSQL {request} to fetch; {}. \
         For a version of your own, name the directory of its programs",
        served_words(served)
    )]
    Unknown {
        /// What was asked for.
        request: VersionRequest,
        /// The newest version of each series there is, newest first.
        served: Vec<Version>,
    },
    /// It is not in the cache, and the network may not be used.
    #[error(
        "PostgreSQL {request} is not in the cache {} ({}), and --offline forbids fetching it. \
         Run once without --offline, or name the directory of an installed PostgreSQL",
        cache_dir.display(), cached_words(cached)
    )]
    Offline {
        /// What was asked for.
        request: VersionRequest,
        /// The cache's directory.
        cache_dir: PathBuf,
        /// What the cache has.
        cached: Vec<Version>,
    },
    /// It is not in the cache, and fetching it failed.
    #[error(
        "PostgreSQL {request} is not in the cache {} ({}), and fetching it from {from} failed: {cause}. \
         Check the network, give another Maven repository (PGASSAY_MIRROR), \
         or name the directory of an installed PostgreSQL",
        cache_dir.display(), cached_words(cached)
    )]
    NotFetched {
        /// What was asked for.
        request: VersionRequest,
        /// Whence.
        from: String,
        /// The cache's directory.
        cache_dir: PathBuf,
        /// What the cache has.
        cached: Vec<Version>,
        /// What went wrong.
        cause: Box<FetchError>,
    },
    /// The cache could not be written.
    #[error("cannot keep PostgreSQL {version} in the cache {}: {source}", cache_dir.display())]
    Cache {
        /// The version, or the series before that is known.
        version: String,
        /// The cache's directory.
        cache_dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process fetches the same series and does not come to an end.
    #[error("another process has been fetching PostgreSQL {series} for more than {} s", timeout.as_secs())]
    Busy {
        /// The series.
        series: Series,
        /// How long it was waited for.
        timeout: Duration,
    },
}

fn served_words(served: &[Version]) -> String {
    format!("the newest of each series are {}", joined(served))
}

fn cached_words(cached: &[Version]) -> String {
    if cached.is_empty() {
        "which is empty".to_owned()
    } else {
        format!("which has {}", joined(cached))
    }
}

fn joined<T: Display>(items: &[T]) -> String {
    items
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

impl Finder {
    /// A finder with this cache, allowed to use the network.
    pub fn new(cache_dir: impl Into<PathBuf>) -> Self {
        Self {
            cache_dir: cache_dir.into(),
            offline: false,
            mirror: None,
            named_dir: None,
            use_installed: true,
            network_timeout: NETWORK_TIMEOUT,
        }
    }

    /// A finder as the environment wants it: the cache of [`default_cache_dir`], and a mirror
    /// where `PGASSAY_MIRROR` names one.
    pub fn from_environment() -> Result<Self, FindError> {
        let mut finder = Self::new(default_cache_dir().ok_or(FindError::NoCacheDir)?);
        finder.mirror = std::env::var("PGASSAY_MIRROR")
            .ok()
            .filter(|address| !address.is_empty());
        Ok(finder)
    }

    /// Finds a version, fetching it if need be and allowed. `progress` hears of whatever takes
    /// time, several times a second.
    pub fn find(
        &self,
        request: &VersionRequest,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Installation, FindError> {
        if let Some(dir) = &self.named_dir {
            return in_named(dir, request);
        }
        let cache = Cache::new(&self.cache_dir);
        if let Some(installation) = cache.find(request) {
            return Ok(installation);
        }
        let error = match self.fetch(&cache, request, progress) {
            Ok(installation) => return Ok(installation),
            Err(error) => error,
        };
        let installed = if self.use_installed {
            in_system(request)
        } else {
            None
        };
        match installed {
            Some(mut installation) => {
                let note = format!(
                    "using PostgreSQL {} installed in {}, because {error}",
                    installation.version,
                    installation.bin_dir.display()
                );
                installation.source = Source::Installed { note };
                Ok(installation)
            }
            None => Err(error),
        }
    }

    fn fetch(
        &self,
        cache: &Cache,
        request: &VersionRequest,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Installation, FindError> {
        if self.offline {
            let (request, cache_dir) = (request.clone(), self.cache_dir.clone());
            return Err(FindError::Offline {
                request,
                cache_dir,
                cached: cache.versions(),
            });
        }
        let failed = |cause| self.not_fetched(cache, request, cause);
        let repository =
            Repository::new(self.mirror.as_deref(), self.network_timeout).map_err(failed)?;
        let asking = |elapsed| Progress::Asking {
            request: request.clone(),
            elapsed,
        };
        progress(asking(Duration::ZERO));
        let newest = match request.semver() {
            Some(pattern) => repository.newest(pattern, |elapsed| progress(asking(elapsed))),
            None => Err(FetchError::NoSuchVersion),
        };
        let version = match newest {
            Ok(version) => version,
            Err(FetchError::NoSuchVersion) => {
                let served = repository.newest_of_each().map_err(failed)?;
                return Err(FindError::Unknown {
                    request: request.clone(),
                    served,
                });
            }
            Err(cause) => return Err(failed(cause)),
        };
        self.fetch_version(cache, request, &version, &repository, progress)
    }

    fn fetch_version(
        &self,
        cache: &Cache,
        request: &VersionRequest,
        version: &Version,
        repository: &Repository,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Installation, FindError> {
        let series = version.series();
        let unwritable = |source| FindError::Cache {
            version: version.to_string(),
            cache_dir: self.cache_dir.clone(),
            source,
        };
        let timeout = 2 * self.network_timeout;
        let lock = cache
            .lock(series, timeout, |elapsed| {
                progress(Progress::Waiting { series, elapsed });
            })
            .map_err(unwritable)?
            .ok_or(FindError::Busy { series, timeout })?;
        let exact = VersionRequest::Exact(version.clone());
        // Another process may have fetched it while this one waited for the lock.
        if let Some(installation) = cache.find(&exact) {
            return Ok(installation);
        }
        let scratch = cache.scratch(series, &lock).map_err(unwritable)?;
        let fetching = |elapsed| Progress::Fetching {
            version: version.clone(),
            elapsed,
        };
        progress(fetching(Duration::ZERO));
        let pattern = exact.semver().ok_or(FetchError::NoSuchVersion);
        let fetched = pattern.and_then(|pattern| {
            repository.fetch(pattern, &scratch, |elapsed| progress(fetching(elapsed)))
        });
        let published = match fetched {
            Ok(_) => cache.publish(&scratch, version, &lock).map_err(unwritable),
            Err(cause) => Err(self.not_fetched(cache, request, cause)),
        };
        if published.is_err() {
            // What is left of it is in nobody's way and goes at the next try at the latest.
            let _ = cache
                .scratch(series, &lock)
                .map(|scratch| scratch.parent().map(fs::remove_dir_all));
        }
        published
    }

    fn not_fetched(&self, cache: &Cache, request: &VersionRequest, cause: FetchError) -> FindError {
        FindError::NotFetched {
            request: request.clone(),
            from: self
                .mirror
                .clone()
                .unwrap_or_else(|| "Maven Central".to_owned()),
            cache_dir: self.cache_dir.clone(),
            cached: cache.versions(),
            cause: Box::new(cause),
        }
    }
}

/// Looks into the directory that the user named.
fn in_named(dir: &Path, request: &VersionRequest) -> Result<Installation, FindError> {
    let named = |reason| FindError::Named {
        request: request.clone(),
        dir: dir.to_owned(),
        reason,
    };
    let candidates = [dir.to_owned(), dir.join("bin")]
        .into_iter()
        .chain(series_dirs(dir));
    let mut found = Vec::new();
    for bin_dir in candidates.filter(|bin_dir| bin_dir.join("postgres").is_file()) {
        let bin_dir = bin_dir.canonicalize().unwrap_or(bin_dir);
        found.push(
            Installation::inspect(&bin_dir, Source::Named)
                .map_err(|error| named(error.to_string()))?,
        );
    }
    let versions: Vec<Version> = found
        .iter()
        .map(|installation| installation.version.clone())
        .collect();
    let fitting = found
        .into_iter()
        .filter(|installation| request.matches(&installation.version));
    fitting
        .max_by(|a, b| a.version.cmp(&b.version))
        .ok_or_else(|| {
            named(if versions.is_empty() {
                "it holds no program \"postgres\", neither itself nor in bin/ or VERSION/bin/"
                    .to_owned()
            } else {
                format!("it holds {}", joined(&versions))
            })
        })
}

/// Looks for what is installed: Debian's directories, and `pg_config` on the `PATH`.
fn in_system(request: &VersionRequest) -> Option<Installation> {
    let source = || Source::Installed {
        note: String::new(),
    };
    series_dirs(Path::new(SYSTEM_INSTALLATIONS))
        .into_iter()
        .chain(pg_config_bin_dir())
        .filter_map(|bin_dir| Installation::inspect(&bin_dir, source()).ok())
        .filter(|installation| request.matches(&installation.version))
        .max_by(|a, b| a.version.cmp(&b.version))
}

fn series_dirs(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path().join("bin"))
        .filter(|bin_dir| bin_dir.is_dir())
        .collect()
}

fn pg_config_bin_dir() -> Option<PathBuf> {
    let output = Command::new("pg_config")
        .arg("--bindir")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let printed = String::from_utf8(output.ok()?.stdout).ok()?;
    (!printed.trim().is_empty()).then(|| PathBuf::from(printed.trim()))
}
