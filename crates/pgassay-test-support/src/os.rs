//! Users, signals, processes and refused system calls.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The user ID of `nobody`: PostgreSQL refuses to run as root.
pub const NOBODY: u32 = 65_534;

/// Whether the tests run as root.
pub fn is_root() -> bool {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Sends a signal to a process that the test started, or to its group if `pid` is negative.
pub fn kill(pid: i32, signal: libc::c_int) {
    assert!(pid.abs() > 1, "{pid} is not a process of a test");
    // SAFETY: kill takes two integers and touches no memory of ours.
    let sent = unsafe { libc::kill(pid, signal) };
    assert_eq!(sent, 0, "signal {signal} to {pid}");
}

/// Whether a process exists and is not a zombie.
pub fn is_running(pid: i32) -> bool {
    fs::read_link(format!("/proc/{pid}/exe")).is_ok()
}

/// The processes whose working directory is in a directory.
pub fn processes_in(directory: &Path) -> Vec<i32> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(directory))
    })
    .collect()
}

/// The file of this name in a directory of `PATH`.
pub fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
}

/// Makes these system calls of a program fail with this error, as containers do.
pub fn refuse(command: &mut Command, calls: &[libc::c_long], errno: i32) {
    let statement = |code: u32, jump_if: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt: jump_if,
        jf: 0,
        k,
    };
    // The system call number is the first word of the filter's input.
    let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    for (at, call) in calls.iter().enumerate() {
        let behind = (calls.len() - at) as u8;
        let is_it = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        filter.push(statement(is_it, behind, *call as u32));
    }
    let end = |what: u32| statement(libc::BPF_RET | libc::BPF_K, 0, what);
    filter.push(end(libc::SECCOMP_RET_ALLOW));
    filter.push(end(libc::SECCOMP_RET_ERRNO | errno as u32));
    // SAFETY: prctl is safe to call between fork and exec, and the filter lives in the closure.
    unsafe {
        command.pre_exec(move || {
            let program = libc::sock_fprog {
                len: filter.len() as u16,
                filter: filter.as_mut_ptr(),
            };
            if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(
                    libc::PR_SET_SECCOMP,
                    libc::SECCOMP_MODE_FILTER,
                    &raw const program,
                ) != 0
            {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
}
