//! A check for limitations of measurements on a machine.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One check of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Check {
    /// What was checked, for example `kernel.perf_event_paranoid`.
    pub name: String,
    /// The value found.
    pub value: String,
    /// The limitation, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limitation: Option<String>,
    /// The command that removes the limitation, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Check {
    /// The name for people. The name itself is a key of `run.json` and of `pgassay doctor --json`.
    pub fn title(&self) -> String {
        match self.name.as_str() {
            "waits_from_memory" => "wait events from memory",
            "wake_ups" => "wake-ups",
            "cpu" => "CPU",
            "cpus" => "CPUs",
            "perf_event_paranoid" => "kernel.perf_event_paranoid",
            "kptr_restrict" => "kernel.kptr_restrict",
            "governor" => "CPU governor",
            "cgroup_quota" => "CPU quota",
            "steal" => "CPU steal",
            "idle_cpus" => "idle CPUs",
            "clock_source" => "clock source",
            "instruction_counter" => "instruction counter",
            "hardware_counters" => "hardware counters",
            "lost_samples" => "lost samples",
            "malformed_records" => "malformed records",
            "unattributed_samples" => "unattributed samples",
            "truncated_stacks" => "truncated stacks",
            "broken_stacks" => "broken stacks",
            "kernel_names" => "kernel names",
            "lost_slices" => "lost slices",
            "unknown_places" => "unknown call sites",
            "ambiguous_places" => "ambiguous call sites",
            "dropped_intervals" => "dropped intervals",
            "unreadable_object" => "unreadable object",
            "stripped_object" => "stripped object",
            name => name,
        }
        .to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_no_snake_case_except_names_of_the_system() {
        let title = |name: &str| {
            let check = Check {
                name: name.to_owned(),
                value: String::new(),
                limitation: None,
                fix: None,
            };
            check.title()
        };
        assert_eq!(title("idle_cpus"), "idle CPUs");
        // Regression: a profile's note began with "unattributed_samples:".
        assert_eq!(title("unattributed_samples"), "unattributed samples");
        assert_eq!(title("kptr_restrict"), "kernel.kptr_restrict");
        assert_eq!(title("pg_stat_statements"), "pg_stat_statements");
    }
}
