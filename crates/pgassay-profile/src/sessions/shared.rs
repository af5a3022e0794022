//! The mapping of a server's main shared memory, at the same address in all of its processes.

use std::io;
use std::ops::Range;

use crate::proc::maps;

/// The mapping of a process that contains an address.
pub(super) fn mapping_around(pid: u32, address: u64) -> io::Result<Option<Range<u64>>> {
    let text = maps::text(pid)?;
    let range = |line: &str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        let hex = |digits| u64::from_str_radix(digits, 16).ok();
        Some(hex(start)?..hex(end)?)
    };
    Ok(text
        .lines()
        .filter_map(range)
        .find(|range| range.contains(&address)))
}
