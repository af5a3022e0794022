//! TLS by libpq's rules, on rustls with ring.
//!
//! [`TlsSettings`] is created once per target and shared by its connections. `Protection`
//! transforms the bytes of one connection; a session owns it while it is needed. `verifier`,
//! `chain`, `authority` and `names` check the server's certificate.
//!
//! rustls reads the wall clock to check whether a certificate is still valid. This is the only
//! clock that this crate reads.
//!
//! Source: `src/interfaces/libpq/fe-secure-openssl.c` (`initialize_SSL`, `open_client_SSL`) and
//! `fe-secure-common.c`, PostgreSQL 15 and 18. Supported by OpenSSL but not by rustls: TLS 1.0 and
//! 1.1, keys with a passphrase, and engines.

mod authority;
mod certificate;
mod chain;
mod names;
mod protection;
mod settings;
mod verifier;

pub(crate) use protection::Protection;
pub use settings::TlsSettings;
pub(crate) use settings::{Files, Versions};

use std::sync::Arc;

/// TLS errors, with libpq's messages where they exist.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The server does not support TLS.
    #[error("server does not support SSL, but SSL was required")]
    Refused,
    /// The server answered the TLS request with an error. Its text must not be displayed, because
    /// an intermediary may have sent it (CVE-2024-10977).
    #[error("server sent an error response during SSL exchange")]
    ErrorAnswer,
    /// The server sent an invalid answer to the TLS request.
    #[error("received invalid response to SSL negotiation: {}", .byte.escape_ascii())]
    QueryResult {
        /// The answer.
        byte: u8,
    },
    /// More data followed the answer; an intermediary may have inserted it (CVE-2021-23222).
    #[error("received unencrypted data after SSL response")]
    Injected,
    /// A required file is missing or invalid.
    #[error("{0}")]
    Setup(Arc<str>),
    /// The host name must be verified, but none is specified.
    #[error("host name must be specified for a verified SSL connection")]
    HostNeeded,
    /// The server completed the handshake without selecting PostgreSQL's protocol, which is
    /// mandatory for direct TLS.
    #[error("direct SSL connection was established without ALPN protocol negotiation extension")]
    NoAlpn,
    /// The handshake failed, or the server's certificate is not trusted.
    #[error("SSL error: {}", describe(.0))]
    Handshake(Box<rustls::Error>),
    /// The connection failed after the handshake. A server that rejects the client's certificate
    /// reports it only then.
    #[error("SSL error: {}", describe(.0))]
    Connection(Box<rustls::Error>),
}

impl TlsError {
    /// Whether it failed before any data was exchanged, so that the connection can be retried
    /// without TLS if that is allowed.
    pub fn is_of_handshake(&self) -> bool {
        !matches!(self, Self::Connection(_))
    }
}

fn describe(error: &rustls::Error) -> String {
    use rustls::{CertificateError, Error};

    match error {
        Error::InvalidCertificate(CertificateError::Other(other))
            if names::is_other_host(other) =>
        {
            other.to_string()
        }
        Error::InvalidCertificate(CertificateError::Other(other)) => {
            format!("certificate verify failed: {other}")
        }
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "certificate verify failed: not signed by any trusted certificate".into()
        }
        Error::InvalidCertificate(CertificateError::Revoked) => {
            "certificate verify failed: certificate revoked".into()
        }
        Error::InvalidCertificate(other) => format!("certificate verify failed: {other}"),
        other => other.to_string(),
    }
}
