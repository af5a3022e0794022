//! Ends what is left of a server and removes its directories: after our own servers, and after
//! those that a power cut, or the end of a process and its keeper, left behind.

use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::account::Account;
use crate::os::{self, Pid, Signal};
use crate::place::{self, Place};
use crate::processes;
use crate::shared_memory::SharedMemory;

/// How long an immediate shutdown may take before the processes are killed.
const IMMEDIATE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long processes without a postmaster (initdb's, mostly) may take to end in order.
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long killed processes may take to go.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(10);

/// In a socket's directory: names the place of the server that it belongs to, for a sweep that
/// does not know where servers were told to keep their data.
pub(crate) const ELSEWHERE: &str = "elsewhere";

/// Ends every process of PostgreSQL that lives in `base`: in order, so that shared memory is given
/// back, then the hard way; and removes the shared memory of those that ended the hard way.
pub(crate) fn end_processes(base: &Path) -> io::Result<()> {
    let memory = SharedMemory::of(base);
    if let Some(postmaster) = processes::postmaster_of(base) {
        os::send(postmaster, Signal::Immediate)?;
        wait_until(IMMEDIATE_TIMEOUT, || !processes::lives_in(postmaster, base));
    }
    // A server that initdb runs does not clean up at a signal, but ends in order with its input.
    let initdb = || processes::living_in(base, &["initdb"]);
    signal_until_gone(initdb, Signal::Terminate, TERMINATE_TIMEOUT);
    let all = || processes::living_in(base, &processes::PROGRAMS);
    let ended = signal_until_gone(all, Signal::Terminate, TERMINATE_TIMEOUT)
        || signal_until_gone(all, Signal::Kill, KILL_TIMEOUT);
    if !ended {
        return Err(io::Error::other("a process of the server does not end"));
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
            // A process that may not be signalled goes on living, which is what is reported.
            let _ = os::send(pid, signal);
        }
        left.is_empty()
    })
}

/// Removes the stale places in these directories, and what still runs in them. Gives the paths
/// that were removed. What cannot be removed is logged: it must not keep a new server from
/// starting.
pub(crate) fn stale(parents: &[PathBuf], account: &Account) -> Vec<PathBuf> {
    let mut removed = Vec::new();
    for path in parents.iter().flat_map(|parent| place::places_in(parent)) {
        let elsewhere = std::fs::read_to_string(path.join(ELSEWHERE))
            .ok()
            .map(PathBuf::from);
        // The data first: once the socket's place is gone nothing leads to them any more.
        for path in elsewhere.into_iter().chain([path]) {
            if !path.exists() {
                continue;
            }
            match sweep_one(&path, account) {
                Ok(true) => removed.push(path),
                Ok(false) => break,
                Err(error) => {
                    let path = path.display();
                    tracing::warn!(%path, %error, "cannot remove what an earlier server left");
                    break;
                }
            }
        }
    }
    if !removed.is_empty() {
        tracing::info!(?removed, "removed what earlier servers left");
    }
    removed
}

fn sweep_one(path: &Path, account: &Account) -> io::Result<bool> {
    let Some(place) = Place::adopt(path, account)? else {
        return Ok(false);
    };
    end_processes(place.path())?;
    place.remove()?;
    Ok(true)
}

/// Asks every few milliseconds until the answer is yes or the time is over; gives the answer.
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

    /// Other tests start processes, and between fork and exec those hold our locks for a moment.
    const SOON: Duration = Duration::from_secs(5);

    #[test]
    fn stale_places_go_and_places_in_use_stay() {
        let parent = tempfile::tempdir().unwrap();
        let account = Account::choose(None).unwrap();
        let in_use = Place::create(parent.path()).unwrap();
        let left = Place::create(parent.path()).unwrap().path().to_owned();
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
    fn a_stale_socket_directory_leads_to_the_data_elsewhere() {
        let parent = tempfile::tempdir().unwrap();
        let disk = tempfile::tempdir().unwrap();
        let account = Account::choose(None).unwrap();
        let socket = Place::create(parent.path()).unwrap().path().to_owned();
        let data = Place::create(disk.path()).unwrap().path().to_owned();
        std::fs::write(socket.join(ELSEWHERE), data.to_str().unwrap()).unwrap();
        wait_until(SOON, || {
            stale(&[parent.path().to_owned()], &account);
            !socket.exists()
        });
        assert!(!socket.exists() && !data.exists());
    }

    #[test]
    fn waiting_ends_when_the_time_is_over() {
        let start = Instant::now();
        assert!(!wait_until(Duration::from_millis(30), || false));
        assert!(start.elapsed() >= Duration::from_millis(30));
    }
}
