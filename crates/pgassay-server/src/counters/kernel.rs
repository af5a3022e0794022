//! Kernel statistics of a server's processes, its disk, and the machine.
//!
//! | name | meaning | source |
//! |---|---|---|
//! | `backends.voluntary_switches`, `.involuntary_switches` | context switches to wait; by preemption | `/proc/PID/status` |
//! | `backends.minor_faults`, `.major_faults` | page faults without and with a read from disk | `/proc/PID/stat` |
//! | `backends.read_bytes`, `.write_bytes` | read from the disk; page cache dirtied, in whole folios: on kernel 6.18 with ext4, 1 MiB for a write of 8 kB | `/proc/PID/io`, readable by the owner and root |
//! | `background(ROLE).cpu_us`, `.write_bytes` | of the server's background processes | `/proc/PID/schedstat`, `/proc/PID/io` |
//! | `disk.reads`, `.writes`, `.read_bytes`, `.write_bytes`, `.flushes` | of the disk with the data, by all programs | `/proc/diskstats` |
//! | `machine.busy_us`, `.idle_us`, `.io_wait_us`, `.steal_us` | over all CPUs | `/proc/stat` |
//! | `machine.context_switches`, `.forks` | of all programs | `/proc/stat` |
//! | `cgroup.throttled_us` | pgassay and its servers were throttled by a CPU quota | `cpu.stat` |
//!
//! See `Documentation/filesystems/proc.rst` and `Documentation/admin-guide/iostats.rst` in Linux.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::os::Pid;
use crate::processes::{ProcessRole, read_at_once};

/// The unit of `/proc/diskstats`, whatever the disk's sector size.
const SECTOR_BYTES: f64 = 512.0;

/// The processes and the disk to read statistics of.
pub(super) struct Kernel<'a> {
    /// The backends of the load.
    pub backends: &'a [Pid],
    /// The server's background processes.
    pub background: &'a [(Pid, ProcessRole)],
    /// The data directory, which identifies the disk, if known.
    pub data_dir: Option<&'a Path>,
}

type Values = BTreeMap<String, f64>;

fn add(values: &mut Values, name: String, value: f64) {
    *values.entry(name).or_insert(0.0) += value;
}

impl Kernel<'_> {
    /// Reads all statistics that are readable.
    pub fn read(&self, values: &mut Values) {
        for pid in self.backends {
            backend(*pid, values);
        }
        for (pid, role) in self.background {
            background(*pid, role, values);
        }
        if let Some(data_dir) = self.data_dir {
            disk(data_dir, values);
        }
        machine(&read("/proc/stat"), values);
        if let Some(throttled_us) = throttled_us() {
            add(values, "cgroup.throttled_us".to_owned(), throttled_us);
        }
    }
}

/// An empty text if a file cannot be read, so that its statistics are omitted.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// A file of a process, likewise.
fn of_process(pid: Pid, file: &str) -> String {
    read_at_once(&format!("/proc/{pid}/{file}")).unwrap_or_default()
}

/// The number in the line `label: number` or `label number`.
fn labelled(text: &str, label: &str) -> Option<f64> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(label)?;
        let rest = rest.strip_prefix(':').unwrap_or(rest);
        rest.split_whitespace().next()?.parse().ok()
    })
}

fn backend(pid: Pid, values: &mut Values) {
    let status = of_process(pid, "status");
    for (label, name) in [
        ("voluntary_ctxt_switches", "backends.voluntary_switches"),
        (
            "nonvoluntary_ctxt_switches",
            "backends.involuntary_switches",
        ),
    ] {
        if let Some(value) = labelled(&status, label) {
            add(values, name.to_owned(), value);
        }
    }
    // The program's name, in parentheses, can contain spaces, so fields are counted after it.
    let stat = of_process(pid, "stat");
    let fields: Vec<f64> = stat
        .rsplit_once(") ")
        .map(|(_, rest)| {
            rest.split(' ')
                .map(|it| it.parse().unwrap_or(0.0))
                .collect()
        })
        .unwrap_or_default();
    // minflt and majflt are fields 10 and 12 of the line.
    for (field, name) in [(7, "backends.minor_faults"), (9, "backends.major_faults")] {
        if let Some(value) = fields.get(field) {
            add(values, name.to_owned(), *value);
        }
    }
    let io = of_process(pid, "io");
    for label in ["read_bytes", "write_bytes"] {
        if let Some(value) = labelled(&io, label) {
            add(values, format!("backends.{label}"), value);
        }
    }
}

fn background(pid: Pid, role: &ProcessRole, values: &mut Values) {
    let schedstat = of_process(pid, "schedstat");
    let on_cpu_ns = schedstat
        .split(' ')
        .next()
        .and_then(|it| it.parse::<f64>().ok());
    if let Some(on_cpu_ns) = on_cpu_ns {
        add(
            values,
            format!("background({role}).cpu_us"),
            on_cpu_ns / 1e3,
        );
    }
    let io = of_process(pid, "io");
    if let Some(bytes) = labelled(&io, "write_bytes") {
        add(values, format!("background({role}).write_bytes"), bytes);
    }
}

/// Finds the disk by its device number; tmpfs and overlay file systems have none.
fn disk(data_dir: &Path, values: &mut Values) {
    let Ok(metadata) = fs::metadata(data_dir) else {
        return;
    };
    let (major, minor) = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
    let wanted = [major.to_string(), minor.to_string()];
    for line in read("/proc/diskstats").lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.len() < 11 || words[..2] != wanted {
            continue;
        }
        for (field, name, unit) in [
            (3, "disk.reads", 1.0),
            (5, "disk.read_bytes", SECTOR_BYTES),
            (7, "disk.writes", 1.0),
            (9, "disk.write_bytes", SECTOR_BYTES),
            // Since Linux 5.5.
            (18, "disk.flushes", 1.0),
        ] {
            if let Some(value) = words.get(field).and_then(|it| it.parse::<f64>().ok()) {
                add(values, name.to_owned(), value * unit);
            }
        }
    }
}

/// Times in `/proc/stat` are in ticks, usually a hundredth of a second.
fn machine(stat: &str, values: &mut Values) {
    // SAFETY: sysconf has no preconditions.
    let ticks_per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as f64;
    if let Some(all) = stat.lines().find_map(|line| line.strip_prefix("cpu ")) {
        let ticks: Vec<f64> = all
            .split_whitespace()
            .map(|it| it.parse().unwrap_or(0.0))
            .collect();
        let at = |field: usize| ticks.get(field).copied().unwrap_or(0.0) * 1e6 / ticks_per_second;
        // user nice system idle iowait irq softirq steal
        let busy_us = [0, 1, 2, 5, 6].map(at).iter().sum();
        for (name, us) in [
            ("machine.busy_us", busy_us),
            ("machine.idle_us", at(3)),
            ("machine.io_wait_us", at(4)),
            ("machine.steal_us", at(7)),
        ] {
            add(values, name.to_owned(), us);
        }
    }
    for (label, name) in [
        ("ctxt", "machine.context_switches"),
        ("processes", "machine.forks"),
    ] {
        if let Some(value) = labelled(stat, label) {
            add(values, name.to_owned(), value);
        }
    }
}

/// Throttled time of our own control group in the unified hierarchy (`0::/…`), which includes our
/// servers.
fn throttled_us() -> Option<f64> {
    let groups = read("/proc/self/cgroup");
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    labelled(
        &read(&format!("/sys/fs/cgroup{path}/cpu.stat")),
        "throttled_usec",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_match_whole_words() {
        let text = "voluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t545\n";
        assert_eq!(labelled(text, "voluntary_ctxt_switches"), Some(150.0));
        assert_eq!(labelled(text, "nonvoluntary_ctxt_switches"), Some(545.0));
        assert_eq!(labelled(text, "ctxt"), None);
    }

    #[test]
    fn machine_time_is_busy_idle_io_wait_or_steal() {
        let mut values = Values::new();
        machine(
            "cpu  10 0 5 100 7 1 2 3 0 0\ncpu0 1\nctxt 99\nprocesses 4\n",
            &mut values,
        );
        let busy = values["machine.busy_us"] / values["machine.steal_us"];
        assert!((busy - 6.0).abs() < 1e-9, "{values:?}");
        assert!((values["machine.forks"] - 4.0).abs() < 1e-9);
    }

    #[test]
    fn statistics_of_our_own_process_are_readable() {
        let mut values = Values::new();
        let own = Pid::try_from(std::process::id()).unwrap();
        let kernel = Kernel {
            backends: &[own],
            background: &[],
            data_dir: Some(Path::new("/")),
        };
        kernel.read(&mut values);
        for name in [
            "backends.voluntary_switches",
            "backends.minor_faults",
            "machine.idle_us",
        ] {
            assert!(values.contains_key(name), "{name} in {values:?}");
        }
        assert!(values["backends.minor_faults"] > 100.0);
    }
}
