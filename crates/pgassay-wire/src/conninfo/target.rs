//! A resolved connection target: all checked parameters.

use std::net::IpAddr;
use std::path::PathBuf;

use super::methods::Methods;
use crate::password::Password;
use crate::tls::TlsSettings;

/// The longest path of a Unix socket on Linux, in bytes (`sun_path` in `sys/un.h` without the final zero).
const SOCKET_PATH_MAX: usize = 107;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Unix {
        /// The directory; a name that starts with `@` is in the abstract namespace.
        directory: String,
        /// The port number in the socket's file name.
        port: u16,
    },
    /// A TCP port.
    Tcp {
        /// The host name.
        host: String,
        /// Its address, if specified, so that the name need not be resolved.
        address: Option<IpAddr>,
        /// The port.
        port: u16,
    },
}

impl Address {
    /// Returns the path of the Unix socket.
    pub fn socket_path(&self) -> Option<PathBuf> {
        match self {
            Self::Unix { directory, port } => {
                Some(PathBuf::from(format!("{directory}/.s.PGSQL.{port}")))
            }
            Self::Tcp { .. } => None,
        }
    }

    /// libpq's error if the path of the Unix socket does not fit into a socket's address.
    pub fn path_error(&self) -> Option<String> {
        let path = self.socket_path()?;
        (path.as_os_str().len() > SOCKET_PATH_MAX).then(|| {
            format!(
                "Unix-domain socket path \"{}\" is too long (maximum {SOCKET_PATH_MAX} bytes)",
                path.display()
            )
        })
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
            // libpq does not repeat an address that was given as the host.
            Self::Tcp {
                host,
                address: Some(address),
                port,
            } if address.to_string() != *host => {
                write!(f, "\"{host}\" ({address}), port {port}")
            }
            Self::Tcp { host, port, .. } => write!(f, "\"{host}\", port {port}"),
        }
    }
}

/// A server to try, and its password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetHost {
    /// Where it listens.
    pub address: Address,
    /// The password, specified or from the password file.
    pub password: Option<Password>,
}

/// Protection of TCP connections, weakest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SslMode {
    /// Never TLS.
    Disable,
    /// TLS if the server requires it.
    Allow,
    /// TLS if the server supports it.
    #[default]
    Prefer,
    /// TLS with any server; if a root certificate file exists, like `VerifyCa`.
    Require,
    /// TLS with a server whose certificate is trusted.
    VerifyCa,
    /// TLS with a server whose certificate is trusted and matches the host name.
    VerifyFull,
}

/// Whether SCRAM authentication is bound to the server's certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChannelBinding {
    /// Never.
    Disable,
    /// If the server supports it.
    #[default]
    Prefer,
    /// Always; other authentication methods are rejected.
    Require,
}

/// The required type of server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionAttributes {
    /// Any.
    #[default]
    Any,
    /// One that accepts writing transactions.
    ReadWrite,
    /// One that does not.
    ReadOnly,
    /// Not a standby.
    Primary,
    /// A standby.
    Standby,
    /// A standby if possible, otherwise any.
    PreferStandby,
}

/// Server, user, database and connection options.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// Servers to try, in order.
    pub hosts: Vec<TargetHost>,
    /// Whether to spread clients over the hosts (`load_balance_hosts=random`).
    pub balance_hosts: bool,
    /// The required type of server.
    pub session_attributes: SessionAttributes,
    /// The user name.
    pub user: String,
    /// The database name.
    pub database: String,
    /// Session settings that are sent at start-up.
    pub settings: Vec<(String, String)>,
    /// The required TLS protection.
    pub ssl_mode: SslMode,
    /// TLS settings; `None` if no connection requests TLS.
    pub tls: Option<TlsSettings>,
    /// Whether authentication is bound to the server's certificate.
    pub channel_binding: ChannelBinding,
    /// The allowed authentication methods.
    pub methods: Methods,
    /// How long to wait for one server, in seconds; `None` means no limit.
    pub connect_timeout_s: Option<u32>,
    /// Whether to send TCP keepalives.
    pub keepalives: bool,
    /// Idle seconds before the first keepalive; 0 means the system's default.
    pub keepalives_idle_s: u32,
    /// Seconds between keepalives; 0 means the system's default.
    pub keepalives_interval_s: u32,
    /// Keepalives that may be lost; 0 means the system's default.
    pub keepalives_count: u32,
    /// How long sent data may remain unacknowledged, in ms; 0 means the system's default.
    pub tcp_user_timeout_ms: u32,
    /// Warnings for the user, such as an ignored password file.
    pub warnings: Vec<String>,
}

impl Target {
    /// A server on a Unix socket, with default options.
    pub fn unix(directory: &str, port: u16, user: &str, database: &str) -> Self {
        let address = Address::Unix {
            directory: directory.into(),
            port,
        };
        Self {
            hosts: vec![TargetHost {
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
