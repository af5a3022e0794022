//! TLS by libpq's rules, on rustls with ring.
//!
//! [`TlsSettings`] is made once for a target and shared by its connections; `Protection` is one
//! connection's transform of bytes, which a session owns while it needs one. What is checked of a
//! server's certificate is in `verifier` and `names`.
//!
//! rustls reads the wall clock to tell whether a certificate is still valid. That is the one clock
//! that is read in this crate, and nothing else depends on it.
//!
//! Source: `src/interfaces/libpq/fe-secure-openssl.c` (`initialize_SSL`, `open_client_SSL`) and
//! `fe-secure-common.c`, PostgreSQL 15 and 18. What OpenSSL can and rustls cannot: TLS 1.0 and 1.1,
//! keys with a passphrase, engines.

mod certificate;
mod names;
mod protection;
mod settings;
mod verifier;

pub(crate) use protection::Protection;
pub use settings::TlsSettings;
pub(crate) use settings::{Files, Versions};

use std::sync::Arc;

/// Why a connection is not protected, in libpq's words where it has any.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The server does not speak TLS.
    #[error("server does not support SSL, but SSL was required")]
    Refused,
    /// The server answered the request for TLS with an error, which nobody may show: it may come
    /// from somebody in between (CVE-2024-10977).
    #[error("server sent an error response during SSL exchange")]
    ErrorAnswer,
    /// The server answered the request for TLS with something else than it may.
    #[error("received invalid response to SSL negotiation: {}", .byte.escape_ascii())]
    Answer {
        /// The answer.
        byte: u8,
    },
    /// There was more than the answer: somebody in between may have put it there
    /// (CVE-2021-23222).
    #[error("received unencrypted data after SSL response")]
    Injected,
    /// A file that is needed is missing or broken.
    #[error("{0}")]
    Setup(Arc<str>),
    /// The host's name is to be checked, and there is none.
    #[error("host name must be specified for a verified SSL connection")]
    HostNeeded,
    /// The server ends the handshake without choosing PostgreSQL's protocol, which it must where
    /// TLS begins at once.
    #[error("direct SSL connection was established without ALPN protocol negotiation extension")]
    NoAlpn,
    /// The two sides did not agree, or the server's certificate is not trusted.
    #[error("SSL error: {}", told(.0))]
    Handshake(Box<rustls::Error>),
    /// The connection broke after the handshake. A server that refuses the client's certificate
    /// says so only then.
    #[error("SSL error: {}", told(.0))]
    Connection(Box<rustls::Error>),
}

impl TlsError {
    /// Whether nothing was said before it failed, so that the connection may be tried without TLS
    /// where that is allowed.
    pub fn is_of_handshake(&self) -> bool {
        !matches!(self, Self::Connection(_))
    }
}

fn told(error: &rustls::Error) -> String {
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
            "certificate verify failed: none of the trusted certificates has signed it".into()
        }
        Error::InvalidCertificate(CertificateError::Revoked) => {
            "certificate verify failed: the certificate is revoked".into()
        }
        Error::InvalidCertificate(other) => format!("certificate verify failed: {other}"),
        other => other.to_string(),
    }
}
