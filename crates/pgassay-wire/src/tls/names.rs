//! Host name verification by libpq's rules, which are laxer than those of the web: the subject's
//! common name counts if there is no alternative name of a matching type.
//!
//! Source: `pgtls_verify_peer_name_matches_certificate_guts` in `fe-secure-openssl.c` and
//! `wildcard_certificate_match` in `fe-secure-common.c`; addresses since PostgreSQL 15.

use std::fmt;
use std::net::IpAddr;

use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// The certificate belongs to another host.
#[derive(Debug)]
pub(super) struct OtherHost {
    host: String,
    names: Vec<String>,
}

impl fmt::Display for OtherHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, names } = self;
        match &names[..] {
            [] => f.write_str("could not get server's host name from server certificate"),
            [name] => write!(
                f,
                "server certificate for \"{name}\" does not match host name \"{host}\""
            ),
            [name, others @ ..] => write!(
                f,
                "server certificate for \"{name}\" (and {} other name{}) does not match host \
                 name \"{host}\"",
                others.len(),
                if others.len() == 1 { "" } else { "s" }
            ),
        }
    }
}

impl std::error::Error for OtherHost {}

/// Whether this error is from [`check`].
pub(super) fn is_other_host(error: &rustls::OtherError) -> bool {
    error.0.is::<OtherHost>()
}

/// Checks that a certificate belongs to this host.
pub(super) fn check(certificate: &[u8], host: &str) -> Result<(), OtherHost> {
    let mut names = Vec::new();
    if let Ok(certificate) = Certificate::from_der(certificate)
        && host_matches(&certificate, host, &mut names)
    {
        return Ok(());
    }
    Err(OtherHost {
        host: host.into(),
        names,
    })
}

fn host_matches(certificate: &Certificate, host: &str, names: &mut Vec<String>) -> bool {
    let body = certificate.tbs_certificate();
    let address: Option<IpAddr> = host.parse().ok();
    let mut common_name_counts = true;
    let extension = body.get_extension::<SubjectAltName>().ok().flatten();
    for name in extension.map(|(_, names)| names.0).unwrap_or_default() {
        match name {
            GeneralName::DnsName(name) => {
                common_name_counts &= address.is_some();
                names.push(name.as_str().to_owned());
                if matches(name.as_str(), host) {
                    return true;
                }
            }
            GeneralName::IpAddress(bytes) => {
                common_name_counts &= address.is_none();
                let Some(named) = address_of(bytes.as_bytes()) else {
                    continue;
                };
                names.push(named.to_string());
                if address == Some(named) {
                    return true;
                }
            }
            _ => {}
        }
    }
    if common_name_counts && let Ok(Some(name)) = body.subject().common_name() {
        let name = name.value().into_owned();
        let is_same = matches(&name, host);
        names.push(name);
        return is_same;
    }
    false
}

fn address_of(bytes: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(bytes)
        .map(IpAddr::from)
        .or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

/// Whether a name equals the host, or matches it with an asterisk as its first label.
fn matches(name: &str, host: &str) -> bool {
    // C would treat a zero byte as the end of the name.
    if name.contains('\0') {
        return false;
    }
    if name.eq_ignore_ascii_case(host) {
        return true;
    }
    let Some(domain) = name
        .strip_prefix('*')
        .filter(|domain| domain.starts_with('.'))
    else {
        return false;
    };
    match host.split_once('.') {
        Some((label, rest)) => {
            !label.is_empty() && domain.len() > 1 && domain[1..].eq_ignore_ascii_case(rest)
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    fn certificate(common_name: &str, names: &[&str]) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        params.subject_alt_names = names
            .iter()
            .map(|name| match name.parse() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName((*name).try_into().unwrap()),
            })
            .collect();
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn names_match_as_in_libpq() {
        // From src/test/ssl/t/001_ssltests.pl.
        for (common_name, names, host, fits) in [
            ("common.example", &[][..], "common.example", true),
            ("common.example", &[], "COMMON.example", true),
            ("common.example", &[], "other.example", false),
            (
                "common.example",
                &["dns1.example", "*.wild.example"],
                "dns1.example",
                true,
            ),
            (
                "common.example",
                &["dns1.example", "*.wild.example"],
                "foo.wild.example",
                true,
            ),
            (
                "common.example",
                &["*.wild.example"],
                "a.b.wild.example",
                false,
            ),
            ("common.example", &["*.wild.example"], "wild.example", false),
            (
                "common.example",
                &["*.wild.example"],
                ".wild.example",
                false,
            ),
            // The common name does not count if there is an alternative name of the same type.
            ("common.example", &["dns1.example"], "common.example", false),
            ("192.0.2.1", &[], "192.0.2.1", true),
            ("192.0.2.1", &["dns1.example"], "192.0.2.1", true),
            ("192.0.2.1", &["192.0.2.9"], "192.0.2.1", false),
            ("common.example", &["192.0.2.9"], "common.example", true),
            (
                "common.example",
                &["192.0.2.9", "2001:db8::1"],
                "2001:DB8::1",
                true,
            ),
            ("common.example", &["192.0.2.9"], "192.0.2.9", true),
            ("*", &[], "common", false),
            ("*.", &[], "common.", false),
        ] {
            let checked = check(&certificate(common_name, names), host);
            assert_eq!(
                checked.is_ok(),
                fits,
                "{common_name} {names:?} {host}: {checked:?}"
            );
        }
    }

    #[test]
    fn mismatch_reports_certificate_names() {
        let words = |names: &[&str]| {
            check(&certificate("c", names), "h")
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            words(&[]),
            "server certificate for \"c\" does not match host name \"h\""
        );
        assert!(words(&["a.b", "b.c"]).contains("\"a.b\" (and 1 other name) does not"));
        assert!(words(&["a.b", "b.c", "c.d"]).contains("(and 2 other names)"));
        assert!(check(b"nonsense", "h").is_err());
    }
}
