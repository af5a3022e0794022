//! Keeps idle CPUs awake.
//!
//! An idle CPU sleeps, and waking it takes microseconds; tens of them in a virtual machine, where the
//! hypervisor takes part. With one client, each transaction waits for two wake-ups. Whether a CPU still polls or
//! already sleeps when work arrives depends on little, so throughput jumps between trials: from 11,000 to
//! 70,000 transactions per second in one study on a quiet virtual machine.
//!
//! A latency of 0 µs, requested from the power management, makes idle CPUs poll
//! (`Documentation/power/pm_qos_interface.rst` in Linux; tuned does the same in its profile
//! `latency-performance`). The kernel ends the request when the file is closed, so also if pgassay is killed.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};

/// CPUs are kept awake as long as this exists.
#[derive(Debug)]
pub struct AwakeCpus {
    _request: File,
}

impl AwakeCpus {
    /// The file that takes the request; only root may write it.
    pub const FILE: &'static str = "/dev/cpu_dma_latency";

    /// Requests it.
    ///
    /// # Errors
    /// It is not permitted, or the kernel has no such interface.
    pub fn hold() -> io::Result<Self> {
        let mut file = Self::open()?;
        file.write_all(&0_i32.to_ne_bytes())?;
        Ok(Self { _request: file })
    }

    /// Whether it is permitted.
    pub fn is_permitted() -> bool {
        Self::open().is_ok()
    }

    fn open() -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(Self::FILE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    /// The latency that all requests together allow, µs.
    fn allowed_us() -> i32 {
        let mut bytes = [0; 4];
        AwakeCpus::open().unwrap().read_exact(&mut bytes).unwrap();
        i32::from_ne_bytes(bytes)
    }

    #[test]
    fn the_request_ends_with_its_owner() {
        if !AwakeCpus::is_permitted() {
            return assert!(AwakeCpus::hold().is_err());
        }
        let before_us = allowed_us();
        let held = AwakeCpus::hold().unwrap();
        assert_eq!(allowed_us(), 0);
        drop(held);
        assert_eq!(allowed_us(), before_us);
    }
}
