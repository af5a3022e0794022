//! One server: creation, start, monitoring, restart, stop.
//!
//! A server has its own data directory, in a directory that only its user can enter, a socket that
//! nobody else can reach, and no TCP unless requested. It ends when its `Server` is dropped, and
//! when our process ends, however that ends (see `keeper`).

mod initial_data;
mod large_log;
mod starting;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use pgassay_wire::{Login, Password};

use crate::account::OsAccount;
use crate::cluster::Cluster;
use crate::connection::{Connection, ConnectionError};
use crate::error::ServerError;
use crate::home::{self, ServerHome};
use crate::installation::{Installation, ServerFile};
use crate::log::{ServerLog, crash_in};
use crate::log_files::LogFiles;
use crate::os::{self, Pid, Signal};
use crate::processes::{self, ProcessRole, ServerProcess};
use crate::sweep;

/// The role that owns the server.
pub(crate) const SUPERUSER: &str = "postgres";
/// The database that always exists.
const DATABASE: &str = "postgres";
/// Part of the socket's name; the same for all servers, since each has its own directory.
const SOCKET_PORT: u16 = 5432;
/// Number of attempts if another program takes the chosen TCP port.
const PORT_TRIES: u32 = 5;
/// Time limit of a fast shutdown. It writes a checkpoint, so it depends on the disk.
const FAST_TIMEOUT: Duration = Duration::from_mins(1);
const IMMEDIATE_TIMEOUT: Duration = Duration::from_secs(10);
const SIGN_IN_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest file that is read whole: callgrind's largest have some hundred megabytes.
const OWN_FILE_BYTES_MAX: u64 = 1 << 30;
const POLL: Duration = Duration::from_millis(10);
/// Number of log lines in an error.
const LOG_LINES: usize = 20;

/// A server's configuration.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Settings, verbatim as in `postgresql.conf`, without quotes around the values.
    pub settings: BTreeMap<String, String>,
    /// Additional environment variables of its processes.
    pub environment: BTreeMap<String, String>,
    /// The user to run as; only root can choose. Root's default is `nobody`.
    pub run_as: Option<String>,
    /// Also listen on a free port of 127.0.0.1, with a random password.
    pub tcp: bool,
    /// Support TLS, with a self-signed certificate created for this server.
    pub tls: bool,
    /// Where to create the server's directory; by default `$TMPDIR`, `/tmp`, or `/var/tmp` if `/tmp` is
    /// in memory. The server's user must have access to it.
    pub parent_dir: Option<PathBuf>,
    /// Page checksums; `None` for the version's default (off until 17, on since 18).
    pub data_checksums: Option<bool>,
    /// Additional options of `initdb`, such as `--wal-segsize=64`.
    pub initdb_options: Vec<String>,
    /// Time limit until the server accepts connections.
    pub start_timeout: Duration,
    /// A program, with its arguments, to run the server under, such as valgrind; empty by default.
    /// It must become the server, under the same PID, and not be its parent. `initdb` runs without
    /// it.
    pub launcher: Vec<OsString>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            settings: BTreeMap::new(),
            environment: BTreeMap::new(),
            run_as: None,
            tcp: false,
            tls: false,
            parent_dir: None,
            data_checksums: None,
            initdb_options: Vec::new(),
            start_timeout: Duration::from_mins(1),
            launcher: Vec::new(),
        }
    }
}

impl ServerConfig {
    /// The value of a setting, whose name may be in any letters.
    fn setting(&self, name: &str) -> Option<&str> {
        let mut settings = self.settings.iter();
        let found = settings.find(|(other, _)| other.eq_ignore_ascii_case(name))?;
        Some(found.1)
    }
}

/// Whether a setting's value means on (`parse_bool_with_len`, bool.c): also a word's beginning, in any letters.
fn is_on(value: &str) -> bool {
    let value = value.to_ascii_lowercase();
    let begins = |word: &str| !value.is_empty() && word.starts_with(&value);
    begins("true") || begins("yes") || matches!(value.as_str(), "on" | "1")
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    home: ServerHome,
    log: ServerLog,
    installation: Installation,
    /// Its server program, as it was at the first start.
    program: Option<ServerFile>,
    config: ServerConfig,
    account: OsAccount,
    port: u16,
    password: Password,
}

impl Server {
    /// Removes what earlier servers left, creates a data directory, starts a server on it and
    /// waits until it accepts connections. After an error nothing is left behind.
    pub fn start(installation: &Installation, config: &ServerConfig) -> Result<Self, ServerError> {
        let account = OsAccount::choose(config.run_as.as_deref())?;
        sweep::stale(&home::parents(config.parent_dir.as_ref()), &account);
        let parent = config
            .parent_dir
            .clone()
            .unwrap_or_else(home::default_parent);
        let (home, log) = ServerHome::create(&parent, &account)?;
        let password = random_password().map_err(|source| ServerError::Directory {
            doing: "create a password for the server in",
            path: parent,
            source,
        })?;
        let program = installation.server_file();
        let mut server = Self {
            program,
            home,
            log,
            installation: installation.clone(),
            config: config.clone(),
            account,
            port: SOCKET_PORT,
            password,
        };
        server.choose_port()?;
        server.cluster().create()?;
        server.launch_on_a_free_port()?;
        Ok(server)
    }

    /// The directory of the server's socket: `host` in a connection string.
    pub fn socket_dir(&self) -> PathBuf {
        self.home.socket_directory()
    }

    /// The port, also part of the socket's name.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The socket's path.
    pub fn socket_path(&self) -> PathBuf {
        self.socket_dir().join(format!(".s.PGSQL.{}", self.port))
    }

    /// The TCP address, if enabled.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.config
            .tcp
            .then(|| SocketAddr::from((Ipv4Addr::LOCALHOST, self.port)))
    }

    /// The superuser. Over the socket, the current user connects as this role without a password;
    /// other roles need one.
    pub fn superuser(&self) -> &str {
        SUPERUSER
    }

    /// The superuser's password, for TCP. Without TCP, the server accepts none.
    pub fn password(&self) -> &Password {
        &self.password
    }

    /// The database to connect to.
    pub fn database(&self) -> &str {
        DATABASE
    }

    /// A libpq connection string for the socket.
    pub fn conninfo(&self) -> String {
        let directory = self
            .socket_dir()
            .to_string_lossy()
            .replace('\\', "\\\\")
            .replace('\'', "\\'");
        format!(
            "host='{directory}' port={} user={SUPERUSER} dbname={DATABASE}",
            self.port
        )
    }

    /// The server's installation.
    pub fn installation(&self) -> &Installation {
        &self.installation
    }

    /// The server's configuration.
    pub fn config(&self) -> &ServerConfig {
        &self.config
    }

    /// The operating-system user that it runs as.
    pub fn run_as(&self) -> &str {
        &self.account.user.name
    }

    /// Its data directory.
    pub fn data_dir(&self) -> PathBuf {
        self.home.base().join("data")
    }

    /// Whether the data directory is in memory (tmpfs), where a commit does not wait for a disk.
    pub fn is_in_memory(&self) -> bool {
        home::is_in_memory(&self.data_dir())
    }

    /// A directory outside the data directory that the server's user can write to. It is removed
    /// with the server.
    pub fn own_dir(&self) -> &Path {
        self.home.base()
    }

    /// Reads a file that the server or its launcher wrote to its own directory. Does not follow
    /// symbolic links, which the server's user could point anywhere, and reads at most 1 GiB.
    pub fn read_own_file(&self, name: &str) -> io::Result<String> {
        let directory = self.home.directory();
        directory.read_below(Path::new(name), OWN_FILE_BYTES_MAX)
    }

    /// The postmaster's PID. It changes with a restart.
    pub fn postmaster_pid(&self) -> Pid {
        self.home.postmaster_pid()
    }

    /// Its current processes, with their roles.
    pub fn processes(&self) -> Vec<ServerProcess> {
        processes::of_postmaster(self.postmaster_pid())
    }

    /// The PIDs of its current backends.
    pub fn backend_pids(&self) -> Vec<Pid> {
        let backends = self
            .processes()
            .into_iter()
            .filter(|process| process.role == ProcessRole::Backend);
        backends.map(|process| process.pid).collect()
    }

    /// The file that receives its standard error.
    pub fn log_path(&self) -> &Path {
        self.log.path()
    }

    /// The last lines of its log, followed by those of the logging collector's newest file if the
    /// collector is on.
    pub fn log_tail(&self, lines_max: usize) -> String {
        self.with_collected(self.log.tail(lines_max), lines_max)
    }

    /// Appends the last lines of the logging collector's newest file, if there is one.
    fn with_collected(&self, own: String, lines_max: usize) -> String {
        match self.log_below().collected_tail(lines_max) {
            Some(collected) => format!("{own}\n{collected}"),
            None => own,
        }
    }

    /// The files of its log: that of standard error, and those of the logging collector if it is on. Only those in
    /// the server's directory.
    pub fn log_files(&self) -> Vec<PathBuf> {
        let files = self.log_below().sizes().into_keys();
        files.map(|path| self.home.base().join(path)).collect()
    }

    pub(crate) fn log_below(&self) -> LogFiles {
        let base = Arc::clone(self.home.directory());
        LogFiles::new(base, self.collectors_directories())
    }

    /// The directories below the server's that the logging collector may write to; empty if it is off.
    fn collectors_directories(&self) -> Vec<PathBuf> {
        let collector = self.config.setting("logging_collector");
        if !collector.is_some_and(is_on) {
            return Vec::new();
        }
        let named = self.config.setting("log_directory").map(PathBuf::from);
        let (base, data) = (self.home.base(), self.data_dir());
        ["log", "pg_log"]
            .into_iter()
            .map(PathBuf::from)
            .chain(named)
            .filter_map(|path| data.join(path).strip_prefix(base).ok().map(Path::to_owned))
            .collect()
    }

    /// Connects as the superuser.
    pub fn connect(&self) -> Result<Connection, ConnectionError> {
        self.connect_as(SUPERUSER, DATABASE, None)
    }

    /// Connects as any role, with a password unless it is the superuser, to any database.
    pub fn connect_as(
        &self,
        user: &str,
        database: &str,
        password: Option<Password>,
    ) -> Result<Connection, ConnectionError> {
        let login = Login {
            user: user.to_owned(),
            database: database.to_owned(),
            password,
            settings: vec![("application_name".to_owned(), "pgassay".to_owned())],
            ..Login::default()
        };
        Connection::open(&self.socket_path(), &login, SIGN_IN_TIMEOUT)
    }

    /// A setting's value, as in `SHOW`.
    pub fn setting(&self, name: &str) -> Result<String, ServerError> {
        let sql = "select current_setting($1)";
        let answer = self.connect()?.query_with(sql, &[Some(name)])?;
        let value = answer.rows.into_iter().flatten().next().flatten();
        Ok(value.unwrap_or_default())
    }

    /// Returns an error with the end of the log if the server has died.
    pub fn is_alive(&self) -> Result<(), ServerError> {
        match self.home.exit_status() {
            None => Ok(()),
            Some(status) => {
                let log = self.log_tail(LOG_LINES);
                let version = self.installation.version.clone();
                let error = ServerError::Died {
                    version,
                    how: status.to_string(),
                    log: log.clone(),
                };
                Err(error.or_disk_full(self.home.base(), &log))
            }
        }
    }

    /// Stops the server (fast) and starts it again on the same data.
    pub fn restart(&mut self) -> Result<(), ServerError> {
        self.is_alive()?;
        self.check_program()?;
        self.shut_down()?;
        self.launch()
    }

    /// Stops the server (fast) and starts it again on the same data with other settings or another
    /// launcher. Changes to other fields have no effect, since the data exist already.
    pub fn restart_with(
        &mut self,
        change: impl FnOnce(&mut ServerConfig),
    ) -> Result<(), ServerError> {
        self.is_alive()?;
        self.check_program()?;
        self.shut_down()?;
        change(&mut self.config);
        self.cluster().configure()?;
        self.launch()
    }

    /// Stops the server (fast, so with a checkpoint) and removes it. Returns an error if it had
    /// died before, but removes it in any case.
    pub fn stop(mut self) -> Result<(), ServerError> {
        let alive = self.is_alive();
        // While it starts again after the crash of a process, PostgreSQL can lose a fast shutdown.
        let stopped = match crash_in(&self.log.tail(LOG_LINES)) {
            Some(_) => self.shut_down_immediately(),
            None => self.shut_down(),
        };
        let path = self.home.base().to_owned();
        let cleared = self
            .home
            .clear()
            .map_err(|source| ServerError::Leftover { path, source });
        alive.and(stopped).and(cleared)
    }

    /// Returns an error if the server would be started again with another build.
    fn check_program(&self) -> Result<(), ServerError> {
        if self.installation.server_file() == self.program {
            return Ok(());
        }
        let program = self.installation.program("postgres");
        Err(ServerError::Rebuilt { program })
    }

    fn leftover(&self, source: io::Error) -> ServerError {
        ServerError::Leftover {
            path: self.home.base().to_owned(),
            source,
        }
    }

    fn shut_down(&self) -> Result<(), ServerError> {
        let ended = self.home.shut_down(Signal::Fast, FAST_TIMEOUT);
        if ended.map_err(|source| self.leftover(source))? {
            return Ok(());
        }
        tracing::warn!(
            "a fast shutdown took more than {} s; starting an immediate shutdown",
            FAST_TIMEOUT.as_secs()
        );
        self.shut_down_immediately()
    }

    fn shut_down_immediately(&self) -> Result<(), ServerError> {
        let leftover = |source| self.leftover(source);
        if self
            .home
            .shut_down(Signal::Immediate, IMMEDIATE_TIMEOUT)
            .map_err(leftover)?
        {
            return Ok(());
        }
        self.home.end_processes().map_err(leftover)?;
        self.home
            .shut_down(Signal::Kill, IMMEDIATE_TIMEOUT)
            .map_err(leftover)
            .map(drop)
    }

    fn launch_on_a_free_port(&mut self) -> Result<(), ServerError> {
        for _ in 1..PORT_TRIES {
            match self.launch() {
                // Another program took the port before the server started.
                Err(ServerError::NotStarted { log, .. })
                    if self.config.tcp && log.contains("Address already in use") =>
                {
                    self.choose_port()?;
                    self.cluster().configure()?;
                }
                result => return result,
            }
        }
        self.launch()
    }

    fn choose_port(&mut self) -> Result<(), ServerError> {
        if self.config.tcp {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
            let address = listener.and_then(|listener| listener.local_addr());
            let failed = |source: io::Error| {
                let reason = format!("no free TCP port: {source}");
                ServerError::Setting {
                    name: "port".to_owned(),
                    reason,
                }
            };
            self.port = address.map_err(failed)?.port();
        }
        Ok(())
    }

    fn cluster(&self) -> Cluster<'_> {
        Cluster {
            installation: &self.installation,
            config: &self.config,
            account: &self.account,
            base: self.home.base(),
            socket_directory: self.home.socket_directory(),
            port: self.port,
            password: self.password.reveal(),
        }
    }

    fn launch(&self) -> Result<(), ServerError> {
        let postgres = self.installation.program("postgres");
        let mut words = self.config.launcher.iter().map(OsString::as_os_str);
        let program = words.next().map_or_else(|| postgres.clone(), PathBuf::from);
        let failed = |source| ServerError::Program {
            program: program.clone(),
            user: self.account.user.name.clone(),
            source,
            barrier: self.account.barrier(&program),
        };
        self.log.mark_start().map_err(failed)?;
        let log = || self.log.file().try_clone().map(Stdio::from);
        let mut command = self.account.command(&program);
        command.args(words);
        if program != postgres {
            command.arg(&postgres);
        }
        command
            .arg("-D")
            .arg(self.data_dir())
            .envs(&self.config.environment)
            .current_dir(self.data_dir());
        command
            .stdout(log().map_err(failed)?)
            .stderr(log().map_err(failed)?);
        os::detach(&mut command, &[]);
        self.home
            .set_postmaster(os::spawn(&mut command).map_err(failed)?);
        self.wait_until_ready()
    }
}

fn random_password() -> io::Result<Password> {
    let bytes: [u8; 16] = os::random_bytes()?;
    Ok(Password::new(
        bytes.map(|byte| format!("{byte:02x}")).concat(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_send_and_sync() {
        fn needs<T: Send + Sync>() {}
        needs::<Server>();
        needs::<ServerError>();
    }
}
