//! Which server to try next, and how, after a failed attempt.
//!
//! An attempt is one connection to one address, with or without TLS, accepting one type of server.
//! After a failure:
//! - TLS failed, or the server rejected the client before accepting its sign-in: try the same
//!   address without TLS (`prefer`) or with it (`allow`).
//! - The address is unreachable or does not answer in time: try the next address.
//! - The server is of the wrong type or cannot accept connections now: try the next host. After the
//!   last one, `prefer-standby` tries all of them again and accepts any type.
//! - Anything else, such as a wrong password, is final: another host would respond the same way.
//!
//! Source: `PQconnectPoll`, `init_allowed_encryption_methods` and `select_next_encryption_method`
//! in `fe-connect.c`, PostgreSQL 18. There, each client shuffles the hosts if `load_balance_hosts`
//! is random; a caller with many clients distributes them over the hosts instead.

use std::net::SocketAddr;

use super::target::{Address, SessionAttributes, SslMode, Target, TargetHost};
use crate::error::{ServerMessage, WireError};
use crate::login::{Login, TlsLogin};
use crate::salt_cache::SaltCache;
use crate::session::Session;

/// The server is starting, stopping or recovering (`ERRCODE_CANNOT_CONNECT_NOW`).
const CANNOT_CONNECT_NOW: &str = "57P03";

/// A server address after name resolution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The address, including the resolved one.
    pub address: Address,
    /// The host's index in the target.
    pub host: usize,
    /// The resolved address; none for a Unix socket.
    pub tcp: Option<SocketAddr>,
}

/// One connection attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The endpoint's index.
    pub endpoint: usize,
    /// Whether to request TLS.
    pub with_tls: bool,
    /// The type of server to accept.
    pub wanted: SessionAttributes,
}

/// How an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptFailure {
    /// The address is unreachable, or the server does not answer in time.
    Unreachable,
    /// TLS failed before anything else was exchanged, or the server rejected the client.
    Refused {
        /// Whether the server reported that it cannot accept connections now.
        for_now: bool,
        /// Whether the connection used TLS, or was about to.
        with_tls: bool,
    },
    /// The server is of the wrong type.
    Unwanted,
    /// Anything else.
    Other,
}

impl AttemptFailure {
    /// Classifies a server's error while signing in.
    pub fn of_server(error: &ServerMessage, session: &Session) -> Self {
        let for_now = error.sqlstate == CANNOT_CONNECT_NOW;
        if session.is_authenticated() && !for_now {
            return Self::Other;
        }
        Self::Refused {
            for_now,
            with_tls: session.is_protected(),
        }
    }

    /// Classifies a session's error while signing in.
    pub fn of_wire(error: &WireError) -> Self {
        match error {
            WireError::Unwanted { .. } => Self::Unwanted,
            WireError::Tls(error) if error.is_of_handshake() => Self::Refused {
                for_now: false,
                with_tls: true,
            },
            _ => Self::Other,
        }
    }
}

/// The sequence of attempts to connect to a target.
#[derive(Clone, Debug)]
pub struct Attempts {
    current: Attempt,
    /// The host to try first, and the host of each endpoint.
    first: usize,
    hosts: Vec<usize>,
    is_local: Vec<bool>,
    mode: SslMode,
    wanted: SessionAttributes,
    /// Whether this address was already tried with the opposite choice of TLS.
    has_switched: bool,
    /// Whether any type of server is accepted now.
    is_second_round: bool,
}

impl Attempts {
    /// Starts with the endpoint `first` and continues in order, wrapping around. There must be at
    /// least one endpoint.
    pub fn new(target: &Target, endpoints: &[Endpoint], first: usize) -> Self {
        let first = if endpoints.is_empty() {
            0
        } else {
            first % endpoints.len()
        };
        // A host's addresses are tried together, beginning with its first.
        let host = endpoints.get(first).map(|endpoint| endpoint.host);
        let first = endpoints
            .iter()
            .position(|endpoint| Some(endpoint.host) == host);
        let mut attempts = Self {
            current: Attempt {
                endpoint: first.unwrap_or(0),
                with_tls: false,
                wanted: target.session_attributes,
            },
            first: first.unwrap_or(0),
            hosts: endpoints.iter().map(|endpoint| endpoint.host).collect(),
            is_local: endpoints
                .iter()
                .map(|endpoint| endpoint.tcp.is_none())
                .collect(),
            mode: target.ssl_mode,
            wanted: target.session_attributes,
            has_switched: false,
            is_second_round: false,
        };
        attempts.start_endpoint(attempts.first);
        attempts
    }

    /// Returns the current attempt.
    pub fn current(&self) -> Attempt {
        self.current
    }

    /// Chooses the next attempt after a failure; returns `false` if there is none.
    pub fn advance_after(&mut self, failure: AttemptFailure) -> bool {
        match failure {
            AttemptFailure::Other => false,
            AttemptFailure::Unreachable => self.advance_to_next_address(false),
            AttemptFailure::Unwanted => self.advance_to_next_address(true),
            AttemptFailure::Refused { for_now, with_tls } => {
                self.toggle_tls(with_tls) || (for_now && self.advance_to_next_address(true))
            }
        }
    }

    fn start_endpoint(&mut self, endpoint: usize) {
        // Unix sockets never use TLS, whatever the mode requires.
        let with_tls = !self.is_local.get(endpoint).copied().unwrap_or(true)
            && !matches!(self.mode, SslMode::Disable | SslMode::Allow);
        let wanted = if self.is_second_round {
            SessionAttributes::Any
        } else {
            self.wanted
        };
        self.has_switched = false;
        self.current = Attempt {
            endpoint,
            with_tls,
            wanted,
        };
    }

    /// Moves to the next address, or the first address of the next host.
    fn advance_to_next_address(&mut self, skips_host: bool) -> bool {
        let count = self.hosts.len();
        let mut next = self.current.endpoint;
        let host = self.hosts.get(next).copied();
        loop {
            next = (next + 1) % count.max(1);
            if next == self.first {
                if self.wanted != SessionAttributes::PreferStandby || self.is_second_round {
                    return false;
                }
                self.is_second_round = true;
                break;
            }
            if !skips_host || self.hosts.get(next).copied() != host {
                break;
            }
        }
        self.start_endpoint(next);
        true
    }

    /// Retries the same address with the opposite choice of TLS, unless a server without TLS would be
    /// asked the same again.
    fn toggle_tls(&mut self, was_with_tls: bool) -> bool {
        let may_switch = (self.mode == SslMode::Allow
            || self.mode == SslMode::Prefer && was_with_tls)
            && !self
                .is_local
                .get(self.current.endpoint)
                .copied()
                .unwrap_or(true);
        if !may_switch || self.has_switched {
            return false;
        }
        self.has_switched = true;
        self.current.with_tls = !self.current.with_tls;
        true
    }
}

impl Target {
    /// Returns the login for this host without TLS, accepting any type of server.
    pub fn login(&self, host: &TargetHost, salts: &SaltCache) -> Login {
        Login {
            user: self.user.clone(),
            database: self.database.clone(),
            password: host.password.clone(),
            settings: self.settings.clone(),
            salts: salts.clone(),
            tls: None,
            channel_binding: self.channel_binding,
            methods: self.methods.clone(),
            wanted: SessionAttributes::Any,
        }
    }

    /// Returns the login for this attempt.
    pub fn login_for(&self, attempt: Attempt, endpoint: &Endpoint, salts: &SaltCache) -> Login {
        let host = &self.hosts[endpoint.host];
        let tls = self.tls.as_ref().filter(|_| attempt.with_tls);
        Login {
            tls: tls.map(|settings| TlsLogin {
                settings: settings.clone(),
                host: match &host.address {
                    Address::Tcp { host, .. } => host.clone(),
                    Address::Unix { .. } => String::new(),
                },
                is_required: self.ssl_mode != SslMode::Prefer,
            }),
            wanted: attempt.wanted,
            ..self.login(host, salts)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hosts, each with this many addresses; 0 is a Unix socket.
    fn attempts(mode: SslMode, wanted: SessionAttributes, addresses: &[usize]) -> Attempts {
        let endpoints: Vec<_> = addresses
            .iter()
            .enumerate()
            .flat_map(|(host, &count)| (0..count.max(1)).map(move |_| (host, count > 0)))
            .map(|(host, is_tcp)| Endpoint {
                address: Address::Unix {
                    directory: String::new(),
                    port: 1,
                },
                host,
                tcp: is_tcp.then(|| "127.0.0.1:1".parse().unwrap()),
            })
            .collect();
        let target = Target {
            ssl_mode: mode,
            session_attributes: wanted,
            ..Target::default()
        };
        Attempts::new(&target, &endpoints, 0)
    }

    /// Returns the attempts if all fail in the same way: the endpoint, `s` with TLS, `!` if the
    /// type of server matters.
    fn describe_attempts(mut attempts: Attempts, failure: AttemptFailure) -> String {
        let mut seen = Vec::new();
        loop {
            let Attempt {
                endpoint,
                with_tls,
                wanted,
            } = attempts.current();
            let tls = if with_tls { "s" } else { "" };
            let any = if wanted == SessionAttributes::Any {
                ""
            } else {
                "!"
            };
            seen.push(format!("{endpoint}{tls}{any}"));
            assert!(seen.len() < 50, "{seen:?}");
            if !attempts.advance_after(failure) {
                return seen.join(" ");
            }
        }
    }

    #[test]
    fn next_attempt_after_a_failure() {
        use SessionAttributes::{Any, PreferStandby, Standby};
        use SslMode::{Allow, Disable, Prefer, Require};

        let refusal = |for_now, with_tls| AttemptFailure::Refused { for_now, with_tls };
        let refused = refusal(false, true);
        let for_now = refusal(true, true);
        for (mode, wanted, addresses, failure, expected) in [
            (
                Prefer,
                Any,
                &[2, 1][..],
                AttemptFailure::Unreachable,
                "0s 1s 2s",
            ),
            (Disable, Any, &[2, 1], AttemptFailure::Unreachable, "0 1 2"),
            (Prefer, Any, &[2, 1], AttemptFailure::Other, "0s"),
            (Prefer, Any, &[2, 1], refused, "0s 0"),
            // Regression: a wrong password was sent twice to a server without TLS.
            (Prefer, Any, &[2, 1], refusal(false, false), "0s"),
            (Prefer, Any, &[2, 1], refusal(true, false), "0s 2s"),
            (Allow, Any, &[2, 1], refusal(false, false), "0 0s"),
            (Allow, Any, &[2, 1], refused, "0 0s"),
            (Require, Any, &[2, 1], refused, "0s"),
            (Disable, Any, &[2, 1], refused, "0"),
            // A Unix socket has no TLS.
            (Require, Any, &[0, 1], AttemptFailure::Unreachable, "0 1s"),
            (Prefer, Any, &[0, 1], refused, "0"),
            (Prefer, Any, &[2, 1], for_now, "0s 0 2s 2"),
            (
                Require,
                Standby,
                &[2, 2, 1],
                AttemptFailure::Unwanted,
                "0s! 2s! 4s!",
            ),
            (
                Disable,
                PreferStandby,
                &[2, 1],
                AttemptFailure::Unwanted,
                "0! 2! 0 2",
            ),
            (
                Disable,
                PreferStandby,
                &[1, 1],
                AttemptFailure::Unreachable,
                "0! 1! 0 1",
            ),
        ] {
            let course = describe_attempts(attempts(mode, wanted, addresses), failure);
            assert_eq!(
                course, expected,
                "{mode:?} {wanted:?} {addresses:?} {failure:?}"
            );
        }
    }

    #[test]
    fn attempts_can_start_at_a_later_host() {
        let endpoints: Vec<_> = [0, 1, 1, 2]
            .map(|host| Endpoint {
                address: Address::Unix {
                    directory: String::new(),
                    port: 1,
                },
                host,
                tcp: None,
            })
            .into();
        let from = |first| {
            let attempts = Attempts::new(&Target::default(), &endpoints, first);
            describe_attempts(attempts, AttemptFailure::Unreachable)
        };
        assert_eq!(from(0), "0 1 2 3");
        assert_eq!(from(2), "1 2 3 0");
        assert_eq!(from(7), "3 0 1 2");
    }
}
