//! Samples the state of a process at no cost to it: whether it is blocked, and at which call site.
//!
//! `/proc/PID/syscall` has the stack pointer and the instruction pointer of a process that is off
//! CPU (`proc_pid_syscall` in Linux's `fs/proc/base.c`); its memory has the stack and, for a server
//! process, the wait event. Both require ptrace(2) access; without it only the state is known.

use crate::arch::{REGS_COUNT, user_regs};
use crate::proc::files::read_state;
use crate::proc::memory;
use crate::waits::reader::WaitReader;
use std::fs;

/// A state sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StateSample {
    /// On CPU or in the run queue.
    Runnable,
    /// Blocked.
    Blocked {
        /// The call site, if readable.
        place: Option<CodeLocation>,
        /// `wait_event_info` at the same time, if readable.
        wait: Option<u32>,
    },
}

/// The user instruction pointer and stack pointer of a blocked process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CodeLocation {
    pub ip: u64,
    pub sp: u64,
}

impl StateSample {
    /// Samples a process; `None` if it has ended.
    pub fn at(pid: u32, waits: Option<&WaitReader>) -> Option<Self> {
        match read_code_location(pid) {
            Ok(Some(place)) => {
                let wait = waits.and_then(|reader| reader.read(pid).ok());
                // The wait event belongs to this call site only if the process is still at it.
                let stays =
                    wait.is_some() && read_code_location(pid).is_ok_and(|it| it == Some(place));
                Some(Self::Blocked {
                    place: Some(place),
                    wait: wait.filter(|_| stays),
                })
            }
            Ok(None) => Some(Self::Runnable),
            Err(_) => match read_state(pid).ok()? {
                b'R' => Some(Self::Runnable),
                b'X' | b'Z' => None,
                _ => Some(Self::Blocked {
                    place: None,
                    wait: waits.and_then(|reader| reader.read(pid).ok()),
                }),
            },
        }
    }
}

impl CodeLocation {
    /// The code location in the user registers of a sample.
    pub fn of(regs: &[u64; REGS_COUNT]) -> Self {
        let regs = user_regs(regs);
        Self {
            ip: regs.ip,
            sp: regs.sp,
        }
    }
}

/// The call site of a blocked process; `None` if it is runnable.
fn read_code_location(pid: u32) -> std::io::Result<Option<CodeLocation>> {
    let text = fs::read_to_string(format!("/proc/{pid}/syscall"))?;
    Ok(parse_code_location(&text))
}

fn parse_code_location(text: &str) -> Option<CodeLocation> {
    let mut words = text.split_whitespace().rev();
    let mut hex = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let (ip, sp) = (hex()?, hex()?);
    Some(CodeLocation { ip, sp })
}

/// The stack of a process blocked at a call site: up to `limit` bytes from its stack pointer
/// upward. `None` if it has left the call site in the meantime.
pub(crate) fn stack_at(pid: u32, place: CodeLocation, limit: usize) -> Option<Vec<u8>> {
    let mut stack = vec![0; limit];
    let read = memory::read_some(pid, place.sp, &mut stack).ok()?;
    stack.truncate(read);
    let stays = read_code_location(pid).is_ok_and(|it| it == Some(place));
    stays.then_some(stack)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    #[test]
    fn the_call_site_is_the_last_two_numbers() {
        let text = "0 0x3 0x55 0x1 0x0 0x0 0x0 0x7ffd10 0x7f0020\n";
        let place = CodeLocation {
            ip: 0x7f_0020,
            sp: 0x7f_fd10,
        };
        assert_eq!(parse_code_location(text), Some(place));
        assert_eq!(parse_code_location("-1 0x7ffd10 0x7f0020\n"), Some(place));
        assert_eq!(parse_code_location("running\n"), None);
    }

    #[test]
    fn a_sleeping_child_is_blocked_and_its_stack_is_readable() {
        let mut child = Command::new("sleep")
            .arg("60")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut look = None;
        for _ in 0..200 {
            std::thread::sleep(Duration::from_millis(5));
            look = StateSample::at(child.id(), None);
            let is_asleep = fs::read_to_string(format!("/proc/{}/wchan", child.id()))
                .is_ok_and(|text| text.contains("sleep"));
            if is_asleep || matches!(look, Some(StateSample::Blocked { .. })) {
                break;
            }
        }
        let stack = match look {
            Some(StateSample::Blocked {
                place: Some(place), ..
            }) => stack_at(child.id(), place, 4096),
            other => panic!("{other:?}"),
        };
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(stack.is_none_or(|stack| !stack.is_empty()));
        assert_eq!(StateSample::at(1 << 23, None), None);
    }
}
