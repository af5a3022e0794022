//! The connection for what comes before a run: tables, versions, vacuum. Its errors are told as
//! libpq and pgbench tell them. Source: `doConnect`, `executeStatement` in pgbench.c.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixStream};
use std::time::Duration;

use pgassay_wire::conninfo::{Address, Request, Target};
use pgassay_wire::{Answer, Exchange, ExchangeError, Password, SaltCache, WireError};

use super::message::{self, Exit, fatal};
use super::settings::Settings;
use crate::surroundings::{Real, ask_password};

/// A socket of either kind.
pub enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buffer),
            Self::Tcp(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where and as whom options and surroundings say to connect.
pub fn target(settings: &Settings, application: &str) -> Result<Target, Exit> {
    let told = |error: pgassay_wire::conninfo::ConninfoError| fatal(&error.to_string());
    let given = &settings.connection;
    let mut request = Request::new();
    for (name, value) in [
        ("host", &given.host),
        ("port", &given.port),
        ("user", &given.user),
    ] {
        if let Some(value) = value {
            request = request.option(name, value).map_err(told)?;
        }
    }
    if let Some(database) = &given.database {
        request = request.database(database).map_err(told)?;
    } else if std::env::var_os("PGDATABASE").is_none_or(|value| value.is_empty())
        && let Ok(user) = std::env::var("PGUSER")
        && !user.is_empty()
    {
        // pgbench looks at these two before anything else, even before -U.
        request = request.option("dbname", &user).map_err(told)?;
    }
    let target = request
        .fallback_application_name(application)
        .resolve(&Real)
        .map_err(told)?;
    for warning in &target.warnings {
        message::warning(warning);
    }
    Ok(target)
}

/// The connection.
pub struct Setup {
    exchange: Exchange<Stream>,
}

impl Setup {
    /// Connects to the first host that answers; asks for a password if the server wants one that
    /// nobody gave, and keeps it in the target.
    pub fn open(target: &mut Target) -> Result<Self, Exit> {
        let mut tried = open_any(target);
        if let Err((_, ExchangeError::Wire(WireError::PasswordNeeded { .. }))) = &tried
            && let Ok(password) = ask_password()
        {
            for host in &mut target.hosts {
                host.password = Some(Password::new(password.clone()));
            }
            tried = open_any(target);
        }
        tried
            .map(|exchange| Self { exchange })
            .map_err(|(address, error)| {
                let more = match &error {
                    ExchangeError::Stream(error) => refused(&address, error),
                    other => message::of_exchange(other, None),
                };
                message::error(&format!("{}{more}", message::of_address(&address)));
                Exit(1)
            })
    }

    /// Runs a statement, or tells what is wrong.
    pub fn execute(&mut self, sql: &str) -> Result<(), Exit> {
        let answered = self.exchange.query(sql);
        self.tell_notices();
        match answered {
            Ok(_) => Ok(()),
            Err(error) => Err(failed(&error, sql)),
        }
    }

    /// Tells what the server noted, as libpq does on its own.
    fn tell_notices(&mut self) {
        for notice in self.exchange.take_notices() {
            message::say(&message::of_server(&notice, None));
        }
    }

    /// Runs a statement whose failure is told and no more.
    pub fn try_execute(&mut self, sql: &str) {
        let answered = self.exchange.query(sql);
        self.tell_notices();
        if let Err(error) = answered {
            message::error(&message::of_exchange(&error, Some(sql)));
            message::detail("(ignoring this error and continuing anyway)");
        }
    }

    /// A statement's answer, or the server's error.
    pub fn query(&mut self, sql: &str) -> Result<Answer, ExchangeError> {
        Ok(self.exchange.query(sql)?.pop().unwrap_or_default())
    }

    /// Copies what `write` gives into a table.
    pub fn copy(&mut self, sql: &str, write: impl FnMut(&mut Vec<u8>) -> bool) -> Result<(), Exit> {
        match self.exchange.copy_in(sql, write) {
            Ok(_) => Ok(()),
            Err(error) => Err(failed(&error, sql)),
        }
    }

    /// The server's version, in its own words.
    pub fn server_version(&self) -> &str {
        self.exchange
            .parameter("server_version")
            .unwrap_or_default()
    }

    /// The major version; 0 where the server does not say.
    pub fn server_major(&self) -> u32 {
        let version = self.server_version();
        let end = version
            .find(|letter: char| !letter.is_ascii_digit())
            .unwrap_or(version.len());
        version[..end].parse().unwrap_or(0)
    }

    /// Says goodbye.
    pub fn close(self) {
        // The server will notice either way.
        self.exchange.close().ok();
    }
}

fn failed(error: &ExchangeError, sql: &str) -> Exit {
    message::error(&format!(
        "query failed: {}",
        message::of_exchange(error, Some(sql))
    ));
    message::detail(&format!("Query was: {sql}"));
    Exit(1)
}

/// The SQLSTATE of an error, where the server gave one.
pub fn sqlstate(error: &ExchangeError) -> Option<&str> {
    match error {
        ExchangeError::Server(error) => Some(&error.sqlstate),
        _ => None,
    }
}

/// What libpq adds to a refused connection.
fn refused(address: &Address, error: &io::Error) -> String {
    let what = message::plain(error);
    match (address, error.kind()) {
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

fn open_any(target: &Target) -> Result<Exchange<Stream>, (Address, ExchangeError)> {
    let mut failed = None;
    for host in &target.hosts {
        let login = target.login(host, &SaltCache::default());
        let opened = connect(&host.address, target)
            .map_err(|(address, error)| (address, ExchangeError::from(error)))
            .and_then(|(address, stream)| {
                Exchange::open(stream, &login).map_err(|error| (address, error))
            });
        match opened {
            Ok(exchange) => return Ok(exchange),
            // Another host would say the same of a wrong password or database.
            Err(refused @ (_, ExchangeError::Server(_) | ExchangeError::Wire(_))) => {
                return Err(refused);
            }
            Err(refused) => failed = Some(refused),
        }
    }
    Err(failed.unwrap_or_else(|| {
        let nowhere = Address::Unix {
            directory: String::new(),
            port: 0,
        };
        (nowhere, ExchangeError::Closed)
    }))
}

/// Connects, and tells which address it was; a name may have several.
fn connect(address: &Address, target: &Target) -> Result<(Address, Stream), (Address, io::Error)> {
    let Address::Tcp {
        host,
        address: ip,
        port,
    } = address
    else {
        return match connect_unix(address) {
            Ok(stream) => Ok((address.clone(), Stream::Unix(stream))),
            Err(error) => Err((address.clone(), error)),
        };
    };
    let looked_up: io::Result<Vec<SocketAddr>> = match ip {
        Some(ip) => Ok(vec![SocketAddr::new(*ip, *port)]),
        None => (host.as_str(), *port)
            .to_socket_addrs()
            .map(Iterator::collect),
    };
    let mut failed = (address.clone(), io::ErrorKind::NotFound.into());
    for socket in looked_up.map_err(|error| (address.clone(), error))? {
        let here = Address::Tcp {
            host: host.clone(),
            address: Some(socket.ip()),
            port: *port,
        };
        match connect_tcp(&socket, target) {
            Ok(stream) => return Ok((here, Stream::Tcp(stream))),
            Err(error) => failed = (here, error),
        }
    }
    Err(failed)
}

fn connect_unix(address: &Address) -> io::Result<UnixStream> {
    let path = address.socket_path().unwrap_or_default();
    match path.as_os_str().as_encoded_bytes().strip_prefix(b"@") {
        Some(name) => UnixStream::connect_addr(&UnixAddress::from_abstract_name(name)?),
        None => UnixStream::connect(&path),
    }
}

fn connect_tcp(address: &SocketAddr, target: &Target) -> io::Result<TcpStream> {
    let stream = match target.connect_timeout_s {
        Some(seconds) => TcpStream::connect_timeout(address, Duration::from_secs(seconds.into()))?,
        None => TcpStream::connect(address)?,
    };
    stream.set_nodelay(true)?;
    Ok(stream)
}
