//! The executable mappings of a process, from `/proc/PID/maps` or from records.
//!
//! A process can have 65,530 mappings, of files with names of 4 KB: 250 MB. So only the first ones are read, in the
//! order of their addresses. What lies beyond them is unknown.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Once;

/// At most this much of the text is read: 20,000 mappings without a file. A backend has some hundred mappings.
const TEXT_BYTES_MAX: u64 = 1 << 20;
/// At most this many executable mappings are kept.
const MAPPINGS_MAX: usize = 4096;

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
    Ok(parse(&text(pid)?))
}

/// What the kernel prints of the mappings of a process.
pub(crate) fn text(pid: u32) -> io::Result<String> {
    let (text, is_whole) = beginning(File::open(format!("/proc/{pid}/maps"))?)?;
    if !is_whole {
        static WARNED: Once = Once::new();
        WARNED.call_once(|| tracing::warn!(pid, "only the first of very many mappings are read"));
    }
    Ok(text)
}

/// Whole lines up to the limit, and whether these are all.
fn beginning(text: impl Read) -> io::Result<(String, bool)> {
    let mut bytes = Vec::new();
    let read = text.take(TEXT_BYTES_MAX).read_to_end(&mut bytes)?;
    let is_whole = (read as u64) < TEXT_BYTES_MAX;
    let lines = bytes.iter().rposition(|&it| it == b'\n');
    bytes.truncate(lines.map_or(0, |last| last + 1));
    Ok((String::from_utf8_lossy(&bytes).into_owned(), is_whole))
}

fn parse(text: &str) -> Vec<Mapping> {
    let mappings = text.lines().filter_map(parse_line);
    mappings.take(MAPPINGS_MAX).collect()
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

/// Adds a mapping to those of a process, unless there are very many, and removes what it covers.
pub(crate) fn insert(mappings: &mut Vec<Mapping>, new: Mapping) {
    mappings.retain(|old| old.end <= new.start || new.end <= old.start);
    if mappings.len() >= MAPPINGS_MAX {
        return;
    }
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

    /// Regression test: a program named `postgres` with 65,400 mappings took a minute and 1.3 GB of `profile`.
    #[test]
    fn mappings_without_end_do_not_fill_the_memory() {
        let text = |line: &'static [u8]| beginning(line.chain(io::repeat(b'x'))).unwrap();
        let line = "1-2 r-xp 0 0:0 1 /a\n";
        assert_eq!(text(line.as_bytes()), (line.to_owned(), false));
        assert_eq!(
            text(b"1-2 r-xp 0 0:0 1 /a").0,
            "",
            "a name that is cut is another one"
        );
        let whole = beginning(line.as_bytes()).unwrap();
        assert_eq!(whole, (line.to_owned(), true));
        let all = line.repeat(MAPPINGS_MAX + 1);
        assert_eq!(parse(&all).len(), MAPPINGS_MAX);
        let mut mappings = parse(line);
        let first = mappings[0].clone();
        for start in 1..=MAPPINGS_MAX as u64 {
            let (start, end) = (start, start + 1);
            let file = first.file.clone();
            insert(
                &mut mappings,
                Mapping {
                    start,
                    end,
                    file,
                    ..first
                },
            );
        }
        assert_eq!(mappings.len(), MAPPINGS_MAX);
        let start = 2 * MAPPINGS_MAX as u64;
        let end = start + 1;
        insert(
            &mut mappings,
            Mapping {
                start,
                end,
                ..first
            },
        );
        assert_eq!(mappings.len(), MAPPINGS_MAX);
    }

    #[test]
    fn our_own_program_is_mapped() {
        let maps = read(std::process::id()).unwrap();
        let own = std::env::current_exe().unwrap();
        assert!(maps.iter().any(|m| m.file.path == own), "{maps:?}");
        assert!(maps.is_sorted());
    }
}
