//! The chain from a server's certificate to a trusted one.
//!
//! webpki builds the chain, with those trusted certificates that may sign others. It was made for
//! the web and rejects two kinds of certificates that PostgreSQL servers use: one that is itself
//! trusted (a self-signed one that was copied to the client), and one of X.509 version 1 (the
//! result of `openssl x509 -req` without extensions). This module accepts both if a trusted
//! certificate vouches for them directly.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, ServerName, UnixTime};
use rustls::{CertificateError, Error, OtherError, RootCertStore};
use x509_cert::Certificate;
use x509_cert::certificate::Version;

use super::authority::{Flaw, Trusted, may_serve, may_sign, valid_at, validity_s};
use super::verifier::{has_signed, parsed};

/// The most trusted certificates between a server's certificate of version 1 and the last one.
const MAX_DEPTH: usize = 4;

/// The accepted chains.
#[derive(Debug)]
pub(super) struct Chain {
    trusted: Vec<Trusted>,
    /// Revocation lists, which only webpki checks.
    revoked: Vec<CertificateRevocationListDer<'static>>,
    provider: Arc<CryptoProvider>,
    /// Verifies chains to the anchors; `None` without anchors.
    webpki: Option<Arc<WebPkiServerVerifier>>,
    /// The seconds in which the anchors are the same.
    unchanged: RangeInclusive<u64>,
}

/// A server's certificate that is rejected for a reason that webpki does not know.
#[derive(Debug)]
struct Rejected {
    /// The trusted certificate that has the flaw; `None` if it is the server's.
    name: Option<String>,
    flaw: Flaw,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, flaw } = self;
        match name {
            None => write!(f, "the server's certificate cannot be used: {flaw}"),
            Some(name) => write!(
                f,
                "the certificate \"{name}\" in sslrootcert cannot be used to verify the server's: \
                 {flaw}; replace it with the current root certificate of the server's authority"
            ),
        }
    }
}

impl std::error::Error for Rejected {}

impl Rejected {
    fn of(trusted: &Trusted, flaw: Flaw) -> Self {
        let subject = trusted.certificate.tbs_certificate().subject();
        Self {
            name: Some(subject.to_string()),
            flaw,
        }
    }
}

impl From<Rejected> for Error {
    fn from(rejected: Rejected) -> Self {
        Self::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(rejected))))
    }
}

impl Chain {
    pub fn new(
        roots: Vec<CertificateDer<'static>>,
        revoked: Vec<CertificateRevocationListDer<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, String> {
        let trusted: Vec<Trusted> = roots.into_iter().filter_map(Trusted::new).collect();
        if trusted.is_empty() {
            return Err("no trusted certificates; see sslrootcert".into());
        }
        let now = UnixTime::now();
        let mut end_s = u64::MAX;
        for one in &trusted {
            let (begin_s, last_s) = validity_s(&one.certificate);
            for change_s in [begin_s.saturating_sub(1), last_s] {
                if change_s >= now.as_secs() {
                    end_s = end_s.min(change_s);
                }
            }
        }
        let mut chain = Self {
            trusted,
            revoked,
            provider,
            webpki: None,
            unchanged: now.as_secs()..=end_s,
        };
        chain.webpki = chain
            .webpki(now)
            .map_err(|error| format!("could not use the trusted certificates: {error}"))?;
        Ok(chain)
    }

    fn webpki(&self, now: UnixTime) -> Result<Option<Arc<WebPkiServerVerifier>>, String> {
        let anchors = self.trusted.iter().filter(|one| one.as_anchor(now).is_ok());
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(anchors.map(|one| one.der.clone()));
        if store.is_empty() {
            return Ok(None);
        }
        let provider = Arc::clone(&self.provider);
        let built = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider)
            .with_crls(self.revoked.iter().cloned())
            .enforce_revocation_expiration()
            .build();
        built.map(Some).map_err(|error| error.to_string())
    }

    /// Verifies everything but the host name.
    pub fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        sent: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<(), Error> {
        use CertificateError::{NotValidForName, NotValidForNameContext};

        let certificate = parsed(end_entity)?;
        may_serve(&certificate).map_err(|flaw| Rejected { name: None, flaw })?;
        let webpki = if self.unchanged.contains(&now.as_secs()) {
            self.webpki.clone()
        } else {
            self.webpki(now).map_err(Error::General)?
        };
        // webpki does not check the key usage of those between.
        let sent_between = sent
            .iter()
            .filter(|der| parsed(der).is_ok_and(|one| may_sign(&one).is_ok()));
        let trusted_between = self
            .trusted
            .iter()
            .filter(|one| !one.is_self_signed && one.signing.is_ok());
        let between: Vec<CertificateDer<'_>> = trusted_between
            .map(|one| &one.der)
            .chain(sent_between)
            .map(|der| CertificateDer::from(der.as_ref()))
            .collect();
        let checked = match webpki {
            Some(webpki) => {
                webpki.verify_server_cert(end_entity, &between, server_name, ocsp_response, now)
            }
            None => Err(CertificateError::UnknownIssuer.into()),
        };
        match checked {
            // webpki checks the name last, after it has accepted the chain.
            Ok(_)
            | Err(Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) => {
                Ok(())
            }
            Err(_) if self.vouches_for(end_entity, &certificate, now) => Ok(()),
            Err(error) => Err(self.explained(error, &certificate, &between, now)),
        }
    }

    /// Whether the certificate is itself trusted, or is of version 1 and signed by a trusted one.
    fn vouches_for(&self, der: &CertificateDer<'_>, server: &Certificate, now: UnixTime) -> bool {
        if !self.revoked.is_empty() || valid_at(server, now).is_err() {
            return false;
        }
        let mut own = self.trusted.iter().filter(|one| one.is_self_signed);
        own.any(|one| one.der == *der)
            || (server.tbs_certificate().version() == Version::V1
                && self.is_signed(server, now, MAX_DEPTH))
    }

    /// Whether trusted certificates that may sign lead from this one to one that is self-signed.
    fn is_signed(&self, certificate: &Certificate, now: UnixTime, depth: usize) -> bool {
        let algorithms = &self.provider.signature_verification_algorithms;
        self.trusted.iter().any(|one| {
            one.signing.is_ok()
                && valid_at(&one.certificate, now).is_ok()
                && has_signed(&one.certificate, certificate, algorithms)
                && (one.is_self_signed
                    || (depth > 0 && self.is_signed(&one.certificate, now, depth - 1)))
        })
    }

    /// Names the trusted certificate that would have led to success without its flaw.
    fn explained(
        &self,
        error: Error,
        server: &Certificate,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Error {
        let body = server.tbs_certificate();
        if let Some(itself) = self.trusted.iter().find(|one| one.certificate == *server) {
            if !itself.is_self_signed {
                return Rejected::of(itself, Flaw::NotSelfSigned).into();
            }
            if let Err(flaw) = valid_at(server, now) {
                return Rejected { name: None, flaw }.into();
            }
        }
        let is_about_the_issuer = body.version() == Version::V1
            || error == Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let algorithms = &self.provider.signature_verification_algorithms;
        let between = between.iter().filter_map(|der| parsed(der).ok());
        let all: Vec<Certificate> = std::iter::once(server.clone()).chain(between).collect();
        let flawed = self.trusted.iter().find_map(|one| {
            let flaw = one.as_anchor(now).err()?;
            let mut signed = all.iter();
            let has_any = signed.any(|other| has_signed(&one.certificate, other, algorithms));
            has_any.then(|| Rejected::of(one, flaw))
        });
        match flawed {
            Some(rejected) if is_about_the_issuer => rejected.into(),
            // webpki returns a different error for an authority's own certificate.
            _ if body.issuer() == body.subject() => CertificateError::UnknownIssuer.into(),
            _ => error,
        }
    }
}

#[cfg(test)]
mod tests;
