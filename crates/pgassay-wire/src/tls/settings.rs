//! TLS settings shared by the connections of a target: trusted certificates, the client's
//! certificate, versions.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::{KeyProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, SupportedProtocolVersion};

use super::chain::Chain;
use super::verifier::Verifier;
use super::{TlsError, certificate};

/// PostgreSQL's ALPN protocol name.
pub(super) const ALPN: &[u8] = b"postgresql";

/// The contents and names of the TLS files.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files {
    /// Trusted certificates in PEM; `None` trusts any server.
    pub roots: Option<(String, String)>,
    /// The system's trusted certificates, which replace `roots`.
    pub system_roots: Option<Vec<Vec<u8>>>,
    /// Certificate revocation lists in PEM.
    pub revoked: Option<(String, String)>,
    /// The client's certificate, with its chain to a trusted one.
    pub certificate: Option<(String, String)>,
    /// The client's key.
    pub key: Option<(String, String)>,
}

/// The allowed TLS versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    pub tls12: bool,
    pub tls13: bool,
}

impl Versions {
    fn supported(self) -> Vec<&'static SupportedProtocolVersion> {
        let of = |version, is_wanted: bool| is_wanted.then_some(version);
        [of(&TLS13, self.tls13), of(&TLS12, self.tls12)]
            .into_iter()
            .flatten()
            .collect()
    }
}

/// The client's TLS settings, created once per target and shared by its connections.
#[derive(Clone)]
pub struct TlsSettings {
    /// As in libpq, a missing or invalid file is reported when it is needed: with `prefer` the
    /// connection continues without TLS.
    config: Result<Arc<ClientConfig>, Arc<str>>,
    checks_host: bool,
    /// Whether the handshake begins immediately, without a request.
    pub(super) is_direct: bool,
}

impl std::fmt::Debug for TlsSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            config,
            checks_host,
            is_direct,
        } = self;
        f.debug_struct("TlsSettings")
            .field("broken", &config.as_ref().err())
            .field("checks_host", checks_host)
            .field("is_direct", is_direct)
            .finish()
    }
}

impl TlsSettings {
    /// Creates settings from the contents of files, or from the error in them.
    pub(crate) fn new(
        files: Result<Files, String>,
        versions: Versions,
        sends_name: bool,
        checks_host: bool,
        is_direct: bool,
    ) -> Self {
        let config = files.and_then(|files| config(&files, versions, sends_name, checks_host));
        Self {
            config: config.map(Arc::new).map_err(Arc::from),
            checks_host,
            is_direct,
        }
    }

    /// Creates the client side of a new connection.
    pub(super) fn connection(&self, host: &str) -> Result<ClientConnection, TlsError> {
        let config = self
            .config
            .as_ref()
            .map_err(|error| TlsError::Setup(Arc::clone(error)))?;
        let name = match ServerName::try_from(host.to_owned()) {
            Ok(name) => name,
            Err(_) if self.checks_host => return Err(TlsError::HostNeeded),
            // An address is never sent to the server, so this value is not used.
            Err(_) => ServerName::from(std::net::IpAddr::from([0, 0, 0, 0])),
        };
        let mut connection = ClientConnection::new(Arc::clone(config), name)
            .map_err(|error| TlsError::Handshake(Box::new(error)))?;
        // The session's user limits the amount of buffered output.
        connection.set_buffer_limit(None);
        Ok(connection)
    }
}

fn config(
    files: &Files,
    versions: Versions,
    sends_name: bool,
    checks_host: bool,
) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let algorithms = provider.signature_verification_algorithms;
    let keys = provider.key_provider;
    let verifier = Verifier {
        algorithms,
        chain: chain(files, &provider)?,
        checks_host,
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions.supported())
        .map_err(|error| format!("cannot set up TLS: {error}"))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match (&files.certificate, &files.key) {
        (Some(certificate), Some(key)) => {
            let certified = certified_key(certificate, key, keys)?;
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)))
        }
        _ => builder.with_no_client_auth(),
    };
    config.enable_sni = sends_name;
    config.alpn_protocols = vec![ALPN.to_vec()];
    // PostgreSQL does not support TLS session resumption.
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// The client's certificate with its key. Unlike in rustls, it may be of X.509 version 1, which is what
/// `openssl x509 -req` makes: the server decides about it.
fn certified_key(
    certificate: &(String, String),
    key: &(String, String),
    keys: &dyn KeyProvider,
) -> Result<CertifiedKey, String> {
    let unreadable = |what| format!("could not read certificate file {what}");
    let chain = certificates(certificate).map_err(unreadable)?;
    let (path, _) = key;
    let loaded = keys
        .load_private_key(private_key(key)?)
        .map_err(|error| format!("could not load private key file \"{path}\": {error}"))?;
    let certified = certificate::public_key(&chain[0])
        .map_err(|error| unreadable(format!("\"{}\": {error}", certificate.0)))?;
    let is_other = loaded
        .public_key()
        .is_some_and(|of_key| of_key.as_ref() != certified);
    if is_other {
        return Err(format!(
            "certificate does not match private key file \"{path}\": key values mismatch"
        ));
    }
    Ok(CertifiedKey::new(chain, loaded))
}

fn chain(
    files: &Files,
    provider: &Arc<rustls::crypto::CryptoProvider>,
) -> Result<Option<Chain>, String> {
    let roots: Vec<CertificateDer<'static>> = match (&files.system_roots, &files.roots) {
        (Some(system), _) => system.iter().cloned().map(CertificateDer::from).collect(),
        (None, Some(file)) => certificates(file)
            .map_err(|what| format!("could not read root certificate file {what}"))?,
        (None, None) => return Ok(None),
    };
    let revoked = match &files.revoked {
        Some((path, text)) => {
            let lists = CertificateRevocationListDer::pem_slice_iter(text.as_bytes());
            let lists: Result<Vec<_>, _> = lists.collect();
            lists.map_err(|error| {
                format!("could not read certificate revocation list file \"{path}\": {error}")
            })?
        }
        None => Vec::new(),
    };
    Chain::new(roots, revoked, Arc::clone(provider)).map(Some)
}

/// Parses the certificates of a file; there must be at least one.
fn certificates((path, text): &(String, String)) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, pem::Error> =
        CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    match read {
        Ok(found) if found.is_empty() => Err(format!("\"{path}\": no certificate in PEM format")),
        Ok(found) => Ok(found),
        Err(error) => Err(format!("\"{path}\": {error}")),
    }
}

fn private_key((path, text): &(String, String)) -> Result<PrivateKeyDer<'static>, String> {
    if text.contains("ENCRYPTED") {
        return Err(format!(
            "private key file \"{path}\" has a passphrase, which is not supported; \
             remove it with \"openssl pkey\""
        ));
    }
    PrivateKeyDer::from_pem_slice(text.as_bytes())
        .map_err(|error| format!("could not load private key file \"{path}\": {error}"))
}
