//! The operating-system calls that the standard library does not offer: every `unsafe` of this
//! crate is here, each with the reason why it is sound.

use std::ffi::{CStr, CString};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// A process's number, as the kernel counts them.
pub type Pid = i32;

/// An entry of the password database: what a server needs to run as somebody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PasswordEntry {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
}

/// Signals that PostgreSQL gives a meaning to; see "Shutting Down the Server" in its manual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Fast shutdown: roll back, write a checkpoint, end.
    Fast = libc::SIGINT as isize,
    /// Immediate shutdown: end now, recover at the next start.
    Immediate = libc::SIGQUIT as isize,
    /// Ends one process that has no postmaster over it, in order.
    Terminate = libc::SIGTERM as isize,
    /// No shutdown at all.
    Kill = libc::SIGKILL as isize,
}

pub(crate) fn effective_uid() -> u32 {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// Sends a signal; a process that is gone already is no error.
pub(crate) fn send(pid: Pid, signal: Signal) -> io::Result<()> {
    // SAFETY: kill takes two integers and touches no memory of ours.
    if unsafe { libc::kill(pid, signal as libc::c_int) } == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        error => Err(error),
    }
}

/// Bytes from the kernel's random number generator.
pub(crate) fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0_u8; N];
    // SAFETY: the pointer and the length describe `bytes`, which lives through the call. Up to
    // 256 bytes come at once, never in part.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    if usize::try_from(got).is_ok_and(|got| got == N) {
        Ok(bytes)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Writes out everything that the file system of `file` holds back, so that a rename that
/// follows can't reach the disk before the files that it publishes.
pub(crate) fn sync_file_system(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as `file` is borrowed.
    if unsafe { libc::syncfs(file.as_raw_fd()) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Reads a text file, unless it is a link.
pub(crate) fn read_no_link(path: &Path) -> io::Result<String> {
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

/// Makes the command's process the leader of a session of its own, out of reach of the
/// terminal's Ctrl-C and hang-up, and lets it keep `inherited` open.
pub(crate) fn detach(command: &mut Command, inherited: &[BorrowedFd<'_>]) {
    let keep: Vec<RawFd> = inherited.iter().map(AsRawFd::as_raw_fd).collect();
    // SAFETY: the closure runs between fork and exec, where only async-signal-safe calls are
    // allowed: setsid and fcntl are, and nothing is allocated.
    unsafe {
        command.pre_exec(move || {
            if libc::setsid() == -1 {
                return Err(io::Error::last_os_error());
            }
            for &fd in &keep {
                if libc::fcntl(fd, libc::F_SETFD, 0) == -1 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
}

pub(crate) fn user_by_name(name: &str) -> io::Result<Option<PasswordEntry>> {
    let name = CString::new(name)?;
    look_up(|entry, buffer, result| {
        // SAFETY: as in `look_up`; `name` ends with a NUL and lives through the call.
        unsafe {
            libc::getpwnam_r(
                name.as_ptr(),
                entry,
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                result,
            )
        }
    })
}

pub(crate) fn user_by_id(uid: u32) -> io::Result<Option<PasswordEntry>> {
    look_up(|entry, buffer, result| {
        // SAFETY: as in `look_up`.
        unsafe { libc::getpwuid_r(uid, entry, buffer.as_mut_ptr().cast(), buffer.len(), result) }
    })
}

fn look_up(
    call: impl Fn(*mut libc::passwd, &mut [u8], *mut *mut libc::passwd) -> libc::c_int,
) -> io::Result<Option<PasswordEntry>> {
    let mut buffer = vec![0_u8; 1024];
    loop {
        // SAFETY: passwd is integers and pointers, for which zero is a value.
        let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
        let mut result = std::ptr::null_mut();
        match call(&raw mut entry, &mut buffer, &raw mut result) {
            0 if result.is_null() => return Ok(None),
            0 => {
                // SAFETY: the call succeeded, so pw_name points at a NUL-terminated string
                // inside `buffer`.
                let name = unsafe { CStr::from_ptr(entry.pw_name) };
                let name = name.to_string_lossy().into_owned();
                return Ok(Some(PasswordEntry {
                    name,
                    uid: entry.pw_uid,
                    gid: entry.pw_gid,
                }));
            }
            libc::ERANGE if buffer.len() < 1 << 20 => buffer.resize(buffer.len() * 4, 0),
            // These mean "no such user" on some systems; see getpwnam(3).
            libc::ENOENT | libc::ESRCH => return Ok(None),
            code => return Err(io::Error::from_raw_os_error(code)),
        }
    }
}

/// The first bytes of a System V segment, if it has this key and was made by this process.
pub(crate) fn shared_memory<const N: usize>(id: i32, key: i32, creator: Pid) -> Option<[u8; N]> {
    // SAFETY: shmid_ds is integers, for which zero is a value, and the call fills it.
    let state = unsafe {
        let mut state: libc::shmid_ds = std::mem::zeroed();
        (libc::shmctl(id, libc::IPC_STAT, &raw mut state) == 0).then_some(state)?
    };
    if state.shm_perm.__key != key || state.shm_cpid != creator || state.shm_segsz < N {
        return None;
    }
    // SAFETY: the kernel chooses a free address and maps the segment there for reading, at least
    // N bytes of it. They may change while they are copied, so they are read as plain bytes with
    // a volatile read, and the mapping is not used after it is undone.
    unsafe {
        let address = libc::shmat(id, std::ptr::null(), libc::SHM_RDONLY);
        if address.addr() == usize::MAX {
            return None;
        }
        let bytes = address.cast::<[u8; N]>().read_volatile();
        libc::shmdt(address);
        Some(bytes)
    }
}

/// Removes a System V segment; one that is gone already is fine.
pub(crate) fn remove_shared_memory(id: i32) {
    // SAFETY: removing takes a number and no memory of ours.
    unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_in_the_password_database_both_ways() {
        let root = user_by_id(0).unwrap().unwrap();
        assert_eq!(user_by_name(&root.name).unwrap().unwrap(), root);
        assert_eq!(user_by_name("no-such-user-here").unwrap(), None);
    }

    #[test]
    fn random_bytes_differ() {
        assert_ne!(random_bytes::<16>().unwrap(), random_bytes::<16>().unwrap());
    }

    #[test]
    fn a_signal_to_a_process_that_ended_is_no_error() {
        let mut child = Command::new("true").spawn().unwrap();
        let pid = Pid::try_from(child.id()).unwrap();
        child.wait().unwrap();
        send(pid, Signal::Immediate).unwrap();
    }
}
