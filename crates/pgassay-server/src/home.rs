//! The resources of a running server: its directories, its keeper and its postmaster; and their
//! removal.
//!
//! Invariant: every acquired resource is in the `Home` at once, so that dropping it at any moment,
//! even during a failing start, ends the processes and removes the directories.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::statfs;

use crate::account::OsAccount;
use crate::error::ServerError;
use crate::keeper::Keeper;
use crate::log::ServerLog;
use crate::open_dir::OpenDir;
use crate::os::{self, Pid, Signal};
use crate::server_dir::ServerDir;
use crate::sweep::{self, DATA_LOCATION_FILE};
use crate::waiting::wait_until;

/// Maximum length of a socket's path (`sun_path` in `sys/un.h`, minus the final zero).
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// The longest file name of a socket.
const SOCKET_NAME: &str = ".s.PGSQL.65535";
/// Time limit for the removal of our own directories; enough for terabytes on a slow disk.
pub(crate) const REMOVE_TIMEOUT: Duration = Duration::from_mins(10);
/// The socket's directory in the server's.
const SOCKET_DIRECTORY: &str = "s";
/// Directory for sockets if that of the data cannot hold them.
const SHORT_DIRECTORY: &str = "/tmp";
/// Directory for servers if the usual one is in memory.
const DISK_DIRECTORY: &str = "/var/tmp";

/// Whether a socket's path can have this directory: a connection string takes a comma as the end of a host, as
/// `unix_socket_directories` takes it as the end of a directory, and both are UTF-8.
fn can_hold_a_socket(directory: &Path) -> bool {
    let is_short = directory.join(SOCKET_NAME).as_os_str().len() <= SOCKET_PATH_BYTES_MAX;
    is_short && directory.to_str().is_some_and(|it| !it.contains(','))
}

/// A server's directories, keeper and postmaster.
#[derive(Debug)]
pub(crate) struct ServerHome {
    base: ServerDir,
    /// A separate directory for the socket, if `base` cannot hold it or is not the default.
    socket: Option<ServerDir>,
    keeper: Option<Keeper>,
    postmaster: Mutex<Option<Child>>,
}

impl ServerHome {
    /// Creates the directories and starts the keeper. Returns the log too, since it must be created
    /// before the directories are handed over.
    pub(crate) fn create(
        parent: &Path,
        account: &OsAccount,
    ) -> Result<(Self, ServerLog), ServerError> {
        let short = socket_parent(Path::new(SHORT_DIRECTORY), default_parent());
        Self::create_in(parent, &short, account)
    }

    /// As [`Self::create`]; a separate directory for the socket is created in `short`.
    fn create_in(
        parent: &Path,
        short: &Path,
        account: &OsAccount,
    ) -> Result<(Self, ServerLog), ServerError> {
        let failed = |doing, path: &Path| {
            let path = path.to_owned();
            move |source| ServerError::writing(doing, &path, source)
        };
        let base = ServerDir::create(parent)
            .map_err(failed("create the server's directory in", parent))?;
        // From here on, an error removes what exists.
        let mut home = Self {
            base,
            socket: None,
            keeper: None,
            postmaster: Mutex::new(None),
        };
        let is_usual = parent == default_parent();
        if !is_usual || !can_hold_a_socket(&home.base.path().join(SOCKET_DIRECTORY)) {
            let socket = ServerDir::create(short);
            home.socket = Some(socket.map_err(failed("create the socket's directory in", short))?);
        }
        let path = home.base.path().to_owned();
        let keeper = Keeper::start(&home.base, home.socket.as_ref());
        home.keeper = Some(keeper.map_err(failed("start the keeper of", &path))?);
        let log = home
            .prepare_directories(account)
            .map_err(failed("prepare the server's directory", &path))?;
        Ok((home, log))
    }

    fn prepare_directories(&self, account: &OsAccount) -> io::Result<ServerLog> {
        let log = ServerLog::create(self.directory(), self.base())?;
        if let Some(socket) = &self.socket {
            let mut file = socket.directory().create_file(DATA_LOCATION_FILE)?;
            file.write_all(self.base.path().as_os_str().as_bytes())?;
        } else {
            let directory = self.directory().create_dir(OsStr::new(SOCKET_DIRECTORY))?;
            directory.set_owner(account.user.uid, account.user.gid)?;
        }
        // The socket's directory last: until then, it can refer to a directory of either user.
        self.base.hand_over(account)?;
        if let Some(socket) = &self.socket {
            socket.hand_over(account)?;
        }
        Ok(log)
    }

    pub(crate) fn base(&self) -> &Path {
        self.base.path()
    }

    /// The server's directory itself, for everything that is read in it.
    pub(crate) fn directory(&self) -> &Arc<OpenDir> {
        self.base.directory()
    }

    /// Ends every process of the server.
    pub(crate) fn end_processes(&self) -> io::Result<()> {
        sweep::end_processes(&self.base)
    }

    pub(crate) fn socket_directory(&self) -> PathBuf {
        match &self.socket {
            Some(place) => place.path().to_owned(),
            None => self.base.path().join(SOCKET_DIRECTORY),
        }
    }

    /// Takes ownership of a postmaster that was just started.
    pub(crate) fn set_postmaster(&self, child: Child) {
        if let Some(keeper) = &self.keeper {
            keeper.note_postmaster(child.id());
        }
        *self.child() = Some(child);
    }

    /// The postmaster's PID; 0 before there is one.
    pub(crate) fn postmaster_pid(&self) -> Pid {
        self.child()
            .as_ref()
            .and_then(|child| Pid::try_from(child.id()).ok())
            .unwrap_or(0)
    }

    /// How the postmaster ended, if it has.
    pub(crate) fn exit_status(&self) -> Option<ExitStatus> {
        // If waiting for the child fails, it counts as running; the next use of the server fails
        // if it is not.
        self.child()
            .as_mut()
            .and_then(|child| child.try_wait().ok().flatten())
    }

    /// Signals the postmaster and waits for its end; false if it is still running after `timeout`.
    pub(crate) fn shut_down(&self, signal: Signal, timeout: Duration) -> io::Result<bool> {
        if self.child().is_some() && self.exit_status().is_none() {
            // The child is not reaped yet, so the PID still belongs to it.
            os::send(self.postmaster_pid(), signal)?;
            if !wait_until(timeout, || self.exit_status().is_some()) {
                return Ok(false);
            }
        }
        // A server that was killed has not released its shared memory, which only its data describe: they may be
        // replaced before the next start.
        if self.exit_status().is_some_and(|it| !it.success()) {
            sweep::end_processes(&self.base)?;
        }
        Ok(true)
    }

    /// Ends every process, removes the directories and releases the keeper. Can be called again.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        let Some(mut keeper) = self.keeper.take() else {
            // The keeper was not started: there are only directories.
            return self.remove_directories();
        };
        let ended = sweep::end_processes(&self.base);
        wait_until(Duration::from_secs(1), || {
            self.child().is_none() || self.exit_status().is_some()
        });
        let removed = self.remove_directories();
        let released = keeper.release();
        ended.and(removed)?;
        // Nothing is left for it to do. Killed, as by the kernel when memory is short, it must not end the run.
        if let Err(error) = released {
            tracing::warn!(%error, "a server was removed without its keeper");
        }
        Ok(())
    }

    fn remove_directories(&self) -> io::Result<()> {
        let deadline = Instant::now() + REMOVE_TIMEOUT;
        let socket = self
            .socket
            .as_ref()
            .map_or(Ok(()), |socket| socket.remove(deadline));
        self.base.remove(deadline).and(socket)
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.postmaster
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ServerHome {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            tracing::error!(path = %self.base.path().display(), %error, "cannot remove a server");
        }
    }
}

/// The default location of servers: `$TMPDIR`; without it `/tmp`, or `/var/tmp` if `/tmp` is in memory, as on
/// Debian 13 and Fedora: there, a commit would wait for no disk.
pub(crate) fn default_parent() -> PathBuf {
    parent_by(std::env::var_os("TMPDIR").as_deref(), is_in_memory)
}

fn parent_by(chosen: Option<&OsStr>, is_in_memory: impl Fn(&Path) -> bool) -> PathBuf {
    let (short, on_disk) = (Path::new(SHORT_DIRECTORY), Path::new(DISK_DIRECTORY));
    let is_better = || is_in_memory(short) && on_disk.is_dir() && !is_in_memory(on_disk);
    match chosen {
        Some(chosen) => chosen.into(),
        None if is_better() => on_disk.to_owned(),
        None => short.to_owned(),
    }
}

/// The location of a separate socket's directory: `short`, or the default location if only that can have one.
fn socket_parent(short: &Path, default: PathBuf) -> PathBuf {
    let example = default.join("pgassay-0123456789abcdef");
    if OpenDir::open_parent(short).is_err() && can_hold_a_socket(&example) {
        default
    } else {
        short.to_owned()
    }
}

/// The default location of a directory that has a socket: that of servers, if it can.
pub(crate) fn parent_with_socket() -> PathBuf {
    let default = default_parent();
    if can_hold_a_socket(&default.join("pgassay-0123456789abcdef")) {
        default
    } else {
        SHORT_DIRECTORY.into()
    }
}

/// Whether the files in a directory are in memory only. `false` if it cannot be read.
pub(crate) fn is_in_memory(directory: &Path) -> bool {
    // TMPFS_MAGIC and RAMFS_MAGIC in Linux's `magic.h`.
    statfs(directory).is_ok_and(|it| it.f_type == 0x0102_1994 || it.f_type == 0x8584_58f6)
}

/// The locations where earlier servers may have left directories.
pub(crate) fn parents(chosen: Option<&PathBuf>) -> Vec<PathBuf> {
    let mut parents = vec![
        default_parent(),
        SHORT_DIRECTORY.into(),
        DISK_DIRECTORY.into(),
    ];
    parents.extend(chosen.cloned());
    parents.sort();
    parents.dedup();
    parents
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a run whose server's keeper was killed ended at the server's end, in the middle.
    #[test]
    fn a_server_without_its_keeper_is_removed_without_an_error() {
        let parent = tempfile::tempdir().unwrap();
        let account = OsAccount::choose(None).unwrap();
        let (mut home, _log) = ServerHome::create(parent.path(), &account).unwrap();
        home.keeper.as_mut().unwrap().kill().unwrap();
        home.clear().unwrap();
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    /// Regression: the server's directory stayed if that of its socket could not be created.
    #[test]
    fn a_server_without_a_directory_for_its_socket_leaves_none_of_its_data() {
        let parent = tempfile::tempdir().unwrap();
        let account = OsAccount::choose(None).unwrap();
        let missing = parent.path().join("missing");
        ServerHome::create_in(parent.path(), &missing, &account).unwrap_err();
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    /// Regression: on Debian 13 and Fedora, servers were in memory, and a commit waited for no disk.
    #[test]
    fn servers_are_not_in_a_tmp_in_memory_unless_it_was_chosen() {
        let in_memory = |which: &'static [&str]| {
            move |path: &Path| which.iter().any(|it| path == Path::new(it))
        };
        let of = |chosen: Option<&str>, which| parent_by(chosen.map(OsStr::new), in_memory(which));
        assert_eq!(of(None, &[]), Path::new("/tmp"));
        assert_eq!(of(None, &["/tmp"]), Path::new("/var/tmp"));
        assert_eq!(of(None, &["/tmp", "/var/tmp"]), Path::new("/tmp"));
        assert_eq!(of(Some("/tmp"), &["/tmp"]), Path::new("/tmp"));
    }

    /// The advice is to choose another directory with `TMPDIR`.
    #[test]
    fn a_tmp_in_which_others_can_rename_has_no_socket() {
        let short = tempfile::tempdir().unwrap();
        let default = PathBuf::from("/var/tmp");
        let chosen = || socket_parent(short.path(), default.clone());
        assert_eq!(chosen(), short.path());
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(short.path(), open).unwrap();
        assert_eq!(chosen(), default);
        let long = PathBuf::from(format!("/tmp/{}", "x".repeat(100)));
        assert_eq!(socket_parent(short.path(), long), short.path());
    }

    /// Regression: with a comma in `TMPDIR`, no server started.
    #[test]
    fn a_directory_that_no_connection_string_can_name_holds_no_socket() {
        let long = format!("/tmp/{}", "x".repeat(100));
        let no_text = OsStr::from_bytes(b"/tmp/\xff");
        for impossible in [OsStr::new("/tmp/a,b"), OsStr::new(&long), no_text] {
            assert!(!can_hold_a_socket(Path::new(impossible)), "{impossible:?}");
        }
        for possible in ["/tmp", "/tmp/a b'c\"d\\", "/tmp/é"] {
            assert!(can_hold_a_socket(Path::new(possible)), "{possible}");
        }
    }
}
