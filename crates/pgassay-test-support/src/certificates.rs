//! Certificates for tests: for servers, clients, and authorities that did or did not sign them.

use std::path::{Path, PathBuf};
use std::process::Command;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P384_SHA384, PKCS_ED25519,
    RevokedCertParams, SanType, SerialNumber, SignatureAlgorithm, date_time_ymd,
};

/// The host name in the server's certificate, in addition to 127.0.0.1.
pub const CERTIFIED_HOST: &str = "localhost";

/// A directory of PEM files.
pub struct Certificates {
    directory: PathBuf,
}

fn named(common_name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params
}

fn authority(common_name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = named(common_name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

impl Certificates {
    /// Creates all certificates.
    pub fn make(directory: &Path) -> Self {
        let made = Self {
            directory: directory.to_owned(),
        };
        let (root, other) = (authority("test root"), authority("other root"));
        made.write("root.crt", &root.pem());
        made.write("other.crt", &other.pem());
        let of_host = |names: &[&str]| {
            let mut params = named("test server");
            params.subject_alt_names = names
                .iter()
                .map(|name| match name.parse() {
                    Ok(address) => SanType::IpAddress(address),
                    Err(_) => SanType::DnsName((*name).try_into().unwrap()),
                })
                .collect();
            params.serial_number = Some(SerialNumber::from(vec![7]));
            params
        };
        made.sign(
            "server",
            &of_host(&[CERTIFIED_HOST, "127.0.0.1"]),
            &root,
            None,
        );
        made.sign("elsewhere", &of_host(&["elsewhere.example"]), &root, None);
        made.sign("common_name", &named(CERTIFIED_HOST), &root, None);
        let long = Some(&PKCS_ECDSA_P384_SHA384);
        made.sign("server384", &of_host(&[CERTIFIED_HOST]), &root, long);
        let edwards = Some(&PKCS_ED25519);
        made.sign("server25519", &of_host(&[CERTIFIED_HOST]), &root, edwards);
        let mut expired = of_host(&[CERTIFIED_HOST]);
        expired.not_after = date_time_ymd(2001, 1, 1);
        made.sign("expired", &expired, &root, None);
        made.sign("client", &named("certified"), &root, None);
        made.sign("stranger", &named("certified"), &other, None);
        let key = KeyPair::generate().unwrap();
        let mut alone = of_host(&[CERTIFIED_HOST]);
        alone.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        made.write("alone.crt", &alone.self_signed(&key).unwrap().pem());
        made.write("alone.key", &key.serialize_pem());
        let list = |serials: Vec<u8>| CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2099, 1, 1),
            crl_number: SerialNumber::from(vec![1]),
            issuing_distribution_point: None,
            revoked_certs: serials
                .into_iter()
                .map(|serial| RevokedCertParams {
                    serial_number: SerialNumber::from(vec![serial]),
                    revocation_time: date_time_ymd(2020, 1, 1),
                    reason_code: None,
                    invalidity_date: None,
                })
                .collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        made.write(
            "none.crl",
            &list(vec![99]).signed_by(&root).unwrap().pem().unwrap(),
        );
        made.write(
            "server.crl",
            &list(vec![7]).signed_by(&root).unwrap().pem().unwrap(),
        );
        made
    }

    fn sign(
        &self,
        name: &str,
        params: &CertificateParams,
        issuer: &CertifiedIssuer<'static, KeyPair>,
        algorithm: Option<&'static SignatureAlgorithm>,
    ) {
        let key = match algorithm {
            Some(algorithm) => KeyPair::generate_for(algorithm).unwrap(),
            None => KeyPair::generate().unwrap(),
        };
        let certificate = params.signed_by(&key, issuer).unwrap();
        self.write(&format!("{name}.crt"), &certificate.pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }

    /// Creates a certificate of X.509 version 1 with the manual's commands (chapter "Secure TCP/IP
    /// Connections with SSL"); returns `false` if openssl is not installed.
    pub fn make_version_1(&self) -> bool {
        let script = "openssl req -new -nodes -out old.csr -keyout old.key -subj /CN=localhost && \
            openssl req -x509 -new -nodes -days 9 -out oldroot.crt -keyout oldroot.key -subj /CN=r && \
            openssl x509 -req -in old.csr -days 9 -CA oldroot.crt -CAkey oldroot.key -CAcreateserial \
            -out old.crt && chmod 600 old.key oldroot.key";
        let ran = Command::new("sh")
            .args(["-c", script])
            .current_dir(&self.directory)
            .output()
            .unwrap();
        ran.status.success()
    }

    fn write(&self, name: &str, text: &str) {
        use std::os::unix::fs::PermissionsExt;

        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        let is_key = path.extension().is_some_and(|ending| ending == "key");
        let mode = if is_key { 0o600 } else { 0o644 };
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }

    /// Returns the path of the file with this name.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}
