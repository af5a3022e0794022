//! Lets a backend fall asleep before the client sends its next request.
//!
//! A backend first tries to read and waits only if there is no data. Whether it waits depends on how
//! fast the client is and makes a difference of about 500 instructions. If the request always comes
//! late, the code path is always the same.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pgassay_load::RequestHook;

/// Longer than any backend takes from its response to its sleep; then the request is sent anyway.
const TIMEOUT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_micros(20);

/// The hook for [`pgassay_load::ClientPool::before_requests`].
pub fn hook() -> RequestHook {
    Arc::new(until_asleep)
}

/// Waits until a process sleeps, if its state is readable.
pub fn until_asleep(pid: i32) {
    let path = format!("/proc/{pid}/stat");
    let start = Instant::now();
    // If the process is gone, the connection reports it.
    while let Ok(stat) = fs::read_to_string(&path)
        && state(&stat) != Some('S')
        && start.elapsed() < TIMEOUT
    {
        std::thread::sleep(POLL);
    }
}

/// The state in `/proc/PID/stat`. The program name before it may contain any character.
fn state(stat: &str) -> Option<char> {
    stat.rsplit_once(") ")?.1.chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeping_process_is_detected() {
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
