//! Verification of a server's certificate.
//!
//! Every server must prove that it has its certificate's key. In addition, libpq verifies the chain
//! to a trusted certificate if there are any, and the host name with `verify-full`.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, ServerName, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, SignatureScheme};
use x509_cert::Certificate;
use x509_cert::der::{Decode, Encode};
use x509_cert::spki::AlgorithmIdentifierOwned;

use super::chain::Chain;
use super::names;

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
        if let Some(chain) = &self.chain {
            chain.verify(end_entity, intermediates, server_name, ocsp_response, now)?;
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

pub(super) fn parsed(certificate: &CertificateDer<'_>) -> Result<Certificate, Error> {
    Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding.into())
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

/// Whether `issuer` signed the certificate.
pub(super) fn has_signed(
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
