//! A blocking connection for queries outside the load, to the first host of a target that accepts
//! it. Error messages follow libpq's wording.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixStream};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result as Anyhow;
use pgassay_load::{endpoints, set_keepalive};
pub use pgassay_server::TimedStream;
use pgassay_wire::conninfo::{Address, Endpoint, Target};
use pgassay_wire::{Exchange, ExchangeError};

use crate::interrupt::Interrupt;
use crate::major_version::major_of;
use crate::system_env::monotonic_ns;

/// What Rust prepends to the resolver's message.
const LOOK_UP: &str = "failed to lookup address information: ";

/// The first version with `idle_session_timeout`.
const IDLE_LIMIT_SINCE: u32 = 14;

/// How often a connection in progress asks whether the user requested a stop.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// A connection, and the endpoint that it reached.
type Connected = Result<(Exchange<TimedStream>, Endpoint), ConnectError>;

/// No host accepted a connection.
#[derive(Debug)]
pub enum ConnectError {
    /// A host name cannot be resolved.
    NoAddress(Address, io::Error),
    /// The error of each attempt; at least one.
    Tried(Vec<(Address, ExchangeError)>),
}

impl ConnectError {
    /// The error of the last attempt.
    pub fn last(&self) -> Option<&ExchangeError> {
        match self {
            Self::NoAddress(..) => None,
            Self::Tried(tried) => tried.last().map(|(_, error)| error),
        }
    }

    /// The whole message; `of_exchange` formats errors that the server reported.
    pub fn describe(&self, of_exchange: impl Fn(&ExchangeError) -> String) -> String {
        let tried = match self {
            Self::NoAddress(Address::Tcp { host, .. }, error) => {
                let why = os_error_text(error);
                let why = why.strip_prefix(LOOK_UP).unwrap_or(&why);
                return format!("could not translate host name \"{host}\" to address: {why}");
            }
            Self::NoAddress(address, error) => return format!("{address}: {error}"),
            Self::Tried(tried) => tried,
        };
        let lines = tried.iter().map(|(address, error)| {
            let what = match error {
                ExchangeError::Stream(error) => return not_connected(address, error),
                other => of_exchange(other),
            };
            format!("{}{}", failed_at(address), what.trim_end_matches('\n'))
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe(ExchangeError::to_string))
    }
}

impl std::error::Error for ConnectError {}

/// Connects and authenticates; `limit` bounds each attempt. Also returns the endpoint it reached.
pub fn connect(target: &Target, limit: Option<Duration>) -> Connected {
    let mut found =
        endpoints(target).map_err(|(address, error)| ConnectError::NoAddress(address, error))?;
    // The low digits of the clock pick a random first host.
    let first = if target.balance_hosts {
        monotonic_ns() as usize
    } else {
        0
    };
    let (exchange, place) = Exchange::connect(target, &found, first, |endpoint| {
        open(endpoint, target, limit)
    })
    .map_err(ConnectError::Tried)?;
    let tried = |error| ConnectError::Tried(vec![(found[place].address.clone(), error)]);
    exchange
        .stream()
        .set_limit(None)
        .map_err(|error| tried(error.into()))?;
    Ok((exchange, found.swap_remove(place)))
}

/// As [`connect`], but ends as soon as the user requests a stop: a resolver, a firewall or a server that does not
/// answer holds it up for the whole limit, which a connection string chooses.
///
/// # Errors
/// If a stop was requested.
pub fn connect_unless_stopped(
    target: &Target,
    limit: Option<Duration>,
    interrupt: &Interrupt,
) -> Anyhow<Connected> {
    let (sender, receiver) = channel();
    let of_thread = target.clone();
    // After a stop, the thread is left alone: it ends at its limit or with the process.
    let thread = thread::Builder::new().spawn(move || {
        _ = sender.send(connect(&of_thread, limit));
    });
    if thread.is_err() {
        return Ok(connect(target, limit));
    }
    loop {
        match receiver.recv_timeout(ASK_EVERY) {
            Ok(connected) => return Ok(connected),
            Err(RecvTimeoutError::Timeout) => interrupt.check()?,
            Err(RecvTimeoutError::Disconnected) => anyhow::bail!("connecting ended early"),
        }
    }
}

/// Limits the time of a connection's short statements on the server, too: a client that gives up
/// does not end them. The server must not end the connection between two of them, either, and no transaction keeps its
/// snapshot between two statements, or is serializable, which fails on a standby. Behind a pooler
/// nothing is set: its other clients would inherit the session's settings.
///
/// # Errors
/// As for statements.
pub fn limit_statements(exchange: &mut Exchange<TimedStream>) -> Result<(), ExchangeError> {
    if is_pooled(exchange)? {
        return Ok(());
    }
    let major = exchange.parameter("server_version").map(major_of);
    let major = major.and_then(|it| it.parse::<u32>().ok());
    let lasting = if major.is_some_and(|it| it >= IDLE_LIMIT_SINCE) {
        "; set idle_session_timeout = 0"
    } else {
        ""
    };
    exchange.run(&format!(
        "set lock_timeout = '5s'; set statement_timeout = '10s'; \
         set default_transaction_isolation = 'read committed'{lasting}"
    ))
}

/// Whether a connection goes through a pooler: the backend that answers is not the one that it names.
///
/// # Errors
/// As for statements.
pub(crate) fn is_pooled(exchange: &mut Exchange<TimedStream>) -> Result<bool, ExchangeError> {
    let answering = exchange.value_read_committed("select pg_catalog.pg_backend_pid()")?;
    Ok(answering != exchange.backend().map(|it| it.pid.to_string()))
}

/// Opens a stream to an address; `limit` bounds this and all that follows on the stream.
pub(crate) fn open(
    endpoint: &Endpoint,
    target: &Target,
    limit: Option<Duration>,
) -> io::Result<TimedStream> {
    let until = limit.map(|limit| Instant::now() + limit);
    Ok(match endpoint.tcp {
        Some(address) => TimedStream::tcp(open_tcp(&address, target, limit)?, until),
        None => TimedStream::unix(open_unix(&endpoint.address)?, until),
    })
}

fn open_tcp(
    address: &SocketAddr,
    target: &Target,
    limit: Option<Duration>,
) -> io::Result<TcpStream> {
    let stream = match limit {
        Some(limit) => TcpStream::connect_timeout(address, limit)?,
        None => TcpStream::connect(address)?,
    };
    stream.set_nodelay(true)?;
    set_keepalive(&stream, target)?;
    Ok(stream)
}

fn open_unix(address: &Address) -> io::Result<UnixStream> {
    if let Some(what) = address.path_error() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let path = address.socket_path().unwrap_or_default();
    match path.as_os_str().as_encoded_bytes().strip_prefix(b"@") {
        Some(name) => UnixStream::connect_addr(&UnixAddress::from_abstract_name(name)?),
        None => UnixStream::connect(&path),
    }
}

/// An address as libpq names it when a connection fails.
pub fn failed_at(address: &Address) -> String {
    match address {
        Address::Unix { .. } => format!("connection to server on {address} failed: "),
        Address::Tcp { .. } => format!("connection to server at {address} failed: "),
    }
}

/// The whole message for a failed connection.
pub fn not_connected(address: &Address, error: &io::Error) -> String {
    // libpq finds this before it has an address to name.
    let unconnected = address.path_error();
    unconnected.unwrap_or_else(|| failed_at(address) + &refused(address, error))
}

/// The message for a failed connection, with libpq's hint.
fn refused(address: &Address, error: &io::Error) -> String {
    let what = os_error_text(error);
    match (address, error.kind()) {
        (_, io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => "timeout expired".into(),
        (Address::Unix { .. }, io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            format!(
                "{what}\n\tIs the server running locally and accepting connections on that socket?"
            )
        }
        (Address::Tcp { .. }, io::ErrorKind::ConnectionRefused) => {
            format!(
                "{what}\n\tIs the server running on that host and accepting TCP/IP connections?"
            )
        }
        _ => what,
    }
}

/// A system error as C's `%m` prints it, without the number that Rust adds.
pub fn os_error_text(error: &io::Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;

    use super::*;

    /// Regression: only connections of the load had keepalives; others waited for a machine that had vanished.
    #[test]
    fn all_connections_have_the_keepalives_of_the_connection_string() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let target = Target {
            keepalives: true,
            keepalives_idle_s: 77,
            tcp_user_timeout_ms: 9_000,
            ..Target::default()
        };
        let stream = open_tcp(&address, &target, Some(Duration::from_secs(10))).unwrap();
        let option = |level, name| {
            let (mut value, mut length): (libc::c_int, _) =
                (0, size_of::<libc::c_int>() as libc::socklen_t);
            let fd = stream.as_raw_fd();
            let pointer = (&raw mut value).cast();
            // SAFETY: the descriptor is open; pointer and length are those of our own value.
            let result = unsafe { libc::getsockopt(fd, level, name, pointer, &raw mut length) };
            assert_eq!(result, 0);
            value
        };
        assert_eq!(option(libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1);
        assert_eq!(option(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE), 77);
        assert_eq!(option(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT), 9_000);
        // Regression: "Invalid argument" did not say of what.
        let too_long = Target {
            keepalives_idle_s: 99_999,
            ..target
        };
        let refused = open_tcp(&address, &too_long, Some(Duration::from_secs(10))).unwrap_err();
        assert_eq!(
            os_error_text(&refused),
            "setsockopt(TCP_KEEPIDLE) failed: Invalid argument"
        );
    }

    /// Regression: it was "path must be shorter than `SUN_LEN`".
    #[test]
    fn a_socket_path_that_is_too_long_has_the_message_of_libpq() {
        // 14 bytes of the path are the file's name and the slash before it.
        for (letters, is_too_long) in [(92, false), (93, true)] {
            let directory = format!("/{}", "x".repeat(letters));
            let target = Target::unix(&directory, 5432, "me", "me");
            let error = connect(&target, None).err().expect("there is no server");
            let path = format!("{directory}/.s.PGSQL.5432");
            let expected = if is_too_long {
                format!("Unix-domain socket path \"{path}\" is too long (maximum 107 bytes)")
            } else {
                format!(
                    "connection to server on socket \"{path}\" failed: No such file or directory"
                )
            };
            assert_eq!(error.to_string().lines().next(), Some(&*expected));
        }
    }
}
