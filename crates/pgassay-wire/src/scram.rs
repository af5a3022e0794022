//! The client side of SCRAM-SHA-256 (RFC 5802, RFC 7677; `src/interfaces/libpq/fe-auth-scram.c`).
//!
//! Implemented here because the salted password must be cached: deriving it takes most of a
//! millisecond, and 1000 clients with the same user would each repeat it. With TLS, the exchange is
//! bound to the server's certificate (RFC 5929, `tls-server-end-point`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::error::WireError;

type HmacSha256 = Hmac<Sha256>;

/// Limit on iterations: more are an attack or a mistake, with seconds of work (the default is
/// 4096).
const ITERATIONS_MAX: u32 = 10_000_000;

/// The client's channel binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ChannelBindingData {
    /// No channel binding.
    None,
    /// The client supports binding but the server did not offer it. A server that did offer it
    /// detects from this that an intermediary removed the offer.
    Unoffered,
    /// The exchange is bound to the certificate with this hash.
    EndPoint(Vec<u8>),
}

impl ChannelBindingData {
    /// Returns the header of the exchange (RFC 5802, `gs2-header`).
    fn header(&self) -> &'static str {
        match self {
            Self::None => "n,,",
            Self::Unoffered => "y,,",
            Self::EndPoint(_) => "p=tls-server-end-point,,",
        }
    }

    /// Returns the header and the binding data, as the last message repeats them.
    fn repeated(&self) -> String {
        let mut data = self.header().as_bytes().to_vec();
        if let Self::EndPoint(hash) = self {
            data.extend_from_slice(hash);
        }
        STANDARD.encode(data)
    }
}

/// The contents of the server's first message.
pub(crate) struct Challenge {
    /// The salt of the stored password.
    pub salt: Vec<u8>,
    /// The number of hash iterations.
    pub iterations: u32,
    nonce: String,
    server_first: String,
}

/// The client's state in one exchange.
pub(crate) struct Scram {
    client_nonce: String,
    binding: ChannelBindingData,
    /// The expected signature of the server, once the proof was computed.
    server_signature: Option<[u8; 32]>,
}

impl Scram {
    /// Starts an exchange with a new nonce of 18 random bytes, as in libpq.
    pub fn new(binding: ChannelBindingData) -> Result<Self, WireError> {
        let mut raw = [0_u8; 18];
        getrandom::fill(&mut raw).map_err(|_| WireError::Scram {
            reason: "the system provides no random bytes",
        })?;
        Ok(Self::with_nonce(STANDARD.encode(raw), binding))
    }

    fn with_nonce(client_nonce: String, binding: ChannelBindingData) -> Self {
        Self {
            client_nonce,
            binding,
            server_signature: None,
        }
    }

    /// Returns the client's first message. It contains no user name: the server uses the one from
    /// start-up.
    pub fn first_message(&self) -> String {
        format!("{}n=,r={}", self.binding.header(), self.client_nonce)
    }

    /// Parses the server's first message.
    pub fn challenge(&self, message: &[u8]) -> Result<Challenge, WireError> {
        const BAD: WireError = WireError::Scram {
            reason: "malformed challenge from the server",
        };
        let text = std::str::from_utf8(message).map_err(|_| BAD)?;
        let mut parts = text.split(',');
        let mut part = |key: &str| parts.next().and_then(|p| p.strip_prefix(key)).ok_or(BAD);
        let nonce = part("r=")?;
        let salt = STANDARD.decode(part("s=")?).map_err(|_| BAD)?;
        let iterations: u32 = part("i=")?.parse().map_err(|_| BAD)?;
        if nonce.len() <= self.client_nonce.len() || !nonce.starts_with(&self.client_nonce) {
            return Err(WireError::Scram {
                reason: "the server's nonce does not match the client's",
            });
        }
        if iterations == 0 || iterations > ITERATIONS_MAX {
            return Err(WireError::Scram {
                reason: "the server requests too many iterations",
            });
        }
        Ok(Challenge {
            salt,
            iterations,
            nonce: nonce.to_owned(),
            server_first: text.to_owned(),
        })
    }

    /// Returns the client's last message, and stores the signature that the server must return.
    pub fn proof(&mut self, challenge: &Challenge, salted_password: &[u8; 32]) -> String {
        let without_proof = format!("c={},r={}", self.binding.repeated(), challenge.nonce);
        let signed = format!(
            "n=,r={},{},{without_proof}",
            self.client_nonce, challenge.server_first
        );
        let client_key = hmac(salted_password, &[b"Client Key"]);
        let stored_key: [u8; 32] = Sha256::digest(client_key).into();
        let mut proof = hmac(&stored_key, &[signed.as_bytes()]);
        for (proof, key) in proof.iter_mut().zip(client_key) {
            *proof ^= key;
        }
        let server_key = hmac(salted_password, &[b"Server Key"]);
        self.server_signature = Some(hmac(&server_key, &[signed.as_bytes()]));
        format!("{without_proof},p={}", STANDARD.encode(proof))
    }

    /// Whether the proof was computed.
    pub fn has_proved(&self) -> bool {
        self.server_signature.is_some()
    }

    /// Checks the server's last message, which proves that the server knows the password too.
    pub fn verify(&self, message: &[u8]) -> Result<(), WireError> {
        let expected = self.server_signature.ok_or(WireError::Scram {
            reason: "the server ended the exchange early",
        })?;
        let signature = message
            .strip_prefix(b"v=")
            .and_then(|encoded| STANDARD.decode(encoded).ok())
            .ok_or(WireError::Scram {
                reason: "malformed signature from the server",
            })?;
        if signature != expected {
            return Err(WireError::Scram {
                reason: "wrong signature from the server",
            });
        }
        Ok(())
    }
}

/// `Hi(password, salt, iterations)` of RFC 5802 section 2.2, after `SASLprep`.
pub(crate) fn salt_password(password: &str, salt: &[u8], iterations: u32) -> [u8; 32] {
    // PostgreSQL uses passwords that SASLprep rejects unchanged.
    let prepared = stringprep::saslprep(password).unwrap_or(password.into());
    let keyed = keyed(prepared.as_bytes());
    let mut round = keyed.clone();
    round.update(salt);
    round.update(&[0, 0, 0, 1]);
    let mut previous: [u8; 32] = round.finalize().into_bytes().into();
    let mut result = previous;
    for _ in 1..iterations {
        // Cloning the keyed state avoids hashing the password twice per round.
        let mut round = keyed.clone();
        round.update(&previous);
        previous = round.finalize().into_bytes().into();
        for (result, previous) in result.iter_mut().zip(previous) {
            *result ^= previous;
        }
    }
    result
}

fn keyed(key: &[u8]) -> HmacSha256 {
    HmacSha256::new_from_slice(key).expect("HMAC accepts keys of any length")
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = keyed(key);
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    // Computed with Python's hashlib and hmac (password "pencil", the salt of RFC 7677's example),
    // because the RFC's exchange contains a user name, which PostgreSQL's clients omit.
    const SERVER_FIRST: &str =
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";

    #[test]
    fn hi_is_pbkdf2() {
        let salt = STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        let salted = salt_password("pencil", &salt, 4096);
        assert_eq!(
            STANDARD.encode(salted),
            "xKSVEDI6tPlSysH6mUQZOeeOp01r6B3fcJbodRPcYV0="
        );
    }

    #[test]
    fn both_sides_sign_the_exchange() {
        let mut scram = Scram::with_nonce("rOprNGfwEbeRWgbNEkqO".into(), ChannelBindingData::None);
        assert_eq!(scram.first_message(), "n,,n=,r=rOprNGfwEbeRWgbNEkqO");
        let challenge = scram.challenge(SERVER_FIRST.as_bytes()).unwrap();
        let salted = salt_password("pencil", &challenge.salt, challenge.iterations);
        let last = scram.proof(&challenge, &salted);
        assert_eq!(
            last,
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
             p=qvT2SWdEH5Q06albL+hjSYuUhCG7VndFyzIb7CK4n9k="
        );
        scram
            .verify(b"v=3HO6Qt1M4MKJrmlKaoOqLAI0/0TV0HZe7J9H3MBtSOg=")
            .unwrap();
        assert!(scram.verify(b"v=AAAA").is_err());
        assert!(scram.verify(b"e=invalid-proof").is_err());
    }

    #[test]
    fn bound_exchange_contains_certificate_hash() {
        let mut bound =
            Scram::with_nonce("abc".into(), ChannelBindingData::EndPoint(vec![0xff; 32]));
        assert_eq!(bound.first_message(), "p=tls-server-end-point,,n=,r=abc");
        let challenge = bound.challenge(b"r=abcd,s=AAAA,i=1").unwrap();
        let last = bound.proof(&challenge, &[0; 32]);
        let repeated =
            "cD10bHMtc2VydmVyLWVuZC1wb2ludCws//////////////////////////////////////////8=";
        assert!(
            last.starts_with(&format!("c={repeated},r=abcd,p=")),
            "{last}"
        );
        let unoffered = Scram::with_nonce("abc".into(), ChannelBindingData::Unoffered);
        assert_eq!(unoffered.first_message(), "y,,n=,r=abc");
        assert_eq!(unoffered.binding.repeated(), "eSws");
    }

    #[test]
    fn bad_challenges_are_errors() {
        let scram = Scram::with_nonce("abc".into(), ChannelBindingData::None);
        for bad in [
            "",
            "r=abcd",
            "r=abcd,s=%%,i=1",
            "r=abc,s=AAAA,i=1",
            "r=xyzabc,s=AAAA,i=1",
            "r=abcd,s=AAAA,i=0",
            "r=abcd,s=AAAA,i=99999999",
            "r=abcd,s=AAAA,i=-1",
        ] {
            assert!(scram.challenge(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(
            Scram::with_nonce("abc".into(), ChannelBindingData::None)
                .verify(b"v=AAAA")
                .is_err()
        );
    }
}
