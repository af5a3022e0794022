//! Which checkpoints and vacuum pgassay runs on a server, and the settings that keep the server from running
//! them.

use std::collections::BTreeMap;

use pgassay_model::plan::ServerPlan;
use pgassay_model::study::{Maintenance, MaintenanceTime};

/// Settings that prevent checkpoints. If a study sets one of them, pgassay leaves checkpoints alone.
const OF_CHECKPOINTS: [(&str, &str); 2] = [("checkpoint_timeout", "1d"), ("max_wal_size", "8GB")];
/// The same for autovacuum.
const OF_VACUUM: (&str, &str) = ("autovacuum", "off");

/// A server's plan with the settings that prevent automatic checkpoints and autovacuum.
pub fn with_maintenance_off(wanted: &ServerPlan, maintenance: Maintenance) -> ServerPlan {
    let decides = PlannedMaintenance::of(wanted, maintenance);
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
#[derive(Clone, Copy)]
pub struct PlannedMaintenance {
    pub checkpoint: Option<MaintenanceTime>,
    pub vacuum: Option<MaintenanceTime>,
}

impl PlannedMaintenance {
    pub fn of(wanted: &ServerPlan, maintenance: Maintenance) -> Self {
        let is_free = |name: &str| {
            !wanted
                .settings
                .keys()
                .any(|it| it.eq_ignore_ascii_case(name))
        };
        let of = |time: MaintenanceTime, names: &[&str]| {
            let is_ours = wanted.dsn.is_none() && names.iter().all(|name| is_free(name));
            Some(time).filter(|time| is_ours && *time != MaintenanceTime::AsConfigured)
        };
        let names = OF_CHECKPOINTS.map(|(name, _)| name);
        Self {
            checkpoint: of(maintenance.checkpoint, &names),
            vacuum: of(maintenance.vacuum, &[OF_VACUUM.0]),
        }
    }
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
        let quiet = with_maintenance_off(&server(&[], None), maintenance).settings;
        assert_eq!(quiet["autovacuum"], "off");
        assert_eq!(quiet["checkpoint_timeout"], "1d");

        let own =
            with_maintenance_off(&server(&[("Max_Wal_Size", "1GB")], None), maintenance).settings;
        assert_eq!(own.get("checkpoint_timeout"), None, "the study decides");
        assert_eq!(own["autovacuum"], "off", "the study does not set it");

        let theirs = server(&[], Some("host=db"));
        assert_eq!(
            with_maintenance_off(&theirs, maintenance).settings,
            theirs.settings
        );

        let as_configured = Maintenance {
            checkpoint: MaintenanceTime::AsConfigured,
            vacuum: MaintenanceTime::AsConfigured,
        };
        assert!(
            with_maintenance_off(&server(&[], None), as_configured)
                .settings
                .is_empty()
        );
    }
}
