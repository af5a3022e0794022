//! The capabilities of root, or of a program with file capabilities, that pgassay keeps, and where it
//! uses them; see capabilities(7).
//!
//! A program calls [`keep`] before it starts a thread, and has given up all others for good. Of those
//! that it keeps, only the ones of [`Purpose::Rest`] are in effect all the time. The others are in effect
//! while a [`Raised`] of their [`Purpose`] exists, in its thread only. Threads of the load call
//! [`rest_in_load`], and those that are confined [`give_up_all`].
//!
//! A [`UnopenedFile`] is one that other users may control, and a [`FileToWrite`] one that a user named in a directory
//! where others may have put something.
//!
//! Without capabilities, as for most users, all of this does nothing. A program that does not call
//! [`keep`], as one that embeds the laboratory, has what it had before.

mod file_to_write;
mod unopened_file;

use std::io;
use std::marker::PhantomData;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};

pub use file_to_write::FileToWrite;
pub use unopened_file::UnopenedFile;

/// What pgassay uses capabilities for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// All the time: files and processes of other users.
    Rest,
    /// Starts programs as the server's user.
    Users,
    /// Hands directories over to the server's user, and programs to root.
    Owners,
    /// Ends processes of the server's user.
    Signals,
    /// Confines the thread that unpacks an archive.
    Confinement,
    /// Removes the shared memory of the server's user.
    SharedMemory,
    /// Opens perf events and tracepoints, and reads the kernel's symbols.
    Sampling,
    /// Opens files that are mapped but deleted.
    MappedFiles,
    /// Raises the priority of threads that sample.
    Priority,
}

impl Purpose {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Rest,
        Self::Users,
        Self::Owners,
        Self::Signals,
        Self::Confinement,
        Self::SharedMemory,
        Self::Sampling,
        Self::MappedFiles,
        Self::Priority,
    ];
    /// Those of commands that only observe servers, and start none.
    pub const OF_OBSERVERS: [Self; 4] = [
        Self::Rest,
        Self::Sampling,
        Self::MappedFiles,
        Self::Priority,
    ];

    /// Its capabilities, as `CAP_KILL`.
    pub fn names(self) -> Vec<String> {
        names(self.set())
    }

    fn set(self) -> CapabilitySet {
        use CapabilitySet as Set;
        match self {
            Self::Rest => {
                Set::DAC_OVERRIDE
                    | Set::DAC_READ_SEARCH
                    | Set::FOWNER
                    | Set::SYS_PTRACE
                    | Set::IPC_LOCK
            }
            Self::Users => Set::SETUID | Set::SETGID,
            Self::Owners => Set::CHOWN,
            Self::Signals => Set::KILL,
            Self::Confinement => Set::SETUID | Set::SETGID | Set::SYS_CHROOT,
            Self::SharedMemory => Set::IPC_OWNER | Set::SYS_ADMIN,
            Self::Sampling => Set::PERFMON | Set::SYSLOG | Set::SYS_ADMIN,
            Self::MappedFiles => Set::CHECKPOINT_RESTORE | Set::SYS_ADMIN,
            Self::Priority => Set::SYS_NICE,
        }
    }
}

/// What the threads of the load keep: rings and their buffers count as locked memory.
const LOAD: CapabilitySet = CapabilitySet::IPC_LOCK;

/// What programs have that root starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartedPrograms {
    /// No more than what is kept.
    Limited,
    /// All of root's capabilities.
    Unlimited,
}

/// Gives up all capabilities but those of `purposes`, for good, and lowers those that are not of
/// [`Purpose::Rest`]. For the start of a program: of a process with several threads, only the calling one
/// changes.
///
/// # Errors
/// The system's.
pub fn keep(purposes: &[Purpose], programs: StartedPrograms) -> io::Result<()> {
    let kept = union(purposes);
    let sets = capabilities(None)?;
    // Otherwise there is nothing to give up, and this is not permitted.
    if programs == StartedPrograms::Limited && sets.effective.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all().difference(kept) {
            match remove_capability_from_bounding_set(capability) {
                // An older kernel does not know it.
                Ok(()) | Err(rustix::io::Errno::INVAL) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    let permitted = sets.permitted & kept;
    Ok(set_capabilities(
        None,
        CapabilitySets {
            effective: permitted & Purpose::Rest.set(),
            permitted,
            inheritable: CapabilitySet::empty(),
        },
    )?)
}

fn union(purposes: &[Purpose]) -> CapabilitySet {
    let all = purposes.iter().map(|purpose| purpose.set());
    all.fold(CapabilitySet::empty(), |kept, set| kept | set)
}

/// Lets a command's program have no more capabilities than those of `purposes`, although it runs as root.
pub fn limit(command: &mut Command, purposes: &[Purpose]) {
    let kept = union(purposes);
    let lower = move || {
        let permitted = capabilities(None)?.permitted;
        if permitted.is_empty() {
            return Ok(());
        }
        let permitted = permitted & kept;
        // Else exec gives root's programs all that this process's programs may have.
        set_no_new_privs(true)?;
        Ok(set_capabilities(
            None,
            CapabilitySets {
                effective: permitted,
                permitted,
                inheritable: CapabilitySet::empty(),
            },
        )?)
    };
    // SAFETY: the closure runs between fork and exec, where only async-signal-safe calls are allowed: it
    // makes three system calls, and allocates nothing.
    unsafe {
        command.pre_exec(lower);
    }
}

/// Lowers the calling thread's capabilities to those that a thread of the load needs. It may still raise others.
///
/// # Errors
/// The system's.
pub fn rest_in_load() -> io::Result<()> {
    let sets = capabilities(None)?;
    let effective = sets.effective & LOAD;
    Ok(set_capabilities(
        None,
        CapabilitySets { effective, ..sets },
    )?)
}

/// Gives up all capabilities of the calling thread, for good.
///
/// # Errors
/// The system's.
pub fn give_up_all() -> io::Result<()> {
    let none = CapabilitySet::empty();
    Ok(set_capabilities(
        None,
        CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        },
    )?)
}

/// Puts the capabilities of a purpose into effect, in the calling thread, until the result is dropped. Those
/// that the program does not have stay out: what needs them fails with the system's error.
pub fn raise(purpose: Purpose) -> Raised {
    let raised = capabilities(None).ok().and_then(|sets| {
        let added = (purpose.set() & sets.permitted).difference(sets.effective);
        let effective = sets.effective | added;
        let set = || set_capabilities(None, CapabilitySets { effective, ..sets });
        (!added.is_empty() && set().is_ok()).then_some(added)
    });
    Raised {
        added: raised.unwrap_or(CapabilitySet::empty()),
        of_thread: PhantomData,
    }
}

/// Capabilities that are in effect; see [`raise`].
#[derive(Debug)]
#[must_use = "they are lowered when this is dropped"]
pub struct Raised {
    added: CapabilitySet,
    /// Capabilities belong to a thread.
    of_thread: PhantomData<*const ()>,
}

impl Drop for Raised {
    fn drop(&mut self) {
        if self.added.is_empty() {
            return;
        }
        // It cannot fail: these are fewer than before. Others may have been lowered in between.
        if let Ok(sets) = capabilities(None) {
            let effective = sets.effective.difference(self.added);
            let _ = set_capabilities(None, CapabilitySets { effective, ..sets });
        }
    }
}

/// The capabilities of the calling thread, as `CAP_KILL`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// In effect now.
    pub in_effect: Vec<String>,
    /// The others that can be raised.
    pub when_needed: Vec<String>,
}

impl Capabilities {
    /// Reads them.
    ///
    /// # Errors
    /// The system's.
    pub fn read() -> io::Result<Self> {
        let sets = capabilities(None)?;
        Ok(Self {
            in_effect: names(sets.effective),
            when_needed: names(sets.permitted.difference(sets.effective)),
        })
    }
}

fn names(set: CapabilitySet) -> Vec<String> {
    set.iter_names()
        .map(|(name, _)| format!("CAP_{name}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a test in another thread, since what is given up does not come back. None without capabilities.
    fn in_thread<T: Send>(test: impl FnOnce() -> T + Send) -> Option<T> {
        let sets = capabilities(None).unwrap();
        if !sets.permitted.contains(Purpose::Signals.set()) {
            pgassay_test_support::skip("capabilities", "this user has none");
            return None;
        }
        std::thread::scope(|scope| Some(scope.spawn(test).join().unwrap()))
    }

    #[test]
    fn what_is_not_kept_is_given_up_for_good() {
        in_thread(|| {
            keep(&[Purpose::Rest, Purpose::Signals], StartedPrograms::Limited).unwrap();
            let held = Capabilities::read().unwrap();
            assert!(held.in_effect.iter().any(|name| name == "CAP_DAC_OVERRIDE"));
            assert_eq!(held.when_needed, ["CAP_KILL"]);
            let _raised = raise(Purpose::Owners);
            assert_eq!(Capabilities::read().unwrap(), held);
        });
    }

    #[test]
    fn a_capability_is_in_effect_until_the_guard_is_dropped() {
        in_thread(|| {
            keep(&Purpose::ALL, StartedPrograms::Limited).unwrap();
            let rest = Capabilities::read().unwrap();
            let outer = raise(Purpose::Users);
            let inner = raise(Purpose::Confinement);
            let effect = Capabilities::read().unwrap().in_effect;
            assert!(
                effect.contains(&"CAP_SETUID".to_owned())
                    && effect.contains(&"CAP_SYS_CHROOT".to_owned())
            );
            drop(inner);
            let effect = Capabilities::read().unwrap().in_effect;
            assert!(
                effect.contains(&"CAP_SETUID".to_owned())
                    && !effect.contains(&"CAP_SYS_CHROOT".to_owned())
            );
            drop(outer);
            assert_eq!(Capabilities::read().unwrap(), rest);
        });
    }

    #[test]
    fn a_guard_gives_back_nothing_that_was_lowered_in_between() {
        in_thread(|| {
            keep(&Purpose::ALL, StartedPrograms::Limited).unwrap();
            let raised = raise(Purpose::Confinement);
            give_up_all().unwrap();
            drop(raised);
            let nothing = Capabilities {
                in_effect: Vec::new(),
                when_needed: Vec::new(),
            };
            assert_eq!(Capabilities::read().unwrap(), nothing);
        });
    }

    #[test]
    fn a_thread_of_the_load_has_no_right_to_files_or_processes() {
        in_thread(|| {
            keep(&Purpose::ALL, StartedPrograms::Limited).unwrap();
            rest_in_load().unwrap();
            assert_eq!(Capabilities::read().unwrap().in_effect, ["CAP_IPC_LOCK"]);
        });
    }

    #[test]
    fn a_program_of_root_has_only_what_it_needs() {
        in_thread(|| {
            keep(&Purpose::ALL, StartedPrograms::Limited).unwrap();
            let permitted = |purposes: &[Purpose]| {
                let mut command = Command::new("grep");
                command.args(["-h", "CapPrm\\|CapEff", "/proc/self/status"]);
                limit(&mut command, purposes);
                let printed = String::from_utf8(command.output().unwrap().stdout).unwrap();
                let masks = printed.split_whitespace().filter(|it| !it.ends_with(':'));
                masks
                    .map(|mask| u64::from_str_radix(mask, 16).unwrap())
                    .collect::<Vec<_>>()
            };
            assert_eq!(permitted(&[Purpose::Signals]), [1 << 5, 1 << 5]);
            assert_eq!(permitted(&[]), [0, 0]);
        });
    }

    #[test]
    fn another_thread_is_not_changed() {
        in_thread(|| {
            let before = Capabilities::read().unwrap();
            std::thread::scope(|scope| scope.spawn(give_up_all).join().unwrap().unwrap());
            assert_eq!(Capabilities::read().unwrap(), before);
        });
    }
}
