//! CPU time of a process and of its children that have ended: what is left of backends that served
//! one transaction each.
//!
//! See `cutime` and `cstime` in proc(5). They are sums of exact times, told in clock ticks.

use std::io;

use crate::procfs::ProcessStat;

/// A reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FamilyCpu {
    ticks: u64,
}

impl FamilyCpu {
    /// Reads a process's.
    ///
    /// # Errors
    /// If there is no such process.
    pub fn read(pid: u32) -> io::Result<Self> {
        let stat = ProcessStat::read(pid)?;
        Ok(Self {
            ticks: stat.user_ticks + stat.system_ticks + stat.children_ticks,
        })
    }

    /// What has been used since an earlier reading, in µs.
    pub fn since_us(self, earlier: Self) -> f64 {
        // SAFETY: sysconf has no preconditions.
        let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1);
        self.ticks.saturating_sub(earlier.ticks) as f64 * 1e6 / per_second as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_child_that_has_ended_is_counted() {
        let pid = std::process::id();
        let before = FamilyCpu::read(pid).unwrap();
        let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done";
        let status = Command::new("sh").args(["-c", busy]).status().unwrap();
        assert!(status.success());
        let used_us = FamilyCpu::read(pid).unwrap().since_us(before);
        assert!(used_us >= 20_000.0, "{used_us}");
    }
}
