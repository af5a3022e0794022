//! The executable mappings of a process, from `/proc/PID/maps` or from records.

use std::fs;
use std::io;
use std::path::PathBuf;

/// The name of the `vDSO` in every process.
pub(crate) const VDSO: &str = "[vdso]";

/// One executable mapping of a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Mapping {
    pub start: u64,
    pub end: u64,
    pub file_offset: u64,
    pub file: MappedFile,
}

/// The file behind a mapping.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct MappedFile {
    /// As the kernel prints it, without the suffix of a deleted file.
    pub path: PathBuf,
    /// The file was deleted or replaced after it was mapped.
    pub deleted: bool,
    /// Device numbers and inode: the same path can be another file in a container, or later.
    pub device: (u32, u32),
    pub inode: u64,
}

impl MappedFile {
    /// Parses the kernel's text; `None` for anonymous memory and other mappings without an object.
    pub fn from_kernel(text: &str, device: (u32, u32), inode: u64) -> Option<Self> {
        const DELETED: &str = " (deleted)";
        let (path, deleted) = match text.strip_suffix(DELETED) {
            Some(path) => (path, true),
            None => (text, false),
        };
        let is_object = path == VDSO || (path.starts_with('/') && !path.starts_with("//"));
        // The kernel writes a newline in a name as four characters.
        let path = || path.replace("\\012", "\n").into();
        is_object.then(|| Self {
            path: path(),
            deleted,
            device,
            inode,
        })
    }
}

/// The executable mappings of a running process, sorted by address.
pub(crate) fn read(pid: u32) -> io::Result<Vec<Mapping>> {
    let text = fs::read(format!("/proc/{pid}/maps"))?;
    Ok(parse(&String::from_utf8_lossy(&text)))
}

fn parse(text: &str) -> Vec<Mapping> {
    text.lines().filter_map(parse_line).collect()
}

/// `start-end perms offset dev inode path`; the path can contain spaces.
fn parse_line(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let permissions = fields.next()?;
    if permissions.as_bytes().get(2) != Some(&b'x') {
        return None;
    }
    let file_offset = fields.next()?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let device = (
        u32::from_str_radix(major, 16).ok()?,
        u32::from_str_radix(minor, 16).ok()?,
    );
    let inode = fields.next()?.parse().ok()?;
    let path = fields.next()?.trim_start();
    let hex = |digits| u64::from_str_radix(digits, 16).ok();
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        file_offset: hex(file_offset)?,
        file: MappedFile::from_kernel(path, device, inode)?,
    })
}

/// Adds a mapping to those of a process and removes what it covers.
pub(crate) fn insert(mappings: &mut Vec<Mapping>, new: Mapping) {
    mappings.retain(|old| old.end <= new.start || new.end <= old.start);
    let at = mappings.partition_point(|old| old.start < new.start);
    mappings.insert(at, new);
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
55d0c0000000-55d0c00c0000 r--p 00000000 fe:00 1051                       /usr/lib/postgresql/15/bin/postgres
55d0c00c0000-55d0c0600000 r-xp 000c0000 fe:00 1051                       /usr/lib/postgresql/15/bin/postgres
55d0c2000000-55d0c2100000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000001000 r-xp 00000000 00:00 0 
7f0000100000-7f0000101000 rwxs 00000000 00:01 1                          //anon
7f1000000000-7f1000200000 r-xp 00001000 fe:00 9                          /opt/a b/lib c.so (deleted)
7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";

    #[test]
    fn only_executable_mappings_of_objects_are_kept() {
        let maps = parse(TEXT);
        let paths: Vec<_> = maps.iter().map(|m| m.file.path.to_str().unwrap()).collect();
        assert_eq!(
            paths,
            [
                "/usr/lib/postgresql/15/bin/postgres",
                "/opt/a b/lib c.so",
                "[vdso]"
            ]
        );
        assert_eq!(maps[0].start, 0x55d0_c00c_0000);
        assert_eq!(maps[0].end, 0x55d0_c060_0000);
        assert_eq!(maps[0].file_offset, 0xc_0000);
        assert_eq!((maps[0].file.device, maps[0].file.inode), ((0xfe, 0), 1051));
        assert!(!maps[0].file.deleted);
        assert!(maps[1].file.deleted);
    }

    #[test]
    fn invalid_lines_are_skipped() {
        assert!(parse("hello\n\n12-zz r-xp 0 0 0 /a\n1-2 r-xp\n").is_empty());
    }

    #[test]
    fn a_new_mapping_replaces_what_it_covers_and_keeps_the_order() {
        let mapping = |start, end| Mapping {
            start,
            end,
            file_offset: 0,
            file: MappedFile::from_kernel("/a", (8, 1), 7).unwrap(),
        };
        let mut maps = vec![mapping(10, 20), mapping(30, 40), mapping(50, 60)];
        insert(&mut maps, mapping(35, 45));
        insert(&mut maps, mapping(20, 30));
        let spans: Vec<_> = maps.iter().map(|m| (m.start, m.end)).collect();
        assert_eq!(spans, [(10, 20), (20, 30), (35, 45), (50, 60)]);
    }

    #[test]
    fn our_own_program_is_mapped() {
        let maps = read(std::process::id()).unwrap();
        let own = std::env::current_exe().unwrap();
        assert!(maps.iter().any(|m| m.file.path == own), "{maps:?}");
        assert!(maps.is_sorted());
    }
}
