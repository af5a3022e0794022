//! Lets a backend fall asleep before its next request is sent.
//!
//! A backend first tries to read and waits only if nothing is there, so a client that answers at
//! once saves it the wait, and one that is late does not: some 500 instructions that depend on who
//! gets a processor when. Where the request always comes late the path is always the same.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pgassay_load::RequestHook;

/// Longer than any backend needs between its answer and its sleep; then the request is sent anyhow.
const TIMEOUT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_micros(20);

/// For [`pgassay_load::Crew::before_requests`].
pub fn hook() -> RequestHook {
    Arc::new(until_asleep)
}

/// Waits until a process sleeps, as far as that can be seen.
pub fn until_asleep(pid: i32) {
    let path = format!("/proc/{pid}/stat");
    let start = Instant::now();
    // A process that is gone is told by the connection's end.
    while let Ok(stat) = fs::read_to_string(&path)
        && state(&stat) != Some('S')
        && start.elapsed() < TIMEOUT
    {
        std::thread::sleep(POLL);
    }
}

/// The state in the text of `/proc/PID/stat`; the program's name before it may hold anything.
fn state(stat: &str) -> Option<char> {
    stat.rsplit_once(") ")?.1.chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeping_process_is_told_from_a_running_one() {
        assert_eq!(state("7 (a) R b) S 1 7"), Some('S'));
        assert_eq!(state("7 (callgrind-amd64-) R 1 7"), Some('R'));
        let mut child = std::process::Command::new("sleep")
            .arg("30")
            .spawn()
            .expect("sleep");
        let pid = i32::try_from(child.id()).expect("a number");
        let start = Instant::now();
        until_asleep(pid);
        assert!(start.elapsed() < TIMEOUT);
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        until_asleep(pid);
    }
}
