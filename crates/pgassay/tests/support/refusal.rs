//! Denies system calls to a program, as containers do.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes these system calls of a program fail with this error.
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
