//! The limit on open files: a sampler needs up to four for each CPU.

/// Files for everything else.
const SPARE: u64 = 256;

/// Raises the soft limit, as far as the hard limit permits, so that this many more files can be opened.
pub(crate) fn permit(more: usize) {
    // Listing them opens the directory itself; without /proc, these are the standard streams.
    let open = std::fs::read_dir("/proc/self/fd").map_or(3, Iterator::count);
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is to our own rlimit.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } < 0 {
        return;
    }
    if let Some(raised) = raised(limit, (open + more) as u64 + SPARE) {
        limit.rlim_cur = raised;
        // If it fails, so does opening the files, with a reason.
        // SAFETY: the pointer is to our own rlimit.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    }
}

fn raised(limit: libc::rlimit, needed: u64) -> Option<u64> {
    let raised = needed.min(limit.rlim_max);
    (raised > limit.rlim_cur).then_some(raised)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: with 256 CPUs, the soft limit of 1,024 open files was too low for context switches.
    #[test]
    fn the_events_of_many_cpus_are_permitted_as_open_files() {
        let limit = libc::rlimit {
            rlim_cur: 1024,
            rlim_max: 4096,
        };
        assert_eq!(raised(limit, 40 + SPARE), None);
        assert_eq!(raised(limit, 4 * 256 + SPARE), Some(1280));
        assert_eq!(raised(limit, 4 * 2048 + SPARE), Some(4096));
    }
}
