//! Closes a socket that another thread is waiting for.

use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;

/// A second handle of a connection's socket.
#[derive(Debug)]
pub enum SocketCloser {
    /// A Unix socket.
    Unix(UnixStream),
    /// A TCP socket.
    Tcp(TcpStream),
}

impl SocketCloser {
    /// Closes the connection: every wait for it ends.
    pub fn close(&self) {
        // It fails only if the connection has ended already.
        _ = match self {
            Self::Unix(socket) => socket.shutdown(Shutdown::Both),
            Self::Tcp(socket) => socket.shutdown(Shutdown::Both),
        };
    }
}
