//! Signing in: trust, peer, cleartext, md5 and SCRAM-SHA-256.
//!
//! Numbers of the requests: `src/include/libpq/pqcomm.h` (`AUTH_REQ_*`). Peer and trust need
//! nothing from the client.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::BytesMut;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::message::frontend;

use crate::error::WireError;
use crate::password::Password;
use crate::scram::{Scram, salt_password};

const MECHANISM: &str = "SCRAM-SHA-256";
/// A run talks to a handful of servers; more salts than this are not worth keeping.
const SALTS_MAX: usize = 64;

/// Salted passwords by (password, salt, iterations), shared by the clients of a run.
#[derive(Clone, Default)]
pub struct SaltCache(Arc<Mutex<Vec<Salted>>>);

struct Salted {
    password: Password,
    salt: Vec<u8>,
    iterations: u32,
    result: [u8; 32],
}

impl SaltCache {
    /// The salted password, derived if it is not known yet. The lock is held meanwhile, so that
    /// clients which sign in at the same time derive it once.
    fn derive(&self, password: &Password, salt: &[u8], iterations: u32) -> [u8; 32] {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.iter().find(|entry| {
            entry.iterations == iterations && entry.salt == salt && &entry.password == password
        });
        if let Some(entry) = found {
            return entry.result;
        }
        let result = salt_password(password.reveal(), salt, iterations);
        if known.len() >= SALTS_MAX {
            known.clear();
        }
        known.push(Salted {
            password: password.clone(),
            salt: salt.to_vec(),
            iterations,
            result,
        });
        result
    }
}

impl std::fmt::Debug for SaltCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SaltCache")
    }
}

/// What a client needs to answer the server's requests.
pub(crate) struct Authentication {
    pub user: String,
    pub password: Option<Password>,
    pub salts: SaltCache,
    scram: Option<Scram>,
    /// Whether the server has proved that it knows the password, where SCRAM was started.
    proven: bool,
}

impl Authentication {
    pub fn new(user: String, password: Option<Password>, salts: SaltCache) -> Self {
        Self {
            user,
            password,
            salts,
            scram: None,
            proven: false,
        }
    }

    /// Answers an `Authentication…` message; `true` once the server is satisfied.
    pub fn answer(&mut self, body: &[u8], out: &mut Vec<u8>) -> Result<bool, WireError> {
        let mut message = BytesMut::new();
        let satisfied = self.respond(body, &mut message)?;
        out.extend_from_slice(&message);
        Ok(satisfied)
    }

    fn respond(&mut self, body: &[u8], out: &mut BytesMut) -> Result<bool, WireError> {
        const CUT: WireError = WireError::Malformed {
            tag: 'R',
            what: "the authentication request is cut off",
        };
        let (code, data) = body.split_first_chunk::<4>().ok_or(CUT)?;
        match u32::from_be_bytes(*code) {
            0 if self.scram.is_some() && !self.proven => {
                return Err(WireError::Scram {
                    reason: "the server did not prove itself",
                });
            }
            0 => return Ok(true),
            3 => {
                let password = self.password()?.reveal().to_owned();
                send_password(password.as_bytes(), out)?;
            }
            5 => {
                let salt: [u8; 4] = data.try_into().map_err(|_| CUT)?;
                let password = self.password()?.reveal();
                let hash = md5_hash(self.user.as_bytes(), password.as_bytes(), salt);
                send_password(hash.as_bytes(), out)?;
            }
            10 => self.start_scram(data, out)?,
            11 => self.continue_scram(data, out)?,
            12 => {
                let scram = self.scram.as_ref().ok_or(UNASKED)?;
                scram.verify(data)?;
                self.proven = true;
            }
            other => {
                return Err(WireError::AuthenticationUnsupported {
                    method: method(other),
                });
            }
        }
        Ok(false)
    }

    fn start_scram(&mut self, offered: &[u8], out: &mut BytesMut) -> Result<(), WireError> {
        let mut offers = offered.split(|&byte| byte == 0);
        if !offers.any(|offer| offer == MECHANISM.as_bytes()) {
            let method = String::from_utf8_lossy(offered)
                .replace('\0', " ")
                .trim()
                .to_owned();
            return Err(WireError::AuthenticationUnsupported {
                method: format!("SASL ({method})"),
            });
        }
        self.password()?;
        let scram = Scram::new()?;
        frontend::sasl_initial_response(MECHANISM, scram.first_message().as_bytes(), out)
            .map_err(|error| encode_error("authentication", &error))?;
        self.scram = Some(scram);
        Ok(())
    }

    fn continue_scram(&mut self, data: &[u8], out: &mut BytesMut) -> Result<(), WireError> {
        let challenge = self.scram.as_ref().ok_or(UNASKED)?.challenge(data)?;
        let password = self.password()?;
        let salted = self
            .salts
            .derive(password, &challenge.salt, challenge.iterations);
        let scram = self.scram.as_mut().ok_or(UNASKED)?;
        let message = scram.proof(&challenge, &salted);
        frontend::sasl_response(message.as_bytes(), out)
            .map_err(|error| encode_error("authentication", &error))
    }

    /// The password; an empty one counts as none, as in libpq.
    fn password(&self) -> Result<&Password, WireError> {
        self.password
            .as_ref()
            .filter(|password| !password.reveal().is_empty())
            .ok_or_else(|| WireError::PasswordNeeded {
                user: self.user.clone(),
            })
    }
}

const UNASKED: WireError = WireError::Scram {
    reason: "the server continues an exchange that was not started",
};

fn send_password(password: &[u8], out: &mut BytesMut) -> Result<(), WireError> {
    frontend::password_message(password, out).map_err(|error| encode_error("password", &error))
}

pub(crate) fn encode_error(what: &'static str, error: &std::io::Error) -> WireError {
    WireError::Encode {
        what,
        reason: error.to_string(),
    }
}

fn method(code: u32) -> String {
    match code {
        2 => "Kerberos 5".into(),
        7 | 8 => "GSSAPI".into(),
        9 => "SSPI".into(),
        other => format!("number {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(code: u32, data: &[u8]) -> Vec<u8> {
        [&code.to_be_bytes(), data].concat()
    }

    fn answered(password: Option<&str>, body: &[u8]) -> Result<(bool, Vec<u8>), WireError> {
        let mut out = Vec::new();
        let password = password.map(Password::new);
        let mut authentication =
            Authentication::new("md5_user".into(), password, SaltCache::default());
        Ok((authentication.answer(body, &mut out)?, out))
    }

    #[test]
    fn cleartext_and_md5() {
        let (done, out) = answered(Some("password"), &request(3, b"")).unwrap();
        assert!(!done);
        assert_eq!(&out[..], b"p\0\0\0\x0dpassword\0");
        let (_, out) = answered(Some("password"), &request(5, &[0x2a, 0x3d, 0x8f, 0xe0])).unwrap();
        assert!(out.ends_with(b"md562af4dd09bbb41884907a838a3233294\0"));
    }

    #[test]
    fn refusals() {
        let fails = |password, code, data: &[u8]| {
            answered(password, &request(code, data))
                .unwrap_err()
                .to_string()
        };
        assert!(fails(None, 3, b"").contains("PGPASSWORD"));
        assert!(fails(Some(""), 5, &[1, 2, 3, 4]).contains("PGPASSWORD"));
        assert!(fails(None, 7, b"").contains("GSSAPI"));
        assert!(fails(None, 2, b"").contains("Kerberos"));
        assert!(fails(Some("x"), 10, b"OAUTHBEARER\0\0").contains("OAUTHBEARER"));
        assert!(fails(Some("x"), 11, b"r=1").contains("not started"));
        assert!(fails(Some("x"), 5, b"1").contains("cut off"));
        assert!(answered(None, b"\0\0").is_err());
    }

    #[test]
    fn a_server_that_skips_its_proof_is_refused() {
        let mut out = Vec::new();
        let mut authentication =
            Authentication::new("u".into(), Some(Password::new("p")), SaltCache::default());
        authentication
            .answer(&request(10, b"SCRAM-SHA-256\0\0"), &mut out)
            .unwrap();
        assert!(authentication.answer(&request(0, b""), &mut out).is_err());
    }

    #[test]
    fn salted_passwords_are_kept() {
        let cache = SaltCache::default();
        let password = Password::new("secret");
        let first = cache.derive(&password, b"salt", 2);
        assert_eq!(first, cache.derive(&password, b"salt", 2));
        assert_ne!(first, cache.derive(&password, b"salt", 3));
        assert_ne!(first, cache.derive(&Password::new("other"), b"salt", 2));
        assert_eq!(cache.0.lock().unwrap().len(), 3);
    }
}
