//! Parts of a server's certificate that webpki does not expose: the hash for channel binding, the
//! names, the key.
//!
//! Sources: RFC 5929 section 4.1 (`tls-server-end-point`) and `pgtls_get_peer_certificate_hash`;
//! algorithm identifiers from RFC 4055, RFC 5758 and RFC 8410.

use sha2::{Digest, Sha224, Sha256, Sha384, Sha512};
use x509_cert::Certificate;
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::der::{Any, Decode, Encode, TagNumber, Tagged};
use x509_cert::spki::AlgorithmIdentifierOwned;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hash {
    Sha224,
    Sha256,
    Sha384,
    Sha512,
}

/// The parameters of RSASSA-PSS contain its hash.
const RSA_PSS: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.10");

/// The hash by signature algorithm identifier; SHA-256 replaces MD5 and SHA-1.
const HASHES: &[(&str, Hash)] = &[
    // RSA with MD5, SHA-1, SHA-2.
    ("1.2.840.113549.1.1.4", Hash::Sha256),
    ("1.2.840.113549.1.1.5", Hash::Sha256),
    ("1.2.840.113549.1.1.14", Hash::Sha224),
    ("1.2.840.113549.1.1.11", Hash::Sha256),
    ("1.2.840.113549.1.1.12", Hash::Sha384),
    ("1.2.840.113549.1.1.13", Hash::Sha512),
    // ECDSA with SHA-1, SHA-2.
    ("1.2.840.10045.4.1", Hash::Sha256),
    ("1.2.840.10045.4.3.1", Hash::Sha224),
    ("1.2.840.10045.4.3.2", Hash::Sha256),
    ("1.2.840.10045.4.3.3", Hash::Sha384),
    ("1.2.840.10045.4.3.4", Hash::Sha512),
    // The hash identifiers, as in RSASSA-PSS parameters.
    ("1.3.14.3.2.26", Hash::Sha256),
    ("2.16.840.1.101.3.4.2.4", Hash::Sha224),
    ("2.16.840.1.101.3.4.2.1", Hash::Sha256),
    ("2.16.840.1.101.3.4.2.2", Hash::Sha384),
    ("2.16.840.1.101.3.4.2.3", Hash::Sha512),
];

/// Returns the certificate's public key with its algorithm, in DER.
pub(super) fn public_key(der: &[u8]) -> Result<Vec<u8>, x509_cert::der::Error> {
    let certificate = Certificate::from_der(der)?;
    certificate
        .tbs_certificate()
        .subject_public_key_info()
        .to_der()
}

/// Returns the certificate's hash for SCRAM channel binding; `None` if the signature algorithm has
/// no hash, as with Ed25519, or if the certificate cannot be parsed.
pub(super) fn end_point_hash(der: &[u8]) -> Option<Vec<u8>> {
    let certificate = Certificate::from_der(der).ok()?;
    Some(match signature_hash(certificate.signature_algorithm())? {
        Hash::Sha224 => Sha224::digest(der).to_vec(),
        Hash::Sha256 => Sha256::digest(der).to_vec(),
        Hash::Sha384 => Sha384::digest(der).to_vec(),
        Hash::Sha512 => Sha512::digest(der).to_vec(),
    })
}

fn signature_hash(algorithm: &AlgorithmIdentifierOwned) -> Option<Hash> {
    let mut number = algorithm.oid;
    if number == RSA_PSS {
        // A sequence whose first element, tagged 0, is the hash; without it, SHA-1 is the default.
        let parameters = algorithm.parameters.as_ref()?.to_der().ok()?;
        let parameters = Vec::<Any>::from_der(&parameters).ok()?;
        let tagged = parameters
            .iter()
            .find(|any| any.tag().number() == TagNumber(0));
        let Some(tagged) = tagged else {
            return Some(Hash::Sha256);
        };
        number = AlgorithmIdentifierOwned::from_der(tagged.value()).ok()?.oid;
    }
    let known = HASHES
        .iter()
        .find(|(known, _)| number == ObjectIdentifier::new_unwrap(known));
    known.map(|(_, hash)| *hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_by_signature_algorithm() {
        let algorithm = |oid: &str, parameters: Option<&[u8]>| AlgorithmIdentifierOwned {
            oid: ObjectIdentifier::new_unwrap(oid),
            parameters: parameters.map(|der| Any::from_der(der).unwrap()),
        };
        let of = |oid| signature_hash(&algorithm(oid, None));
        assert_eq!(of("1.2.840.113549.1.1.5"), Some(Hash::Sha256));
        assert_eq!(of("1.2.840.10045.4.3.3"), Some(Hash::Sha384));
        assert_eq!(of("1.3.101.112"), None);
        // RSASSA-PSS with SHA-512, and with its defaults.
        let sha512 = [
            0x30, 0x0f, 0xa0, 0x0d, 0x30, 0x0b, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03,
            0x04, 0x02, 0x03,
        ];
        let pss = |parameters: &[u8]| {
            signature_hash(&algorithm("1.2.840.113549.1.1.10", Some(parameters)))
        };
        assert_eq!(pss(&sha512), Some(Hash::Sha512));
        assert_eq!(pss(&[0x30, 0]), Some(Hash::Sha256));
        assert_eq!(end_point_hash(b"no certificate"), None);
    }
}
