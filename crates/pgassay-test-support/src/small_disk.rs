//! A small file system, to fill it.

use std::path::Path;
use std::process::Command;

use crate::os::is_root;
use crate::skip;

/// A `tmpfs` of a few megabytes, unmounted when dropped.
pub struct SmallDisk {
    directory: tempfile::TempDir,
}

impl SmallDisk {
    /// Mounts one of this size, such as `20m`. `None`, with a visible skip, if that is not permitted.
    pub fn mount(size: &str) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let options = format!("size={size},mode=755");
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", &options, "pgassay-test"])
            .arg(directory.path());
        let mounted = is_root() && mount.output().is_ok_and(|output| output.status.success());
        if !mounted {
            skip("a full disk", "only root can mount a small disk");
        }
        mounted.then_some(Self { directory })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        Command::new("umount").arg(self.path()).status().unwrap();
    }
}
