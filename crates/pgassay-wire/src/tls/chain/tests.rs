//! "" means that psql connects. For the other rows it says "certificate verify failed", and the
//! message here must contain what is expected. Measured with psql 15 and OpenSSL 3.0, on a server
//! with such a certificate, `sslmode=verify-full` and such a `sslrootcert`. With
//! `openssl verify -purpose sslserver` alone: roots of version 1 and roots that are not valid yet, a
//! self-signed server certificate without `basicConstraints` or that has expired, and one of version
//! 1 whose only trusted signer is not self-signed.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SigningKey, date_time_ymd,
};
use rustls::crypto::ring;
use x509_cert::der::{Any, Decode, Encode, Tag};

use super::*;
use crate::tls::describe;

struct Made {
    params: CertificateParams,
    key: KeyPair,
    der: Vec<u8>,
}

fn authority(params: &mut CertificateParams) {
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
}

fn server(params: &mut CertificateParams) {
    let host = "localhost".try_into().unwrap();
    params.subject_alt_names = vec![rcgen::SanType::DnsName(host)];
}

/// Makes a certificate that `issuer` signed, or one that is self-signed.
fn made(name: &str, change: impl FnOnce(&mut CertificateParams), issuer: Option<&Made>) -> Made {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    let certificate = match issuer {
        Some(Made {
            params: by,
            key: of,
            ..
        }) => params.signed_by(&key, &Issuer::from_params(by, of)),
        None => params.self_signed(&key),
    };
    let der = certificate.unwrap().der().to_vec();
    Made { params, key, der }
}

/// A certificate of version 1: without the version and the extensions, signed again.
fn version_1(name: &str, issuer: Option<&Made>) -> Made {
    let mut new = made(name, |_| {}, issuer);
    let parts = Vec::<Any>::from_der(&new.der).unwrap();
    let body = Vec::<Any>::from_der(&parts[0].to_der().unwrap()).unwrap();
    let sequence = |parts: &[Any]| {
        let inside: Vec<u8> = parts
            .iter()
            .flat_map(|part| part.to_der().unwrap())
            .collect();
        Any::new(Tag::Sequence, inside).unwrap()
    };
    // Serial number, algorithm, issuer, validity, subject, key.
    let body = sequence(&body[1..7]);
    let key = issuer.map_or(&new.key, |issuer| &issuer.key);
    let signature = key.sign(&body.to_der().unwrap()).unwrap();
    let signature = Any::new(Tag::BitString, [&[0], &signature[..]].concat()).unwrap();
    new.der = sequence(&[body, parts[1].clone(), signature])
        .to_der()
        .unwrap();
    let version = parsed(&CertificateDer::from(new.der.clone())).unwrap();
    assert_eq!(version.tbs_certificate().version(), Version::V1);
    new
}

fn chain(trusted: &[&Made]) -> Chain {
    let roots = trusted.iter().map(|one| one.der.clone().into()).collect();
    Chain::new(roots, Vec::new(), Arc::new(ring::default_provider())).unwrap()
}

/// Verifies a server's certificate, which is the first of those that it sends.
fn verified(chain: &Chain, sent: &[&Made], now: UnixTime) -> Result<(), String> {
    let sent: Vec<CertificateDer<'_>> = sent.iter().map(|one| one.der.clone().into()).collect();
    let host = ServerName::try_from("localhost").unwrap();
    chain
        .verify(&sent[0], &sent[1..], &host, &[], now)
        .map_err(|error| describe(&error))
}

fn check(what: &str, trusted: &[&Made], sent: &[&Made], expected: &str) {
    let came = verified(&chain(trusted), sent, UnixTime::now());
    match (&came, expected) {
        (Ok(()), "") => {}
        (Err(error), expected) if !expected.is_empty() && error.contains(expected) => {}
        _ => panic!("{what}: {came:?}, and not {expected:?}"),
    }
}

const NO_AUTHORITY: &str = "the certificate \"CN=signer\" in sslrootcert cannot be used to verify \
                            the server's: it is not of a certificate authority";

#[test]
fn a_trusted_certificate_of_a_server_does_not_vouch_for_those_that_its_holder_signs() {
    let leaf = made("signer", |params| params.is_ca = IsCa::ExplicitNoCa, None);
    check(
        "v3",
        &[&leaf],
        &[&made("x", server, Some(&leaf))],
        NO_AUTHORITY,
    );
    check(
        "v1",
        &[&leaf],
        &[&version_1("localhost", Some(&leaf))],
        NO_AUTHORITY,
    );
    // Without extensions, only one of version 1 is an authority.
    let bare = made("signer", |_| {}, None);
    check(
        "bare",
        &[&bare],
        &[&made("x", server, Some(&bare))],
        NO_AUTHORITY,
    );
    let bare = version_1("signer", None);
    check("bare v1", &[&bare], &[&made("x", server, Some(&bare))], "");
    check(
        "both v1",
        &[&bare],
        &[&version_1("localhost", Some(&bare))],
        "",
    );
}

#[test]
fn an_expired_root_does_not_vouch_for_a_server() {
    let old = |params: &mut CertificateParams| {
        authority(params);
        params.not_after = date_time_ymd(2021, 1, 1);
    };
    let (root, old) = (made("root", authority, None), made("old", old, None));
    let (good, bad) = (
        made("x", server, Some(&root)),
        made("x", server, Some(&old)),
    );
    check(
        "expired",
        &[&old],
        &[&bad],
        "\"CN=old\" in sslrootcert cannot be used to verify the server's: it has expired",
    );
    check("both", &[&old, &root], &[&good], "");
    check("both, and its", &[&root, &old], &[&bad], "it has expired");
    let coming = |params: &mut CertificateParams| {
        authority(params);
        params.not_before = date_time_ymd(2999, 1, 1);
    };
    let coming = made("coming", coming, None);
    let early = made("x", server, Some(&coming));
    check("coming", &[&coming], &[&early], "it is not valid yet");
    // The time counts at which a connection begins, here in the year 3000.
    let later = UnixTime::since_unix_epoch(std::time::Duration::from_hours(9_028_800));
    let both = chain(&[&root, &coming]);
    assert!(verified(&both, &[&early], UnixTime::now()).is_err());
    assert_eq!(verified(&both, &[&early], later), Ok(()));
    assert_eq!(verified(&both, &[&good], later), Ok(()));
}

#[test]
fn a_root_whose_key_usage_or_purpose_is_another_does_not_vouch_for_a_server() {
    let usage = |params: &mut CertificateParams| {
        authority(params);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    };
    let purpose = |params: &mut CertificateParams| {
        authority(params);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    };
    let no_constraints = |params: &mut CertificateParams| {
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    };
    for (root, expected) in [
        (
            made("usage", usage, None),
            "its keyUsage does not have keyCertSign",
        ),
        (
            made("purpose", purpose, None),
            "its extendedKeyUsage does not have serverAuth",
        ),
        (made("no constraints", no_constraints, None), ""),
    ] {
        check(
            "root",
            &[&root],
            &[&made("x", server, Some(&root))],
            expected,
        );
    }
    // The same holds for a certificate that the server sends.
    let root = made("root", authority, None);
    let between = made("between", usage, Some(&root));
    let sent = [&made("x", server, Some(&between)), &between];
    check("between", &[&root], &sent, "not signed by any trusted");
    let unusable = |params: &mut CertificateParams| {
        server(params);
        params.key_usages = vec![KeyUsagePurpose::CrlSign];
    };
    let unusable = made("x", unusable, Some(&root));
    check(
        "server",
        &[&root],
        &[&unusable],
        "its keyUsage has neither digitalSignature",
    );
}

#[test]
fn a_chain_ends_in_a_self_signed_certificate() {
    let root = made("root", authority, None);
    let between = made("between", authority, Some(&root));
    let server_v3 = made("x", server, Some(&between));
    let old = version_1("localhost", Some(&between));
    let partial = "\"CN=between\" in sslrootcert cannot be used to verify the server's: it is not \
                   self-signed";
    check("sent", &[&root], &[&server_v3, &between], "");
    check("in the file", &[&between, &root], &[&server_v3], "");
    check("in the file, v1", &[&between, &root], &[&old], "");
    check(
        "nowhere",
        &[&root],
        &[&server_v3],
        "not signed by any trusted",
    );
    check("partial", &[&between], &[&server_v3], partial);
    check(
        "partial, sent",
        &[&between],
        &[&server_v3, &between],
        partial,
    );
    check("partial, v1", &[&between], &[&old], partial);
    check(
        "itself",
        &[&server_v3],
        &[&server_v3],
        "it is not self-signed",
    );
}

#[test]
fn a_self_signed_server_certificate_is_trusted_if_a_server_may_use_it() {
    let itself = |name: &str, change: fn(&mut CertificateParams), expected: &str| {
        let both = |params: &mut CertificateParams| {
            server(params);
            change(params);
        };
        let one = made("localhost", both, None);
        check(name, &[&one], &[&one], expected);
    };
    itself("plain", |_| {}, "");
    itself(
        "no authority",
        |params| params.is_ca = IsCa::ExplicitNoCa,
        "",
    );
    itself("authority", authority, "");
    itself(
        "expired",
        |params| params.not_after = date_time_ymd(2021, 1, 1),
        "expired",
    );
    itself(
        "only for signing",
        |params| {
            authority(params);
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        },
        "the server's certificate cannot be used: its keyUsage has neither",
    );
    itself(
        "only for clients",
        |params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth],
        "the server's certificate cannot be used: its extendedKeyUsage",
    );
}
