//! Verification of a server's certificate.
//!
//! Every server must prove that it has its certificate's key. In addition, libpq verifies the chain
//! to a trusted certificate if there are any, and the host name with `verify-full`. webpki builds
//! the chain. It was made for the web and rejects two kinds of certificates that PostgreSQL servers
//! use: one that is itself trusted (a self-signed one that was copied to the client), and one of
//! X.509 version 1 (the result of `openssl x509 -req` without extensions). This module accepts both
//! if a trusted certificate vouches for them directly.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, ServerName, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, SignatureScheme};
use x509_cert::Certificate;
use x509_cert::certificate::Version;
use x509_cert::der::{Decode, Encode};
use x509_cert::spki::AlgorithmIdentifierOwned;

use super::names;

/// The accepted chains.
#[derive(Debug)]
pub(super) struct Chain {
    /// Verifies chains with the trusted certificates and the revocation lists.
    pub webpki: Arc<WebPkiServerVerifier>,
    /// The trusted certificates.
    pub roots: Vec<CertificateDer<'static>>,
    /// Whether there are revocation lists, which only webpki checks.
    pub has_revoked: bool,
}

/// The checks of a server's certificate.
#[derive(Debug)]
pub(super) struct Verifier {
    pub algorithms: WebPkiSupportedAlgorithms,
    pub chain: Option<Chain>,
    /// Whether it must match the host name.
    pub checks_host: bool,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        use CertificateError::{NotValidForName, NotValidForNameContext};

        if let Some(chain) = &self.chain {
            let checked = chain.webpki.verify_server_cert(
                end_entity,
                intermediates,
                server_name,
                ocsp_response,
                now,
            );
            match checked {
                // webpki checks the name last, after it has accepted the chain.
                Ok(_)
                | Err(Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) =>
                    {}
                Err(_) if chain.vouches_for(end_entity, now, &self.algorithms) => {}
                // webpki returns a different error for an authority's own certificate.
                Err(_) if is_self_issued(end_entity) => {
                    return Err(CertificateError::UnknownIssuer.into());
                }
                Err(error) => return Err(error),
            }
        }
        if self.checks_host {
            names::check(end_entity, &server_name.to_str()).map_err(|other| {
                Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(other))))
            })?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let certificate = parsed(cert)?;
        let algorithms = self.algorithms.mapping.iter();
        let of_scheme = algorithms.filter(|(scheme, _)| *scheme == dss.scheme);
        let mut all = of_scheme.flat_map(|(_, algorithms)| *algorithms);
        if all.any(|algorithm| is_signed(*algorithm, &certificate, message, dss.signature())) {
            return Ok(HandshakeSignatureValid::assertion());
        }
        Err(CertificateError::BadSignature.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        // By the key alone, because the certificate's other contents are irrelevant here.
        let key = parsed(cert)?
            .tbs_certificate()
            .subject_public_key_info()
            .to_der();
        let key = SubjectPublicKeyInfoDer::from(key.map_err(|_| CertificateError::BadEncoding)?);
        verify_tls13_signature_with_raw_key(message, &key, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn parsed(certificate: &CertificateDer<'_>) -> Result<Certificate, Error> {
    Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding.into())
}

fn is_self_issued(certificate: &CertificateDer<'_>) -> bool {
    parsed(certificate).is_ok_and(|certificate| {
        let body = certificate.tbs_certificate();
        body.issuer() == body.subject()
    })
}

/// Whether `signature` was made with this key, if the algorithm is for keys of this type.
fn is_signed(
    algorithm: &dyn SignatureVerificationAlgorithm,
    certificate: &Certificate,
    message: &[u8],
    signature: &[u8],
) -> bool {
    let key = certificate.tbs_certificate().subject_public_key_info();
    is_number(algorithm.public_key_alg_id().as_ref(), &key.algorithm)
        && algorithm
            .verify_signature(key.subject_public_key.raw_bytes(), message, signature)
            .is_ok()
}

/// Whether an algorithm identifier, given as the contents of a DER sequence, is this one.
fn is_number(inside: &[u8], algorithm: &AlgorithmIdentifierOwned) -> bool {
    algorithm.to_der().is_ok_and(|der| {
        // A sequence as short as these has a two-byte header.
        der.get(2..) == Some(inside)
    })
}

impl Chain {
    /// Whether the certificate is itself trusted, or is of version 1 and signed by a trusted one.
    fn vouches_for(
        &self,
        end_entity: &CertificateDer<'_>,
        now: UnixTime,
        algorithms: &WebPkiSupportedAlgorithms,
    ) -> bool {
        let Ok(certificate) = parsed(end_entity) else {
            return false;
        };
        if self.has_revoked || !is_valid_at(&certificate, now) {
            return false;
        }
        if self.roots.iter().any(|root| root == end_entity) {
            return true;
        }
        certificate.tbs_certificate().version() == Version::V1
            && self.roots.iter().any(|root| {
                parsed(root).is_ok_and(|root| {
                    is_valid_at(&root, now) && has_signed(&root, &certificate, algorithms)
                })
            })
    }
}

fn is_valid_at(certificate: &Certificate, now: UnixTime) -> bool {
    let validity = certificate.tbs_certificate().validity();
    let begin_s = validity.not_before.to_unix_duration().as_secs();
    let end_s = validity.not_after.to_unix_duration().as_secs();
    (begin_s..=end_s).contains(&now.as_secs())
}

/// Whether `issuer` signed the certificate.
fn has_signed(
    issuer: &Certificate,
    certificate: &Certificate,
    algorithms: &WebPkiSupportedAlgorithms,
) -> bool {
    let (body, signature) = (certificate.tbs_certificate(), certificate.signature());
    if body.issuer() != issuer.tbs_certificate().subject() {
        return false;
    }
    let Ok(message) = body.to_der() else {
        return false;
    };
    algorithms.all.iter().any(|algorithm| {
        is_number(
            algorithm.signature_alg_id().as_ref(),
            certificate.signature_algorithm(),
        ) && is_signed(*algorithm, issuer, &message, signature.raw_bytes())
    })
}
