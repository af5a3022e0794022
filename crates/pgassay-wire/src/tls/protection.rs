//! TLS of one connection as a transform of bytes: request, handshake, encryption and decryption.
//!
//! The session owns this while it is needed: until the server refuses TLS, or permanently. It is
//! transparent to the code that moves the bytes: outgoing data is encrypted, and incoming data is
//! decrypted before it is parsed.
//!
//! Source: `PQconnectPoll`, state `CONNECTION_SSL_STARTUP`, in `fe-connect.c`.

use std::io::{Read, Write};

use rustls::ClientConnection;

use super::{TlsError, TlsSettings, certificate};
use crate::login::TlsLogin;
use crate::replies::{Core, Replies};
use crate::{Event, WireError};

/// `NEGOTIATE_SSL_CODE` with its length.
const SSL_REQUEST: &[u8] = &[0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// The TLS state of a connection that uses, or may use, TLS.
pub(crate) struct Protection {
    stage: TlsStage,
    /// Encrypted output, and how many of its bytes were written.
    encrypted: Vec<u8>,
    sealed_sent: usize,
    /// Decrypted input, and how much of it was used.
    opened: Vec<u8>,
    opened_used: usize,
}

enum TlsStage {
    /// A request for TLS was sent to the server.
    Requested(Box<TlsLogin>),
    /// The handshake, and encrypted data after it.
    Established {
        connection: Box<ClientConnection>,
        /// Whether the handshake is complete.
        is_handshake_done: bool,
        /// Whether the server must select PostgreSQL's protocol (ALPN).
        needs_alpn: bool,
    },
}

impl Protection {
    pub fn start(login: &TlsLogin) -> Result<Self, TlsError> {
        let TlsLogin { settings, host, .. } = login;
        let (stage, sealed) = if settings.is_direct {
            (start_handshake(settings, host)?, Vec::new())
        } else {
            (
                TlsStage::Requested(Box::new(login.clone())),
                SSL_REQUEST.to_vec(),
            )
        };
        Ok(Self {
            stage,
            encrypted: sealed,
            sealed_sent: 0,
            opened: Vec::new(),
            opened_used: 0,
        })
    }

    /// Returns the bytes to write: the request or the handshake, and then the session's encrypted
    /// output.
    pub fn output(&mut self, core: &mut Core) -> &[u8] {
        let TlsStage::Established {
            connection,
            is_handshake_done: is_settled,
            ..
        } = &mut self.stage
        else {
            return &self.encrypted[self.sealed_sent..];
        };
        if *is_settled && core.sent < core.out.len() {
            // There is no limit, so all of it is accepted at once.
            let taken = connection.writer().write_all(&core.out[core.sent..]);
            debug_assert!(taken.is_ok(), "rustls has no buffer limit");
            core.out.clear();
            core.sent = 0;
        }
        while connection.wants_write() {
            let written = connection.write_tls(&mut self.encrypted);
            debug_assert!(written.is_ok(), "writing to a vector cannot fail");
        }
        &self.encrypted[self.sealed_sent..]
    }

    /// Reports how many bytes of the output were written.
    pub fn sent(&mut self, count_bytes: usize) {
        self.sealed_sent += count_bytes;
        if self.sealed_sent >= self.encrypted.len() {
            self.encrypted.clear();
            self.sealed_sent = 0;
        }
    }

    /// Whether the answer to the request is outstanding; [`Self::answered`] must then handle the
    /// input.
    pub fn is_asking(&self) -> bool {
        matches!(self.stage, TlsStage::Requested(_))
    }

    /// Handles the server's answer; returns `false` if the connection continues without TLS.
    pub fn answered(&mut self, input: &mut &[u8]) -> Result<bool, TlsError> {
        let TlsStage::Requested(login) = &self.stage else {
            return Ok(true);
        };
        let Some((&answer, rest)) = input.split_first() else {
            return Ok(true);
        };
        *input = rest;
        match answer {
            b'S' if !rest.is_empty() => Err(TlsError::Injected),
            b'S' => {
                self.stage = start_handshake(&login.settings, &login.host)?;
                Ok(true)
            }
            b'N' if login.is_required => Err(TlsError::Refused),
            b'N' => Ok(false),
            b'E' => Err(TlsError::ErrorAnswer),
            byte => Err(TlsError::QueryResult { byte }),
        }
    }

    /// Like [`Replies::next`], for encrypted `input`.
    pub fn next<'s>(
        &'s mut self,
        replies: &'s mut Replies,
        input: &mut &[u8],
    ) -> Result<Option<Event<'s>>, WireError> {
        if self.opened_used >= self.opened.len() {
            self.opened.clear();
            self.opened_used = 0;
            self.open(&mut replies.core, input)?;
        }
        let mut rest = &self.opened[self.opened_used..];
        let event = replies.next(&mut rest)?;
        self.opened_used = self.opened.len() - rest.len();
        Ok(event)
    }

    /// Decrypts all of the input.
    fn open(&mut self, core: &mut Core, input: &mut &[u8]) -> Result<(), TlsError> {
        let TlsStage::Established {
            connection,
            is_handshake_done: is_settled,
            needs_alpn,
        } = &mut self.stage
        else {
            return Ok(());
        };
        while !input.is_empty() {
            // Reading from a slice does not fail; data that exceeds rustls's buffer is read later.
            let taken = connection.read_tls(input).unwrap_or(0);
            let state = connection.process_new_packets().map_err(|error| {
                let error = Box::new(error);
                if *is_settled {
                    TlsError::Connection(error)
                } else {
                    TlsError::Handshake(error)
                }
            })?;
            let ready = state.plaintext_bytes_to_read();
            let begin = self.opened.len();
            self.opened.resize(begin + ready, 0);
            let read = connection.reader().read(&mut self.opened[begin..]);
            self.opened.truncate(begin + read.unwrap_or(0));
            // After a close notification, further data is ignored.
            if taken == 0 && ready == 0 {
                *input = &[];
            }
            if !*is_settled && !connection.is_handshaking() {
                finish_handshake(connection, *needs_alpn, core)?;
                *is_settled = true;
            }
        }
        Ok(())
    }
}

/// Handles the result of the handshake.
fn finish_handshake(
    connection: &ClientConnection,
    needs_alpn: bool,
    core: &mut Core,
) -> Result<(), TlsError> {
    if needs_alpn && connection.alpn_protocol().is_none() {
        return Err(TlsError::NoAlpn);
    }
    let certificates = connection.peer_certificates().unwrap_or_default();
    let hash = certificates
        .first()
        .and_then(|der| certificate::end_point_hash(der));
    if let Some(starting) = &mut core.starting {
        starting.authentication.enable_channel_binding(hash);
    }
    Ok(())
}

fn start_handshake(settings: &TlsSettings, host: &str) -> Result<TlsStage, TlsError> {
    Ok(TlsStage::Established {
        connection: Box::new(settings.connection(host)?),
        is_handshake_done: false,
        needs_alpn: settings.is_direct,
    })
}
