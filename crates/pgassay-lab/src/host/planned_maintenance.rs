//! Which checkpoints and vacuum pgassay runs on a server, and the settings that keep the server from running
//! them.

use std::collections::BTreeMap;

use pgassay_model::plan::ServerPlan;
use pgassay_model::study::{Maintenance, MaintenanceTime};

/// Settings that prevent checkpoints.
const OF_CHECKPOINTS: [(&str, &str); 2] = [("checkpoint_timeout", "1d"), ("max_wal_size", "8GB")];
/// The same for autovacuum.
const OF_VACUUM: (&str, &str) = ("autovacuum", "off");

/// The plan of one of these servers with the settings that prevent automatic checkpoints and autovacuum.
pub fn with_maintenance_off(
    servers: &[ServerPlan],
    index: usize,
    maintenance: Maintenance,
) -> ServerPlan {
    let wanted = &servers[index];
    let decides = PlannedMaintenance::of(servers, index, maintenance);
    let mut settings: BTreeMap<String, String> = wanted.settings.clone();
    let ours = [
        (OF_CHECKPOINTS[0], decides.checkpoint),
        (OF_CHECKPOINTS[1], decides.checkpoint),
        (OF_VACUUM, decides.vacuum),
    ];
    for ((name, value), _) in ours.into_iter().filter(|(_, time)| time.is_some()) {
        settings.insert(name.to_owned(), value.to_owned());
    }
    ServerPlan {
        settings,
        ..wanted.clone()
    }
}

/// When to run one server's checkpoints and vacuum; `None` if the study or the server decides.
#[derive(Debug, Clone, Copy)]
pub struct PlannedMaintenance {
    /// Checkpoints.
    pub checkpoint: Option<MaintenanceTime>,
    /// Vacuum and analyze.
    pub vacuum: Option<MaintenanceTime>,
}

impl PlannedMaintenance {
    /// Decides for one of these servers. If a study sets on any of them what governs checkpoints or autovacuum, pgassay
    /// leaves those alone on all: a variant with such a setting is compared with what PostgreSQL does without it.
    pub fn of(servers: &[ServerPlan], index: usize, maintenance: Maintenance) -> Self {
        let sets_any = |governs: fn(&str) -> bool| {
            let mut names = servers.iter().flat_map(|it| it.settings.keys());
            names.any(|name| governs(&name.to_ascii_lowercase()))
        };
        let of = |time: MaintenanceTime, governs: fn(&str) -> bool| {
            let is_ours = servers[index].dsn.is_none() && !sets_any(governs);
            Some(time).filter(|time| is_ours && *time != MaintenanceTime::AsConfigured)
        };
        Self {
            checkpoint: of(maintenance.checkpoint, governs_checkpoints),
            vacuum: of(maintenance.vacuum, governs_autovacuum),
        }
    }
}

fn governs_checkpoints(name: &str) -> bool {
    name.starts_with("checkpoint_") && name != "checkpoint_warning"
        || ["max_wal_size", "min_wal_size"].contains(&name)
}

fn governs_autovacuum(name: &str) -> bool {
    name.starts_with("autovacuum") && name != "autovacuum_work_mem"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(settings: &[(&str, &str)], dsn: Option<&str>) -> ServerPlan {
        let text = serde_json::json!({
            "version": "18",
            "dsn": dsn,
            "settings": settings.iter().copied().collect::<BTreeMap<_, _>>(),
            "connections": 10,
        });
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn a_checkpoint_or_autovacuum_falls_into_no_trial_unless_the_study_says_so() {
        let maintenance = Maintenance::default();
        let with_maintenance_off = |server: ServerPlan, maintenance: Maintenance| {
            super::with_maintenance_off(&[server], 0, maintenance)
        };
        let quiet = with_maintenance_off(server(&[], None), maintenance).settings;
        assert_eq!(quiet["autovacuum"], "off");
        assert_eq!(quiet["checkpoint_timeout"], "1d");

        let own =
            with_maintenance_off(server(&[("Max_Wal_Size", "1GB")], None), maintenance).settings;
        assert_eq!(own.get("checkpoint_timeout"), None, "the study decides");
        assert_eq!(own["autovacuum"], "off", "the study does not set it");

        let theirs = server(&[], Some("host=db"));
        assert_eq!(
            with_maintenance_off(theirs.clone(), maintenance).settings,
            theirs.settings
        );

        let as_configured = Maintenance {
            checkpoint: MaintenanceTime::AsConfigured,
            vacuum: MaintenanceTime::AsConfigured,
        };
        assert!(
            with_maintenance_off(server(&[], None), as_configured)
                .settings
                .is_empty()
        );
    }

    /// Regression: `compare --vs max_wal_size=4GB` compared with 8 GB, and only the baseline got checkpoints between
    /// trials; with `--vs autovacuum=off`, autovacuum was off in the baseline, which got vacuum between trials.
    #[test]
    fn a_setting_of_checkpoints_or_autovacuum_is_compared_with_what_postgresql_does_without_it() {
        let decided = |name: &str| {
            let both = [server(&[], None), server(&[(name, "1")], None)];
            let of = |index| PlannedMaintenance::of(&both, index, Maintenance::default());
            let [baseline, variant] = [of(0), of(1)].map(|it| (it.checkpoint, it.vacuum));
            assert_eq!(baseline, variant, "{name}");
            (baseline.0.is_some(), baseline.1.is_some())
        };
        for name in [
            "max_wal_size",
            "min_wal_size",
            "checkpoint_timeout",
            "checkpoint_completion_target",
        ] {
            assert_eq!(decided(name), (false, true), "{name}");
        }
        for name in ["autovacuum", "autovacuum_naptime", "Autovacuum_max_workers"] {
            assert_eq!(decided(name), (true, false), "{name}");
        }
        for name in ["work_mem", "checkpoint_warning", "autovacuum_work_mem"] {
            assert_eq!(decided(name), (true, true), "{name}");
        }
    }
}
