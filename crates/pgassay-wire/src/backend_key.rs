//! The key that cancels a backend's query.

use bytes::BytesMut;
use postgres_protocol::message::frontend;

/// Identifies a backend, and authorizes canceling its query.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BackendKey {
    /// The backend's process ID.
    pub pid: i32,
    secret: i32,
}

impl BackendKey {
    /// Returns the message that cancels the running query; it must be sent alone, on a separate
    /// connection.
    pub fn cancel_request(&self) -> Vec<u8> {
        let mut out = BytesMut::new();
        frontend::cancel_request(self.pid, self.secret, &mut out);
        out.to_vec()
    }

    pub(crate) fn new(pid: i32, secret: i32) -> Self {
        Self { pid, secret }
    }
}

impl std::fmt::Debug for BackendKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BackendKey {{ pid: {} }}", self.pid)
    }
}
