//! Servers as pgassay starts them, of any version.
//!
//! A test without an available server is skipped; see [`crate::skip`].

use pgassay_server::{Finder, Installation, Server, ServerConfig, VersionRequest};

use crate::server_directory;

/// The programs of a version, from the cache or downloaded. `None`, with a visible skip, if they are
/// not available.
///
/// # Panics
/// If `version` is not a version, and as [`crate::skip`].
pub fn installation(version: &str) -> Option<Installation> {
    let request = VersionRequest::parse(version).expect("a test requests a valid version");
    let found = Finder::from_environment().and_then(|mut finder| {
        // An installed version may differ from the requested one.
        finder.use_installed = false;
        finder.find(&request, &mut |_| ())
    });
    match found {
        Ok(installation) => Some(installation),
        Err(error) => {
            crate::skip(&format!("PostgreSQL {version}"), &error.to_string());
            None
        }
    }
}

/// Whether a version is available, for tests that start it with the program under test.
pub fn is_available(version: &str) -> bool {
    installation(version).is_some()
}

/// The configuration of a test's server: the defaults with `fsync = off`, in [`server_directory`].
pub fn config() -> ServerConfig {
    ServerConfig {
        parent_dir: Some(server_directory()),
        ..config_on_disk()
    }
}

/// The same on disk, for tests whose outcome depends on how long a disk takes.
pub fn config_on_disk() -> ServerConfig {
    let settings = [("fsync".to_owned(), "off".to_owned())].into();
    ServerConfig {
        settings,
        ..ServerConfig::default()
    }
}

/// A running server of a version with [`config`].
///
/// # Panics
/// As [`start_with`].
pub fn start(version: &str) -> Option<Server> {
    start_with(version, &config())
}

/// A running server of a version with [`config_on_disk`].
///
/// # Panics
/// As [`start_with`].
pub fn start_on_disk(version: &str) -> Option<Server> {
    start_with(version, &config_on_disk())
}

/// A running server of a version. `None` if its programs are not available.
///
/// # Panics
/// If the server does not start, and as [`installation`].
pub fn start_with(version: &str, config: &ServerConfig) -> Option<Server> {
    let installation = installation(version)?;
    match Server::start(&installation, config) {
        Ok(server) => Some(server),
        Err(error) => panic!("cannot start PostgreSQL {version} for a test: {error}"),
    }
}
