//! The machine's check-up, as kept with every result and printed by `doctor`.

use pgassay_core::run::Check;
use pgassay_profile::Conditions;

use crate::laboratory::counting::Valgrind;

/// Looks at everything that limits measurements.
pub fn all() -> Vec<Check> {
    let conditions = Conditions::read();
    let limits = conditions.limits();
    let check = |name: &str, value: Option<String>| {
        let limit = limits.iter().find(|limit| limit.condition == name);
        Check {
            name: name.to_owned(),
            value: value.unwrap_or_else(|| "not known".to_owned()),
            limits: limit.map(|limit| limit.effect.clone()),
            mend: limit.and_then(|limit| limit.remedy.clone()),
        }
    };
    let number = |value: Option<i64>| value.map(|value| value.to_string());
    vec![
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
                .or_else(|| Some("none to be seen".to_owned())),
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
                .map(|share| format!("{:.1} %", share * 100.0)),
        ),
        counter(),
    ]
}

/// What counts instructions here.
fn counter() -> Check {
    let name = "instruction_counter".to_owned();
    match Valgrind::find() {
        Ok(valgrind) => Check {
            name,
            value: valgrind.version,
            limits: None,
            mend: None,
        },
        Err(_) => Check {
            name,
            value: "none".to_owned(),
            limits: Some("pgassay count cannot count".to_owned()),
            mend: Some("install the package \"valgrind\"".to_owned()),
        },
    }
}
