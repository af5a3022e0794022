//! Reads small text files under `/proc` and `/sys` that several modules need.
//!
//! See proc(5). A process can end at any moment, so a missing file is a normal result.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

/// More than the kernel writes into `stat` or `schedstat` of a process: 52 numbers of at most 20 digits,
/// and a name of at most 64 bytes.
const LINE_BYTES_MAX: usize = 1280;

/// The fields of `/proc/PID/stat` that are needed here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessStat {
    pub parent_pid: u32,
    /// CPU time in user mode, in clock ticks, as the kernel apportions the exact total.
    pub user_ticks: u64,
    /// CPU time in the kernel, likewise.
    pub system_ticks: u64,
    /// CPU time of its ended and reaped descendants, likewise.
    pub children_ticks: u64,
    pub threads: u64,
    /// When the process started, in ticks since boot: together with the PID it is unique.
    pub started_ticks: u64,
}

impl ProcessStat {
    pub fn read(pid: u32) -> io::Result<Self> {
        let stat = with_line(format!("/proc/{pid}/stat"), |line| {
            Self::parse(&String::from_utf8_lossy(line))
        })?;
        stat.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("/proc/{pid}/stat does not have the format of proc(5)"),
            )
        })
    }

    /// The name in the second field can contain parentheses and spaces, so fields are counted from
    /// the last closing parenthesis.
    fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // `rest` begins with field 3 of proc(5).
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            parent_pid: u32::try_from(field(4)?).ok()?,
            user_ticks: field(14)?,
            system_ticks: field(15)?,
            children_ticks: field(16)? + field(17)?,
            threads: field(20)?,
            started_ticks: field(22)?,
        })
    }
}

/// The letter of a process's state: `R` on CPU or in the run queue, `S` and `D` blocked.
pub(crate) fn read_state(pid: u32) -> io::Result<u8> {
    let state = with_line(format!("/proc/{pid}/stat"), state_in)?;
    state.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The letter of the state in a line of `/proc/PID/stat`.
pub(crate) fn state_in(line: &[u8]) -> Option<u8> {
    let after_name = line.iter().rposition(|&byte| byte == b')')?;
    line.get(after_name + 2).copied()
}

/// Passes on a file of one line, such as `/proc/PID/stat`. The kernel writes it at the first read, so one is
/// enough; [`fs::read`] needs up to eight system calls, and these files are read hundreds of times per
/// second.
pub(crate) fn with_line<T>(path: impl AsRef<Path>, use_line: impl Fn(&[u8]) -> T) -> io::Result<T> {
    let mut file = File::open(path)?;
    line_of(|line| file.read(line), use_line)
}

/// As [`with_line`], of an open file.
pub(crate) fn line_of<T>(
    mut read: impl FnMut(&mut [u8]) -> io::Result<usize>,
    use_line: impl Fn(&[u8]) -> T,
) -> io::Result<T> {
    let mut line = [0; LINE_BYTES_MAX];
    let length = loop {
        match read(&mut line) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => break read?,
        }
    };
    Ok(use_line(&line[..length]))
}

/// Reads a file that contains one number.
pub(crate) fn read_number(path: impl AsRef<Path>) -> Option<i64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Parses the kernel's notation of sets, such as `0-3,8`.
pub(crate) fn parse_cpu_list(text: &str) -> Vec<u32> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) {
            cpus.extend(first..=last);
        }
    }
    cpus
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parentheses_and_spaces_in_the_name_do_not_shift_fields() {
        let text = "77 (a) R (b c) S 5 77 77 0 -1 4194560 1 0 0 0 12 34 5 6 20 0 3 0 9876 1 2";
        let stat = ProcessStat::parse(text).unwrap();
        assert_eq!(
            stat,
            ProcessStat {
                parent_pid: 5,
                user_ticks: 12,
                system_ticks: 34,
                children_ticks: 11,
                threads: 3,
                started_ticks: 9876
            }
        );
    }

    #[test]
    fn a_truncated_line_is_rejected() {
        assert_eq!(ProcessStat::parse("77 (a) S 5 77"), None);
        assert_eq!(ProcessStat::parse(""), None);
    }

    #[test]
    fn our_own_process_is_readable() {
        let stat = ProcessStat::read(std::process::id()).unwrap();
        assert_eq!(stat.parent_pid, std::os::unix::process::parent_id());
        assert!(stat.threads >= 1);
    }

    #[test]
    fn cpu_lists_contain_numbers_and_ranges() {
        assert_eq!(parse_cpu_list("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(parse_cpu_list("0\n"), [0]);
        assert!(parse_cpu_list("\n").is_empty());
    }
}
