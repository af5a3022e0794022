//! Cancels the query of a backend, over a separate connection.
//!
//! Source: `PQcancelStart` in `fe-cancel.c` and `ProcessCancelRequest` in `postmaster.c`, PostgreSQL
//! 17 and 18. Older versions of libpq never encrypt a cancel request, which shows the backend's key
//! to anyone who listens; servers of all versions accept it encrypted.

use std::io::{self, Read, Write};

use crate::backend_key::BackendKey;
use crate::conninfo::{Attempt, Endpoint, Target};
use crate::exchange::ExchangeError;
use crate::salt_cache::SaltCache;
use crate::session::Session;

/// Buffer size of one read: a TLS handshake takes a few.
const READ_BYTES: usize = 8192;

/// Sends a cancel request over an open stream to `endpoint`, encrypted if `with_tls`, and waits
/// until the server closes the connection. Then the backend has been signaled; there is no other
/// reply, and nothing is canceled if it was idle. The caller limits the time of the stream.
///
/// # Errors
/// TLS or the stream failed or the server refused TLS, or the server closed the connection before the request was sent.
pub fn cancel<S: Read + Write>(
    mut stream: S,
    target: &Target,
    endpoint: &Endpoint,
    with_tls: bool,
    key: BackendKey,
) -> Result<(), ExchangeError> {
    let attempt = Attempt {
        endpoint: 0,
        with_tls,
        wanted: target.session_attributes,
    };
    let mut login = target.login_for(attempt, endpoint, &SaltCache::default());
    if let Some(tls) = &mut login.tls {
        // An intermediary that refuses TLS must not see the key.
        tls.is_required = true;
    }
    let mut session = Session::cancel(&login, key)?;
    let mut buffer = [0; READ_BYTES];
    loop {
        let output = session.output();
        let count_bytes = output.len();
        stream.write_all(output)?;
        stream.flush()?;
        session.sent(count_bytes);
        let count = match stream.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // The server does not read what may follow the request, so the end can be a reset.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => 0,
            read => read?,
        };
        if count == 0 {
            return if session.has_unsent() {
                Err(ExchangeError::Closed)
            } else {
                Ok(())
            };
        }
        let mut input = &buffer[..count];
        while session.next(&mut input)?.is_some() {}
    }
}
