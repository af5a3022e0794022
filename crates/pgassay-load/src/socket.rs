//! Opening sockets.
//!
//! Connecting a Unix socket either succeeds immediately or finds the server's queue full; the
//! caller can distinguish the latter and try again later. TCP connections of a thread are opened
//! one after the other, each within its time limit. Signing in takes far longer and runs
//! concurrently.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use pgassay_rights::{self as rights, Purpose};
use pgassay_wire::conninfo::{Address, Endpoint, Target};

/// Resolves all of a target's hosts, in order. Hosts that cannot be resolved are left out if any
/// other can.
///
/// # Errors
/// The last host that could not be resolved, and why.
pub fn endpoints(target: &Target) -> Result<Vec<Endpoint>, (Address, io::Error)> {
    let mut found = Vec::new();
    let mut failed = None;
    for (host, entry) in target.hosts.iter().enumerate() {
        let address = &entry.address;
        let endpoint = |tcp: Option<SocketAddr>| Endpoint {
            address: match (address, tcp) {
                (Address::Tcp { host, port, .. }, Some(found)) => Address::Tcp {
                    host: host.clone(),
                    address: Some(found.ip()),
                    port: *port,
                },
                _ => address.clone(),
            },
            host,
            tcp,
        };
        match address {
            Address::Unix { .. } => found.push(endpoint(None)),
            Address::Tcp {
                address: Some(ip),
                port,
                ..
            } => {
                found.push(endpoint(Some(SocketAddr::new(*ip, *port))));
            }
            Address::Tcp {
                host: name, port, ..
            } => match (name.as_str(), *port).to_socket_addrs() {
                Ok(looked_up) => found.extend(looked_up.map(|tcp| endpoint(Some(tcp)))),
                Err(error) => failed = Some((address.clone(), error)),
            },
        }
    }
    match failed {
        Some(failed) if found.is_empty() => Err(failed),
        _ => Ok(found),
    }
}

/// Opens a connected, blocking socket. [`io::ErrorKind::WouldBlock`] means that the server's
/// connection queue is full.
pub(crate) fn open(endpoint: &Endpoint, target: &Target, timeout: Duration) -> io::Result<OwnedFd> {
    match endpoint.tcp {
        Some(address) => open_tcp(&address, target, timeout),
        None => open_unix(&endpoint.address),
    }
}

fn open_tcp(address: &SocketAddr, target: &Target, timeout: Duration) -> io::Result<OwnedFd> {
    let stream = TcpStream::connect_timeout(address, timeout)?;
    stream.set_nodelay(true)?;
    set_keepalive(&stream, target)?;
    Ok(stream.into())
}

/// Sets what a target says about a connection whose other end has vanished: `keepalives`, `tcp_user_timeout` and the
/// like.
///
/// # Errors
/// The system's error.
pub fn set_keepalive(stream: &TcpStream, target: &Target) -> io::Result<()> {
    if target.keepalives {
        let option = (libc::SOL_SOCKET, libc::SO_KEEPALIVE, "SO_KEEPALIVE");
        set_option(stream, option, 1)?;
        for (option, name, value) in [
            (libc::TCP_KEEPIDLE, "TCP_KEEPIDLE", target.keepalives_idle_s),
            (
                libc::TCP_KEEPINTVL,
                "TCP_KEEPINTVL",
                target.keepalives_interval_s,
            ),
            (libc::TCP_KEEPCNT, "TCP_KEEPCNT", target.keepalives_count),
        ] {
            if value > 0 {
                set_option(stream, (libc::IPPROTO_TCP, option, name), value)?;
            }
        }
    }
    if target.tcp_user_timeout_ms > 0 {
        let option = (
            libc::IPPROTO_TCP,
            libc::TCP_USER_TIMEOUT,
            "TCP_USER_TIMEOUT",
        );
        set_option(stream, option, target.tcp_user_timeout_ms)?;
    }
    Ok(())
}

/// Sets an option with this level, number and name.
fn set_option(
    stream: &TcpStream,
    (level, option, name): (libc::c_int, libc::c_int, &str),
    value: u32,
) -> io::Result<()> {
    let value = libc::c_int::try_from(value).unwrap_or(libc::c_int::MAX);
    // SAFETY: the descriptor is open; pointer and size are those of our own value.
    let result = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if result < 0 {
        let error = io::Error::last_os_error();
        let what = format!("setsockopt({name}) failed: {error}");
        return Err(io::Error::new(error.kind(), what));
    }
    Ok(())
}

fn open_unix(address: &Address) -> io::Result<OwnedFd> {
    match address.path_error() {
        Some(what) => Err(io::Error::new(io::ErrorKind::InvalidInput, what)),
        None => open_path(&address.socket_path().unwrap_or_default()),
    }
}

/// As [`open`], the Unix socket with this path.
pub(crate) fn open_path(path: &Path) -> io::Result<OwnedFd> {
    let path = path.as_os_str().as_encoded_bytes();
    // SAFETY: all zeroes is a valid sockaddr_un.
    let mut name: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    name.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // One byte is reserved for the terminating zero.
    if path.len() >= name.sun_path.len() {
        let what = format!(
            "the socket's path is longer than {} bytes",
            name.sun_path.len() - 1
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    for (to, from) in name.sun_path.iter_mut().zip(path) {
        *to = from.cast_signed() as libc::c_char;
    }
    let mut length = std::mem::offset_of!(libc::sockaddr_un, sun_path) + path.len();
    if path.first() == Some(&b'@') {
        // An abstract name begins with a zero byte and is not zero-terminated.
        name.sun_path[0] = 0;
    } else {
        length += 1;
    }
    // SAFETY: socket has no preconditions; we own its new descriptor. The name is valid for the
    // given length.
    unsafe {
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let fd = libc::socket(libc::AF_UNIX, kind, 0);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = OwnedFd::from_raw_fd(fd);
        let length = length as libc::socklen_t;
        let connect = || match libc::connect(fd.as_raw_fd(), (&raw const name).cast(), length) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        connect().or_else(|refused| match refused.kind() {
            // The directory may be closed to root without capabilities, as those of temporary servers are.
            io::ErrorKind::PermissionDenied => {
                let _raised = rights::raise(Purpose::Rest);
                connect()
            }
            _ => Err(refused),
        })?;
        // Only connecting must not wait; `driver` explains why the socket blocks afterwards.
        if libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, 0) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(fd)
    }
}

/// Returns the limit on open files that `more` need besides those that are open.
pub fn open_files_with(more: u64) -> u64 {
    // Listing them opens the directory itself; without /proc, these are the standard streams.
    let open = std::fs::read_dir("/proc/self/fd").map_or(3, Iterator::count);
    more.saturating_add(open as u64)
}

/// Raises the soft limit on open files so that `more` can be opened besides those that are open, if
/// it is lower; and `spare` on top, as far as the hard limit allows.
///
/// # Errors
/// [`io::ErrorKind::QuotaExceeded`] if the hard limit is too low, or the system's error.
pub fn raise_open_files(more: u64, spare: u64) -> io::Result<()> {
    let needed = open_files_with(more);
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is to our own rlimit.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let wanted = needed.saturating_add(spare).min(limit.rlim_max);
    if limit.rlim_max < needed {
        let what = format!(
            "need at least {needed} open files, but system limit is {}; \
             reduce number of clients, or use limit/ulimit to increase the system limit",
            limit.rlim_max
        );
        return Err(io::Error::new(io::ErrorKind::QuotaExceeded, what));
    }
    if limit.rlim_cur >= wanted {
        return Ok(());
    }
    limit.rlim_cur = wanted;
    // SAFETY: the pointer is to our own rlimit.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
