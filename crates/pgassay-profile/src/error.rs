//! What can go wrong when a server is watched, and what permits what was refused.

use crate::tracefs::Hidden;
use std::io;
use std::path::PathBuf;

/// Why a sampler could not be opened or used.
#[derive(Debug, thiserror::Error)]
pub enum SamplerError {
    /// The kernel does not let this user sample other processes; a study runs on without stacks.
    #[error("{0}")]
    NotPermitted(NotPermitted),
    /// This kernel, or the sandbox around us, has no `perf_event_open`.
    #[error(
        "CPU stacks need perf_event_open, which this system does not offer ({source}); \
         in a container, its seccomp profile may hide it"
    )]
    Unsupported {
        /// The kernel's answer.
        source: io::Error,
    },
    /// The frequency is above what the kernel takes.
    #[error(
        "{frequency_hz} samples a second are more than kernel.perf_event_max_sample_rate \
         ({max_hz}) permits"
    )]
    FrequencyTooHigh {
        /// What was asked for.
        frequency_hz: u32,
        /// What the kernel permits.
        max_hz: u64,
    },
    /// A number in the configuration is outside its range.
    #[error("{what} must be {range}, not {value}")]
    OutOfRange {
        /// The setting.
        what: &'static str,
        /// What it may be.
        range: &'static str,
        /// What it was.
        value: u64,
    },
    /// No process has this number, so it cannot be watched.
    #[error("process {pid} cannot be watched: {source}")]
    NoSuchProcess {
        /// The process.
        pid: u32,
        /// Why its entry under `/proc` could not be read.
        source: io::Error,
    },
    /// A call of the operating system failed.
    #[error("{call} failed: {source}")]
    Os {
        /// The call.
        call: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The thread that reads the samples has ended, which it does only by a defect.
    #[error("the thread that reads the samples has ended unexpectedly")]
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

/// What is refused, why, and which commands grant it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}; to permit it: {}", commands.join("  or  "))]
pub struct NotPermitted {
    /// What cannot be done, as the beginning of a sentence.
    pub what: String,
    /// The setting or right that is in the way.
    pub why: String,
    /// Commands each of which is enough by itself, the least far-reaching last.
    pub commands: Vec<String>,
}

impl NotPermitted {
    /// The kernel refused a per-CPU event although, or because, `paranoid` is the value of
    /// `kernel.perf_event_paranoid`.
    ///
    /// See `perf_allow_cpu` and `perf_allow_kernel` in Linux's `kernel/events/core.c`: events of
    /// all processes of a CPU need a value of 0 or less, or `CAP_PERFMON`; the kernel's own stacks
    /// need 1 or less.
    pub(crate) fn sampling(paranoid: Option<i64>, program: Option<PathBuf>) -> Self {
        let what = "CPU stacks cannot be sampled".to_owned();
        match paranoid {
            Some(0 | i64::MIN..0) => Self {
                what,
                why: "kernel.perf_event_paranoid permits it, but the kernel refuses it all the \
                      same, as it does under a container's seccomp profile or a security module"
                    .to_owned(),
                commands: vec![
                    "run outside the container, or start it with --cap-add=PERFMON \
                                and a seccomp profile that has perf_event_open"
                        .to_owned(),
                ],
            },
            _ => Self {
                what,
                why: format!(
                    "kernel.perf_event_paranoid is {}, and an unprivileged user may sample a \
                     whole CPU only where it is 0 or less",
                    paranoid.map_or_else(|| "unknown".to_owned(), |p| p.to_string())
                ),
                commands: vec![
                    "sudo sysctl kernel.perf_event_paranoid=0".to_owned(),
                    setcap(program),
                ],
            },
        }
    }

    /// The memory map of the server's processes may not be read.
    pub(crate) fn reading_maps(pid: u32, program: Option<PathBuf>) -> Self {
        Self {
            what: "CPU stacks cannot be unwound".to_owned(),
            why: format!(
                "/proc/{pid}/maps may be read only by the server's own user, or with \
                 CAP_SYS_PTRACE"
            ),
            commands: vec!["run as the server's user".to_owned(), setcap(program)],
        }
    }
}

impl NotPermitted {
    /// Both are in the way: what grants both, or one command for each.
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
                "the memory of process {pid} may be read only by the server's own user, where \
                 kernel.yama.ptrace_scope is 0, or with CAP_SYS_PTRACE"
            ),
            commands: vec![
                "run as the server's user after sudo sysctl kernel.yama.ptrace_scope=0".to_owned(),
                setcap(program),
            ],
        }
    }
}

impl NotPermitted {
    /// The tracepoint of wake-ups is not to be found, or may not be recorded. See
    /// `perf_trace_event_perm` in Linux's `kernel/trace/trace_event_perf.c`: raw data need a value
    /// of -1, or `CAP_PERFMON`; tracefs is its owner's alone.
    pub(crate) fn seeing_wake_ups(hidden: Option<Hidden>, program: Option<PathBuf>) -> Self {
        let open = "sudo chmod o+x /sys/kernel/tracing /sys/kernel/tracing/events && sudo chmod -R \
                    o+rX /sys/kernel/tracing/events/sched";
        let mount = "sudo mount -t tracefs -o mode=755 nodev /sys/kernel/tracing";
        let (why, commands) = match hidden {
            None => (
                "tracepoints need CAP_PERFMON, or kernel.perf_event_paranoid at -1",
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
                "the tracepoint sched_wakeup under /sys/kernel/tracing may not be read",
                vec![open.to_owned()],
            ),
        };
        Self {
            what: "waiting for a CPU cannot be told from being blocked, stack by stack".to_owned(),
            why: why.to_owned(),
            commands,
        }
    }
}

/// `CAP_PERFMON` for the events, `CAP_SYS_PTRACE` for other users' processes, which newer kernels
/// do not ask for, and `CAP_SYSLOG` for the names of the kernel's functions.
fn setcap(program: Option<PathBuf>) -> String {
    let program = program.map_or_else(|| "PROGRAM".to_owned(), |p| p.display().to_string());
    format!("sudo setcap cap_perfmon,cap_sys_ptrace,cap_syslog+ep {program}")
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
            text.contains("setcap cap_perfmon,cap_sys_ptrace,cap_syslog+ep /usr/bin/pgassay"),
            "{text}"
        );
    }

    #[test]
    fn what_two_rights_refuse_needs_what_grants_both() {
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
    fn tracefs_that_is_not_mounted_is_not_to_be_made_readable_only() {
        let refusal = |hidden| NotPermitted::seeing_wake_ups(hidden, None);
        let mounting = refusal(Some(Hidden::NotMounted));
        assert!(mounting.commands[0].starts_with("sudo mount -t tracefs"));
        assert!(mounting.why.ends_with("is not mounted"));
        let opening = refusal(Some(Hidden::NotReadable));
        assert!(opening.commands[0].starts_with("sudo chmod"));
        assert!(refusal(None).commands[0].contains("paranoid=-1"));
    }

    #[test]
    fn a_refusal_in_spite_of_the_setting_points_elsewhere() {
        let text = NotPermitted::sampling(Some(-1), None).to_string();
        assert!(text.contains("seccomp"), "{text}");
        assert!(!text.contains("sysctl"), "{text}");
    }
}
