//! Connects as a program does, with a connection string and an environment, using pgassay and the
//! real psql.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use pgassay_wire::conninfo::{Address, Endpoint, Environment, FileText, Request, Target};
use pgassay_wire::{Exchange, ExchangeError};

/// The limit of every wait.
const LIMIT: Duration = Duration::from_secs(10);
/// Returns where and as whom the session is connected, and its settings.
pub const WHO: &str = "select concat_ws(' ', coalesce(host(inet_server_addr()), 'socket'), \
    current_setting('port'), current_user, current_database(), \
    (select concat_ws(' ', ssl, client_dn) from pg_stat_ssl where pid = pg_backend_pid()), \
    current_setting('application_name'), current_setting('TimeZone'), current_setting('geqo'), \
    current_setting('work_mem'), pg_is_in_recovery())";

/// A program's environment variables and home directory.
#[derive(Clone)]
pub struct ProcessEnvironment {
    pub variables: Vec<(String, String)>,
    pub home: PathBuf,
}

impl Environment for ProcessEnvironment {
    fn variable(&self, name: &str) -> Option<String> {
        let found = self.variables.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone())
    }
    fn user(&self) -> Option<String> {
        static USER: OnceLock<String> = OnceLock::new();
        let user = USER.get_or_init(|| {
            let output = Command::new("id").arg("-un").output().unwrap();
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        });
        Some(user.clone())
    }
    fn home(&self) -> Option<PathBuf> {
        Some(self.home.clone())
    }
    fn read(&self, path: &Path, _: u64) -> io::Result<Option<FileText>> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let metadata = std::fs::metadata(path)?;
        Ok(Some(FileText {
            text: String::from_utf8_lossy(&bytes).into_owned(),
            mode: metadata.mode() & 0o777,
            is_owned_by_root: metadata.uid() == 0,
        }))
    }
    fn socket_directory(&self) -> String {
        "/var/run/postgresql".into()
    }
}

/// Any kind of stream.
pub trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// Resolves all addresses of a target.
fn endpoints(target: &Target) -> Result<Vec<Endpoint>, String> {
    let mut found = Vec::new();
    let mut failed = None;
    for (host, entry) in target.hosts.iter().enumerate() {
        let endpoint = |tcp: Option<SocketAddr>| Endpoint {
            address: entry.address.clone(),
            host,
            tcp,
        };
        match &entry.address {
            Address::Unix { .. } => found.push(endpoint(None)),
            Address::Tcp {
                address: Some(ip),
                port,
                ..
            } => found.push(endpoint(Some((*ip, *port).into()))),
            Address::Tcp { host, port, .. } => match (host.as_str(), *port).to_socket_addrs() {
                Ok(all) => found.extend(all.map(|address| endpoint(Some(address)))),
                Err(error) => failed = Some(error.to_string()),
            },
        }
    }
    match failed {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}

fn open(endpoint: &Endpoint, limit: Duration) -> io::Result<Box<dyn Stream>> {
    if let Some(address) = endpoint.tcp {
        let stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_read_timeout(Some(limit))?;
        return Ok(Box::new(stream));
    }
    let stream = UnixStream::connect(endpoint.address.socket_path().unwrap())?;
    stream.set_read_timeout(Some(limit))?;
    Ok(Box::new(stream))
}

/// Connects with pgassay.
pub fn connect(
    text: &str,
    around: &ProcessEnvironment,
) -> Result<Exchange<Box<dyn Stream>>, String> {
    let request = Request::new().fallback_application_name("psql");
    let request = request.database(text).map_err(|error| error.to_string())?;
    let target = request.resolve(around).map_err(|error| error.to_string())?;
    let limit = target
        .connect_timeout_s
        .map_or(LIMIT, |seconds| Duration::from_secs(seconds.into()));
    let connected = Exchange::connect(&target, &endpoints(&target)?, 0, |to| open(to, limit));
    let words = |tried: Vec<(Address, ExchangeError)>| {
        let words = tried
            .iter()
            .map(|(address, error)| format!("{address}: {error}"));
        words.collect::<Vec<_>>().join("\n")
    };
    connected.map(|(exchange, _)| exchange).map_err(words)
}

/// Returns where pgassay connects, or its error.
pub fn ours(text: &str, around: &ProcessEnvironment) -> Result<String, String> {
    let mut exchange = connect(text, around)?;
    let who = exchange.value(WHO).map_err(|error| error.to_string())?;
    Ok(who.unwrap_or_default())
}

/// Returns where psql connects, or its error.
pub fn psql_result(text: &str, around: &ProcessEnvironment) -> Result<String, String> {
    let output = Command::new(psql_program().unwrap())
        .args(["-X", "-A", "-t", "-w", "-c", WHO, "-d", text])
        .env_clear()
        .env("PATH", std::env::var("PATH").unwrap())
        .env("HOME", &around.home)
        .envs(around.variables.iter().cloned())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(text(&output.stderr))
    }
}

/// The psql on PATH. Debian's is a script that sets PGHOST; the program that it calls is used
/// instead.
fn psql_program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut programs = std::env::split_paths(&path).map(|folder| folder.join("psql"));
    let found = programs.find(|program| program.exists())?;
    if !std::fs::read(&found).unwrap().starts_with(b"#!") {
        return Some(found);
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let programs = versions.filter_map(|entry| Some(entry.ok()?.path().join("bin/psql")));
    programs.filter(|program| program.exists()).max()
}

/// Returns the major version of psql on PATH, or skips the test.
pub fn psql_major(test: &str) -> Option<u32> {
    let known = psql_program().map(|psql| Command::new(psql).arg("--version").output().unwrap());
    let version = known.and_then(|output| {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut digits = text.split(|letter: char| !letter.is_ascii_digit());
        digits.find(|word| !word.is_empty())?.parse().ok()
    });
    if version.is_none() {
        pgassay_test_support::skip_comparison(test, "no psql on PATH");
    }
    version
}

/// Connects with both, asserts that the results agree, and returns pgassay's.
pub fn compare(text: &str, around: &ProcessEnvironment) -> Result<String, String> {
    let (ours, psqls) = (ours(text, around), psql_result(text, around));
    let is_same = match (&ours, &psqls) {
        (Ok(ours), Ok(psqls)) => ours == psqls,
        (ours, psqls) => ours.is_err() && psqls.is_err(),
    };
    assert!(
        is_same,
        "{text} {:?}\nours: {ours:?}\npsql: {psqls:?}",
        around.variables
    );
    ours
}
