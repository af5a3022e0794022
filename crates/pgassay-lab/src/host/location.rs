//! Where a point's data are.

use std::net::SocketAddr;

use super::Host;

/// Where a point's data are and how clients connect.
#[derive(Clone, Copy)]
pub struct DataLocation<'a> {
    /// The server.
    pub host: &'a dyn Host,
    /// The database on it.
    pub database: &'a str,
    /// The TCP address to connect to; `None` for the server's Unix socket.
    pub address: Option<SocketAddr>,
}
