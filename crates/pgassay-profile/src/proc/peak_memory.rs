//! The peak of a process's memory as proportional set size (PSS), without shared memory.
//!
//! A backend that is alone with a page of shared buffers would count it in full, so shared memory is left out.
//! The kernel keeps the peak of the resident set (`VmHWM`) but not of the PSS. What a process has given back
//! since its peak (`VmHWM - VmRSS`) is private memory, since shared memory and files stay mapped; so the peak
//! of the PSS is the present PSS and this difference. Sources: `VmHWM` and `VmRSS` in `/proc/PID/status`, which
//! anyone can read, and `Pss` and, since 5.4, `Pss_Shmem` in `/proc/PID/smaps_rollup` (Linux 4.14), which the process's owner and root can
//! read; `Documentation/filesystems/proc.rst` in Linux.

use std::fs;
use std::io;

const KIB: u64 = 1024;

/// The largest PSS of a process so far, without shared memory, in bytes. Walks its page tables: about a millisecond per GiB that it
/// has touched.
///
/// # Errors
/// The process has ended, or its memory map belongs to another user.
pub fn peak_pss_bytes(pid: u32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    peak_bytes(&status, &rollup).ok_or_else(|| {
        let message = format!("/proc/{pid}/smaps_rollup does not have the format of proc(5)");
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

/// The largest resident set of this process so far, in bytes; 0 if `/proc` is not readable.
pub fn own_peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    kib(&status, "VmHWM:").unwrap_or(0) * KIB
}

/// The present resident set of this process, in bytes; 0 if `/proc` is not readable.
pub fn own_resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    kib(&status, "VmRSS:").unwrap_or(0) * KIB
}

fn peak_bytes(status: &str, rollup: &str) -> Option<u64> {
    let [peak, now] = [kib(status, "VmHWM:")?, kib(status, "VmRSS:")?];
    let returned = peak.saturating_sub(now);
    let shared = kib(rollup, "Pss_Shmem:").unwrap_or(0);
    Some((kib(rollup, "Pss:")?.saturating_sub(shared) + returned) * KIB)
}

/// The figure in the line `label    123 kB`.
fn kib(text: &str, label: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(label))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_given_back_since_the_peak_counts() {
        let status = "Name:\tpostgres\nVmHWM:\t   90000 kB\nVmRSS:\t   20000 kB\n";
        let rollup = "55d0-7ffc ---p 00000000 00:00 0 [rollup]\nRss: 20000 kB\nPss: 5000 kB\nPss_Anon: 1 kB\n";
        let with_shared = format!("{rollup}Pss_Shmem: 4000 kB\n");
        assert_eq!(peak_bytes(status, rollup), Some(75_000 * KIB));
        assert_eq!(peak_bytes(status, &with_shared), Some(71_000 * KIB));
        assert_eq!(peak_bytes(status, "Rss: 1 kB\n"), None);
    }

    #[test]
    fn a_freed_mapping_stays_in_the_peak() {
        const BYTES: usize = 64 << 20;
        let own = std::process::id();
        // A large allocation has its own mapping, which is unmapped when it is freed.
        let filled = vec![1u8; BYTES];
        assert_eq!(std::hint::black_box(&filled)[BYTES - 1], 1);
        drop(filled);
        assert!(own_peak_bytes() > BYTES as u64);
        assert!((1..own_peak_bytes()).contains(&own_resident_bytes()));
        let peak = peak_pss_bytes(own).unwrap();
        // The kernel's counters lag behind by some pages per CPU.
        assert!(peak > BYTES as u64 * 9 / 10, "{peak}");
        assert!(peak_pss_bytes(u32::MAX).is_err());
    }
}
