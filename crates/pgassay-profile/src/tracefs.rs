//! What the kernel says of its tracepoints: tracefs, mounted or not.
//!
//! Many machines have tracefs mounted only once somebody wants it, and containers never. Who may
//! mount it may also open it without: a mount that is attached to no directory is seen by nobody
//! else and gone with its descriptor; see `Documentation/filesystems/mount_api.rst` in Linux.

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Where it is mounted; see `Documentation/trace/ftrace.rst`.
const MOUNTED_AT: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// The tracepoints' directory.
pub(crate) struct Events {
    directory: PathBuf,
    /// Keeps a mount of our own.
    _mount: Option<OwnedFd>,
}

/// Why tracepoints cannot be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hidden {
    /// It is mounted nowhere, and we may not mount it.
    NotMounted,
    /// It is mounted, and not for us to read.
    NotReadable,
}

impl Events {
    pub fn open() -> Result<Self, Hidden> {
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
                tracing::debug!(%error, "tracefs cannot be opened");
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

/// Of `/proc/self/mounts`; see proc(5).
fn is_mounted(mounts: &str) -> bool {
    let kind = |line: &str| line.split(' ').nth(2) == Some("tracefs");
    mounts.lines().any(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracefs_is_known_by_its_kind_among_the_mounts() {
        let without = "proc /proc proc rw 0 0\nsysfs /sys sysfs rw 0 0\n";
        assert!(!is_mounted(without));
        let with = "nodev /sys/kernel/tracing tracefs rw,nosuid 0 0\n";
        assert!(is_mounted(&format!("{without}{with}")));
        assert!(!is_mounted("tracefs /mnt ext4 rw 0 0\n"));
    }

    #[test]
    fn a_mount_of_our_own_is_attached_nowhere() {
        let Ok(mount) = detached() else {
            return; // Without CAP_SYS_ADMIN there is none.
        };
        let path = format!("/proc/self/fd/{}/events/sched", mount.as_raw_fd());
        assert!(Path::new(&path).is_dir());
        let mounts = || std::fs::read_to_string("/proc/self/mounts").unwrap();
        let before = mounts();
        drop(mount);
        assert_eq!(before, mounts());
        assert!(!Path::new(&path).exists());
    }
}
