//! Two readings of the server's views, and what happened in between.

use pgassay_record::activity::CatalogActivity;

use super::archiver::archiver;
use super::checkpoints::CheckpointReading;
use super::connections::connections;
use super::databases::{DatabaseReading, ages};
use super::foreign_keys::uncovered_foreign_keys;
use super::horizon::horizon;
use super::indexes::{IndexReading, indexes};
use super::reader::CatalogReader;
use super::replay::replay;
use super::settings::{ServerSettings, role_settings};
use super::slots::{slots, standbys};
use super::tables::{TableReading, chosen, tables};

/// Cumulative counters at a time.
#[derive(Debug, Default)]
pub(super) struct CatalogReading {
    /// The server's clock, in microseconds since 1970.
    clock_us: f64,
    /// The next transaction ID, with its epoch.
    next_xid: u64,
    uptime_us: f64,
    statistics_age_us: Option<f64>,
    tables: TableReading,
    indexes: IndexReading,
    databases: Option<DatabaseReading>,
    checkpoints: Option<CheckpointReading>,
}

impl CatalogReading {
    /// Reads all counters, within a reading of `reader`. A crash discards all statistics; then the
    /// server's have the time of it, and from 15 on the database's have none. Before version 15 a transaction sees the
    /// statistics as they were at its first look, so all are of one time.
    pub fn read(reader: &mut CatalogReader) -> Self {
        let sql = "select extract(epoch from clock_timestamp()) * 1e6, \
                   txid_snapshot_xmax(txid_current_snapshot()), \
                   extract(epoch from clock_timestamp() - pg_postmaster_start_time()) * 1e6, \
                   (select extract(epoch from clock_timestamp() - \
                       greatest(s.stats_reset, b.stats_reset)) * 1e6 \
                     from pg_stat_database s, pg_stat_bgwriter b \
                     where s.datname = current_database()), \
                   pg_is_in_recovery()";
        let mut reading = Self::default();
        let rows = reader.rows("server", sql).unwrap_or_default();
        if let Some(row) = rows.first() {
            reading.clock_us = row.real(0).unwrap_or(0.0);
            reading.next_xid = row.count(1);
            reading.uptime_us = row.duration(2).unwrap_or(0.0);
            reading.statistics_age_us = row.duration(3);
            // It may have been promoted.
            reader.is_standby = row.is_true(4);
        }
        reading.tables = TableReading::read(reader).unwrap_or_else(TableReading::unknown);
        reading.indexes = IndexReading::read(reader).unwrap_or_else(IndexReading::unknown);
        reading.databases = DatabaseReading::read(reader);
        reading.checkpoints = CheckpointReading::read(reader);
        reading
    }

    /// The server's state, with what was counted since an earlier reading. Within a reading of
    /// `reader`.
    pub fn activity_since(
        &self,
        then: &Self,
        reader: &mut CatalogReader,
        keeps_text: bool,
    ) -> CatalogActivity {
        // Either reading of the clock may have failed.
        let has_clocks = self.clock_us > 0.0 && then.clock_us > 0.0;
        let window_us = if has_clocks {
            self.clock_us - then.clock_us
        } else {
            0.0
        };
        let settings = ServerSettings::read(reader);
        let differences = self.tables.since(&then.tables);
        self.tables.note_limits(reader);
        let chosen = chosen(reader, &differences);
        let consumed = self.next_xid.saturating_sub(then.next_xid);
        let consumed_per_s = if window_us > 0.0 {
            consumed as f64 / (window_us / 1e6)
        } else {
            0.0
        };
        let databases = match (&self.databases, &then.databases) {
            (Some(now), Some(then)) => now.since(then, reader.version),
            _ => Vec::new(),
        };
        let checkpoints = self.checkpoints.zip(then.checkpoints);
        let tables = tables(reader, &chosen, &differences, &settings);
        let (indexes, indexes_are_cut) = indexes(reader, &chosen, &then.indexes, &settings);
        CatalogActivity {
            database: reader.database.clone(),
            is_standby: reader.is_standby,
            window_us,
            statistics_age_us: self.statistics_age_us,
            uptime_us: self.uptime_us,
            tables,
            indexes,
            indexes_are_cut,
            uncovered_foreign_keys: uncovered_foreign_keys(reader, &differences),
            databases,
            horizon: horizon(reader, keeps_text),
            slots: slots(reader),
            archiver: archiver(reader),
            replay: replay(reader),
            standbys: standbys(reader),
            ages: ages(reader, &settings, consumed_per_s),
            connections: connections(reader, &settings, then.clock_us),
            checkpoints: checkpoints.map(|(now, then)| now.since(then)),
            settings: settings.listed(),
            role_settings: role_settings(reader),
        }
    }
}
