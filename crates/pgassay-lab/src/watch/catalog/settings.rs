//! The server's settings that findings and thresholds refer to.

use std::collections::BTreeMap;

use pgassay_record::activity::RoleSetting;

use super::reader::CatalogReader;
use super::row::CatalogRow;
use super::tables::StorageParameters;

/// Settings in the result, in this order, if the server has them.
const LISTED: [&str; 52] = [
    "autovacuum",
    "autovacuum_analyze_scale_factor",
    "autovacuum_analyze_threshold",
    "autovacuum_freeze_max_age",
    "autovacuum_max_workers",
    "autovacuum_multixact_freeze_max_age",
    "autovacuum_naptime",
    "autovacuum_vacuum_cost_delay",
    "autovacuum_vacuum_cost_limit",
    "autovacuum_vacuum_insert_scale_factor",
    "autovacuum_vacuum_insert_threshold",
    "autovacuum_vacuum_max_threshold",
    "autovacuum_vacuum_scale_factor",
    "autovacuum_vacuum_threshold",
    "autovacuum_work_mem",
    "checkpoint_completion_target",
    "checkpoint_timeout",
    "deadlock_timeout",
    "default_statistics_target",
    "effective_cache_size",
    "gin_pending_list_limit",
    "hash_mem_multiplier",
    "hot_standby_feedback",
    "idle_in_transaction_session_timeout",
    "idle_replication_slot_timeout",
    "lock_timeout",
    "log_lock_waits",
    "maintenance_work_mem",
    "max_connections",
    "max_locks_per_transaction",
    "max_slot_wal_keep_size",
    "max_standby_streaming_delay",
    "max_wal_size",
    "multixact_member_buffers",
    "pg_stat_statements.track",
    "plan_cache_mode",
    "random_page_cost",
    "reserved_connections",
    "server_version_num",
    "shared_buffers",
    "statement_timeout",
    "subtransaction_buffers",
    "superuser_reserved_connections",
    "synchronous_standby_names",
    "track_activities",
    "track_counts",
    "track_io_timing",
    "transaction_buffers",
    "transaction_timeout",
    "vacuum_cost_delay",
    "wal_buffers",
    "work_mem",
];

/// Settings of sessions that findings suggest to change, with the unit of a plain number.
const OF_SESSIONS: [(&str, &str); 5] = [
    ("idle_in_transaction_session_timeout", "ms"),
    ("maintenance_work_mem", "kB"),
    ("plan_cache_mode", ""),
    ("synchronous_commit", ""),
    ("work_mem", "kB"),
];
/// Values of roles and databases that are read.
const ROLE_SETTINGS_MAX: usize = 1000;

/// What ALTER ROLE and ALTER DATABASE have set: our own session does not start with it.
pub(super) fn role_settings(reader: &mut CatalogReader) -> Vec<RoleSetting> {
    let names = OF_SESSIONS.map(|(name, _)| name).join(",");
    let sql = format!(
        "select r.rolname, d.datname, split_part(c.item, '=', 1), \
           substr(c.item, strpos(c.item, '=') + 1) \
         from pg_db_role_setting s cross join unnest(s.setconfig) c (item) \
           left join pg_roles r on r.oid = s.setrole left join pg_database d on d.oid = s.setdatabase \
         where split_part(c.item, '=', 1) = any ('{{{names}}}'::text[]) \
           and (s.setrole = 0 or r.oid is not null) and (s.setdatabase = 0 or d.oid is not null) \
         order by 1, 2, 3 limit {ROLE_SETTINGS_MAX}"
    );
    let rows = reader.rows("settings of roles", &sql).unwrap_or_default();
    let setting = |row: &CatalogRow| {
        let (name, value) = (row.text(2), row.text(3));
        let unit = OF_SESSIONS.iter().find(|it| it.0 == name);
        let unit = unit.filter(|_| value.chars().all(|c| c.is_ascii_digit()));
        RoleSetting {
            role: row.get(0).map(str::to_owned),
            database: row.get(1).map(str::to_owned),
            name,
            value: value + unit.map_or("", |it| it.1),
        }
    };
    rows.iter().map(setting).collect()
}

/// Settings by name.
#[derive(Debug, Default)]
pub(super) struct ServerSettings {
    /// Name, value in the setting's unit, value as `SHOW` prints it.
    values: BTreeMap<String, (String, String)>,
}

/// When autovacuum comes to a table.
#[derive(Debug, PartialEq)]
pub(super) struct AutovacuumThresholds {
    /// Dead rows.
    pub vacuum: f64,
    /// Modified rows.
    pub analyze: f64,
    pub is_enabled: bool,
}

impl ServerSettings {
    /// Reads the values that a new session gets: those of our own transaction are ours.
    pub fn read(reader: &mut CatalogReader) -> Self {
        let names = LISTED.join(",");
        let sql = format!(
            "select name, reset_val, case when setting = reset_val then current_setting(name) \
             when reset_val in ('0', '-1') then reset_val \
             else reset_val || coalesce(unit, '') end \
             from pg_settings where name = any ('{{{names}}}'::text[])"
        );
        let rows = reader.rows("settings", &sql).unwrap_or_default();
        let values = rows
            .iter()
            .map(|row| (row.text(0), (row.text(1), row.text(2))));
        Self {
            values: values.collect(),
        }
    }

    /// Name and value with its unit.
    pub fn listed(&self) -> Vec<(String, String)> {
        let listed = LISTED.iter();
        let value = |name: &&str| Some(((*name).to_owned(), self.values.get(*name)?.1.clone()));
        listed.filter_map(value).collect()
    }

    /// A value in its unit.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.values.get(name)?.0.parse().ok()
    }

    fn is_off(&self, name: &str) -> bool {
        self.values.get(name).is_some_and(|it| it.0 == "off")
    }

    /// Thresholds of a table with these storage parameters and rows. PostgreSQL's
    /// `src/backend/postmaster/autovacuum.c`, `relation_needs_vacanalyze`.
    pub fn thresholds(&self, options: &StorageParameters, rows: f64) -> AutovacuumThresholds {
        // A negative storage parameter means that the setting applies.
        let value = |name: &str| {
            let own = options.number(name).filter(|it| *it >= 0.0);
            own.or_else(|| self.number(name)).unwrap_or(0.0)
        };
        let due = |kind: &str| {
            let base = value(&format!("autovacuum_{kind}_threshold"));
            base + value(&format!("autovacuum_{kind}_scale_factor")) * rows
        };
        // 18: a maximum; -1 turns it off, also as a storage parameter.
        let name = "autovacuum_vacuum_max_threshold";
        let maximum = options.number(name).or_else(|| self.number(name));
        let maximum = maximum.filter(|it| *it >= 0.0).unwrap_or(f64::INFINITY);
        AutovacuumThresholds {
            vacuum: due("vacuum").min(maximum),
            analyze: due("analyze"),
            is_enabled: !self.is_off("autovacuum")
                && !self.is_off("track_counts")
                && !options.is_off("autovacuum_enabled"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_parameters_override_the_thresholds() {
        let mut settings = ServerSettings::default();
        for (name, value) in [
            ("autovacuum", "on"),
            ("autovacuum_vacuum_threshold", "50"),
            ("autovacuum_vacuum_scale_factor", "0.2"),
            ("autovacuum_analyze_threshold", "50"),
            ("autovacuum_analyze_scale_factor", "0.1"),
            ("autovacuum_vacuum_max_threshold", "1000"),
        ] {
            let value = (value.to_owned(), value.to_owned());
            settings.values.insert(name.to_owned(), value);
        }
        let of = |options: &[&str], rows| {
            let options = options.iter().map(|it| (*it).to_owned()).collect();
            let found = settings.thresholds(&StorageParameters(options), rows);
            (found.vacuum, found.analyze, found.is_enabled)
        };
        assert_eq!(of(&[], 1000.0), (250.0, 150.0, true));
        assert_eq!(of(&[], 1e6), (1000.0, 100_050.0, true));
        let options = [
            "autovacuum_vacuum_scale_factor=0.01",
            "autovacuum_analyze_threshold=0",
            "autovacuum_vacuum_max_threshold=-1",
            "autovacuum_enabled=false",
        ];
        assert_eq!(of(&options, 1e6), (10_050.0, 100_000.0, false));
    }
}
