//! A temporary PostgreSQL server with its own `pg_hba.conf`: a postmaster started by hand, which is
//! stopped when dropped. If the tests run as root, it runs as `nobody`, because PostgreSQL refuses to
//! run as root.

use std::fmt::Write as _;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::os::{NOBODY, is_root};
use crate::{servers, wait_until};

/// The port number in the socket's file name if TCP is not used.
const PORT: u16 = 5432;

const LOCALHOST: &str = "127.0.0.1";

/// A running server.
pub struct BareServer {
    child: Child,
    directory: tempfile::TempDir,
    port: u16,
}

impl BareServer {
    /// Starts a server with these lines in `pg_hba.conf`.
    pub fn start(hba: &str) -> Option<Self> {
        let bin = bin_directory()?;
        let ports = std::iter::once(PORT);
        Some(Self::run(&bin, initialized(&bin, hba, &[]), "", ports))
    }

    /// Like [`Self::start`], also listening on 127.0.0.1.
    pub fn start_with_tcp(hba: &str) -> Option<Self> {
        Self::start_with(hba, &[])
    }

    /// Like [`Self::start_with_tcp`], with these files in the data directory. If there are any, the
    /// server uses TLS with the first two as its certificate and key, and the third as its clients'
    /// authority.
    pub fn start_with(hba: &str, files: &[PathBuf]) -> Option<Self> {
        let bin = bin_directory()?;
        let directory = initialized(&bin, hba, files);
        Some(Self::run(&bin, directory, LOCALHOST, free_ports()))
    }

    /// Starts a primary and a standby of this version, both listening on 127.0.0.1. Nothing is
    /// replicated: the standby is a copy that waits forever.
    pub fn pair(version: &str) -> Option<(Self, Self)> {
        let bin = servers::installation(version)?.bin_dir;
        let hba = "local all all trust\nhost all all 127.0.0.1/32 trust\n";
        let primary = initialized(&bin, hba, &[]);
        let standby = copied(&primary);
        let data = standby.path().join("data");
        give(Path::new("/dev/null"), &data.join("standby.signal"));
        let start = |directory| Self::run(&bin, directory, LOCALHOST, free_ports());
        Some((start(primary), start(standby)))
    }

    /// Starts a primary and a standby of this version that streams from it.
    pub fn streaming_pair(version: &str) -> Option<(Self, Self)> {
        let bin = servers::installation(version)?.bin_dir;
        let hba = "local all all trust\nlocal replication all trust\n";
        let primary = initialized(&bin, hba, &[]);
        // The defaults of version 9.6 do not replicate.
        let settings = "wal_level = replica\nmax_wal_senders = 5\nhot_standby = on\n";
        let data = primary.path().join("data");
        append(&data.join("postgresql.conf"), settings);
        // The cluster's first checkpoint has the defaults.
        let shut_down = command(&bin, "postgres")
            .args(["--single", "-D"])
            .arg(&data)
            .arg("postgres")
            .stdin(Stdio::null())
            .output();
        assert!(shut_down.unwrap().status.success());
        // The programs of a version lack pg_basebackup: the standby begins as the same new cluster.
        let standby = copied(&primary);
        let primary = Self::run(&bin, primary, "", std::iter::once(PORT));
        let data = standby.path().join("data");
        let source = primary.socket_directory();
        let source = format!(
            "primary_conninfo = 'host={} user=tester'\n",
            source.display()
        );
        // 12: a file marks a standby, and its settings are those of the server.
        if matches!(version, "9.6" | "10" | "11") {
            let recovery = standby.path().join("recovery.conf");
            std::fs::write(&recovery, format!("standby_mode = on\n{source}")).unwrap();
            give(&recovery, &data.join("recovery.conf"));
        } else {
            append(&data.join("postgresql.conf"), &source);
            give(Path::new("/dev/null"), &data.join("standby.signal"));
        }
        let standby = Self::run(&bin, standby, "", std::iter::once(PORT));
        Some((primary, standby))
    }

    /// Starts the server on the first of `ports` that no other program uses.
    fn run(
        bin: &Path,
        directory: tempfile::TempDir,
        listen: &str,
        mut ports: impl Iterator<Item = u16>,
    ) -> Self {
        let port = ports.next().unwrap();
        let child = launch(bin, &directory, listen, port);
        let mut server = Self {
            child,
            directory,
            port,
        };
        while let Err(log) = server.wait_until_it_accepts() {
            let next = ports
                .next()
                .filter(|_| log.contains("Address already in use"));
            server.port = next.unwrap_or_else(|| panic!("the server ended: {log}"));
            server.child = launch(bin, &server.directory, listen, server.port);
        }
        server
    }

    /// Starts a server with trust authentication.
    pub fn trusting() -> Option<Self> {
        Self::start("local all all trust\n")
    }

    /// The directory of its Unix socket.
    pub fn socket_directory(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// The path of its Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.socket_directory()
            .join(format!(".s.PGSQL.{}", self.port))
    }

    /// Opens a connection with time limits.
    pub fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_mins(1)))
            .unwrap();
        stream
            .set_write_timeout(Some(Duration::from_mins(1)))
            .unwrap();
        stream
    }

    /// Its TCP port, which is also part of the socket's name.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The postmaster.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// The first value of a query's result, for the user `tester`.
    pub fn value(&self, sql: &str) -> Option<String> {
        let mut exchange = pgassay_wire::Exchange::open(self.connect(), &tester()).unwrap();
        exchange.value(sql).unwrap()
    }

    /// The data directory.
    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Sends a signal to the server: SIGINT for a fast shutdown, SIGQUIT for an immediate one.
    pub fn signal(&self, signal: i32) {
        // SAFETY: kill has no preconditions; the process is our child and not reaped yet.
        unsafe { libc::kill(self.pid(), signal) };
    }

    /// An error is the log of a server that ended.
    fn wait_until_it_accepts(&mut self) -> Result<(), String> {
        let socket = self.socket();
        let log = self.directory.path().join("log");
        let mut has_ended = false;
        let login = tester();
        wait_until(&format!("the server starts: {:?}", self.directory), || {
            let opened = UnixStream::connect(&socket)
                .ok()
                .map(|stream| pgassay_wire::Exchange::open(stream, &login));
            match opened {
                Some(Ok(_) | Err(pgassay_wire::ExchangeError::Wire(_))) => true,
                // Any rejection other than "starting up" (57P03) comes from a running server.
                Some(Err(pgassay_wire::ExchangeError::Server(error))) => error.sqlstate != "57P03",
                _ => {
                    has_ended = self.child.try_wait().unwrap().is_some();
                    has_ended
                }
            }
        });
        if has_ended {
            return Err(std::fs::read_to_string(log).unwrap());
        }
        Ok(())
    }
}

impl Drop for BareServer {
    fn drop(&mut self) {
        self.signal(libc::SIGINT);
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if let Ok(Some(_)) = self.child.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.signal(libc::SIGQUIT);
        self.child.wait().ok();
    }
}

fn tester() -> pgassay_wire::Login {
    pgassay_wire::Login {
        user: "tester".into(),
        database: "postgres".into(),
        ..Default::default()
    }
}

fn launch(bin: &Path, directory: &tempfile::TempDir, listen: &str, port: u16) -> Child {
    let data = directory.path().join("data");
    command(bin, "postgres")
        .arg("-D")
        .arg(&data)
        .arg("-c")
        .arg(format!("listen_addresses={listen}"))
        .args(["-c", "fsync=off", "-c", "max_connections=300"])
        .args(["-c", "autovacuum=off", "-p", &port.to_string(), "-k"])
        .arg(&data)
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(directory.path().join("log")).unwrap())
        .spawn()
        .unwrap()
}

/// Ports that are free when they are drawn. Before the server binds one, another test can take it,
/// also for an outgoing connection.
fn free_ports() -> impl Iterator<Item = u16> {
    let draw = || {
        let free = std::net::TcpListener::bind((LOCALHOST, 0)).unwrap();
        free.local_addr().unwrap().port()
    };
    std::iter::repeat_with(draw).take(10)
}

fn empty_directory() -> tempfile::TempDir {
    let directory = tempfile::Builder::new()
        .prefix("pgassay-test-")
        .tempdir_in(crate::server_directory())
        .unwrap();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    directory
}

/// Creates a directory with a new cluster, with these lines in `pg_hba.conf`. The first three files
/// become certificate, key and authority.
fn initialized(bin: &Path, hba: &str, files: &[PathBuf]) -> tempfile::TempDir {
    let directory = empty_directory();
    let data = directory.path().join("data");
    std::fs::create_dir(&data).unwrap();
    if is_root() {
        chown(&data, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let made = command(bin, "initdb")
        .args("-U tester -A trust -N -E UTF8 --locale=C -D".split(' '))
        .arg(&data)
        .output()
        .unwrap();
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    std::fs::write(data.join("pg_hba.conf"), hba).unwrap();
    for file in files {
        give(file, &data.join(file.file_name().unwrap()));
    }
    let mut conf = std::fs::read_to_string(data.join("postgresql.conf")).unwrap();
    let settings = ["ssl_cert_file", "ssl_key_file", "ssl_ca_file"];
    for (setting, file) in settings.iter().zip(files) {
        let name = file.file_name().unwrap().to_str().unwrap();
        write!(conf, "ssl = on\n{setting} = '{name}'\n").unwrap();
    }
    std::fs::write(data.join("postgresql.conf"), conf).unwrap();
    directory
}

/// A copy of a cluster that does not run.
fn copied(cluster: &tempfile::TempDir) -> tempfile::TempDir {
    let copy = empty_directory();
    let copied = Command::new("cp")
        .arg("-a")
        .arg(cluster.path().join("data"))
        .arg(copy.path())
        .status();
    assert!(copied.unwrap().success());
    copy
}

fn append(file: &Path, text: &str) {
    let before = std::fs::read_to_string(file).unwrap();
    std::fs::write(file, before + text).unwrap();
}

/// Copies a file and makes the server's user its owner.
fn give(from: &Path, to: &Path) {
    std::fs::write(to, std::fs::read(from).unwrap()).unwrap();
    let mode = std::fs::metadata(from).unwrap().permissions().mode() & 0o700;
    std::fs::set_permissions(to, PermissionsExt::from_mode(mode)).unwrap();
    if is_root() {
        chown(to, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

fn command(bin: &Path, name: &str) -> Command {
    let program = bin.join(name);
    let mut command = if is_root() {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
            .arg(program);
        command
    } else {
        Command::new(program)
    };
    command.env_remove("PGOPTIONS").current_dir("/");
    command
}

/// The directory of PostgreSQL 18's programs.
pub fn bin_directory() -> Option<PathBuf> {
    servers::installation("18").map(|installation| installation.bin_dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_whose_port_is_taken_before_it_starts_takes_another() {
        let Some(bin) = bin_directory() else {
            return;
        };
        let taken = std::net::TcpListener::bind((LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let directory = initialized(&bin, "local all all trust\n", &[]);
        let ports = std::iter::once(port).chain(free_ports());
        let server = BareServer::run(&bin, directory, LOCALHOST, ports);
        assert_ne!(server.port(), port);
        let used = server.value("show port").unwrap();
        assert_eq!(used, server.port().to_string());
    }
}
