//! The file system and the device that have the data of temporary servers.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::home::default_parent;

/// `ext4 on /dev/vda1`: where servers have their data, below `parent` or the default directory. `None` if that is
/// unknown, as for subvolumes of Btrfs.
pub fn data_disk(parent: Option<&Path>) -> Option<String> {
    let directory = parent.map_or_else(default_parent, Path::to_owned);
    let device = fs::metadata(directory).ok()?.dev();
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounted(&mounts, [libc::major(device), libc::minor(device)])
}

/// File system and source of the first mount of a device; `proc_pid_mountinfo(5)` has the fields.
fn mounted(mounts: &str, [major, minor]: [u32; 2]) -> Option<String> {
    let device = format!("{major}:{minor}");
    let mut lines = mounts.lines();
    let line = lines.find(|line| line.split(' ').nth(2) == Some(device.as_str()))?;
    let (_, after_optional_fields) = line.split_once(" - ")?;
    let mut fields = after_optional_fields.split(' ');
    Some(format!("{} on {}", fields.next()?, fields.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_named_by_file_system_and_device() {
        let mounts = "22 27 0:21 / /proc rw,nosuid shared:13 - proc proc rw\n\
                      27 1 253:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,errors=remount-ro\n\
                      30 27 0:26 / /dev/shm rw - tmpfs tmpfs rw,inode64\n";
        let found = |device| mounted(mounts, device);
        assert_eq!(found([253, 1]).as_deref(), Some("ext4 on /dev/vda1"));
        assert_eq!(found([0, 26]).as_deref(), Some("tmpfs on tmpfs"));
        assert_eq!(found([0, 2]), None);
        assert_eq!(data_disk(Some(Path::new("/no/such/directory"))), None);
    }
}
