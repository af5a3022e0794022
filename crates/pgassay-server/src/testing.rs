//! Temporary servers for tests of this crate and of others.
//!
//! A test without an available server is skipped, with a line on standard error that the test
//! harness does not capture. With `CI=true`, a missing server is a failure.

use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Finder, Installation, Server, ServerConfig, VersionRequest};

static SKIPPED: AtomicU32 = AtomicU32::new(0);

/// Reports that a test, or a part of one, is skipped, and counts it.
pub fn skip(what: &str, why: &str) {
    let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
    let line = format!("SKIPPED ({count} in this program): {what}: {why}\n");
    // Not `eprintln!`: the test harness would capture it, and a skip must be visible. Ignores a
    // closed standard error.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// As [`skip`], for tests that CI must not skip.
///
/// # Panics
/// With `CI=true`.
pub fn skip_unless_ci(what: &str, why: &str) {
    assert!(
        std::env::var("CI").as_deref() != Ok("true"),
        "{what} must not be skipped in CI: {why}"
    );
    skip(what, why);
}

/// The programs of a version, from the cache or downloaded. `None` if they are not available.
///
/// # Panics
/// With `CI=true` if they are not available, and if `version` is not a version.
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
            skip_unless_ci(&format!("PostgreSQL {version}"), &error.to_string());
            None
        }
    }
}

/// The configuration of a test's server: the defaults with `fsync = off`.
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

/// A running server of a version. `None` if its programs are not available.
///
/// # Panics
/// If the server does not start, and as [`installation`].
pub fn server_with(version: &str, config: &ServerConfig) -> Option<Server> {
    let installation = installation(version)?;
    match Server::start(&installation, config) {
        Ok(server) => Some(server),
        Err(error) => panic!("cannot start PostgreSQL {version} for a test: {error}"),
    }
}
