//! Ends a server's remaining processes and removes its directories: for our own servers, and for
//! those left behind by a power failure or by the end of both a process and its keeper.
//!
//! What is found in a temporary directory can be an attack by another user. So a sweep believes
//! only what belongs to the current user or to the server's user (see `server_dir`), touches only
//! processes and shared memory of the directory's owner, and has a time limit.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use crate::account::OsAccount;
use crate::os::{self, Pid, Signal};
use crate::processes;
use crate::server_dir::{self, ServerDir};
use crate::shared_memory::SharedMemory;
use crate::waiting::wait_until;

/// Time limit of an immediate shutdown; then the processes are terminated or killed.
const IMMEDIATE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for a clean exit of processes without a postmaster (mostly of initdb).
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for the end of killed processes.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of a sweep. What remains is left to the next start.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(30);
/// How much longer a start waits for a sweep that the file system holds up.
const SWEEP_GRACE: Duration = Duration::from_secs(5);

/// A file in a socket's directory with the path of its server directory, for a sweep that does not
/// know the configured location of the data.
pub(crate) const DATA_LOCATION_FILE: &str = "elsewhere";

/// Ends every PostgreSQL process of the owner of `base` that runs in it: first cleanly, so that it
/// releases its shared memory; then by killing it. Then removes what is left of its shared memory.
pub(crate) fn end_processes(base: &ServerDir) -> io::Result<()> {
    let owner = base.owner()?;
    let path = base.path();
    let memory = || SharedMemory::of(base.directory(), owner);
    let at_first = memory();
    let all = || processes::living_in(path, owner, &processes::PROGRAMS);
    if let Some(postmaster) = processes::postmaster_of(base, owner) {
        os::send(postmaster, Signal::Immediate)?;
        // A stopped process acts on no signal but KILL.
        resume(&all());
        let is_there = || processes::lives_in(postmaster, path, owner);
        wait_until(IMMEDIATE_TIMEOUT, || !is_there());
    }
    // A server run by initdb does not clean up on a signal, but exits cleanly when its input ends.
    let initdb = || processes::living_in(path, owner, &["initdb"]);
    signal_until_gone(initdb, Signal::Terminate, TERMINATE_TIMEOUT);
    let ended = signal_until_gone(all, Signal::Terminate, TERMINATE_TIMEOUT)
        || signal_until_gone(all, Signal::Kill, KILL_TIMEOUT);
    if !ended {
        return Err(io::Error::other("a server process did not end"));
    }
    // A server that was starting may have got its shared memory, or recorded it, only after the first look.
    let at_last = memory();
    if let Some(memory) = &at_last {
        memory.remove();
    }
    if let Some(memory) = at_first.filter(|it| Some(it) != at_last.as_ref()) {
        memory.remove();
    }
    Ok(())
}

fn signal_until_gone(living: impl Fn() -> Vec<Pid>, signal: Signal, timeout: Duration) -> bool {
    wait_until(timeout, || {
        let left = living();
        for &pid in &left {
            // A process that we cannot signal keeps running, which is reported.
            let _ = os::send(pid, signal);
        }
        resume(&left);
        left.is_empty()
    })
}

fn resume(stopped: &[Pid]) {
    for &pid in stopped {
        // As above.
        let _ = os::send(pid, Signal::Continue);
    }
}

/// Removes the stale server directories in `parents`, and ends the processes in them. Returns the
/// removed paths. Only logs failures, since they must not prevent a new server from starting. Ends
/// within a time limit: a file system can hold up any access to it, so the sweep has its own
/// thread, which is abandoned after the limit.
pub(crate) fn stale(parents: &[PathBuf], account: &OsAccount) -> Vec<PathBuf> {
    stale_of(parents, &account.owners())
}

/// As [`stale`], those of these owners (uids).
pub(crate) fn stale_of(parents: &[PathBuf], owners: &[u32]) -> Vec<PathBuf> {
    let (sender, receiver) = channel();
    let (parents, owners) = (parents.to_owned(), owners.to_owned());
    let deadline = Instant::now() + SWEEP_TIMEOUT;
    let thread = thread::Builder::new()
        .name("pgassay-sweep".to_owned())
        .spawn(move || {
            // After the limit there is no receiver.
            let _ = sender.send(sweep_all(&parents, &owners, deadline));
        });
    let swept = match thread {
        Ok(_) => receiver
            .recv_timeout(SWEEP_TIMEOUT + SWEEP_GRACE)
            .map_err(io::Error::other),
        Err(error) => Err(error),
    };
    swept.unwrap_or_else(|error| {
        tracing::warn!(%error, "the removal of earlier servers did not finish");
        Vec::new()
    })
}

fn sweep_all(parents: &[PathBuf], owners: &[u32], deadline: Instant) -> Vec<PathBuf> {
    let mut removed = Vec::new();
    let found = parents
        .iter()
        .flat_map(|parent| server_dir::server_dirs_in(parent, owners));
    for path in found {
        if Instant::now() > deadline {
            tracing::warn!(
                "there are many directories of earlier servers; the next start continues"
            );
            break;
        }
        if let Err(error) = sweep_one(&path, owners, deadline, &mut removed) {
            let path = path.display();
            tracing::warn!(%path, %error, "cannot remove the directory of an earlier server");
        }
    }
    if !removed.is_empty() {
        tracing::info!(?removed, "removed the directories of earlier servers");
    }
    removed
}

fn sweep_one(
    path: &Path,
    owners: &[u32],
    deadline: Instant,
    removed: &mut Vec<PathBuf>,
) -> io::Result<()> {
    let Some(place) = ServerDir::adopt(path, owners)? else {
        return Ok(());
    };
    // The data first: only the socket's directory refers to them.
    if let Some(data) = data_elsewhere(&place)? {
        match ServerDir::adopt(&data, &trusted_by(&place, owners)?) {
            Ok(Some(data)) => remove_server(&data, deadline, removed)?,
            // In use, or not a server directory of this user.
            Ok(None) if data.exists() => return Ok(()),
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    remove_server(&place, deadline, removed)
}

fn remove_server(
    place: &ServerDir,
    deadline: Instant,
    removed: &mut Vec<PathBuf>,
) -> io::Result<()> {
    end_processes(place)?;
    place.remove(deadline)?;
    removed.push(place.path().to_owned());
    Ok(())
}

/// The directory that a socket's directory refers to, if it refers to one.
fn data_elsewhere(place: &ServerDir) -> io::Result<Option<PathBuf>> {
    match place.directory().read_small_file(DATA_LOCATION_FILE) {
        Ok(text) => Ok(Some(PathBuf::from(text)).filter(|path| path.is_absolute())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The owners that a directory's file can refer to: its own owner, who wrote the file or could have
/// replaced it. A directory of the current user is not yet handed over, and can refer to both.
fn trusted_by(place: &ServerDir, owners: &[u32]) -> io::Result<Vec<u32>> {
    let owner = place.owner()?;
    Ok(if owner == os::effective_uid() {
        owners.to_owned()
    } else {
        vec![owner]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Processes that other tests start hold our locks between fork and exec.
    const SOON: Duration = Duration::from_secs(5);

    #[test]
    fn only_stale_directories_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let account = OsAccount::choose(None).unwrap();
        let in_use = ServerDir::create(parent.path()).unwrap();
        let left = ServerDir::create(parent.path()).unwrap().path().to_owned();
        std::fs::write(left.join("file"), "x").unwrap();
        let mut removed = Vec::new();
        wait_until(SOON, || {
            removed.extend(stale(&[parent.path().to_owned()], &account));
            !removed.is_empty()
        });
        assert_eq!(removed, [left.as_path()]);
        assert!(!left.exists() && in_use.path().exists());
    }

    #[test]
    fn data_in_another_location_are_found_through_the_socket_directory() {
        let parent = tempfile::tempdir().unwrap();
        let disk = tempfile::tempdir().unwrap();
        let account = OsAccount::choose(None).unwrap();
        let socket = ServerDir::create(parent.path()).unwrap().path().to_owned();
        let data = ServerDir::create(disk.path()).unwrap().path().to_owned();
        std::fs::write(socket.join(DATA_LOCATION_FILE), data.to_str().unwrap()).unwrap();
        wait_until(SOON, || {
            stale(&[parent.path().to_owned()], &account);
            !socket.exists()
        });
        assert!(!socket.exists() && !data.exists());
    }

    #[test]
    fn waiting_ends_at_the_timeout() {
        let start = Instant::now();
        assert!(!wait_until(Duration::from_millis(30), || false));
        assert!(start.elapsed() >= Duration::from_millis(30));
    }
}
