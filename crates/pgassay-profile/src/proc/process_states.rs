//! Reads the states of processes again and again.

use crate::proc::files::{line_of, read_state, state_in};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// Few enough for the usual limit of 1024 open files.
const FILES_MAX: usize = 256;

/// Keeps the files of processes open, which halves the cost of reading their states: 9 instead of 18 µs on a
/// saturated machine.
#[derive(Debug, Default)]
pub struct ProcessStates {
    /// `/proc/PID/stat`. An open file never becomes that of a later process with the same PID.
    files: HashMap<u32, File>,
}

impl ProcessStates {
    /// The letter of a process's state, as [`read_state`].
    pub(crate) fn read(&mut self, pid: u32) -> io::Result<u8> {
        if let Some(file) = self.files.get(&pid) {
            if let Ok(state) = state_of(file) {
                return Ok(state);
            }
            // It has ended.
            self.files.remove(&pid);
        }
        if self.files.len() >= FILES_MAX {
            return read_state(pid);
        }
        let file = File::open(format!("/proc/{pid}/stat"))?;
        let state = state_of(&file)?;
        self.files.insert(pid, file);
        Ok(state)
    }

    /// Closes the files of all processes but these.
    pub fn keep_only(&mut self, pids: &[u32]) {
        if !self.files.is_empty() {
            let files = &mut self.files;
            let kept = pids.iter().filter_map(|pid| files.remove_entry(pid));
            self.files = kept.collect();
        }
    }
}

fn state_of(file: &File) -> io::Result<u8> {
    line_of(|line| file.read_at(line, 0), state_in)?
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn states_are_those_of_now_and_end_with_the_process() {
        let mut states = ProcessStates::default();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        let stopped = |states: &mut ProcessStates, wanted: u8| {
            (0..2000).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(1));
                states.read(pid).unwrap() == wanted
            })
        };
        assert!(stopped(&mut states, b'S'));
        // SAFETY: a signal to our own child.
        unsafe { libc::kill(pid.cast_signed(), libc::SIGSTOP) };
        assert!(
            stopped(&mut states, b'T'),
            "the open file shows a new state"
        );
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(states.read(pid).is_err());
        assert!(!states.files.contains_key(&pid));
        states.keep_only(&[pid]);
        assert!(states.files.is_empty());
    }
}
