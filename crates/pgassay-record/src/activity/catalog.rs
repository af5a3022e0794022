//! Tables, indexes and the server's state, from the server's views.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ActivityWait, EndingSignal};

/// A relation by name.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct RelationName {
    /// Its OID.
    pub oid: u32,
    /// Its database; empty if it is a shared catalog.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub database: String,
    /// Its schema; empty if unknown.
    pub schema: String,
    /// Its name; empty if unknown.
    pub name: String,
}

/// What the server's views say. Differences are over the window; everything else is at its end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CatalogActivity {
    /// The database of pgassay's connection: tables and indexes are of this database.
    pub database: String,
    /// The server is a standby.
    pub is_standby: bool,
    /// Length of the window between the two readings, in microseconds.
    pub window_us: f64,
    /// Age of the statistics, in microseconds: since the last reset of the database's or of the server's,
    /// such as by a crash. `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics_age_us: Option<f64>,
    /// Time since the server started, in microseconds.
    pub uptime_us: f64,
    /// Tables with activity or a problem; at most some hundred.
    pub tables: Vec<TableActivity>,
    /// Indexes of these tables, and unused, redundant or invalid ones.
    pub indexes: Vec<IndexActivity>,
    /// Not all indexes of these tables are listed: there are too many, or they could not be read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub indexes_are_cut: bool,
    /// Foreign keys without an index on the referencing table.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uncovered_foreign_keys: Vec<UncoveredForeignKey>,
    /// Databases with activity.
    pub databases: Vec<DatabaseActivity>,
    /// What holds back the removal of dead rows, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub horizon: Vec<HorizonHolder>,
    /// Replication slots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slots: Vec<SlotState>,
    /// The archiver, if WAL is archived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archiver: Option<ArchiverState>,
    /// The replay of WAL, if the server is a standby.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<ReplayState>,
    /// Connected standbys, with a slot or without: `application_name`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub standbys: Vec<String>,
    /// Distance to transaction ID wraparound, by database, closest first.
    pub ages: Vec<DatabaseAge>,
    /// Connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<ConnectionUse>,
    /// Checkpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<CheckpointActivity>,
    /// Settings that findings refer to: name and value with its unit.
    pub settings: Vec<(String, String)>,
    /// Settings that findings refer to and that some sessions start with instead.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub role_settings: Vec<RoleSetting>,
}

/// A value that ALTER ROLE or ALTER DATABASE has set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RoleSetting {
    /// Its role; `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Its database; `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<String>,
    /// The setting.
    pub name: String,
    /// The value as it was written, with its unit.
    pub value: String,
}

/// One table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TableActivity {
    /// The table.
    pub relation: RelationName,
    /// Size of its main fork by `relpages`, in bytes.
    pub size_bytes: u64,
    /// `reltuples`; `None` if never vacuumed or analyzed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_rows: Option<f64>,
    /// `n_live_tup`.
    pub live_rows: u64,
    /// `n_dead_tup`.
    pub dead_rows: u64,
    /// Sequential scans in the window.
    pub sequential_scans: u64,
    /// Rows that they read.
    pub sequential_rows: u64,
    /// Index scans in the window.
    pub index_scans: u64,
    /// Rows inserted in the window.
    pub inserted: u64,
    /// Rows updated.
    pub updated: u64,
    /// Of which HOT.
    pub hot_updated: u64,
    /// Rows deleted.
    pub deleted: u64,
    /// Blocks read from outside the buffer cache in the window (table, indexes and TOAST).
    pub blocks_read: u64,
    /// Blocks found in the buffer cache.
    pub blocks_hit: u64,
    /// Rows modified since the last analyze.
    pub modified_since_analyze: u64,
    /// Modified rows at which autovacuum analyzes it, with its storage parameters.
    pub analyze_threshold: f64,
    /// Dead rows at which autovacuum vacuums it, with its storage parameters.
    pub vacuum_threshold: f64,
    /// Autovacuum is on for it.
    pub autovacuum_enabled: bool,
    /// Time since the last vacuum of any kind, in microseconds; `None` if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vacuumed_ago_us: Option<f64>,
    /// Time since the last analyze of any kind, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub analyzed_ago_us: Option<f64>,
    /// For how long autovacuum has been vacuuming it, in microseconds; `None` if it does not, or if that is hidden.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autovacuum_us: Option<f64>,
    /// `age(relfrozenxid)`.
    pub age: u64,
    /// Statistics of its columns exist.
    pub has_statistics: bool,
    /// The partitioned table that it is a partition of, at any depth (from 10).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_of: Option<RelationName>,
    /// That table was never analyzed, so statistics over all of its partitions do not exist.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub parent_lacks_statistics: bool,
}

/// One index.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "most are columns of pg_index, each on its own"
)]
pub struct IndexActivity {
    /// The index.
    pub relation: RelationName,
    /// Its table.
    pub table: RelationName,
    /// Access method, such as `btree`.
    pub method: String,
    /// Its definition.
    pub columns: Vec<String>,
    /// Size by `relpages`, in bytes.
    pub size_bytes: u64,
    /// Scans in the window.
    pub scans: u64,
    /// Scans since the statistics were reset.
    pub scans_ever: u64,
    /// Age of its definition in transactions; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition_age: Option<u64>,
    /// It enforces uniqueness, or a constraint or replica identity needs it.
    pub is_required: bool,
    /// `indisvalid`.
    pub is_valid: bool,
    /// Writes do not maintain it (`not indisready`): its build failed early.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_unmaintained: bool,
    /// It is being built or dropped now, or may be.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_being_built: bool,
    /// A valid index that serves every scan that this one serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redundant_with: Option<RelationName>,
    /// If nothing scanned it: a foreign key whose columns are its leading ones, and that no other valid index serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign_key: Option<String>,
    /// GIN: `fastupdate` is on and its limit in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_list_limit_bytes: Option<u64>,
}

/// A foreign key whose referencing columns have no index.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UncoveredForeignKey {
    /// The constraint's name.
    pub constraint: String,
    /// The referencing table.
    pub table: RelationName,
    /// Its columns.
    pub columns: Vec<String>,
    /// The referenced table.
    pub referenced: RelationName,
    /// The referenced columns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub referenced_columns: Vec<String>,
    /// Rows deleted from and updated in the referenced table in the window.
    pub referenced_writes: u64,
    /// Of which deleted.
    #[serde(default)]
    pub referenced_deleted: u64,
    /// Of which updated, but not HOT: an upper bound of the rows whose key changed, because the key has
    /// an index.
    #[serde(default)]
    pub referenced_moved: u64,
    /// Size of the referencing table, in bytes.
    pub size_bytes: u64,
}

/// One database's differences over the window.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DatabaseActivity {
    /// Its name.
    pub name: String,
    /// Transactions committed.
    pub committed: u64,
    /// Transactions rolled back.
    pub rolled_back: u64,
    /// Deadlocks.
    pub deadlocks: u64,
    /// Temporary files.
    pub temp_files: u64,
    /// Bytes written to them.
    pub temp_bytes: u64,
    /// Recovery conflicts.
    pub conflicts: u64,
    /// Sessions established; `None` before version 14.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions: Option<u64>,
}

/// Something that holds back the removal of dead rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HorizonHolder {
    /// What it is.
    pub kind: HorizonKind,
    /// Its name: a PID, a prepared transaction's identifier, a slot, or a standby's application name.
    pub name: String,
    /// Its age in transactions.
    pub age: u64,
    /// The age is that of the transaction ID that it has, and not of a snapshot. Results of older versions do not say
    /// it of sessions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_oldest_id: bool,
    /// How long it has existed, in microseconds; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lasting_us: Option<f64>,
    /// Its database; `None` if it affects all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<String>,
    /// For a session: its user, state and last statement.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// For a session: its `state`; empty if hidden.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub state: String,
    /// For a session: what it waits for, other than its client's next statement; `None` if nothing or unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<ActivityWait>,
}

impl HorizonHolder {
    /// The signal that ends a session's transaction.
    pub fn ending_signal(&self) -> EndingSignal {
        EndingSignal::of(&self.state, self.wait.as_ref())
    }
}

/// Kinds of [`HorizonHolder`]s.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum HorizonKind {
    /// A session's snapshot or transaction.
    Session,
    /// A prepared transaction.
    PreparedTransaction,
    /// A replication slot's `xmin`.
    Slot,
    /// A replication slot's `catalog_xmin`: system catalogs only.
    SlotCatalog,
    /// A standby's feedback without a slot.
    Standby,
}

/// A replication slot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SlotState {
    /// Its name.
    pub name: String,
    /// `physical` or `logical`.
    pub kind: String,
    /// A receiver is connected.
    pub is_active: bool,
    /// WAL that it keeps, in bytes; `None` if it keeps none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retained_bytes: Option<u64>,
    /// `wal_status` (from version 13).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wal_status: Option<String>,
    /// Time since its receiver left, in microseconds (from version 17).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inactive_us: Option<f64>,
    /// On a standby: it is a copy of a slot of the primary, and cannot be dropped (from version 17).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_synced: bool,
}

/// What `pg_stat_archiver` says, at the end of the window.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ArchiverState {
    /// The WAL file that could not be archived; `None` if the latest attempt succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_wal: Option<String>,
    /// Failed attempts since the statistics were reset.
    pub failures: u64,
    /// Time since a file was archived, or since the reset of the statistics if none was, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archived_ago_us: Option<f64>,
    /// WAL between the last archived file and the present position, in bytes; `None` if unknown, as on a
    /// standby.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backlog_bytes: Option<u64>,
}

/// What a standby says of its replay, at the end of the window.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReplayState {
    /// A pause was requested, by a user or by the server.
    pub is_paused: bool,
    /// WAL that was received by streaming and is not replayed, in bytes; `None` if none was received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_bytes: Option<u64>,
    /// Time since the last replayed transaction ended on the primary, in microseconds; `None` if none was replayed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind_us: Option<f64>,
}

/// A database's distance to wraparound.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DatabaseAge {
    /// The database.
    pub database: String,
    /// `age(datfrozenxid)`.
    pub age: u64,
    /// `mxid_age(datminmxid)`.
    pub multixact_age: u64,
    /// `autovacuum_freeze_max_age`.
    pub freeze_max_age: u64,
    /// Transaction IDs left before the server refuses new ones.
    pub left: u64,
    /// Transaction IDs assigned per second in the window, on the whole server.
    pub consumed_per_s: f64,
}

/// How many connections there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConnectionUse {
    /// Client backends; before version 12 also WAL senders.
    pub used: u32,
    /// Of which idle; `None` if unknown, because states of other users' sessions are hidden.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<u32>,
    /// `max_connections` without reserved ones.
    pub available: u32,
    /// Backends started in the window, by readings: a lower bound.
    pub started_seen: u64,
    /// Sessions that came and went within 0.25 s, by readings: a lower bound. `None` if the server counts all sessions
    /// (from version 14).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub brief_seen: Option<u64>,
}

/// Checkpoints in the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CheckpointActivity {
    /// Started by `checkpoint_timeout`.
    pub timed: u64,
    /// Started by the amount of WAL or by request.
    pub requested: u64,
    /// Time spent writing, in microseconds.
    pub write_us: f64,
    /// Time spent syncing, in microseconds.
    pub sync_us: f64,
    /// Buffers written by checkpoints.
    pub buffers_written: u64,
    /// Buffers that backends wrote themselves, to get free ones. Before version 16, also those of ring
    /// buffers, and blocks by which relations were extended.
    pub buffers_by_backends: u64,
    /// Buffers that backends wrote to reuse those of a ring buffer, as COPY, VACUUM and large scans do
    /// whatever the size of the buffer cache; `None` before version 16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffers_through_rings: Option<u64>,
    /// WAL written or, on a standby, replayed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wal_bytes: Option<u64>,
}
