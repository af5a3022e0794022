//! Which trusted certificates may sign others.
//!
//! webpki takes each trusted certificate for an authority and checks only its name and key. The
//! rules here are OpenSSL's, without `X509_V_FLAG_X509_STRICT` and `X509_V_FLAG_PARTIAL_CHAIN`, as
//! libpq uses it: a chain ends in a self-signed authority that is valid now.
//!
//! Source: `check_ca`, `check_purpose_ssl_server` and `ossl_x509v3_cache_extensions` in OpenSSL's
//! `crypto/x509/v3_purp.c`, 3.0. The types of Netscape are not supported.

use std::fmt;

use rustls::pki_types::{CertificateDer, UnixTime};
use x509_cert::Certificate;
use x509_cert::certificate::Version;
use x509_cert::der::Decode;
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::ext::pkix::{
    AuthorityKeyIdentifier, BasicConstraints, ExtendedKeyUsage, KeyUsage, SubjectKeyIdentifier,
};

/// The extended key usage of a TLS server.
const SERVER_AUTH: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.1");

/// Why a certificate may not sign others, or a server may not use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    Unreadable,
    NotValidYet,
    Expired,
    NoAuthority,
    KeyUsage,
    ServerKeyUsage,
    Purpose,
    NotSelfSigned,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreadable => "its extensions cannot be read",
            Self::NotValidYet => "it is not valid yet",
            Self::Expired => "it has expired",
            Self::NoAuthority => "it is not of a certificate authority (basicConstraints CA:TRUE)",
            Self::KeyUsage => "its keyUsage does not have keyCertSign",
            Self::ServerKeyUsage => {
                "its keyUsage has neither digitalSignature, keyEncipherment nor keyAgreement"
            }
            Self::Purpose => "its extendedKeyUsage does not have serverAuth",
            Self::NotSelfSigned => "it is not self-signed",
        })
    }
}

/// A certificate in sslrootcert.
#[derive(Debug)]
pub(super) struct Trusted {
    pub der: CertificateDer<'static>,
    pub certificate: Certificate,
    pub is_self_signed: bool,
    /// Whether it may sign others while it is valid.
    pub signing: Result<(), Flaw>,
}

impl Trusted {
    /// Returns `None` if the certificate cannot be parsed.
    pub fn new(der: CertificateDer<'static>) -> Option<Self> {
        let certificate = Certificate::from_der(&der).ok()?;
        Some(Self {
            der,
            is_self_signed: is_self_signed(&certificate),
            signing: may_sign(&certificate),
            certificate,
        })
    }

    /// Why a chain cannot end in it.
    pub fn as_anchor(&self, now: UnixTime) -> Result<(), Flaw> {
        self.signing?;
        valid_at(&self.certificate, now)?;
        if self.is_self_signed {
            Ok(())
        } else {
            Err(Flaw::NotSelfSigned)
        }
    }
}

/// Whether the certificate may sign others while it is valid.
pub(super) fn may_sign(certificate: &Certificate) -> Result<(), Flaw> {
    let body = certificate.tbs_certificate();
    let key_usage = body.get_extension::<KeyUsage>();
    let key_usage = key_usage.map_err(|_| Flaw::Unreadable)?;
    if key_usage.is_some_and(|(_, usage)| !usage.key_cert_sign()) {
        return Err(Flaw::KeyUsage);
    }
    let constraints = body.get_extension::<BasicConstraints>();
    let is_authority = match constraints.map_err(|_| Flaw::Unreadable)? {
        Some((_, constraints)) => constraints.ca,
        None if body.version() == Version::V1 => is_self_signed(certificate),
        None => key_usage.is_some(),
    };
    if !is_authority {
        return Err(Flaw::NoAuthority);
    }
    has_purpose(certificate)
}

/// Whether a server may use the certificate.
pub(super) fn may_serve(certificate: &Certificate) -> Result<(), Flaw> {
    let usage = certificate.tbs_certificate().get_extension::<KeyUsage>();
    if let Some((_, usage)) = usage.map_err(|_| Flaw::Unreadable)?
        && !(usage.digital_signature() || usage.key_encipherment() || usage.key_agreement())
    {
        return Err(Flaw::ServerKeyUsage);
    }
    has_purpose(certificate)
}

fn has_purpose(certificate: &Certificate) -> Result<(), Flaw> {
    let body = certificate.tbs_certificate();
    match body.get_extension::<ExtendedKeyUsage>() {
        Ok(Some((_, purposes))) if !purposes.0.contains(&SERVER_AUTH) => Err(Flaw::Purpose),
        Ok(_) => Ok(()),
        Err(_) => Err(Flaw::Unreadable),
    }
}

pub(super) fn valid_at(certificate: &Certificate, now: UnixTime) -> Result<(), Flaw> {
    let (begin_s, end_s) = validity_s(certificate);
    if now.as_secs() < begin_s {
        Err(Flaw::NotValidYet)
    } else if now.as_secs() > end_s {
        Err(Flaw::Expired)
    } else {
        Ok(())
    }
}

/// The first and the last second in which the certificate is valid.
pub(super) fn validity_s(certificate: &Certificate) -> (u64, u64) {
    let validity = certificate.tbs_certificate().validity();
    let begin_s = validity.not_before.to_unix_duration().as_secs();
    (begin_s, validity.not_after.to_unix_duration().as_secs())
}

/// Like OpenSSL, by the names and the key identifiers alone.
fn is_self_signed(certificate: &Certificate) -> bool {
    let body = certificate.tbs_certificate();
    let issuers = body.get_extension::<AuthorityKeyIdentifier>().ok();
    let own = body.get_extension::<SubjectKeyIdentifier>().ok();
    let (Some(issuers), Some(own)) = (issuers, own) else {
        return false;
    };
    let issuers = issuers.and_then(|(_, identifier)| identifier.key_identifier);
    let is_same_key = match (issuers, own) {
        (Some(issuers), Some((_, own))) => issuers == own.0,
        _ => true,
    };
    is_same_key && body.issuer() == body.subject()
}
