//! System calls that the standard library does not provide: every `unsafe` block of this crate,
//! each with the reason why it is sound.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};

use pgassay_rights::{self as rights, Purpose, Raised};

use crate::shared_memory::Segment;

/// A process ID.
pub type Pid = i32;

/// An entry of the password database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PasswordEntry {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
}

/// Signals to PostgreSQL; see "Shutting Down the Server" in its manual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Fast shutdown: roll back, write a checkpoint, exit.
    Fast = libc::SIGINT as isize,
    /// Immediate shutdown: exit now, recover at the next start.
    Immediate = libc::SIGQUIT as isize,
    /// Clean exit of a process without a postmaster.
    Terminate = libc::SIGTERM as isize,
    /// Kill, without a shutdown.
    Kill = libc::SIGKILL as isize,
    /// Continue a stopped process, so that it acts on other signals.
    Continue = libc::SIGCONT as isize,
}

pub(crate) fn effective_uid() -> u32 {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

pub(crate) fn effective_gid() -> u32 {
    // SAFETY: as above.
    unsafe { libc::getegid() }
}

/// Sends a signal. Not an error if the process has ended already.
pub(crate) fn send(pid: Pid, signal: Signal) -> io::Result<()> {
    let _raised = rights::raise(Purpose::Signals);
    // SAFETY: kill takes two integers and touches no memory of ours.
    if unsafe { libc::kill(pid, signal as libc::c_int) } == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        error => Err(error),
    }
}

/// Starts a command, which may be one of another user.
pub(crate) fn spawn(command: &mut Command) -> io::Result<Child> {
    let _raised = rights::raise(Purpose::Users);
    command.spawn()
}

/// Bytes from the kernel's random number generator.
pub(crate) fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0_u8; N];
    // SAFETY: the pointer and the length describe `bytes`, which outlives the call. Up to 256
    // bytes are never returned in part.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    if usize::try_from(got).is_ok_and(|got| got == N) {
        Ok(bytes)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Syncs the file system of `file`, so that a subsequent rename cannot reach the disk before the
/// files that it publishes.
pub(crate) fn sync_file_system(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as `file` is borrowed.
    if unsafe { libc::syncfs(file.as_raw_fd()) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Makes the command's process the leader of a new session, which the terminal's Ctrl-C and hangup
/// do not reach, and keeps `inherited` open in it.
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

/// Lets the kernel kill the command's process when the thread that starts it ends, even by SIGKILL. The
/// kernel checks the right to do so when that thread ends, so the result is held until the process has
/// ended: its user can be another one (see `forget_original_parent` in Linux's `kernel/exit.c`).
pub fn end_with_us(command: &mut Command) -> Raised {
    let us = std::process::id();
    // SAFETY: as in `detach`: prctl and getppid are system calls, and the error allocates nothing.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == -1 {
                return Err(io::Error::last_os_error());
            }
            // We can have ended before.
            if u32::try_from(libc::getppid()) != Ok(us) {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        });
    }
    rights::raise(Purpose::Signals)
}

pub(crate) fn user_by_name(name: &str) -> io::Result<Option<PasswordEntry>> {
    let name = CString::new(name)?;
    look_up(|entry, buffer, result| {
        // SAFETY: as in `look_up`; `name` is NUL-terminated and outlives the call.
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
                // SAFETY: the call succeeded, so pw_name points to a NUL-terminated string in
                // `buffer`.
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

/// The state of a System V segment, if it is the described one and belongs to the user `owner` (a
/// uid), who must not be root.
fn segment_state(segment: &Segment, owner: u32) -> Option<libc::shmid_ds> {
    let state = shared_memory_state(segment.id)?;
    let is_it = state.shm_perm.__key == segment.key && state.shm_cpid == segment.creator;
    (is_it && state.shm_perm.uid == owner && owner != 0).then_some(state)
}

fn shared_memory_state(id: i32) -> Option<libc::shmid_ds> {
    let _raised = rights::raise(Purpose::SharedMemory);
    // SAFETY: shmid_ds is integers, for which zero is a value, and the call fills it.
    unsafe {
        let mut state: libc::shmid_ds = std::mem::zeroed();
        (libc::shmctl(id, libc::IPC_STAT, &raw mut state) == 0).then_some(state)
    }
}

/// The first bytes of a System V segment, if it is the described one and belongs to `owner`.
pub(crate) fn shared_memory<const N: usize>(segment: &Segment, owner: u32) -> Option<[u8; N]> {
    if segment_state(segment, owner)?.shm_segsz < N {
        return None;
    }
    let _raised = rights::raise(Purpose::SharedMemory);
    // SAFETY: the kernel chooses a free address and maps at least N bytes of the segment there for
    // reading. They may change while they are copied, so they are read as plain bytes with a
    // volatile read, and the mapping is not used after it is removed.
    unsafe {
        let address = libc::shmat(segment.id, std::ptr::null(), libc::SHM_RDONLY);
        if address.addr() == usize::MAX {
            return None;
        }
        let bytes = address.cast::<[u8; N]>().read_volatile();
        libc::shmdt(address);
        Some(bytes)
    }
}

/// Removes a System V segment, if it is still the described one, belongs to `owner`, and no process
/// uses it. False if a process uses it.
pub(crate) fn remove_shared_memory(segment: &Segment, owner: u32) -> bool {
    let Some(state) = segment_state(segment, owner) else {
        return true;
    };
    if state.shm_nattch > 0 {
        return false;
    }
    let _raised = rights::raise(Purpose::SharedMemory);
    // SAFETY: IPC_RMID takes an id and accesses no memory of ours.
    unsafe { libc::shmctl(segment.id, libc::IPC_RMID, std::ptr::null_mut()) };
    true
}

/// uid of the owner of a System V segment; `None` if it does not exist.
#[cfg(test)]
pub(crate) fn owner_of_segment(id: i32) -> Option<u32> {
    shared_memory_state(id).map(|state| state.shm_perm.uid)
}

/// Confines the file accesses of the calling thread: its root directory becomes `directory`, it has the
/// rights of a user and of no other group, and no capability. Only for root, and for a thread that ends
/// after its task: the other threads are not affected, and there is no way back.
pub(crate) fn confine_thread(directory: &Path, uid: u32, gid: u32) -> io::Result<()> {
    let path = CString::new(directory.as_os_str().as_bytes())?;
    let _raised = rights::raise(Purpose::Confinement);
    let check = |result: libc::c_int| match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: unshare and setgroups take integers and an empty list; the path is NUL-terminated and
    // outlives the calls. setgroups is the system call itself: the library's function would change
    // every thread.
    unsafe {
        check(libc::unshare(libc::CLONE_FS))?;
        check(libc::chroot(path.as_ptr()))?;
        check(libc::chdir(c"/".as_ptr()))?;
        let none = std::ptr::null::<libc::gid_t>();
        if libc::syscall(libc::SYS_setgroups, 0, none) != 0 {
            return Err(io::Error::last_os_error());
        }
        // These two change only the calling thread, and return the previous ID.
        libc::setfsgid(gid);
        libc::setfsuid(uid);
        let is_set = |now: libc::c_int, wanted: u32| u32::try_from(now) == Ok(wanted);
        if is_set(libc::setfsgid(gid), gid) && is_set(libc::setfsuid(uid), uid) {
            return rights::give_up_all();
        }
    }
    Err(io::Error::from_raw_os_error(libc::EPERM))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_found_by_id_and_by_name() {
        let root = user_by_id(0).unwrap().unwrap();
        assert_eq!(user_by_name(&root.name).unwrap().unwrap(), root);
        assert_eq!(user_by_name("no-such-user-here").unwrap(), None);
    }

    #[test]
    fn random_bytes_differ() {
        assert_ne!(random_bytes::<16>().unwrap(), random_bytes::<16>().unwrap());
    }

    #[test]
    fn a_signal_to_an_ended_process_is_not_an_error() {
        let mut child = Command::new("true").spawn().unwrap();
        let pid = Pid::try_from(child.id()).unwrap();
        child.wait().unwrap();
        send(pid, Signal::Immediate).unwrap();
    }
}
