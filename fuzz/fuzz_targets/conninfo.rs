//! Any connection string, service file or password file yields a target or an error.
//!
//! The input's lines up to the first zero byte are the connection string; what follows up to the
//! next is the service file, and the rest the password file.

#![no_main]

use std::io;
use std::path::{Path, PathBuf};

use libfuzzer_sys::fuzz_target;
use pgassay_wire::SaltCache;
use pgassay_wire::conninfo::{AttemptFailure, Attempts, Endpoint, Environment, FileText, Request};

struct Fuzzed<'a> {
    service: &'a str,
    passwords: &'a str,
}

impl Environment for Fuzzed<'_> {
    fn variable(&self, name: &str) -> Option<String> {
        (name == "PGSERVICE" && !self.service.is_empty()).then(|| "there".into())
    }
    fn user(&self) -> Option<String> {
        Some("me".into())
    }
    fn home(&self) -> Option<PathBuf> {
        Some("/home/me".into())
    }
    fn read(&self, path: &Path, _: u64) -> io::Result<Option<FileText>> {
        let text = match path.file_name().and_then(|name| name.to_str()) {
            Some(".pg_service.conf") => self.service,
            Some(".pgpass") => self.passwords,
            _ => return Ok(None),
        };
        Ok(Some(FileText {
            text: text.into(),
            mode: 0o600,
            ..FileText::default()
        }))
    }
}

fuzz_target!(|text: &str| {
    let mut parts = text.splitn(3, '\0');
    let string = parts.next().unwrap_or_default();
    let surroundings = Fuzzed {
        service: parts.next().unwrap_or_default(),
        passwords: parts.next().unwrap_or_default(),
    };
    let Ok(request) = Request::new().database(string) else {
        return;
    };
    let Ok(target) = request.resolve(&surroundings) else {
        return;
    };
    assert!(!target.hosts.is_empty());
    for host in &target.hosts {
        let _ = target.login(host, &SaltCache::default());
        let _ = host.address.to_string();
    }
    // Whatever fails, the number of attempts is finite.
    let endpoints: Vec<_> = target
        .hosts
        .iter()
        .enumerate()
        .map(|(host, entry)| Endpoint {
            address: entry.address.clone(),
            host,
            tcp: (entry.address.socket_path().is_none()).then(|| ([127, 0, 0, 1], 1).into()),
        })
        .collect();
    for failure in [
        AttemptFailure::Unreachable,
        AttemptFailure::Unwanted,
        AttemptFailure::Refused {
            for_now: true,
            with_tls: false,
        },
        AttemptFailure::Refused {
            for_now: true,
            with_tls: true,
        },
    ] {
        let mut attempts = Attempts::new(&target, &endpoints, text.len());
        let mut tried = 1;
        while attempts.advance_after(failure) {
            tried += 1;
            assert!(
                tried <= 4 * endpoints.len(),
                "{tried} attempts at {} hosts",
                endpoints.len()
            );
        }
    }
});
