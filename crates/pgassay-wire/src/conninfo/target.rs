//! A resolved connection: all that is needed to connect, checked.

use std::net::IpAddr;
use std::path::PathBuf;

use super::methods::Methods;
use crate::password::Password;
use crate::tls::TlsSettings;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A unix socket.
    Unix {
        /// The directory; one that starts with `@` is in the abstract namespace.
        directory: String,
        /// The number in the socket's name.
        port: u16,
    },
    /// A TCP port.
    Tcp {
        /// The host's name.
        host: String,
        /// Its address, where it is given and need not be looked up.
        address: Option<IpAddr>,
        /// The port.
        port: u16,
    },
}

impl Address {
    /// The path of a unix socket.
    pub fn socket_path(&self) -> Option<PathBuf> {
        match self {
            Self::Unix { directory, port } => {
                Some(PathBuf::from(format!("{directory}/.s.PGSQL.{port}")))
            }
            Self::Tcp { .. } => None,
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix { directory, port } => write!(f, "socket \"{directory}/.s.PGSQL.{port}\""),
            Self::Tcp {
                host,
                address: Some(address),
                port,
            } if host.is_empty() => {
                write!(f, "{address}, port {port}")
            }
            Self::Tcp {
                host,
                address: Some(address),
                port,
            } => {
                write!(f, "\"{host}\" ({address}), port {port}")
            }
            Self::Tcp {
                host,
                address: None,
                port,
            } => write!(f, "\"{host}\", port {port}"),
        }
    }
}

/// A server to try, with the password that belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Where it listens.
    pub address: Address,
    /// The password, given or from the password file.
    pub password: Option<Password>,
}

/// How much a connection over TCP is to be protected, the strictest last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SslMode {
    /// Never TLS.
    Disable,
    /// TLS if the server insists.
    Allow,
    /// TLS if the server can.
    #[default]
    Prefer,
    /// TLS, whoever the server is; where there is a file of trusted certificates, as `VerifyCa`.
    Require,
    /// TLS with a server whose certificate is trusted.
    VerifyCa,
    /// TLS with a server whose certificate is trusted and names the host.
    VerifyFull,
}

/// Whether signing in with SCRAM holds for the server's certificate only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChannelBinding {
    /// No.
    Disable,
    /// Where the server can.
    #[default]
    Prefer,
    /// Yes; other ways to sign in are refused.
    Require,
}

/// Which kind of server is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionAttributes {
    /// Any.
    #[default]
    Any,
    /// One whose transactions can write.
    ReadWrite,
    /// One whose transactions cannot.
    ReadOnly,
    /// One that is no standby.
    Primary,
    /// A standby.
    Standby,
    /// A standby, else any.
    PreferStandby,
}

/// Where and as whom to connect.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// Servers to try in this order.
    pub hosts: Vec<Host>,
    /// Whether clients are to be spread over them (`load_balance_hosts=random`).
    pub balance_hosts: bool,
    /// Which of them is wanted.
    pub session_attributes: SessionAttributes,
    /// The user.
    pub user: String,
    /// The database.
    pub database: String,
    /// Settings of the session from start-up on.
    pub settings: Vec<(String, String)>,
    /// The protection.
    pub ssl_mode: SslMode,
    /// What TLS needs; none where no connection asks for it.
    pub tls: Option<TlsSettings>,
    /// Whether signing in is bound to the server's certificate.
    pub channel_binding: ChannelBinding,
    /// The ways to authenticate that are allowed.
    pub methods: Methods,
    /// How long to wait for one server; `None` is for ever.
    pub connect_timeout_s: Option<u32>,
    /// Whether TCP keepalives are sent.
    pub keepalives: bool,
    /// Idle seconds before the first keepalive; 0 is the system's default.
    pub keepalives_idle_s: u32,
    /// Seconds between keepalives; 0 is the system's default.
    pub keepalives_interval_s: u32,
    /// Keepalives that may be lost; 0 is the system's default.
    pub keepalives_count: u32,
    /// How long sent data may stay unacknowledged; 0 is the system's default.
    pub tcp_user_timeout_ms: u32,
    /// What the user should know, such as a password file that was ignored.
    pub warnings: Vec<String>,
}

impl Target {
    /// A server behind a unix socket, with nothing else asked for.
    pub fn unix(directory: &str, port: u16, user: &str, database: &str) -> Self {
        let address = Address::Unix {
            directory: directory.into(),
            port,
        };
        Self {
            hosts: vec![Host {
                address,
                password: None,
            }],
            user: user.into(),
            database: database.into(),
            keepalives: true,
            ..Self::default()
        }
    }
}
