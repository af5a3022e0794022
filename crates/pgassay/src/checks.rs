//! Checks of the machine, stored with every result and printed by `doctor`.

use std::path::Path;
use std::time::Duration;

use pgassay_account::calibration::machine_key;
use pgassay_lab::counting::Valgrind;
use pgassay_model::check::Check;
use pgassay_profile::{
    Access, AwakeCpus, CountedEvent, EventCounter, MachineConditions, MachineCpu, Tier,
};
use pgassay_rights::Capabilities;
use pgassay_server::data_disk;
use pgassay_store::MachineIdentity;

/// Long enough for the kernel's clock ticks of 10 ms.
const LOAD_WATCHED_FOR: Duration = Duration::from_secs(1);
/// A run beside so much load has a warning, too.
const LOAD_NOTICEABLE: f64 = 0.05;

/// Checks everything that limits measurements, except other load.
pub fn all() -> Vec<Check> {
    let conditions = MachineConditions::read();
    let limits = conditions.limits();
    let check = |name: &str, value: Option<String>| {
        let limit = limits.iter().find(|limit| limit.condition == name);
        Check {
            name: name.to_owned(),
            value: value.unwrap_or_else(|| "unknown".to_owned()),
            limitation: limit.map(|limit| limit.effect.clone()),
            fix: limit.and_then(|limit| limit.fix.clone()),
        }
    };
    let number = |value: Option<i64>| value.map(|value| value.to_string());
    // Servers of other users also require ptrace permission.
    let access = Access::to_own_server();
    vec![
        tier(&access),
        feature_check(
            &access,
            Tier::T1,
            "waits_from_memory",
            access.waits_from_memory,
        ),
        feature_check(&access, Tier::T3, "wake_ups", access.wake_ups),
        check("kernel", conditions.kernel.clone()),
        check("cpu", conditions.cpu_model.clone()),
        check("cpus", Some(conditions.cpus.to_string())),
        check(
            "perf_event_paranoid",
            number(conditions.perf_event_paranoid),
        ),
        check("kptr_restrict", number(conditions.kptr_restrict)),
        check("clock_source", conditions.clock_source.clone()),
        check(
            "governor",
            Some(conditions.governors.join(" "))
                .filter(|names| !names.is_empty())
                .or_else(|| Some("none visible".to_owned())),
        ),
        check(
            "cgroup_quota",
            Some(
                conditions
                    .cgroup_quota_cpus
                    .map_or_else(|| "none".to_owned(), |cpus| format!("{cpus} CPUs")),
            ),
        ),
        check(
            "steal",
            conditions
                .steal_share
                .map(|share| format!("{:.1}%", share * 100.0)),
        ),
        valgrind_check(),
        hardware_counters(),
        idle_cpus(),
    ]
}

/// Where the servers that pgassay starts have their data: below `data_parent`, or in the usual directory.
pub fn disk(data_parent: Option<&Path>) -> Check {
    Check {
        name: "disk".to_owned(),
        value: data_disk(data_parent).unwrap_or_else(|| "unknown".to_owned()),
        limitation: None,
        fix: None,
    }
}

/// The capabilities of this process; see SECURITY.md.
pub fn capabilities() -> Check {
    let value = match Capabilities::read() {
        Ok(held) if held.in_effect.is_empty() && held.when_needed.is_empty() => "none".to_owned(),
        Ok(held) => {
            let list = |names: &[String]| match names {
                [] => "none".to_owned(),
                _ => names.join(", "),
            };
            format!(
                "{} all the time; {} only where needed; the others were dropped",
                list(&held.in_effect),
                list(&held.when_needed)
            )
        }
        Err(error) => format!("unknown: {error}"),
    };
    Check {
        name: "capabilities".to_owned(),
        value,
        limitation: None,
        fix: None,
    }
}

/// What else uses the CPUs while nothing is measured; unlike [`all`], this takes a moment.
pub fn load() -> Option<Check> {
    let before = MachineCpu::read().ok()?;
    std::thread::sleep(LOAD_WATCHED_FOR);
    let passed = MachineCpu::read().ok()?.since(&before);
    let share = passed.busy_ns() as f64 / passed.total_ns.max(1) as f64;
    let is_busy = share > LOAD_NOTICEABLE;
    Some(Check {
        name: "load".to_owned(),
        value: format!("other programs use {:.0}% of the CPU time", share * 100.0),
        limitation: is_busy.then(|| {
            "throughput varies with what they do, so verdicts take longer, and latencies are longer than on an idle machine"
                .to_owned()
        }),
        fix: is_busy.then(|| {
            "stop them, or use pgassay count: other programs hardly change instruction counts".to_owned()
        }),
    })
}

/// The machine that a calibration belongs to.
pub struct CalibratedMachine {
    /// Processor model and number of CPUs.
    pub name: String,
    /// Identifies the machine: a digest, so that shared results do not reveal the machine ID.
    pub key: String,
    /// Whether the digest includes a machine ID. Container images often have none.
    pub has_id: bool,
}

/// This machine.
pub fn machine() -> CalibratedMachine {
    let conditions = MachineConditions::read();
    let model = conditions.cpu_model.as_deref().unwrap_or("unknown CPU");
    let name = format!("{model}, {} CPUs", conditions.cpus);
    // machine-id(5) asks programs to hash the ID before it leaves the machine.
    let id = machine_id(&|path| std::fs::read_to_string(path).ok());
    let key = machine_key(&format!("{name} {id}"));
    let has_id = !id.is_empty();
    CalibratedMachine { name, key, has_id }
}

/// The machine's ID: systemd's or, without systemd, that of D-Bus. Empty if there is none, as in images before their
/// first boot.
fn machine_id(read: &dyn Fn(&str) -> Option<String>) -> String {
    let files = ["/etc/machine-id", "/var/lib/dbus/machine-id"];
    let ids = files.into_iter().filter_map(read);
    let mut ids = ids.map(|it| it.trim().to_owned());
    let id = ids.find(|it| !it.is_empty() && it != "uninitialized");
    id.unwrap_or_default()
}

/// This machine, as runs that may be continued remember it.
pub fn machine_identity() -> MachineIdentity {
    let machine = machine();
    let kernel = MachineConditions::read().kernel;
    MachineIdentity {
        name: machine.name,
        key: machine.key,
        kernel: kernel.unwrap_or_else(|| "unknown".to_owned()),
    }
}

/// The access tier, and what grants the next one.
pub fn tier(access: &Access) -> Check {
    let refused = access.missing.iter().find(|it| it.tier > access.tier);
    Check {
        name: "tier".to_owned(),
        value: format!("{} of T3: {}", access.tier, access.words()),
        limitation: refused.map(|it| {
            let (next, refusal) = (it.tier, &it.refusal);
            format!("{next} is not permitted: {}: {}", refusal.what, refusal.why)
        }),
        fix: refused.map(|it| it.refusal.commands.join("  or  ")),
    }
}

/// A feature that may be unavailable even though its tier is granted.
fn feature_check(access: &Access, tier: Tier, name: &str, is_there: bool) -> Check {
    let refused = access
        .missing
        .iter()
        .find(|it| it.tier == tier && tier <= access.tier);
    Check {
        name: name.to_owned(),
        value: if is_there {
            "available"
        } else {
            "not available"
        }
        .to_owned(),
        limitation: refused.map(|it| format!("{}: {}", it.refusal.what, it.refusal.why)),
        fix: refused.map(|it| it.refusal.commands.join("  or  ")),
    }
}

/// The tool that counts instructions (`pgassay count`).
fn valgrind_check() -> Check {
    let name = "instruction_counter".to_owned();
    match Valgrind::find() {
        Ok(valgrind) => Check {
            name,
            value: valgrind.version,
            limitation: None,
            fix: None,
        },
        Err(error) => Check {
            name,
            value: "none".to_owned(),
            limitation: Some(format!("pgassay count cannot run: {error:#}")),
            fix: None,
        },
    }
}

/// Whether idle CPUs can be kept awake. It limits only the runs that ask for it, which then warn.
fn idle_cpus() -> Check {
    let value = if AwakeCpus::is_permitted() {
        "can be kept awake (--keep-cpus-awake)"
    } else {
        "cannot be kept awake: --keep-cpus-awake requires root"
    };
    Check {
        name: "idle_cpus".to_owned(),
        value: value.to_owned(),
        limitation: None,
        fix: None,
    }
}

/// Whether hardware counters count instructions under load. Their absence is no limitation, because
/// valgrind counts instructions too.
fn hardware_counters() -> Check {
    let value = match EventCounter::probe(&CountedEvent::HARDWARE) {
        Ok(()) => "instructions and cycles, counted in separate trials".to_owned(),
        Err(error) => format!("not available; {error}"),
    };
    Check {
        name: "hardware_counters".to_owned(),
        value,
        limitation: None,
        fix: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: two machines without systemd had one ID, and so had two images that were not booted yet.
    #[test]
    fn a_machine_without_systemd_has_the_id_of_d_bus() {
        let of = |etc: Option<&str>, dbus: Option<&str>| {
            machine_id(&|path| {
                let text = if path.starts_with("/etc") { etc } else { dbus };
                text.map(str::to_owned)
            })
        };
        assert_eq!(of(Some("a1\n"), Some("b2\n")), "a1");
        assert_eq!(of(None, Some("b2\n")), "b2");
        assert_eq!(of(Some("uninitialized\n"), Some("b2")), "b2");
        assert_eq!(of(Some("uninitialized\n"), None), "");
        assert_eq!(of(Some("\n"), None), "");
    }
}
