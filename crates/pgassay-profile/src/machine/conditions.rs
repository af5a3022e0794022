//! The conditions of this machine: plain data that every result keeps, and for each condition that
//! limits a measurement the command that fixes it.
//!
//! Reading them requires no privilege. A value that cannot be read is unknown, never assumed. See
//! `Documentation/admin-guide/sysctl/kernel.rst`, `…/cgroup-v2.rst` (`cpu.max`) and
//! `…/pm/cpufreq.rst` in Linux.

use crate::proc::files::{parse_cpu_list, read_number};
use std::fs;
use std::path::{Path, PathBuf};

/// The conditions of a machine.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MachineConditions {
    /// The kernel release, as `uname -r` prints it.
    pub kernel: Option<String>,
    /// The CPU model.
    pub cpu_model: Option<String>,
    /// Number of online CPUs.
    pub cpus: u32,
    /// The machine is virtual.
    pub virtualized: bool,
    /// `kernel.perf_event_paranoid`.
    pub perf_event_paranoid: Option<i64>,
    /// `kernel.kptr_restrict`.
    pub kptr_restrict: Option<i64>,
    /// This process can sample regardless of `perf_event_paranoid` (`CAP_PERFMON`,
    /// `CAP_SYS_ADMIN`).
    pub may_sample: bool,
    /// This process can read kernel addresses at `kptr_restrict` 1 (`CAP_SYSLOG`).
    pub may_see_kernel: bool,
    /// The kernel's clock source.
    pub clock_source: Option<String>,
    /// The distinct frequency governors of the CPUs; empty if frequencies are not managed.
    pub governors: Vec<String>,
    /// The CPU quota of the control group, in CPUs; `None` if there is no limit.
    pub cgroup_quota_cpus: Option<f64>,
    /// CPU steal since boot, as a share of all CPU time.
    pub steal_share: Option<f64>,
}

/// A condition that limits a measurement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// The condition's name, for machines: `perf_event_paranoid`, `governor`, …
    pub condition: &'static str,
    /// Its effect on a measurement.
    pub effect: String,
    /// The command that fixes it; `None` if there is none.
    pub fix: Option<String>,
}

impl Limit {
    pub(crate) fn new(condition: &'static str, effect: String, fix: Option<&str>) -> Self {
        Self {
            condition,
            effect,
            fix: fix.map(str::to_owned),
        }
    }
}

// Capability numbers; see include/uapi/linux/capability.h.
const CAP_SYS_ADMIN: u32 = 21;
const CAP_SYSLOG: u32 = 34;
const CAP_PERFMON: u32 = 38;

/// With more CPU steal than this, noisy neighbors affect the measurement.
const STEAL_SHARE_MAX: f64 = 0.01;

impl MachineConditions {
    /// Reads the conditions of this machine.
    pub fn read() -> Self {
        Self::read_under(Path::new("/"))
    }

    /// Reads the conditions of a machine whose `/proc` and `/sys` are under `root`.
    fn read_under(root: &Path) -> Self {
        let file = |path: &str| fs::read_to_string(root.join(path)).ok();
        let word = |path: &str| file(path).map(|text| text.trim().to_owned());
        let cpu_info = file("proc/cpuinfo").unwrap_or_default();
        let cpu_field = |name: &str| {
            cpu_info.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == name).then(|| value.trim().to_owned())
            })
        };
        let online = file("sys/devices/system/cpu/online").unwrap_or_default();
        let status = file("proc/self/status").unwrap_or_default();
        Self {
            kernel: word("proc/sys/kernel/osrelease"),
            cpu_model: cpu_field("model name"),
            cpus: parse_cpu_list(&online).len() as u32,
            virtualized: cpu_field("flags")
                .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            perf_event_paranoid: read_number(root.join("proc/sys/kernel/perf_event_paranoid")),
            kptr_restrict: read_number(root.join("proc/sys/kernel/kptr_restrict")),
            may_sample: has_capability(&status, CAP_PERFMON)
                || has_capability(&status, CAP_SYS_ADMIN),
            may_see_kernel: has_capability(&status, CAP_SYSLOG),
            clock_source: word("sys/devices/system/clocksource/clocksource0/current_clocksource"),
            governors: governors(root, &online),
            cgroup_quota_cpus: cgroup_quota_cpus(root),
            steal_share: steal_share(&file("proc/stat").unwrap_or_default()),
        }
    }

    /// The conditions that limit a measurement on this machine.
    pub fn limits(&self) -> Vec<Limit> {
        let mut limits = Vec::new();
        let mut add = |condition, effect, fix| limits.push(Limit::new(condition, effect, fix));
        if self.perf_event_paranoid.is_some_and(|p| p > 0) && !self.may_sample {
            add(
                "perf_event_paranoid",
                "CPU stacks cannot be sampled without CAP_PERFMON".to_owned(),
                Some("sudo sysctl kernel.perf_event_paranoid=0"),
            );
        }
        let allowed = i64::from(self.may_see_kernel);
        if self
            .kptr_restrict
            .is_some_and(|restrict| restrict > allowed)
        {
            add(
                "kptr_restrict",
                "kernel functions may be shown without names".to_owned(),
                Some("sudo sysctl kernel.kptr_restrict=0"),
            );
        }
        if let Some(source) = self.clock_source.as_ref().filter(|s| is_slow_clock(s)) {
            add(
                "clock_source",
                format!("the clock source {source} costs a system call per clock reading"),
                Some(
                    "echo tsc | sudo tee \
                     /sys/devices/system/clocksource/clocksource0/current_clocksource",
                ),
            );
        }
        if let Some(governor) = self.governors.iter().find(|g| *g != "performance") {
            add(
                "governor",
                format!("the governor {governor} changes the CPU frequency with the load"),
                Some("sudo cpupower frequency-set --governor performance"),
            );
        }
        if let Some(quota) = self.cgroup_quota_cpus.filter(|&q| q < f64::from(self.cpus)) {
            add(
                "cgroup_quota",
                format!(
                    "the control group is throttled when it uses more than {quota:.2} of {} \
                         CPUs",
                    self.cpus
                ),
                Some(
                    "increase cpu.max of the control group (docker run --cpus, CPUQuota= in \
                     systemd)",
                ),
            );
        }
        if let Some(share) = self.steal_share.filter(|&s| s > STEAL_SHARE_MAX) {
            add(
                "steal",
                format!(
                    "CPU steal since boot: {:.1}% (noisy neighbors)",
                    share * 100.0
                ),
                None,
            );
        }
        limits
    }
}

/// Whether the `CapPrm` line of `/proc/PID/status` includes a capability, which then is put into effect where it is
/// needed; see `capabilities(7)`.
fn has_capability(status: &str, number: u32) -> bool {
    let permitted = status
        .lines()
        .find_map(|line| line.strip_prefix("CapPrm:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    permitted.is_some_and(|mask| mask >> number & 1 == 1)
}

/// Reading these takes a system call or a slow access to a device.
fn is_slow_clock(source: &str) -> bool {
    matches!(
        source,
        "acpi_pm" | "hpet" | "jiffies" | "refined-jiffies" | "xen"
    )
}

fn governors(root: &Path, online: &str) -> Vec<String> {
    let mut governors: Vec<String> = parse_cpu_list(online)
        .into_iter()
        .filter_map(|cpu| {
            let path = format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor");
            fs::read_to_string(root.join(path)).ok()
        })
        .map(|text| text.trim().to_owned())
        .collect();
    governors.sort();
    governors.dedup();
    governors
}

/// The smallest quota from our control group up to the root, for cgroup v1 and v2.
fn cgroup_quota_cpus(root: &Path) -> Option<f64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mut tightest: Option<f64> = None;
    for line in groups.lines() {
        // hierarchy:controllers:path
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else {
            continue;
        };
        let is_v2 = controllers.is_empty();
        let mounts = if is_v2 {
            ["sys/fs/cgroup", "sys/fs/cgroup/unified"]
        } else if controllers.split(',').any(|c| c == "cpu") {
            ["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"]
        } else {
            continue;
        };
        for mount in mounts {
            let mount = root.join(mount);
            let group: PathBuf = mount.join(group.trim_start_matches('/'));
            let quotas = group
                .ancestors()
                .take_while(|dir| dir.starts_with(&mount))
                .filter_map(|dir| if is_v2 { quota_v2(dir) } else { quota_v1(dir) });
            tightest = quotas.chain(tightest).min_by(f64::total_cmp);
        }
    }
    tightest
}

/// `cpu.max`: quota (or `max`) and period, in µs.
fn quota_v2(dir: &Path) -> Option<f64> {
    let text = fs::read_to_string(dir.join("cpu.max")).ok()?;
    let mut words = text.split_whitespace();
    let quota: f64 = words.next()?.parse().ok()?;
    let period: f64 = words.next()?.parse().ok()?;
    (period > 0.0).then(|| quota / period)
}

/// `cpu.cfs_quota_us` is -1 if there is no quota.
fn quota_v1(dir: &Path) -> Option<f64> {
    let quota = read_number(dir.join("cpu.cfs_quota_us"))?;
    let period = read_number(dir.join("cpu.cfs_period_us"))?;
    (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
}

/// From the first line of `/proc/stat`: the eighth of the first eight numbers, over their sum.
/// Guest time is already included in the first two.
fn steal_share(stat: &str) -> Option<f64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<f64> = line
        .split_whitespace()
        .take(8)
        .map_while(|n| n.parse().ok())
        .collect();
    let total: f64 = ticks.iter().sum();
    (ticks.len() == 8 && total > 0.0).then(|| ticks[7] / total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, MachineConditions) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let conditions = MachineConditions::read_under(root.path());
        (root, conditions)
    }

    #[test]
    fn each_limit_of_a_machine_is_listed_with_its_fix() {
        let (_root, conditions) = machine(&[
            ("proc/sys/kernel/perf_event_paranoid", "2\n"),
            ("proc/sys/kernel/kptr_restrict", "1\n"),
            ("proc/sys/kernel/osrelease", "6.1.0\n"),
            (
                "proc/cpuinfo",
                "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu hypervisor\n",
            ),
            ("proc/stat", "cpu  50 0 20 10 0 0 0 20 0 0\n"),
            ("proc/self/cgroup", "0::/user/ours\n"),
            ("sys/devices/system/cpu/online", "0-3\n"),
            (
                "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor",
                "powersave\n",
            ),
            (
                "sys/devices/system/clocksource/clocksource0/current_clocksource",
                "hpet\n",
            ),
            ("sys/fs/cgroup/user/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/user/ours/cpu.max", "max 100000\n"),
        ]);
        assert_eq!(conditions.cpus, 4);
        assert_eq!(conditions.cpu_model.as_deref(), Some("Some CPU"));
        assert!(conditions.virtualized);
        assert_eq!(conditions.cgroup_quota_cpus, Some(1.5));
        assert_eq!(conditions.steal_share, Some(0.2));
        let limits = conditions.limits();
        let names: Vec<_> = limits.iter().map(|l| l.condition).collect();
        assert_eq!(
            names,
            [
                "perf_event_paranoid",
                "kptr_restrict",
                "clock_source",
                "governor",
                "cgroup_quota",
                "steal"
            ]
        );
        assert_eq!(
            limits[0].fix.as_deref(),
            Some("sudo sysctl kernel.perf_event_paranoid=0")
        );
        assert_eq!(limits[5].fix, None, "no command fixes CPU steal");
    }

    #[test]
    fn a_machine_without_limits_has_none() {
        let (_root, conditions) = machine(&[
            ("proc/sys/kernel/perf_event_paranoid", "-1\n"),
            ("proc/sys/kernel/kptr_restrict", "0\n"),
            ("proc/stat", "cpu  50 0 20 10 0 0 0 0 0 0\n"),
            ("proc/self/cgroup", "3:cpu,cpuacct:/\n0::/\n"),
            ("sys/devices/system/cpu/online", "0\n"),
            (
                "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
                "performance\n",
            ),
            (
                "sys/devices/system/clocksource/clocksource0/current_clocksource",
                "tsc\n",
            ),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
        ]);
        assert_eq!(conditions.limits(), []);
        assert_eq!(conditions.governors, ["performance"]);
    }

    #[test]
    fn capabilities_lift_the_limits() {
        let (_root, conditions) = machine(&[
            ("proc/sys/kernel/perf_event_paranoid", "2\n"),
            ("proc/sys/kernel/kptr_restrict", "1\n"),
            ("proc/self/status", "Name:\tx\nCapPrm:\t000001ffffffffff\n"),
        ]);
        assert_eq!(conditions.limits(), []);
        let (_root, conditions) = machine(&[
            ("proc/sys/kernel/perf_event_paranoid", "2\n"),
            ("proc/sys/kernel/kptr_restrict", "2\n"),
            ("proc/self/status", "CapPrm:\t0000004000000000\n"),
        ]);
        assert!(conditions.may_sample && !conditions.may_see_kernel);
        assert_eq!(conditions.limits()[0].condition, "kptr_restrict");
    }

    #[test]
    fn unreadable_conditions_are_unknown() {
        let (_root, conditions) = machine(&[]);
        assert_eq!(conditions, MachineConditions::default());
        assert_eq!(conditions.limits(), []);
    }

    #[test]
    fn a_cgroup_v1_quota_is_a_limit() {
        let (_root, conditions) = machine(&[
            ("proc/self/cgroup", "1:cpu:/a\n"),
            ("sys/devices/system/cpu/online", "0-1\n"),
            ("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "50000\n"),
            ("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n"),
        ]);
        assert_eq!(conditions.cgroup_quota_cpus, Some(0.5));
        assert_eq!(conditions.limits()[0].condition, "cgroup_quota");
    }

    #[test]
    fn the_running_machine_has_a_kernel_and_cpus() {
        let conditions = MachineConditions::read();
        assert!(conditions.kernel.is_some());
        assert!(conditions.cpus >= 1);
    }
}
