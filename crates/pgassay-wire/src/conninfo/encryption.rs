//! TLS options, and the files they specify.
//!
//! Source: `pqConnectOptions2` in `fe-connect.c` for the values, `initialize_SSL` in
//! `fe-secure-openssl.c` for the files. An invalid value is reported immediately; a missing or
//! invalid file is reported when a connection needs it, as in libpq.

use std::path::{Path, PathBuf};

use super::environment::{FILE_BYTES_MAX, ROOTS_BYTES_MAX};
use super::options::ConninfoOptions;
use super::target::{ChannelBinding, SslMode};
use super::{ConninfoError, Environment, FileText};
use crate::tls::{Files, TlsSettings, Versions};

/// Permission bits that a key file must not have: all of group and world. A key file owned by root
/// may be group-readable.
const FORBIDDEN: u32 = 0o077;
const FORBIDDEN_OF_ROOT: u32 = 0o037;

const VERSIONS: &[(&str, u8)] = &[("TLSv1", 0), ("TLSv1.1", 1), ("TLSv1.2", 2), ("TLSv1.3", 3)];
const VERSIONS_SHOWN: &str = "TLSv1, TLSv1.1, TLSv1.2 or TLSv1.3";

/// Returns the TLS mode of TCP connections.
pub(super) fn ssl_mode(options: &ConninfoOptions) -> Result<SslMode, ConninfoError> {
    let is_system = options.get("sslrootcert") == Some("system");
    // Trusting all public authorities without checking the host name gives no protection.
    let default = if is_system {
        SslMode::VerifyFull
    } else {
        SslMode::Prefer
    };
    let mode = options.choice(
        "sslmode",
        default,
        &[
            ("disable", SslMode::Disable),
            ("allow", SslMode::Allow),
            ("prefer", SslMode::Prefer),
            ("require", SslMode::Require),
            ("verify-ca", SslMode::VerifyCa),
            ("verify-full", SslMode::VerifyFull),
        ],
        "disable, allow, prefer, require, verify-ca or verify-full",
    )?;
    let shown = || options.get("sslmode").unwrap_or("prefer").to_owned();
    if is_system && mode != SslMode::VerifyFull {
        return Err(ConninfoError::WeakMode {
            mode: shown(),
            conflicting_option: "sslrootcert=system",
            instead: "use \"verify-full\"",
        });
    }
    if is_direct(options)? && mode < SslMode::Require {
        return Err(ConninfoError::WeakMode {
            mode: shown(),
            conflicting_option: "sslnegotiation=direct",
            instead: "use \"require\", \"verify-ca\", or \"verify-full\"",
        });
    }
    Ok(mode)
}

fn is_direct(options: &ConninfoOptions) -> Result<bool, ConninfoError> {
    let choices = [("postgres", false), ("direct", true)];
    options.choice("sslnegotiation", false, &choices, "postgres or direct")
}

pub(super) fn channel_binding(options: &ConninfoOptions) -> Result<ChannelBinding, ConninfoError> {
    options.choice(
        "channel_binding",
        ChannelBinding::Prefer,
        &[
            ("disable", ChannelBinding::Disable),
            ("prefer", ChannelBinding::Prefer),
            ("require", ChannelBinding::Require),
        ],
        "disable, prefer or require",
    )
}

/// Returns the TLS settings. `is_needed` is whether any connection may request TLS.
pub(super) fn settings(
    options: &ConninfoOptions,
    environment: &dyn Environment,
    mode: SslMode,
    is_needed: bool,
) -> Result<Option<TlsSettings>, ConninfoError> {
    let is_direct = is_direct(options)?;
    let versions = versions(options)?;
    let sends_name = match options.get("sslsni") {
        None | Some("1") => true,
        Some("0") => false,
        Some(other) => {
            return Err(ConninfoError::Value {
                option: "sslsni",
                value: other.into(),
                expected: "0 or 1",
            });
        }
    };
    let shows_certificate = sends_certificate(options)?;
    if let Some(value) = options.get("sslcrldir") {
        return Err(ConninfoError::Unsupported {
            option: "sslcrldir",
            value: value.into(),
            reason: "specify a file with sslcrl",
        });
    }
    if !is_needed {
        return Ok(None);
    }
    let reader = StartupReader {
        options,
        environment,
    };
    let files = reader.files(mode, shows_certificate);
    let checks_host = mode == SslMode::VerifyFull;
    let settings = TlsSettings::new(files, versions, sends_name, checks_host, is_direct);
    Ok(Some(settings))
}

fn sends_certificate(options: &ConninfoOptions) -> Result<bool, ConninfoError> {
    if options.get("sslcertmode") == Some("require") {
        return Err(ConninfoError::Unsupported {
            option: "sslcertmode",
            value: "require".into(),
            reason: "use allow, and have the server require a client certificate",
        });
    }
    let choices = [("disable", false), ("allow", true)];
    options.choice("sslcertmode", true, &choices, "disable, allow or require")
}

/// Returns the versions between the minimum and the maximum; rustls supports the two newest.
fn versions(options: &ConninfoOptions) -> Result<Versions, ConninfoError> {
    let known = |value: &str| {
        let found = VERSIONS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(value));
        found.map(|(_, number)| *number)
    };
    let number = |option: &'static str, default: u8| match options.get(option) {
        None => Ok(default),
        Some(value) => known(value).ok_or_else(|| ConninfoError::Value {
            option,
            value: value.into(),
            expected: VERSIONS_SHOWN,
        }),
    };
    let lowest = number("ssl_min_protocol_version", 2)?;
    let highest = number("ssl_max_protocol_version", 3)?;
    let shown = options.get("ssl_max_protocol_version").unwrap_or("");
    if lowest > highest {
        return Err(ConninfoError::Value {
            option: "ssl_max_protocol_version",
            value: shown.into(),
            expected: "a version not below ssl_min_protocol_version",
        });
    }
    let of = |version| (lowest..=highest).contains(&version);
    if highest < 2 {
        return Err(ConninfoError::Unsupported {
            option: "ssl_max_protocol_version",
            value: shown.into(),
            reason: "TLS versions before 1.2 are not supported",
        });
    }
    Ok(Versions {
        tls12: of(2),
        tls13: of(3),
    })
}

struct StartupReader<'a> {
    options: &'a ConninfoOptions,
    environment: &'a dyn Environment,
}

impl StartupReader<'_> {
    /// Reads the files, or returns the error in one of them.
    fn files(&self, mode: SslMode, shows_certificate: bool) -> Result<Files, String> {
        let mut files = Files::default();
        if self.options.get("sslrootcert") == Some("system") {
            files.system_roots = Some(self.environment.system_roots());
        } else {
            files.roots = self.roots(mode)?;
        }
        if files.roots.is_some() || files.system_roots.is_some() {
            files.revoked = self.revoked()?;
        }
        if shows_certificate {
            self.add_certificate(&mut files)?;
        }
        Ok(files)
    }

    /// Returns the file specified by an option, or the default file in `~/.postgresql`.
    fn path(&self, option: &str, default: &str) -> Option<PathBuf> {
        let given = self.options.get(option).map(PathBuf::from);
        given.or_else(|| Some(self.environment.home()?.join(".postgresql").join(default)))
    }

    fn read(&self, path: &Path, what: &str, max_bytes: u64) -> Result<Option<FileText>, String> {
        let read = self.environment.read(path, max_bytes);
        read.map_err(|error| format!("could not open {what} file \"{}\": {error}", path.display()))
    }

    fn roots(&self, mode: SslMode) -> Result<Option<(String, String)>, String> {
        let advice = "Either provide the file, use the system's trusted roots with \
                      sslrootcert=system, or change sslmode to disable server certificate \
                      verification.";
        let is_needed = mode >= SslMode::VerifyCa;
        let Some(path) = self.path("sslrootcert", "root.crt") else {
            let what = "could not get home directory to locate root certificate file";
            return if is_needed {
                Err(format!("{what}\n{advice}"))
            } else {
                Ok(None)
            };
        };
        let shown = path.display().to_string();
        match self.read(&path, "root certificate", ROOTS_BYTES_MAX)? {
            Some(file) => Ok(Some((shown, file.text))),
            None if is_needed => Err(format!(
                "root certificate file \"{shown}\" does not exist\n{advice}"
            )),
            None => Ok(None),
        }
    }

    /// A missing revocation list is ignored, as in libpq. One that cannot be read is an error, unlike there: revoked
    /// certificates would be accepted.
    fn revoked(&self) -> Result<Option<(String, String)>, String> {
        let Some(path) = self.path("sslcrl", "root.crl") else {
            return Ok(None);
        };
        let file = self.read(&path, "certificate revocation list", FILE_BYTES_MAX)?;
        Ok(file.map(|file| (path.display().to_string(), file.text)))
    }

    fn add_certificate(&self, files: &mut Files) -> Result<(), String> {
        let Some(path) = self.path("sslcert", "postgresql.crt") else {
            return Ok(());
        };
        let Some(certificate) = self.read(&path, "certificate", FILE_BYTES_MAX)? else {
            return Ok(());
        };
        files.certificate = Some((path.display().to_string(), certificate.text));
        let absent =
            |shown: &str| format!("certificate present, but not private key file \"{shown}\"");
        let path = self
            .path("sslkey", "postgresql.key")
            .ok_or_else(|| absent("~/.postgresql/postgresql.key"))?;
        let shown = path.display().to_string();
        let key = self
            .read(&path, "private key", FILE_BYTES_MAX)?
            .ok_or_else(|| absent(&shown))?;
        let forbidden = if key.is_owned_by_root {
            FORBIDDEN_OF_ROOT
        } else {
            FORBIDDEN
        };
        if key.mode & forbidden != 0 {
            return Err(format!(
                "private key file \"{shown}\" has group or world access; file must have \
                 permissions u=rw (0600) or less if owned by the current user, or permissions \
                 u=rw,g=r (0640) or less if owned by root"
            ));
        }
        files.key = Some((shown, key.text));
        Ok(())
    }
}
