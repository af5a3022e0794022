//! What a session needs to sign in.

use crate::conninfo::{ChannelBinding, Methods, SessionAttributes};
use crate::password::Password;
use crate::salt_cache::SaltCache;
use crate::tls::TlsSettings;

/// Credentials and connection settings.
#[derive(Clone, Debug, Default)]
pub struct Login {
    /// The user.
    pub user: String,
    /// The database; if empty, the server uses the user's name.
    pub database: String,
    /// The password, if the server requires one.
    pub password: Option<Password>,
    /// Other session settings, such as `application_name` and `options`.
    pub settings: Vec<(String, String)>,
    /// Salted passwords, shared by the clients of a run.
    pub salts: SaltCache,
    /// TLS parameters; `None` disables TLS.
    pub tls: Option<TlsLogin>,
    /// Whether authentication is bound to the server's certificate.
    pub channel_binding: ChannelBinding,
    /// The allowed authentication methods.
    pub methods: Methods,
    /// The required type of server; any other fails with [`WireError::Unwanted`](crate::WireError::Unwanted).
    pub wanted: SessionAttributes,
}

/// TLS parameters of a connection.
#[derive(Clone, Debug)]
pub struct TlsLogin {
    /// Trusted certificates and the client's certificate.
    pub settings: TlsSettings,
    /// The host name or address.
    pub host: String,
    /// Whether the session fails, rather than continuing without TLS, if the server does not
    /// support it.
    pub is_required: bool,
}
