//! Finds the PostgreSQL version that a study requests: in the directory that the user specifies;
//! otherwise in the cache, in the repository, or among the installed versions, in this order. Only the
//! repository knows which version is the latest, so for that it comes first.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::account::{OsAccount, SHORT_TIMEOUT, run_program};
use crate::cache::{Cache, default_cache_dir};
use crate::error::ServerError;
use crate::fetch::{FetchError, Repository, without_credentials};
use crate::installation::{Installation, InstallationSource};
use crate::version::{Series, Version, VersionRequest};

/// Time limit of one request to the repository, including a download of 15 MB.
const NETWORK_TIMEOUT: Duration = Duration::from_mins(3);
/// Where Debian and its derivatives install each series.
const SYSTEM_INSTALLATIONS: &str = "/usr/lib/postgresql";

/// Where and how to find installations.
#[derive(Clone, Debug)]
pub struct Finder {
    /// The cache's directory.
    pub cache_dir: PathBuf,
    /// Never use the network.
    pub offline: bool,
    /// URL of a Maven repository to use instead of Maven Central.
    pub mirror: Option<String>,
    /// The only directory to search: an installation's directory, its `bin`, or a directory with
    /// one for each series, such as `18/bin`.
    pub named_dir: Option<PathBuf>,
    /// Use an installed version if all else fails.
    pub use_installed: bool,
    /// Time limit of one request to the repository.
    pub network_timeout: Duration,
    /// The user that runs the programs to find out their version, as in
    /// [`ServerConfig::run_as`](crate::ServerConfig::run_as). Root's default is `nobody`.
    pub run_as: Option<String>,
}

/// What a finder is doing, for a progress display.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinderProgress {
    /// Queries the repository for its versions.
    Asking {
        /// The requested version.
        request: VersionRequest,
        /// Time since the start of this step.
        elapsed: Duration,
    },
    /// Downloads and unpacks.
    Fetching {
        /// The version.
        version: Version,
        /// Time since the start of this step.
        elapsed: Duration,
    },
    /// Has downloaded an archive that is not in the table of known archives, so that only the
    /// checksum of the same repository could be verified.
    Unlisted {
        /// The version.
        version: Version,
    },
    /// Waits for another process that downloads the same series.
    Waiting {
        /// The series.
        series: Series,
        /// Time since the start of this step.
        elapsed: Duration,
    },
}

/// The version that a message names, after a blank: none if any will do.
fn wanted(request: &VersionRequest) -> String {
    match request {
        VersionRequest::Latest => String::new(),
        _ => format!(" {request}"),
    }
}

/// Why a version was not found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FindError {
    /// There is no directory for the cache.
    #[error("no directory for the cache: set PGASSAY_CACHE or HOME")]
    NoCacheDir,
    /// There is no user to run the programs as.
    #[error(transparent)]
    User(#[from] Box<ServerError>),
    /// The directory that the user specified does not contain the version.
    #[error("no PostgreSQL{} in the specified directory {}: {reason}", wanted(request), dir.display())]
    Named {
        /// The requested version.
        request: VersionRequest,
        /// The directory.
        dir: PathBuf,
        /// What it contains instead.
        reason: String,
    },
    /// The directory that the user specified contains several builds of the version.
    #[error(
        "the specified directory {} contains several builds of PostgreSQL {version}: specify one of {}",
        dir.display(), joined(&bin_dirs.iter().map(|it| it.display()).collect::<Vec<_>>())
    )]
    Ambiguous {
        /// The version.
        version: Version,
        /// The directory.
        dir: PathBuf,
        /// The directories of the builds' programs.
        bin_dirs: Vec<PathBuf>,
    },
    /// The repository does not have the version.
    #[error(
        "PostgreSQL {request} is not available for download; {}. \
         For another version, specify the directory of its programs (--binaries)",
        served_words(served)
    )]
    Unknown {
        /// The requested version.
        request: VersionRequest,
        /// The newest available version of each series, newest first.
        served: Vec<Version>,
    },
    /// It is not in the cache, and the network must not be used.
    #[error(
        "PostgreSQL {request} is not in the cache {} ({}), and --offline prevents downloading it. \
         Run once without --offline, or specify the directory of an installed PostgreSQL",
        cache_dir.display(), cached_words(cached)
    )]
    Offline {
        /// The requested version.
        request: VersionRequest,
        /// The cache's directory.
        cache_dir: PathBuf,
        /// The versions in the cache.
        cached: Vec<Version>,
    },
    /// It is not in the cache, and downloading it failed.
    #[error(
        "PostgreSQL {request} is not in the cache {} ({}), and downloading it from {from} failed: {cause}. \
         Check the network, specify another Maven repository (PGASSAY_MIRROR), \
         or specify the directory of an installed PostgreSQL",
        cache_dir.display(), cached_words(cached)
    )]
    NotFetched {
        /// The requested version.
        request: VersionRequest,
        /// The repository.
        from: String,
        /// The cache's directory.
        cache_dir: PathBuf,
        /// The versions in the cache.
        cached: Vec<Version>,
        /// What went wrong.
        cause: Box<FetchError>,
    },
    /// The cache could not be written.
    #[error("cannot store PostgreSQL {version} in the cache {}: {source}", cache_dir.display())]
    Cache {
        /// The version, or the series until the version is known.
        version: String,
        /// The cache's directory.
        cache_dir: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another process is downloading the same series and does not finish.
    #[error("another process has been downloading PostgreSQL {series} for more than {} s", timeout.as_secs())]
    Busy {
        /// The series.
        series: Series,
        /// The time limit.
        timeout: Duration,
    },
}

fn served_words(served: &[Version]) -> String {
    format!("available versions: {}", joined(served))
}

fn cached_words(cached: &[Version]) -> String {
    if cached.is_empty() {
        "which is empty".to_owned()
    } else {
        format!("which contains {}", joined(cached))
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
            run_as: None,
        }
    }

    /// A finder configured by the environment: the cache of [`default_cache_dir`], and the mirror
    /// in `PGASSAY_MIRROR`, if set.
    pub fn from_environment() -> Result<Self, FindError> {
        let mut finder = Self::new(default_cache_dir().ok_or(FindError::NoCacheDir)?);
        finder.mirror = std::env::var("PGASSAY_MIRROR")
            .ok()
            .filter(|address| !address.is_empty());
        Ok(finder)
    }

    /// Finds a version and downloads it if necessary and allowed. Calls `progress` several times a
    /// second during long steps.
    pub fn find(
        &self,
        request: &VersionRequest,
        progress: &mut dyn FnMut(FinderProgress),
    ) -> Result<Installation, FindError> {
        let account = OsAccount::choose(self.run_as.as_deref()).map_err(Box::new)?;
        if let Some(dir) = &self.named_dir {
            return in_named(dir, request, &account);
        }
        let cache = Cache::new(&self.cache_dir, &account);
        let cached = cache.find(request);
        let is_settled = self.offline || *request != VersionRequest::Latest;
        if let Some(installation) = cached.clone().filter(|_| is_settled) {
            return Ok(installation);
        }
        let error = match self.fetch(&cache, request, progress) {
            Ok(installation) => return Ok(installation),
            Err(error) => error,
        };
        if let Some(installation) = cached {
            let version = &installation.version;
            tracing::warn!("using PostgreSQL {version} of the cache as the latest: {error}");
            return Ok(installation);
        }
        let installed = if self.use_installed {
            in_system(request, &account)
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
                installation.source = InstallationSource::Installed { note };
                Ok(installation)
            }
            None => Err(error),
        }
    }

    fn fetch(
        &self,
        cache: &Cache,
        request: &VersionRequest,
        progress: &mut dyn FnMut(FinderProgress),
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
        let asking = |elapsed| FinderProgress::Asking {
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
        progress: &mut dyn FnMut(FinderProgress),
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
                progress(FinderProgress::Waiting { series, elapsed });
            })
            .map_err(unwritable)?
            .ok_or(FindError::Busy { series, timeout })?;
        let exact = VersionRequest::Exact(version.clone());
        // Another process may have fetched it while this one waited for the lock.
        if let Some(installation) = cache.find(&exact) {
            return Ok(installation);
        }
        let scratch = cache.scratch(series, &lock).map_err(unwritable)?;
        let fetching = |elapsed| FinderProgress::Fetching {
            version: version.clone(),
            elapsed,
        };
        progress(fetching(Duration::ZERO));
        let pattern = exact.semver().ok_or(FetchError::NoSuchVersion);
        let fetched = pattern
            .and_then(|pattern| repository.fetch(pattern, |elapsed| progress(fetching(elapsed))));
        if let Ok(archive) = &fetched
            && !archive.is_listed
        {
            warn_unlisted(version, repository);
            let version = version.clone();
            progress(FinderProgress::Unlisted { version });
        }
        let unpacked = fetched.and_then(|archive| archive.unpack(&scratch, cache.account()));
        let published = match unpacked {
            Ok(()) => cache.publish(&scratch, version, &lock).map_err(unwritable),
            Err(FetchError::Unwritable { kind, words }) => {
                Err(unwritable(io::Error::new(kind, words)))
            }
            Err(cause) => Err(self.not_fetched(cache, request, cause)),
        };
        if published.is_err() {
            // Errors do not matter here: the next attempt removes the rest.
            let _ = cache
                .scratch(series, &lock)
                .map(|scratch| scratch.parent().map(fs::remove_dir_all));
        }
        published
    }

    fn not_fetched(&self, cache: &Cache, request: &VersionRequest, cause: FetchError) -> FindError {
        let mirror = self.mirror.as_deref();
        let cause = match mirror {
            Some(url) => cause.without_credentials_of(url),
            None => cause,
        };
        FindError::NotFetched {
            request: request.clone(),
            from: mirror.map_or_else(|| "Maven Central".to_owned(), without_credentials),
            cache_dir: self.cache_dir.clone(),
            cached: cache.versions(),
            cause: Box::new(cause),
        }
    }
}

fn warn_unlisted(version: &Version, repository: &Repository) {
    let from = repository.host();
    tracing::warn!(
        "PostgreSQL {version} from {from} is newer than this version of pgassay or not in its table \
         of known archives: verified only with the checksum that {from} itself publishes"
    );
}

/// Searches the directory that the user specified.
fn in_named(
    dir: &Path,
    request: &VersionRequest,
    account: &OsAccount,
) -> Result<Installation, FindError> {
    let named = |reason| FindError::Named {
        request: request.clone(),
        dir: dir.to_owned(),
        reason,
    };
    match fs::metadata(dir) {
        Ok(facts) if facts.is_dir() => {}
        Ok(_) => return Err(named("it is not a directory".to_owned())),
        Err(error) => return Err(named(error.to_string())),
    }
    let mut found = Vec::new();
    for bin_dir in named_bin_dirs(dir) {
        found.push(
            Installation::inspect(&bin_dir, InstallationSource::Named, account)
                .map_err(|error| named(error.to_string()))?,
        );
    }
    let versions: Vec<Version> = found.iter().map(|it| it.version.clone()).collect();
    found.retain(|it| request.matches(&it.version));
    let newest = found.iter().map(|it| it.version.clone()).max();
    found.retain(|it| Some(&it.version) == newest.as_ref());
    match (found.pop(), found.is_empty()) {
        (Some(only), true) => Ok(only),
        (Some(last), false) => {
            let version = last.version.clone();
            found.push(last);
            Err(FindError::Ambiguous {
                version,
                dir: dir.to_owned(),
                bin_dirs: found.into_iter().map(|it| it.bin_dir).collect(),
            })
        }
        (None, _) if versions.is_empty() => Err(named(
            "there is no program \"postgres\" in it, in bin/ or in VERSION/bin/".to_owned(),
        )),
        (None, _) => Err(named(format!("it contains {}", joined(&versions)))),
    }
}

/// The directories with a server program: the specified one or its `bin`; if there is none, those of each series.
fn named_bin_dirs(dir: &Path) -> Vec<PathBuf> {
    let has_server = |bin_dir: &PathBuf| bin_dir.join("postgres").is_file();
    let direct = [dir.to_owned(), dir.join("bin")]
        .into_iter()
        .find(has_server);
    let bin_dirs = match direct {
        Some(bin_dir) => vec![bin_dir],
        None => series_dirs(dir),
    };
    let bin_dirs = bin_dirs.into_iter().filter(has_server);
    // Several names of one directory are one build.
    let bin_dirs: BTreeSet<PathBuf> = bin_dirs.map(|it| it.canonicalize().unwrap_or(it)).collect();
    bin_dirs.into_iter().collect()
}

/// Searches the installed versions: Debian's directories, and `pg_config` on the `PATH`.
fn in_system(request: &VersionRequest, account: &OsAccount) -> Option<Installation> {
    let source = || InstallationSource::Installed {
        note: String::new(),
    };
    series_dirs(Path::new(SYSTEM_INSTALLATIONS))
        .into_iter()
        .chain(pg_config_bin_dir(account))
        .filter_map(|bin_dir| Installation::inspect(&bin_dir, source(), account).ok())
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

fn pg_config_bin_dir(account: &OsAccount) -> Option<PathBuf> {
    let mut command = account.command(Path::new("pg_config"));
    command.arg("--bindir");
    let output = run_program(command, SHORT_TIMEOUT);
    let printed = String::from_utf8(output.ok()?.stdout).ok()?;
    (!printed.trim().is_empty()).then(|| PathBuf::from(printed.trim()))
}
