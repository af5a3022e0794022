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

/// A running server.
pub struct BareServer {
    child: Child,
    directory: tempfile::TempDir,
    port: u16,
}

impl BareServer {
    /// Starts a server with these lines in `pg_hba.conf`.
    pub fn start(hba: &str) -> Option<Self> {
        Self::start_at(hba, "", PORT, &[])
    }

    /// Like [`Self::start`], also listening on 127.0.0.1.
    pub fn start_with_tcp(hba: &str) -> Option<Self> {
        Self::start_with(hba, &[])
    }

    /// Like [`Self::start_with_tcp`], with these files in the data directory. If there are any, the
    /// server uses TLS with the first two as its certificate and key, and the third as its clients'
    /// authority.
    pub fn start_with(hba: &str, files: &[PathBuf]) -> Option<Self> {
        Self::start_at(hba, "127.0.0.1", free_port(), files)
    }

    /// Starts a primary and a standby of this version (12 or later), both listening on 127.0.0.1. Nothing is
    /// replicated: the standby is a copy that waits forever.
    pub fn pair(version: &str) -> Option<(Self, Self)> {
        let (primary, standby, bin) = Self::copies(version)?;
        let start = |directory| Self::run(&bin, directory, "127.0.0.1", free_port());
        Some((start(primary), start(standby)))
    }

    /// The same, with a standby that receives the primary's WAL, without a slot and without feedback.
    pub fn replicated_pair(version: &str) -> Option<(Self, Self)> {
        let (primary, standby, bin) = Self::copies(version)?;
        let start = |directory| Self::run(&bin, directory, "127.0.0.1", free_port());
        let primary = start(primary);
        let auto = standby.path().join("data/postgresql.auto.conf");
        let conninfo = format!(
            "primary_conninfo = 'host=127.0.0.1 port={} user=tester application_name=replica'\n",
            primary.port
        );
        std::fs::write(&auto, conninfo).unwrap();
        Some((primary, start(standby)))
    }

    /// The directories of a primary and its copy, and that of the programs.
    fn copies(version: &str) -> Option<(tempfile::TempDir, tempfile::TempDir, PathBuf)> {
        let bin = servers::installation(version)?.bin_dir;
        let hba = "local all all trust\nhost all,replication all 127.0.0.1/32 trust\n";
        let primary = initialized(&bin, hba, &[]);
        let standby = empty_directory();
        let copied = Command::new("cp")
            .arg("-a")
            .arg(primary.path().join("data"))
            .arg(standby.path())
            .status();
        assert!(copied.unwrap().success());
        let data = standby.path().join("data");
        give(Path::new("/dev/null"), &data.join("standby.signal"));
        Some((primary, standby, bin))
    }

    fn start_at(hba: &str, listen: &str, port: u16, files: &[PathBuf]) -> Option<Self> {
        let bin = bin_directory()?;
        Some(Self::run(&bin, initialized(&bin, hba, files), listen, port))
    }

    fn run(bin: &Path, directory: tempfile::TempDir, listen: &str, port: u16) -> Self {
        let data = directory.path().join("data");
        let child = command(bin, "postgres")
            .arg("-D")
            .arg(&data)
            .args([
                "-c",
                &format!("listen_addresses={listen}"),
                "-c",
                "fsync=off",
                "-c",
                "max_connections=300",
            ])
            .args(["-c", "autovacuum=off", "-p", &port.to_string(), "-k"])
            .arg(&data)
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(directory.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let mut server = Self {
            child,
            directory,
            port,
        };
        server.wait_until_it_accepts();
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

    fn wait_until_it_accepts(&mut self) {
        let socket = self.socket();
        let log = || std::fs::read_to_string(self.directory.path().join("log"));
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
                    let ended = self.child.try_wait().unwrap();
                    assert!(ended.is_none(), "the server ended: {:?}", log());
                    false
                }
            }
        });
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

/// Returns a port that was free a moment ago; tests that start at the same time get different
/// ports.
fn free_port() -> u16 {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap().port()
}

fn empty_directory() -> tempfile::TempDir {
    let directory = tempfile::Builder::new()
        .prefix("pgassay-test-")
        .tempdir()
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
