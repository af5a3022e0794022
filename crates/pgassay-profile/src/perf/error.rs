//! Errors of profiling a server, and how to grant the permissions that are missing.

use crate::perf::tracefs::Hidden;
use std::io;
use std::path::PathBuf;

/// Why a sampler cannot be opened or used.
#[derive(Debug, thiserror::Error)]
pub enum SamplerError {
    /// The kernel does not let this user sample other processes; a study continues without stacks.
    #[error("{0}")]
    NotPermitted(NotPermitted),
    /// This kernel or sandbox has no `perf_event_open`.
    #[error(
        "CPU stacks require perf_event_open, which is not available on this system ({source}); \
         in a container, the seccomp profile may block it"
    )]
    Unsupported {
        /// The kernel's error.
        source: io::Error,
    },
    /// The frequency is above the kernel's limit.
    #[error(
        "the sampling frequency of {frequency_hz} Hz exceeds \
         kernel.perf_event_max_sample_rate ({max_hz})"
    )]
    FrequencyTooHigh {
        /// The requested frequency.
        frequency_hz: u32,
        /// The kernel's limit.
        max_hz: u64,
    },
    /// A number in the configuration is outside its range.
    #[error("{what} must be {range}, not {value}")]
    OutOfRange {
        /// The setting.
        what: &'static str,
        /// Allowed values.
        range: &'static str,
        /// The value given.
        value: u64,
    },
    /// No process has this PID.
    #[error("cannot profile process {pid}: {source}")]
    NoSuchProcess {
        /// The process.
        pid: u32,
        /// Why its entry under `/proc` could not be read.
        source: io::Error,
    },
    /// A system call failed.
    #[error("{call} failed: {source}")]
    Os {
        /// The call.
        call: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The thread that reads the samples ended, which only a bug can cause.
    #[error("the thread that reads the samples ended unexpectedly")]
    ReaderEnded,
}

impl SamplerError {
    pub(crate) fn last_os(call: &'static str) -> Self {
        Self::Os {
            call,
            source: io::Error::last_os_error(),
        }
    }
}

/// What is not permitted, why, and the commands that permit it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}; to permit it: {}", commands.join("  or  "))]
pub struct NotPermitted {
    /// What cannot be done, as the beginning of a sentence.
    pub what: String,
    /// The setting or missing privilege that prevents it.
    pub why: String,
    /// Commands, each sufficient by itself, the one with the narrowest effect last.
    pub commands: Vec<String>,
}

impl NotPermitted {
    /// The kernel refused a per-CPU event; `paranoid` is the value of
    /// `kernel.perf_event_paranoid`, which need not be the reason.
    ///
    /// See `perf_allow_cpu` and `perf_allow_kernel` in Linux's `kernel/events/core.c`: events of
    /// all processes of a CPU need a value of 0 or less, or `CAP_PERFMON`; the kernel's own stacks
    /// need 1 or less.
    pub(crate) fn sampling(paranoid: Option<i64>, program: Option<PathBuf>) -> Self {
        let what = "CPU stacks cannot be sampled".to_owned();
        match paranoid {
            Some(0 | i64::MIN..0) => Self {
                what,
                why: "kernel.perf_event_paranoid permits it, but the kernel refuses it, \
                      probably because of a container's seccomp profile or a security module"
                    .to_owned(),
                commands: vec![
                    "run outside the container, or start it with --cap-add=PERFMON \
                                and a seccomp profile that allows perf_event_open"
                        .to_owned(),
                ],
            },
            _ => Self {
                what,
                why: format!(
                    "kernel.perf_event_paranoid is {}; an unprivileged user can sample a \
                     whole CPU only if it is 0 or less",
                    paranoid.map_or_else(|| "unknown".to_owned(), |p| p.to_string())
                ),
                commands: vec![
                    "sudo sysctl kernel.perf_event_paranoid=0".to_owned(),
                    setcap(program),
                ],
            },
        }
    }

    /// The smallest ring buffers of all CPUs exceed the limit of locked memory; see `perf_mmap` in Linux's
    /// `kernel/events/core.c`.
    pub(crate) fn locking_memory(program: Option<PathBuf>) -> Self {
        Self {
            what: "CPU stacks cannot be sampled".to_owned(),
            why: "the ring buffers exceed the memory that may be locked: kernel.perf_event_mlock_kb for each CPU, \
                  and ulimit -l"
                .to_owned(),
            commands: vec![
                "sudo sysctl kernel.perf_event_mlock_kb=2112".to_owned(),
                setcap(program),
            ],
        }
    }

    /// The memory maps of the server's processes are not readable.
    pub(crate) fn reading_maps(pid: u32, program: Option<PathBuf>) -> Self {
        Self {
            what: "CPU stacks cannot be unwound".to_owned(),
            why: format!(
                "reading /proc/{pid}/maps requires the server's own user or CAP_SYS_PTRACE"
            ),
            commands: vec!["run as the server's user".to_owned(), setcap(program)],
        }
    }
}

impl NotPermitted {
    /// Combines two refusals: the commands that lift both or, if there are none, one for each.
    pub(crate) fn and(self, other: &Self) -> Self {
        let grants_both = |it: &&String| other.commands.contains(it);
        let mut commands: Vec<String> = self.commands.iter().filter(grants_both).cloned().collect();
        if commands.is_empty() {
            let each = self
                .commands
                .first()
                .into_iter()
                .chain(other.commands.first());
            commands.push(each.cloned().collect::<Vec<_>>().join(", and "));
        }
        Self {
            what: self.what,
            why: format!("{}; and {}", self.why, other.why),
            commands,
        }
    }

    /// `process_vm_readv` was refused; see ptrace(2), "Ptrace access mode checking".
    pub(crate) fn reading_memory(pid: u32, program: Option<PathBuf>) -> Self {
        Self {
            what: "wait events cannot be read".to_owned(),
            why: format!(
                "reading the memory of process {pid} requires the server's own user and \
                 kernel.yama.ptrace_scope=0, or CAP_SYS_PTRACE"
            ),
            commands: vec![
                "run as the server's user after sudo sysctl kernel.yama.ptrace_scope=0".to_owned(),
                setcap(program),
            ],
        }
    }
}

impl NotPermitted {
    /// The tracepoint for wake-ups cannot be found or recorded. See `perf_trace_event_perm` in
    /// Linux's `kernel/trace/trace_event_perf.c`: raw data require `perf_event_paranoid` -1 or
    /// `CAP_PERFMON`. By default only the owner of tracefs can read it.
    pub(crate) fn seeing_wake_ups(hidden: Option<Hidden>, program: Option<PathBuf>) -> Self {
        let open = "sudo chmod o+x /sys/kernel/tracing /sys/kernel/tracing/events && sudo chmod -R \
                    o+rX /sys/kernel/tracing/events/sched";
        let mount = "sudo mount -t tracefs -o mode=755 nodev /sys/kernel/tracing";
        let (why, commands) = match hidden {
            None => (
                "tracepoints require CAP_PERFMON or kernel.perf_event_paranoid=-1",
                vec![
                    "sudo sysctl kernel.perf_event_paranoid=-1".to_owned(),
                    setcap(program),
                ],
            ),
            Some(Hidden::NotMounted) => (
                "tracefs, which lists the tracepoint sched_wakeup, is not mounted",
                vec![format!("{mount} && {open}")],
            ),
            Some(Hidden::NotReadable) => (
                "the tracepoint sched_wakeup under /sys/kernel/tracing is not readable",
                vec![open.to_owned()],
            ),
            Some(Hidden::OtherPids) => (
                "the tracepoint sched_wakeup has the PIDs of the machine, which are others in this container",
                vec!["run pgassay outside the container".to_owned()],
            ),
        };
        Self {
            what: "run-queue wait and blocked time cannot be separated by stack".to_owned(),
            why: why.to_owned(),
            commands,
        }
    }
}

/// `CAP_PERFMON` for the events, `CAP_SYS_PTRACE` for other users' processes (not required by
/// newer kernels), `CAP_SYSLOG` for the names of kernel functions, and `CAP_IPC_LOCK` for large ring
/// buffers.
fn setcap(program: Option<PathBuf>) -> String {
    let program = program.map_or_else(|| "PROGRAM".to_owned(), |p| p.display().to_string());
    format!("sudo setcap cap_perfmon,cap_sys_ptrace,cap_syslog,cap_ipc_lock+ep {program}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_names_the_setting_and_the_command() {
        let text = NotPermitted::sampling(Some(2), Some("/usr/bin/pgassay".into())).to_string();
        assert!(text.contains("kernel.perf_event_paranoid is 2"), "{text}");
        assert!(
            text.contains("sudo sysctl kernel.perf_event_paranoid=0"),
            "{text}"
        );
        assert!(
            text.contains(
                "setcap cap_perfmon,cap_sys_ptrace,cap_syslog,cap_ipc_lock+ep /usr/bin/pgassay"
            ),
            "{text}"
        );
    }

    #[test]
    fn two_refusals_combine_into_commands_that_lift_both() {
        let program = || Some(PathBuf::from("/usr/bin/pgassay"));
        let maps = NotPermitted::reading_maps(7, program());
        let both = maps
            .clone()
            .and(&NotPermitted::sampling(Some(2), program()));
        assert_eq!(both.commands, [setcap(program())]);
        assert!(both.why.contains("/proc/7/maps") && both.why.contains("paranoid is 2"));
        let both = maps.and(&NotPermitted::sampling(Some(-1), program()));
        assert_eq!(both.commands.len(), 1);
        let command = &both.commands[0];
        assert!(
            command.starts_with("run as the server's user, and run outside"),
            "{command}"
        );
    }

    #[test]
    fn a_refusal_of_wake_ups_suggests_what_its_reason_requires() {
        let refusal = |hidden| NotPermitted::seeing_wake_ups(hidden, None);
        let mounting = refusal(Some(Hidden::NotMounted));
        assert!(mounting.commands[0].starts_with("sudo mount -t tracefs"));
        assert!(mounting.why.ends_with("is not mounted"));
        let opening = refusal(Some(Hidden::NotReadable));
        assert!(opening.commands[0].starts_with("sudo chmod"));
        assert!(refusal(None).commands[0].contains("paranoid=-1"));
        let container = refusal(Some(Hidden::OtherPids));
        assert!(container.commands[0].contains("outside the container"));
    }

    #[test]
    fn a_refusal_despite_a_permissive_sysctl_suggests_another_fix() {
        let text = NotPermitted::sampling(Some(-1), None).to_string();
        assert!(text.contains("seccomp"), "{text}");
        assert!(!text.contains("sysctl"), "{text}");
    }
}
