//! `require_auth`: the authentication methods that a client allows.
//!
//! Source: `pqConnectOptions2` in `fe-connect.c`, `check_expected_areq` in `fe-auth.c`; since
//! PostgreSQL 16.

use super::ConninfoError;

/// The methods, in the order of [`Methods::allowed`].
const METHODS: &[&str] = &[
    "password",
    "md5",
    "gss",
    "sspi",
    "scram-sha-256",
    "oauth",
    "none",
];
/// No authentication: trust, peer, or a client certificate.
const NONE: usize = 6;

/// The allowed authentication methods; all by default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Methods {
    text: String,
    allowed: [bool; METHODS.len()],
}

impl Default for Methods {
    fn default() -> Self {
        Self {
            text: String::new(),
            allowed: [true; METHODS.len()],
        }
    }
}

impl Methods {
    /// Parses a list of methods, all or none of them prefixed with `!` to disallow them. An empty
    /// list allows all methods.
    pub(crate) fn parse(text: &str) -> Result<Self, ConninfoError> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let fail = |expected| {
            Err(ConninfoError::Value {
                option: "require_auth",
                value: text.into(),
                expected,
            })
        };
        let is_negative = text.starts_with('!');
        let mut allowed = [is_negative; METHODS.len()];
        for part in text.split(',') {
            let (name, negated) = match part.strip_prefix('!') {
                Some(name) => (name, true),
                None => (part, false),
            };
            if negated != is_negative {
                return fail("either all methods prefixed with \"!\" or none");
            }
            let Some(place) = METHODS.iter().position(|method| *method == name) else {
                return fail("password, md5, gss, sspi, scram-sha-256, oauth or none");
            };
            if allowed[place] != negated {
                return fail("each method at most once");
            }
            allowed[place] = !negated;
        }
        Ok(Self {
            text: text.into(),
            allowed,
        })
    }

    /// Returns the list as specified.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Checks a request of the server (`AUTH_REQ_*`); if it is not allowed, returns what the server
    /// did.
    pub(crate) fn check(&self, code: u32, has_finished: bool) -> Result<(), &'static str> {
        let (place, did) = match code {
            0 if has_finished => return Ok(()),
            0 => (NONE, "server did not complete authentication"),
            3 => (0, "server requested a cleartext password"),
            5 => (1, "server requested a hashed password"),
            7 | 8 => (2, "server requested GSSAPI authentication"),
            9 => (3, "server requested SSPI authentication"),
            10..=12 => (4, "server requested SASL authentication"),
            _ => (NONE, "server requested an unknown authentication type"),
        };
        if self.allowed[place] {
            Ok(())
        } else {
            Err(did)
        }
    }
}
