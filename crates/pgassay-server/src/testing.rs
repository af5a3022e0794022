//! Throw-away servers for tests, of this crate and of others.
//!
//! A test that finds no server is skipped, visibly: a line on standard error that the test
//! harness does not capture. Where `CI=true`, a server that should have been there is a failure.

use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Finder, Installation, Server, ServerConfig, VersionRequest};

static SKIPPED: AtomicU32 = AtomicU32::new(0);

/// Says that a test, or a part of one, was skipped, and counts it.
pub fn skip(what: &str, why: &str) {
    let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
    let line = format!("SKIPPED ({count} in this program): {what}: {why}\n");
    // Not `eprintln!`: that would be captured, and a skip has to be seen. Nothing can be done
    // about a standard error that is closed.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// As [`skip`], for what CI must not skip.
///
/// # Panics
/// Where `CI=true`.
pub fn skip_unless_ci(what: &str, why: &str) {
    assert!(
        std::env::var("CI").as_deref() != Ok("true"),
        "{what} must not be skipped in CI: {why}"
    );
    skip(what, why);
}

/// The programs of a version, from the cache or fetched. None if they are not to be had here.
///
/// # Panics
/// Where `CI=true` and they are not to be had, and if `version` is no version.
pub fn installation(version: &str) -> Option<Installation> {
    let request = VersionRequest::parse(version).expect("a test names a proper version");
    let found = Finder::from_environment().and_then(|mut finder| {
        // What happens to be installed is not what the test asked for.
        finder.use_installed = false;
        finder.find(&request, &mut |_| ())
    });
    match found {
        Ok(installation) => Some(installation),
        Err(error) => {
            skip_unless_ci(&format!("PostgreSQL {version}"), &error.to_string());
            None
        }
    }
}

/// What a test's server is like: as it comes, but that it does not wait for the disk.
pub fn config() -> ServerConfig {
    let settings = [("fsync".to_owned(), "off".to_owned())].into();
    ServerConfig {
        settings,
        ..ServerConfig::default()
    }
}

/// A running server of a version with [`config`].
///
/// # Panics
/// As [`server_with`].
pub fn server(version: &str) -> Option<Server> {
    server_with(version, &config())
}

/// A running server of a version. None if its programs are not to be had here.
///
/// # Panics
/// If there are programs but the server does not start, and as [`installation`].
pub fn server_with(version: &str, config: &ServerConfig) -> Option<Server> {
    let installation = installation(version)?;
    match Server::start(&installation, config) {
        Ok(server) => Some(server),
        Err(error) => panic!("a server of PostgreSQL {version} for a test: {error}"),
    }
}
