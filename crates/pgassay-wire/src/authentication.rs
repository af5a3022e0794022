//! Signing in: trust, peer, cleartext, md5, SCRAM-SHA-256 and SCRAM-SHA-256-PLUS.
//!
//! Request codes: `src/include/libpq/pqcomm.h` (`AUTH_REQ_*`). Peer and trust require nothing from
//! the client. Restrictions by the client (`require_auth`, `channel_binding`):
//! `check_expected_areq` and `pg_SASL_init` in `src/interfaces/libpq/fe-auth.c`.

use bytes::BytesMut;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::message::frontend;

use crate::conninfo::{ChannelBinding, Methods};
use crate::error::WireError;
use crate::login::Login;
use crate::password::Password;
use crate::salt_cache::SaltCache;
use crate::scram::{ChannelBindingData, Scram};

const MECHANISM: &str = "SCRAM-SHA-256";
/// The same, bound to the server's certificate.
const MECHANISM_PLUS: &str = "SCRAM-SHA-256-PLUS";

/// The channel that authentication can be bound to.
#[derive(Clone)]
enum Channel {
    /// No TLS.
    Open,
    /// TLS, with the hash of the server's certificate if one is defined.
    Protected(Option<Vec<u8>>),
}

/// The state of a client's authentication.
pub(crate) struct Authentication {
    user: String,
    password: Option<Password>,
    salts: SaltCache,
    channel_binding: ChannelBinding,
    methods: Methods,
    channel: Channel,
    scram: Option<Scram>,
    /// Whether the current exchange is bound to the server's certificate.
    is_bound: bool,
    /// Whether the client has finished its part: sent its password or, with SCRAM, verified that
    /// the server knows it too.
    has_finished: bool,
    /// Whether the server has accepted the client.
    pub is_accepted: bool,
}

impl Authentication {
    pub fn new(login: &Login) -> Self {
        Self {
            user: login.user.clone(),
            password: login.password.clone(),
            salts: login.salts.clone(),
            channel_binding: login.channel_binding,
            methods: login.methods.clone(),
            channel: Channel::Open,
            scram: None,
            is_bound: false,
            has_finished: false,
            is_accepted: false,
        }
    }

    /// Records that the connection uses TLS, with this hash of the server's certificate.
    pub fn enable_channel_binding(&mut self, certificate_hash: Option<Vec<u8>>) {
        self.channel = Channel::Protected(certificate_hash);
    }

    /// Answers an `Authentication…` message; returns `true` once the server has accepted the
    /// client.
    pub fn answer(&mut self, body: &[u8], out: &mut Vec<u8>) -> Result<bool, WireError> {
        let mut message = BytesMut::new();
        self.is_accepted = self.respond(body, &mut message)?;
        out.extend_from_slice(&message);
        Ok(self.is_accepted)
    }

    fn respond(&mut self, body: &[u8], out: &mut BytesMut) -> Result<bool, WireError> {
        const CUT: WireError = WireError::Malformed {
            tag: 'R',
            what: "the authentication request is truncated",
        };
        let (code, data) = body.split_first_chunk::<4>().ok_or(CUT)?;
        let code = u32::from_be_bytes(*code);
        self.check_allowed(code)?;
        if self.has_answered(code) {
            return Err(WireError::Malformed {
                tag: 'R',
                what: "authentication was requested twice",
            });
        }
        match code {
            0 if self.scram.is_some() && !self.has_finished => {
                return Err(WireError::Scram {
                    reason: "the server did not prove that it knows the password",
                });
            }
            0 => return Ok(true),
            3 => {
                let password = self.password()?.reveal().to_owned();
                send_password(password.as_bytes(), out)?;
                self.has_finished = true;
            }
            5 => {
                let salt: [u8; 4] = data.try_into().map_err(|_| CUT)?;
                let password = self.password()?.reveal();
                let hash = md5_hash(self.user.as_bytes(), password.as_bytes(), salt);
                send_password(hash.as_bytes(), out)?;
                self.has_finished = true;
            }
            10 => self.start_scram(data, out)?,
            11 => self.continue_scram(data, out)?,
            12 => {
                let scram = self.scram.as_ref().ok_or(UNASKED)?;
                scram.verify(data)?;
                self.has_finished = true;
            }
            other => {
                return Err(WireError::AuthenticationUnsupported {
                    method: method(other),
                });
            }
        }
        Ok(false)
    }

    /// Whether such a request has been answered. Each one is answered once: otherwise a server could keep a
    /// client computing, and let its answers fill the memory.
    fn has_answered(&self, code: u32) -> bool {
        let scram = self.scram.as_ref();
        let has_ended = self.is_accepted || self.has_finished;
        match code {
            0 => self.is_accepted,
            11 => has_ended || scram.is_some_and(Scram::has_proved),
            12 => has_ended,
            _ => has_ended || scram.is_some(),
        }
    }

    /// Rejects what the user does not allow: other methods, and authentication without channel
    /// binding.
    fn check_allowed(&self, code: u32) -> Result<(), WireError> {
        if let Err(reason) = self.methods.check(code, self.has_finished) {
            return Err(WireError::MethodRefused {
                required: self.methods.text().into(),
                reason,
            });
        }
        let is_scram = matches!(code, 10..=12);
        if self.channel_binding != ChannelBinding::Require || is_scram || self.is_bound {
            return Ok(());
        }
        Err(WireError::ChannelBinding {
            reason: if code == 0 {
                "server authenticated client without channel binding"
            } else {
                "not supported by server's authentication request"
            },
        })
    }

    fn start_scram(&mut self, offered: &[u8], out: &mut BytesMut) -> Result<(), WireError> {
        let offers = |mechanism: &str| {
            let mut offers = offered.split(|&byte| byte == 0);
            offers.any(|offer| offer == mechanism.as_bytes())
        };
        let (mechanism, binding) = self.mechanism(offers(MECHANISM_PLUS))?;
        if mechanism == MECHANISM && !offers(MECHANISM) {
            let method = String::from_utf8_lossy(offered)
                .replace('\0', " ")
                .trim()
                .to_owned();
            return Err(WireError::AuthenticationUnsupported {
                method: format!("SASL ({method})"),
            });
        }
        self.password()?;
        self.is_bound = matches!(binding, ChannelBindingData::EndPoint(_));
        let scram = Scram::new(binding)?;
        frontend::sasl_initial_response(mechanism, scram.first_message().as_bytes(), out)
            .map_err(|error| encode_error("authentication", &error))?;
        self.scram = Some(scram);
        Ok(())
    }

    /// Chooses the mechanism and the channel binding; `is_offered` is whether the server supports
    /// binding.
    fn mechanism(&self, is_offered: bool) -> Result<(&'static str, ChannelBindingData), WireError> {
        let fail = |reason| Err(WireError::ChannelBinding { reason });
        let is_wanted = self.channel_binding != ChannelBinding::Disable;
        let is_required = self.channel_binding == ChannelBinding::Require;
        match &self.channel {
            Channel::Open if is_offered => {
                fail("server offered SCRAM-SHA-256-PLUS authentication over a non-SSL connection")
            }
            Channel::Open if is_required => fail("SSL not in use"),
            Channel::Protected(Some(hash)) if is_offered && is_wanted => {
                Ok((MECHANISM_PLUS, ChannelBindingData::EndPoint(hash.clone())))
            }
            Channel::Protected(None) if is_required => {
                fail("the server's certificate has no hash for channel binding")
            }
            Channel::Protected(_) if is_required => {
                fail("server did not offer an authentication method that supports channel binding")
            }
            Channel::Protected(Some(_)) if is_wanted => {
                Ok((MECHANISM, ChannelBindingData::Unoffered))
            }
            _ => Ok((MECHANISM, ChannelBindingData::None)),
        }
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

    /// Returns the password; an empty one counts as none, as in libpq.
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
    reason: "the server continued an exchange that was not started",
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
        let mut authentication = authentication(password, "", ChannelBinding::Prefer);
        Ok((authentication.answer(body, &mut out)?, out))
    }

    fn authentication(
        password: Option<&str>,
        methods: &str,
        channel_binding: ChannelBinding,
    ) -> Authentication {
        Authentication::new(&Login {
            user: "md5_user".into(),
            password: password.map(Password::new),
            methods: Methods::parse(methods).unwrap(),
            channel_binding,
            ..Login::default()
        })
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
    fn rejected_authentication_methods() {
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
        assert!(fails(Some("x"), 5, b"1").contains("truncated"));
        assert!(answered(None, b"\0\0").is_err());
    }

    #[test]
    fn server_without_proof_is_rejected() {
        let mut out = Vec::new();
        let mut authentication = authentication(Some("p"), "", ChannelBinding::Prefer);
        authentication
            .answer(&request(10, b"SCRAM-SHA-256\0\0"), &mut out)
            .unwrap();
        assert!(authentication.answer(&request(0, b""), &mut out).is_err());
    }

    #[test]
    fn a_server_that_asks_again_and_again_is_refused() {
        let start: &[u8] = b"SCRAM-SHA-256\0\0";
        for (first, data, again) in [
            (3, &b""[..], 3),
            (5, b"salt", 5),
            (10, start, 10),
            (10, start, 3),
            (0, b"", 0),
        ] {
            let mut authentication = authentication(Some("p"), "", ChannelBinding::Prefer);
            let mut out = Vec::new();
            authentication
                .answer(&request(first, data), &mut out)
                .unwrap();
            let sent = out.len();
            let error = authentication
                .answer(&request(again, data), &mut out)
                .unwrap_err();
            assert!(error.to_string().contains("twice"), "{error}");
            assert_eq!(out.len(), sent);
        }
    }

    #[test]
    fn a_second_challenge_is_not_computed() {
        let mut authentication = authentication(Some("p"), "", ChannelBinding::Prefer);
        let mut out = Vec::new();
        authentication
            .answer(&request(10, b"SCRAM-SHA-256\0\0"), &mut out)
            .unwrap();
        let first = String::from_utf8_lossy(&out).into_owned();
        let nonce = first.split(",r=").nth(1).unwrap();
        let challenge = |salt: &str| request(11, format!("r={nonce}x,s={salt},i=1").as_bytes());
        authentication.answer(&challenge("AAAA"), &mut out).unwrap();
        let error = authentication
            .answer(&challenge("BBBB"), &mut out)
            .unwrap_err();
        assert!(error.to_string().contains("twice"), "{error}");
    }

    #[test]
    fn require_auth_rejects_other_methods() {
        let first = |methods: &str, code: u32, data: &[u8]| {
            let mut authentication = authentication(Some("p"), methods, ChannelBinding::Prefer);
            let answered = authentication.answer(&request(code, data), &mut Vec::new());
            answered.map_err(|error| error.to_string())
        };
        let scram = b"SCRAM-SHA-256\0\0";
        for (methods, code, data, refused) in [
            (
                "scram-sha-256",
                3,
                &b""[..],
                "server requested a cleartext password",
            ),
            (
                "scram-sha-256",
                5,
                b"salt",
                "server requested a hashed password",
            ),
            (
                "scram-sha-256",
                0,
                b"",
                "server did not complete authentication",
            ),
            ("scram-sha-256", 10, scram, ""),
            (
                "password,md5",
                10,
                scram,
                "server requested SASL authentication",
            ),
            ("md5", 7, b"", "server requested GSSAPI authentication"),
            ("password,none", 0, b"", ""),
            ("none", 3, b"", "server requested a cleartext password"),
            ("!password", 3, b"", "server requested a cleartext password"),
            ("!password", 0, b"", ""),
            ("!password", 5, b"salt", ""),
            ("!none", 0, b"", "server did not complete authentication"),
        ] {
            match first(methods, code, data) {
                Ok(_) => assert_eq!(refused, "", "{methods} {code}"),
                Err(error) => assert_eq!(
                    error,
                    format!("authentication method requirement \"{methods}\" failed: {refused}")
                ),
            }
        }
    }

    #[test]
    fn channel_is_bound_if_possible() {
        use ChannelBinding::{Disable, Prefer, Require};

        let plus = b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0";
        let plain = b"SCRAM-SHA-256\0\0";
        let hash = Channel::Protected(Some(vec![1; 32]));
        let hashless = Channel::Protected(None);
        let bound = "SCRAM-SHA-256-PLUS|p=tls-server-end-point,,n=,r=";
        for (wanted, channel, offered, expected) in [
            (Prefer, &hash, &plus[..], bound),
            (Require, &hash, plus, bound),
            (Disable, &hash, plus, "SCRAM-SHA-256\0|n,,n=,r="),
            (Prefer, &hash, plain, "SCRAM-SHA-256\0|y,,n=,r="),
            (Prefer, &hashless, plus, "SCRAM-SHA-256\0|n,,n=,r="),
            (Prefer, &Channel::Open, plain, "SCRAM-SHA-256\0|n,,n=,r="),
            (Require, &hash, plain, "did not offer"),
            (Require, &hashless, plus, "no hash"),
            (Require, &Channel::Open, plain, "SSL not in use"),
            (Prefer, &Channel::Open, plus, "over a non-SSL connection"),
        ] {
            let mut authentication = authentication(Some("p"), "", wanted);
            authentication.channel = channel.clone();
            let mut out = Vec::new();
            let seen = match authentication.answer(&request(10, offered), &mut out) {
                Ok(_) => String::from_utf8_lossy(&out).into_owned(),
                Err(error) => error.to_string(),
            };
            for part in expected.split('|') {
                assert!(seen.contains(part), "{seen:?} does not contain {part:?}");
            }
        }
        let mut unbound = authentication(Some("p"), "", Require);
        for code in [0, 3, 5] {
            let error = unbound
                .answer(&request(code, b"salt"), &mut Vec::new())
                .unwrap_err();
            assert!(
                error.to_string().starts_with("channel binding required"),
                "{error}"
            );
        }
    }
}
