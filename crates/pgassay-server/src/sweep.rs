//! Ends a server's remaining processes and removes its directories: for our own servers, and for
//! those left behind by a power failure or by the end of both a process and its keeper.

use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::account::OsAccount;
use crate::os::{self, Pid, Signal};
use crate::processes;
use crate::server_dir::{self, ServerDir};
use crate::shared_memory::SharedMemory;

/// Time limit of an immediate shutdown; then the processes are terminated or killed.
const IMMEDIATE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for a clean exit of processes without a postmaster (mostly of initdb).
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for the end of killed processes.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(10);

/// A file in a socket's directory with the path of its server directory, for a sweep that does not
/// know the configured location of the data.
pub(crate) const DATA_LOCATION_FILE: &str = "elsewhere";

/// Ends every PostgreSQL process in `base`: first cleanly, so that it releases its shared memory;
/// then by killing it, and removes its shared memory.
pub(crate) fn end_processes(base: &Path) -> io::Result<()> {
    let memory = SharedMemory::of(base);
    if let Some(postmaster) = processes::postmaster_of(base) {
        os::send(postmaster, Signal::Immediate)?;
        wait_until(IMMEDIATE_TIMEOUT, || !processes::lives_in(postmaster, base));
    }
    // A server run by initdb does not clean up on a signal, but exits cleanly when its input ends.
    let initdb = || processes::living_in(base, &["initdb"]);
    signal_until_gone(initdb, Signal::Terminate, TERMINATE_TIMEOUT);
    let all = || processes::living_in(base, &processes::PROGRAMS);
    let ended = signal_until_gone(all, Signal::Terminate, TERMINATE_TIMEOUT)
        || signal_until_gone(all, Signal::Kill, KILL_TIMEOUT);
    if !ended {
        return Err(io::Error::other("a server process did not end"));
    }
    if let Some(memory) = memory {
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
        left.is_empty()
    })
}

/// Removes the stale server directories in `parents`, and ends the processes in them. Returns the
/// removed paths. Only logs failures, since they must not prevent a new server from starting.
pub(crate) fn stale(parents: &[PathBuf], account: &OsAccount) -> Vec<PathBuf> {
    let mut removed = Vec::new();
    for path in parents
        .iter()
        .flat_map(|parent| server_dir::server_dirs_in(parent))
    {
        let elsewhere = std::fs::read_to_string(path.join(DATA_LOCATION_FILE))
            .ok()
            .map(PathBuf::from);
        // The data first: only the socket's directory refers to them.
        for path in elsewhere.into_iter().chain([path]) {
            if !path.exists() {
                continue;
            }
            match sweep_one(&path, account) {
                Ok(true) => removed.push(path),
                Ok(false) => break,
                Err(error) => {
                    let path = path.display();
                    tracing::warn!(%path, %error, "cannot remove the directory of an earlier server");
                    break;
                }
            }
        }
    }
    if !removed.is_empty() {
        tracing::info!(?removed, "removed the directories of earlier servers");
    }
    removed
}

fn sweep_one(path: &Path, account: &OsAccount) -> io::Result<bool> {
    let Some(place) = ServerDir::adopt(path, account)? else {
        return Ok(false);
    };
    end_processes(place.path())?;
    place.remove()?;
    Ok(true)
}

/// Polls `done` every few milliseconds; returns whether it became true within `timeout`.
pub(crate) fn wait_until(timeout: Duration, mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if done() {
            return true;
        }
        if start.elapsed() >= timeout {
            return false;
        }
        sleep(POLL);
    }
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
