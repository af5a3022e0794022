//! Reads the kernel's tracepoint descriptions from tracefs, mounted or not.
//!
//! Many machines mount tracefs only on demand, and containers never do. A process that is permitted
//! to mount it can also open a detached mount, which is invisible to other processes and ends with
//! its descriptor; see `Documentation/filesystems/mount_api.rst` in Linux.

use pgassay_rights::{self as rights, Purpose};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Its usual mount points; see `Documentation/trace/ftrace.rst`.
const MOUNTED_AT: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// The directory of tracepoints.
pub(crate) struct TracepointDir {
    directory: PathBuf,
    /// Keeps our own detached mount.
    _mount: Option<OwnedFd>,
}

/// Why tracepoints cannot be found or used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hidden {
    /// It is not mounted, and we are not permitted to mount it.
    NotMounted,
    /// It is mounted but not readable.
    NotReadable,
    /// Their data have other PIDs than this process sees.
    OtherPids,
}

impl TracepointDir {
    pub fn open() -> Result<Self, Hidden> {
        let _raised = rights::raise(Purpose::Sampling);
        let mounted = MOUNTED_AT.map(|it| Path::new(it).join("events"));
        if let Some(directory) = mounted.into_iter().find(|it| it.join("sched").is_dir()) {
            return Ok(Self {
                directory,
                _mount: None,
            });
        }
        match detached() {
            Ok(mount) => Ok(Self {
                directory: format!("/proc/self/fd/{}/events", mount.as_raw_fd()).into(),
                _mount: Some(mount),
            }),
            Err(error) => {
                tracing::debug!(%error, "cannot open tracefs");
                let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
                Err(if is_mounted(&mounts) {
                    Hidden::NotReadable
                } else {
                    Hidden::NotMounted
                })
            }
        }
    }

    /// A file of a tracepoint, as `sched/sched_wakeup/id`.
    pub fn read(&self, file: &str) -> io::Result<String> {
        std::fs::read_to_string(self.directory.join(file))
    }
}

fn detached() -> io::Result<OwnedFd> {
    let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY;
    Ok(fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        attributes,
    )?)
}

/// Searches `/proc/self/mounts`; see proc(5).
fn is_mounted(mounts: &str) -> bool {
    let kind = |line: &str| line.split(' ').nth(2) == Some("tracefs");
    mounts.lines().any(kind)
}

/// The id of the tracepoint `sched_wakeup`, and the offset of the woken process's PID in its data, which is that of
/// the initial PID namespace (`include/trace/events/sched.h`). Other records have the PIDs of our namespace.
pub(crate) fn wake_up_tracepoint() -> Result<(u64, usize), Hidden> {
    if std::fs::read_link("/proc/self/ns/pid").is_ok_and(|it| !is_initial(&it)) {
        return Err(Hidden::OtherPids);
    }
    let events = TracepointDir::open()?;
    let read = |file| events.read(&format!("sched/sched_wakeup/{file}")).ok();
    let found = || {
        Some((
            read("id")?.trim().parse().ok()?,
            field_offset(&read("format")?, "pid")?,
        ))
    };
    found().ok_or(Hidden::NotReadable)
}

/// Whether a link to a PID namespace is to the initial one: `PROC_PID_INIT_INO` in `include/linux/proc_ns.h`.
fn is_initial(namespace: &Path) -> bool {
    namespace.as_os_str() == "pid:[4026531836]"
}

/// The offset of a field in the raw data of a tracepoint, from its `format` file.
fn field_offset(format: &str, field: &str) -> Option<usize> {
    let line = format.lines().find(|line| {
        let declaration = line.split(';').next().unwrap_or_default();
        declaration.strip_suffix(field).is_some_and(|before| {
            before.trim_start().starts_with("field:") && before.ends_with(' ')
        })
    })?;
    let offset = line
        .split(';')
        .find_map(|part| part.trim().strip_prefix("offset:"));
    offset?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracefs_is_found_by_type_among_the_mounts() {
        let without = "proc /proc proc rw 0 0\nsysfs /sys sysfs rw 0 0\n";
        assert!(!is_mounted(without));
        let with = "nodev /sys/kernel/tracing tracefs rw,nosuid 0 0\n";
        assert!(is_mounted(&format!("{without}{with}")));
        assert!(!is_mounted("tracefs /mnt ext4 rw 0 0\n"));
    }

    #[test]
    fn our_own_mount_is_detached() {
        let Ok(mount) = detached() else {
            return; // It requires CAP_SYS_ADMIN.
        };
        let path = format!("/proc/self/fd/{}/events/sched", mount.as_raw_fd());
        assert!(Path::new(&path).is_dir());
        let mounts = || std::fs::read_to_string("/proc/self/mounts").unwrap();
        let before = mounts();
        drop(mount);
        assert_eq!(before, mounts());
        assert!(!Path::new(&path).exists());
    }

    /// Regression: in a container, wake-ups of any processes of the machine were those of the server.
    #[test]
    fn wake_ups_of_another_pid_namespace_are_not_used() {
        assert!(is_initial(Path::new("pid:[4026531836]")));
        assert!(!is_initial(Path::new("pid:[4026532573]")));
        let own = std::fs::read_link("/proc/self/ns/pid").unwrap();
        let is_refused = wake_up_tracepoint() == Err(Hidden::OtherPids);
        assert_eq!(is_refused, !is_initial(&own));
    }

    #[test]
    fn a_field_is_found_by_its_full_name() {
        let format = "format:\n\tfield:pid_t common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
                      \tfield:char comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\
                      \tfield:pid_t pid;\toffset:24;\tsize:4;\tsigned:1;\n";
        assert_eq!(field_offset(format, "pid"), Some(24));
        assert_eq!(field_offset(format, "prio"), None);
    }
}
